"""The version of this distribution; read by the build and by ``drakkar --version``."""

__version__ = "0.1.0"

#: The Kubernetes release whose API and behaviour this release reproduces.
KUBERNETES_VERSION = "1.37.2"

#: What nodes of ours say that they are.
NODE_VERSION = f"v{KUBERNETES_VERSION}-drakkar.{__version__}"
