"""Why a node or a pod's objects are no good just now, and which events could change that."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Cause(Enum):
    """What can make a pod fit that did not (spec/scheduling.md 9)."""

    #: One of the pod's own claims changed, or another pod of such a claim ended.
    CLAIM = "claim"
    #: Devices were freed or published, or a class or a device taint changed.
    DEVICE = "device"
    #: A node was added, or its labels, declared features or readiness changed.
    NODE = "node"
    #: Taints of a node changed; a cordon is one.
    TAINT = "taint"
    #: A node offers other amounts of resources than before.
    CAPACITY = "capacity"
    #: A pod ended and gave its room back.
    ROOM = "room"
    #: A pod came to a node, or its labels changed there.
    POD = "pod"
    #: A volume or a claim for one changed.
    VOLUME = "volume"
    #: A pod group, or the number of pods in one, changed.
    GROUP = "group"


class Refusal(NamedTuple):
    """One reason, in the words of Kubernetes' scheduler where it has some."""

    text: str
    #: A new or changed node can always help, so NODE is in every refusal by a node.
    causes: frozenset[Cause]


def refusal(text: str, *causes: Cause) -> Refusal:
    """A refusal by a node."""
    return Refusal(text, frozenset((Cause.NODE, *causes)))
