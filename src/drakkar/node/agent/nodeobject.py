"""The agent's Node object: pure, from facts of the machine to writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drakkar.api.declared import OUR_NODES
from drakkar.api.kinds import NODE
from drakkar.api.meta import Object
from drakkar.api.names import LABEL_ARCH, LABEL_HOSTNAME, LABEL_OS, NODE_READY
from drakkar.api.objects import labels_of, name_of
from drakkar.api.tree import child
from drakkar.client.clock import timestamp
from drakkar.client.writes import Patch
from drakkar.node.conditions import node_condition

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "the agent does not watch memory"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "the agent does not watch disks"),
    ("PIDPressure", "KubeletHasSufficientPID", "the agent does not watch processes"),
)


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What the agent says about its node."""

    name: str
    address: str
    port: int
    labels: Mapping[str, str]
    capacity: Mapping[str, str]
    info: Object
    architecture: str

    def wanted_labels(self) -> dict[str, str]:
        """The labels that the node gives itself."""
        own = {LABEL_HOSTNAME: self.name, LABEL_OS: "linux", LABEL_ARCH: self.architecture}
        return {**self.labels, **own}


def registration(about: NodeDescription) -> Object:
    """The Node to create."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": about.name, "labels": about.wanted_labels()}}


def label_patch(node: Object, about: NodeDescription) -> Patch | None:
    """A patch when labels that the node gives itself are missing or differ."""
    have = labels_of(node)
    missing = {key: value for key, value in about.wanted_labels().items() if have.get(key) != value}
    return Patch(NODE, "", about.name, {"metadata": {"labels": missing}}) if missing else None


def status_patch(node: Object, about: NodeDescription, now: float, *, ready: bool, words: str) -> Patch:
    """The patch that tells whether the node is ready, and everything about it."""
    stamp = timestamp(now)
    state = (NODE_READY, "True" if ready else "False", "KubeletReady" if ready else "KubeletNotReady", words)
    entries = [state, *((kind, "False", reason, message) for kind, reason, message in _PRESSURES)]
    # What drivers or administrators have added to the capacity stays.
    known = child(node, "status", "capacity")
    capacity = {**known, **about.capacity}
    status = {
        "capacity": capacity,
        "allocatable": {**child(node, "status", "allocatable"), **about.capacity},
        "conditions": [node_condition(node, *entry, stamp=stamp) for entry in entries],
        "addresses": [
            {"type": "InternalIP", "address": about.address},
            {"type": "Hostname", "address": about.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": about.port}},
        "nodeInfo": about.info,
        "declaredFeatures": [*OUR_NODES],
    }
    return Patch(NODE, "", name_of(node), {"status": status}, type="strategic", subresource="status")
