"""Defaults, validation and strategies of the kinds outside resource.k8s.io that our components write."""
