"""One function per way to model devices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from drakkar.api.resource import v1
from drakkar.driver import Pool, SliceContent, consumes, counter_set, device

NAME = "example.drakkar.dev"
#: Nodes with this label reach the network-attached devices.
FABRIC = f"{NAME}/fabric"
#: Condition that a device with binding conditions waits for, and the one that says it will not come.
ATTACHED, ATTACH_FAILED = f"{NAME}/Attached", f"{NAME}/AttachFailed"

Found = Sequence[v1.Device | v1.CounterSet]


def plain() -> Found:
    """Eight devices on two NUMA nodes, one claim each."""
    return [
        device(
            f"gpu-{i}",
            {"index": i, "model": "LATEST" if i < 6 else "OLDER"},
            {"memory": "80Gi" if i < 6 else "40Gi"},
            numa_node=i // 4,
            pcie_root=f"pci0000:{i // 2:02x}",
        )
        for i in range(8)
    ]


def partitionable() -> Found:
    """Two cards that can be given away whole, in halves or in quarters; counters keep them from overlapping."""
    found: list[v1.Device | v1.CounterSet] = []
    for card in range(2):
        name = f"card-{card}"
        found.append(counter_set(name, {"memory": "40Gi", **{f"slot-{slot}": 1 for slot in range(4)}}))
    for card in range(2):
        name = f"card-{card}"
        for size, word in ((4, "whole"), (2, "half"), (1, "quarter")):
            for start in range(0, 4, size):
                slots = {f"slot-{slot}": 1 for slot in range(start, start + size)}
                drawn = consumes(name, {"memory": f"{10 * size}Gi", **slots})
                found.append(
                    device(
                        f"{name}-{word}" + (f"-{start // size}" if size < 4 else ""),
                        {"card": name, "partition": word},
                        {"memory": f"{10 * size}Gi"},
                        consumes=[drawn],
                    )
                )
    return found


def consumable() -> Found:
    """Two ports whose bandwidth is shared out by the gigabit, and not at all to whoever does not ask."""
    policy = v1.CapacityRequestPolicy(
        default="1G", validRange=v1.CapacityRequestPolicyRange(min="1G", max="100G", step="1G")
    )
    bandwidth = v1.DeviceCapacity(value="100G", requestPolicy=policy)
    return [device(f"port-{i}", {"index": i}, {"bandwidth": bandwidth}, shared=True) for i in range(2)]


def taints() -> Found:
    """Four devices: two good ones, one for those who tolerate its mark, one that nobody may keep."""
    marks = {2: v1.DeviceTaint(key=f"{NAME}/experimental", value="true", effect="NoSchedule"),
             3: v1.DeviceTaint(key=f"{NAME}/broken", effect="NoExecute")}  # fmt: skip
    return [
        msgspec.structs.replace(device(f"gpu-{i}", {"index": i}), taints=[marks[i]] if i in marks else None)
        for i in range(4)
    ]


def binding_conditions() -> Found:
    """Two devices that have to be attached to the node before a pod may be bound to it."""
    return [
        msgspec.structs.replace(
            device(f"fpga-{i}", {"index": i}),
            bindsToNode=True,
            bindingConditions=[ATTACHED],
            bindingFailureConditions=[ATTACH_FAILED],
        )
        for i in range(2)
    ]


def network_pool() -> Pool:
    """Four devices on a fabric: whichever labelled node gets one, the others cannot have it."""
    requirement = NodeSelectorRequirement(key=FABRIC, operator="Exists")
    selector = NodeSelector(nodeSelectorTerms=[NodeSelectorTerm(matchExpressions=[requirement])])
    devices = tuple(device(f"fabric-{i}", {"index": i}, {"memory": "256Gi"}) for i in range(4))
    return Pool("fabric", (SliceContent(devices=devices),), node_selector=selector)
