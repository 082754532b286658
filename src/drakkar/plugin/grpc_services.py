"""The gRPC services by name. Note that DRA is offered under another name than it is called by; health is not."""

REGISTRATION = "pluginregistration.Registration"
#: Offered name → name in the path of a call, in order of preference.
DRA = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
HEALTH = {"v1.DRAResourceHealth": "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth": "v1alpha1.DRAResourceHealth"}
