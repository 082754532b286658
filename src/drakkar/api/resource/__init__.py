"""The API group resource.k8s.io: types, defaults, validation and conversion of its versions."""
