"""Nodes that do not exist yet, with their devices: what a node group would add if it grew, even from nothing.

    objects = [*what_there_is, *drakkar.hypothetical(node, slices, count=3)]
    decision = drakkar.allocate(drakkar.snapshot(objects), claims)
    drakkar.is_hypothetical(decision.node)

The template is one Node and the ResourceSlices of its own devices: taken from a live node of the group, or
kept by whoever defines the group when it has none. Slices that name no node belong to no node of a
group, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, cast

import msgspec

from drakkar.api.errors import UsageError
from drakkar.api.meta import Object
from drakkar.api.names import LABEL_HOSTNAME

#: Label of a made-up Node.
HYPOTHETICAL = "drakkar.dev/hypothetical"
#: Between the name of the template and a number; no name of a real node can have it.
_MARK = "+"


def hypothetical(
    node: Mapping[str, Any], slices: Iterable[Any] = (), *, count: int = 1, labels: Mapping[str, str] | None = None
) -> Iterator[Object]:
    """Nodes and slices like those of the template, ``count`` times, named ``<name>+<number>``.

    ``slices`` are JSON dicts or structs whose ``spec.nodeName`` is the template's name; others raise UsageError.
    ``labels`` are added to the nodes. Taints, allocatable and conditions stay as they are in the template.
    """
    name = str(node["metadata"]["name"])
    plain: list[Object] = [_plain(item) for item in slices]
    for item in plain:
        if item["spec"].get("nodeName") != name:
            there = item["spec"].get("nodeName") or "no node"
            raise UsageError(
                f"ResourceSlice {item['metadata'].get('name')} is for {there}, not for the template node {name}; "
                "give only the slices that a new node would bring along"
            )
    for number in range(count):
        new = f"{name}{_MARK}{number}"
        made = deepcopy(dict(node))
        metadata = made["metadata"]
        metadata |= {"name": new, "uid": f"hypothetical-{new}"}
        metadata["labels"] = {
            **(metadata.get("labels") or {}),
            **(labels or {}),
            LABEL_HOSTNAME: new,
            HYPOTHETICAL: "true",
        }
        yield made
        for item in plain:
            yield _moved(item, name, new)


def is_hypothetical(node: str | None) -> bool:
    """Whether the name is that of a node out of :func:`hypothetical`."""
    return node is not None and _MARK in node


def _moved(item: Object, old: str, new: str) -> Object:
    made = deepcopy(item)
    made["metadata"] = {
        "name": f"{made['metadata'].get('name', 'slice')}-{new}",
        "uid": f"{new}-{item['metadata'].get('name')}",
    }
    spec = made["spec"]
    spec["nodeName"] = new
    pool = spec["pool"]["name"]
    # Pools of nodes are mostly named after them; any other name must not be shared between nodes either.
    spec["pool"]["name"] = new if pool == old else f"{pool}-{new}"
    return made


def _plain(item: Any) -> Object:
    if isinstance(item, Mapping):
        return dict(cast("Mapping[str, Any]", item))
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **msgspec.to_builtins(item)}
