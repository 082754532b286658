"""Names that controller, node driver and manifests share."""

from __future__ import annotations

from drakkar.api.kinds import Kind

NAME = "computedomain.drakkar.dev"
VERSION = "v1alpha1"
COMPUTEDOMAIN = Kind(NAME, VERSION, "ComputeDomain", "computedomains", True)
#: Label of a Node: its clique, the part of the NVLink fabric that its GPUs are on.
CLIQUE = f"{NAME}/clique"
DEVICE_CLASS = NAME
#: Request of the claim that the controller makes.
REQUEST = "channel"
