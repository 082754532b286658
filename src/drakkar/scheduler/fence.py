"""The fence: a taint on the devices of a driver that every allocator respects but ours (spec/groups.md 3.5).

One DeviceTaintRule per driver, effect NoSchedule: kube-scheduler allocates none of its devices any more, and nothing
that runs is evicted. Pods whose claims are allocated already are let through, because taints are looked at when
devices are chosen; so pods of gate mode are bound as always. Who tolerates the taint, by its key or by an empty key
with operator Exists, climbs over the fence: the chart's admission policy refuses such claims.
"""

from __future__ import annotations

import msgspec

from drakkar.api.meta import ObjectMeta
from drakkar.api.resource import v1 as resource

#: Key of the taint.
KEY = "drakkar.dev/managed"
_PREFIX = "drakkar-fence-"


def fence_name(driver: str) -> str:
    """Name of the rule that fences a driver's devices."""
    return f"{_PREFIX}{driver}"


def fence_rule(driver: str) -> resource.DeviceTaintRule:
    """The rule that fences all devices of a driver."""
    return resource.DeviceTaintRule(
        metadata=ObjectMeta(name=fence_name(driver)),
        spec=resource.DeviceTaintRuleSpec(
            deviceSelector=resource.DeviceTaintSelector(driver=driver),
            taint=resource.DeviceTaint(key=KEY, effect="NoSchedule"),
        ),
    )


def is_fence(rule: resource.DeviceTaintRule) -> bool:
    """Whether the rule keeps others away and means nothing to us, whoever made it and whatever it selects."""
    return _fences(rule.spec.taint)


def without_fence(item: resource.ResourceSlice) -> resource.ResourceSlice:
    """The slice without our key among its taints: a driver that is ours alone may publish the fence itself."""
    devices = item.spec.devices or ()
    if not any([any(map(_fences, device.taints)) for device in devices if device.taints]):
        return item
    freed = [
        msgspec.structs.replace(device, taints=[t for t in device.taints if not _fences(t)] or None)
        if device.taints
        else device
        for device in devices
    ]
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=freed))


def _fences(taint: resource.DeviceTaint) -> bool:
    """With another effect the key is no fence: who is evicted by it must not be placed there again."""
    return taint.key == KEY and taint.effect == "NoSchedule"
