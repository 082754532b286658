"""The version of this distribution; read by the build and by ``drakkar --version``."""

__version__ = "0.1.0"

#: The Kubernetes release whose API and behaviour this release reproduces.
KUBERNETES_VERSION = "1.37.2"
