"""Validation of ResourceSlices (spec/api.md section 3)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from drakkar.api import formats
from drakkar.api.faults import Faults, keyed
from drakkar.api.meta import Object
from drakkar.api.quantity import INT64_MAX, Quantity
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.tree import child, children, text, texts

DEVICES_MAX: Final = 128
#: With taints, counters or list attributes a device is larger, so fewer fit.
RICH_DEVICES_MAX: Final = 64
NAMES_MAX: Final = 32
VALUES_MAX: Final = 48
TAINTS_MAX: Final = 16
COUNTER_SETS_MAX: Final = 8
COUNTERS_MAX: Final = 32
CONSUMED_SETS_MAX: Final = 2
COMPATIBILITY_GROUPS_MAX: Final = 2
VALID_VALUES_MAX: Final = 10

_LISTS: Final = ("ints", "bools", "strings", "versions")
_SCALARS: Final = ("int", "bool", "string", "version")
#: Fields of a device about which there is no rule beyond their own values.
_PLAIN_FIELDS: Final = frozenset(("name", "attributes", "capacity"))
_NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes")


def validate_slice(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a slice's ``spec``."""
    spec = child(obj, "spec")
    before = child(old, "spec")
    shared.driver_name(faults, "spec.driver", text(spec, "driver"))
    pool = child(spec, "pool")
    shared.pool_name(faults, "spec.pool.name", text(pool, "name"))
    if (pool.get("resourceSliceCount") or 0) <= 0:
        faults.invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
    if (pool.get("generation") or 0) < 0:
        faults.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")
    if old is not None:
        shared.immutable(faults, "spec.driver", spec.get("driver"), before.get("driver"))
        shared.immutable(faults, "spec.pool.name", pool.get("name"), child(before, "pool").get("name"))
        shared.immutable(faults, "spec.nodeName", spec.get("nodeName"), before.get("nodeName"))

    _spec_nodes(faults, spec)
    devices, sets = children(spec, "devices"), children(spec, "sharedCounters")
    if devices and sets:
        faults.invalid("spec", None, "only one of `sharedCounters` or `devices` is allowed")
    if sets and faults.fits("spec.sharedCounters", sets, COUNTER_SETS_MAX):
        for index, item in enumerate(sets):
            path = f"spec.sharedCounters[{index}]"
            shared.named(faults, f"{path}.name", text(item, "name"), formats.dns_label)
            shared.counters(faults, f"{path}.counters", child(item, "counters"), COUNTERS_MAX)
        faults.unique("spec.sharedCounters", [text(item, "name") for item in sets], ".name")

    limit = RICH_DEVICES_MAX if any(_is_rich(device) for device in devices) else DEVICES_MAX
    if faults.fits("spec.devices", devices, limit):
        known = {text(device, "name"): device for device in children(before, "devices")}
        per_device = spec.get("perDeviceNodeSelection") is True
        for index, device in enumerate(devices):
            _device(faults, f"spec.devices[{index}]", device, known.get(text(device, "name")), per_device)
        faults.unique("spec.devices", [text(device, "name") for device in devices], ".name")
    _partition_type(faults, spec, ctx)
    shared.skip_operations(faults, "spec.skipNodeOperations", texts(spec, "skipNodeOperations"))


def slice_warnings(obj: Object, old: Object | None) -> list[str]:
    """Driver names should be lower case."""
    driver = text(obj, "spec", "driver")
    if driver != driver.lower():
        return [f"spec.driver: driver names should be lowercase; {driver!r} contains uppercase characters"]
    return []


def _spec_nodes(faults: Faults, spec: Object) -> None:
    given = [field for field in (*_NODE_FIELDS, "perDeviceNodeSelection") if spec.get(field) is not None]
    _node_fields(faults, "spec", spec, one_term=True)
    if "perDeviceNodeSelection" in given:
        shared.only_true(faults, "spec.perDeviceNodeSelection", spec["perDeviceNodeSelection"])
    wanted = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not given:
        faults.required("spec", wanted)
    elif len(given) > 1:
        faults.invalid("spec", given, f"{wanted}, but multiple fields are set")


def _node_fields(faults: Faults, path: str, holder: Object, one_term: bool) -> None:
    if holder.get("nodeName") is not None:
        shared.node_name(faults, f"{path}.nodeName", text(holder, "nodeName"))
    if holder.get("nodeSelector") is not None:
        selector = child(holder, "nodeSelector")
        shared.node_selector(faults, f"{path}.nodeSelector", selector)
        terms = children(selector, "nodeSelectorTerms")
        if one_term and len(terms) > 1:
            faults.invalid(
                f"{path}.nodeSelector.nodeSelectorTerms", len(terms), "must have exactly one node selector term"
            )
    if holder.get("allNodes") is not None:
        shared.only_true(faults, f"{path}.allNodes", holder["allNodes"])


def _is_rich(device: Object) -> bool:
    if device.keys() <= _PLAIN_FIELDS and _are_plain_attributes(child(device, "attributes")):
        return False
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(
        attribute.get(field) is not None for attribute in child(device, "attributes").values() for field in _LISTS
    )


def _partition_type(faults: Faults, spec: Object, ctx: ValidationContext) -> None:
    name = spec.get("partitionTypeAttribute")
    if name is None:
        return
    path = "spec.partitionTypeAttribute"
    if "DRAPartitionableDevicesType" not in ctx.features:
        faults.forbidden(path, "needs the feature gate DRAPartitionableDevicesType")
        return
    shared.fully_qualified_name(faults, path, name)
    domain, _, identifier = name.rpartition("/")
    spellings = {name, identifier} if domain == text(spec, "driver") else {name}
    partitions = [
        (index, device) for index, device in enumerate(children(spec, "devices")) if device.get("consumesCounters")
    ]
    if not partitions:
        faults.invalid(path, name, "may only be set if at least one device consumes counters")
    for index, device in partitions:
        attributes = child(device, "attributes")
        if not any(text(child(attributes, spelling), "string") for spelling in spellings):
            faults.required(
                keyed(f"spec.devices[{index}].attributes", name, shared.QUALIFIED_NAME_MAX),
                "a device that consumes counters must have the partition type as a string attribute",
            )


def _device(faults: Faults, path: str, device: Object, old: Object | None, per_device: bool) -> None:
    shared.named(faults, f"{path}.name", text(device, "name"), formats.dns_label)
    attributes, capacity = child(device, "attributes"), child(device, "capacity")
    if len(attributes) + len(capacity) > NAMES_MAX:
        faults.invalid(
            path,
            len(attributes) + len(capacity),
            f"the total number of attributes and capacities must not exceed {NAMES_MAX}",
        )
    else:
        values = 0
        if not _are_plain_attributes(attributes):
            for name, attribute in sorted(attributes.items()):
                at_item = keyed(f"{path}.attributes", name, shared.QUALIFIED_NAME_MAX)
                values += _attribute(faults, at_item, name, attribute)
        if values > VALUES_MAX:
            faults.invalid(
                f"{path}.attributes", values, f"the total number of attribute values must not exceed {VALUES_MAX}"
            )
        if not _is_plain_capacity(capacity) and (old is None or not same_meaning(capacity, child(old, "capacity"))):
            for name, item in sorted(capacity.items()):
                at_item = keyed(f"{path}.capacity", name, shared.QUALIFIED_NAME_MAX)
                shared.qualified_name(faults, at_item, name)
                _capacity(faults, at_item, item, device.get("allowMultipleAllocations") is True)

    if device.keys() <= _PLAIN_FIELDS and not per_device:
        return
    taints, taints_before = children(device, "taints"), children(old, "taints")
    if (old is None or not same_meaning(taints, taints_before)) and faults.fits(f"{path}.taints", taints, TAINTS_MAX):
        for index, taint in enumerate(taints):
            before = taints_before[index] if index < len(taints_before) else None
            shared.taint(faults, f"{path}.taints[{index}]", taint, before)
    _consumption(faults, f"{path}.consumesCounters", children(device, "consumesCounters"))
    _device_nodes(faults, path, device, per_device)
    shared.binding_conditions(faults, path, device)
    for name, resource in sorted(child(device, "nodeAllocatableResources").items()):
        _node_allocatable(faults, keyed(f"{path}.nodeAllocatableResources", name), name, resource, capacity)


def _device_nodes(faults: Faults, path: str, device: Object, per_device: bool) -> None:
    given = [field for field in _NODE_FIELDS if device.get(field) is not None]
    if not per_device:
        for field in given:
            faults.invalid(
                f"{path}.{field}",
                device[field],
                f"`{field}` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            )
        return
    _node_fields(faults, path, device, one_term=False)
    wanted = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required "
        "when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    )
    if not given:
        faults.required(path, wanted)
    elif len(given) > 1:
        faults.invalid(path, given, wanted)


# Almost every device is plain: the next three functions find that out without building a path. What they do not
# accept is not wrong, it is looked at closely.


@lru_cache(maxsize=4096)
def _is_plain_name(name: str) -> bool:
    faults = Faults()
    shared.qualified_name(faults, "", name)
    return not faults.found


def _are_plain_attributes(attributes: Object) -> bool:
    """Whether :func:`_attribute` would find nothing, and every attribute counts for one value."""
    for name, attribute in attributes.items():
        if len(attribute) != 1 or not _is_plain_name(name):
            return False
        for field, value in attribute.items():
            if field == "string" or field == "version":
                if type(value) is not str or len(value) > shared.ATTRIBUTE_TEXT_MAX or not value.isascii():
                    return False
                if field == "version" and not shared.is_version(value):
                    return False
            elif (field != "int" and field != "bool") or value is None:
                return False
    return True


def _is_plain_capacity(capacity: Object) -> bool:
    """Whether there are amounts only, and names and amounts without faults."""
    for name, item in capacity.items():
        if len(item) != 1 or not _is_plain_name(name):
            return False
        value = item.get("value")
        if type(value) is not str or not shared.is_quantity(value):
            return False
    return True


def _attribute(faults: Faults, path: str, name: str, attribute: Object) -> int:
    """Checks one attribute; returns how many values it counts for."""
    shared.qualified_name(faults, path, name)
    given = [field for field in (*_SCALARS, *_LISTS) if attribute.get(field) is not None]
    if len(given) != 1:
        faults.invalid(path, attribute, "exactly one value must be specified")
    count = 0
    for field in given:
        value = attribute[field]
        items = value if field in _LISTS else [value]
        if field in _LISTS and not items:
            faults.invalid(f"{path}.{field}", value, "must not be empty")
        for index, item in enumerate(items):
            at_item = f"{path}.{field}[{index}]" if field in _LISTS else f"{path}.{field}"
            if field in ("string", "strings"):
                shared.short_text(faults, at_item, item)
            elif field in ("version", "versions"):
                shared.version(faults, at_item, item)
        count += len(items)
    return count


def _consumption(faults: Faults, path: str, items: list[Object]) -> None:
    if not faults.fits(path, items, CONSUMED_SETS_MAX):
        return
    for index, item in enumerate(items):
        at_item = f"{path}[{index}]"
        shared.named(faults, f"{at_item}.counterSet", text(item, "counterSet"), formats.dns_label)
        shared.counters(faults, f"{at_item}.counters", child(item, "counters"), COUNTERS_MAX)
        groups = texts(item, "compatibilityGroups")
        if shared.string_set(faults, f"{at_item}.compatibilityGroups", groups, COMPATIBILITY_GROUPS_MAX):
            for position, group in enumerate(groups):
                if not group:
                    faults.required(f"{at_item}.compatibilityGroups[{position}]")
    faults.unique(path, [text(item, "counterSet") for item in items], ".counterSet")


def _capacity(faults: Faults, path: str, item: Object, shareable: bool) -> None:
    value = shared.quantity(faults, f"{path}.value", item.get("value"))
    policy = item.get("requestPolicy")
    if policy is None:
        return
    if not shareable:
        faults.forbidden(f"{path}.requestPolicy", "allowMultipleAllocations must be true")
    elif value is not None:
        _policy(faults, f"{path}.requestPolicy", child(item, "requestPolicy"), value)


def _policy(faults: Faults, path: str, policy: Object, value: Quantity) -> None:
    ranged, listed = policy.get("validRange"), policy.get("validValues")
    default = None
    if policy.get("default") is not None:
        default = shared.quantity(faults, f"{path}.default", policy["default"])
    elif ranged is not None or listed:
        faults.required(f"{path}.default", "required when `validValues` or `validRange` is defined")
    if ranged is not None and listed:
        faults.forbidden(path, "exactly one policy can be specified, cannot specify `validValues` and `validRange`")
    elif listed:
        _valid_values(faults, path, listed, value, default)
    elif ranged is not None:
        _valid_range(faults, f"{path}.validRange", child(policy, "validRange"), value, default, f"{path}.default")


def _valid_values(faults: Faults, path: str, listed: list[str], value: Quantity, default: Quantity | None) -> None:
    path = f"{path}.validValues"
    if not faults.fits(path, listed, VALID_VALUES_MAX):
        return
    last: Quantity | None = None
    found = False
    for index, spelled in enumerate(listed):
        item = shared.quantity(faults, f"{path}[{index}]", spelled)
        if item is None:
            continue
        if item > value:
            faults.invalid(f"{path}[{index}]", spelled, f"option is larger than capacity value: {value}")
        if last is not None and item == last:
            faults.duplicate(f"{path}[{index}]", spelled)
        elif last is not None and item < last:
            faults.invalid(path, spelled, "values must be sorted in ascending order")
        found = found or item == default
        last = item
    if default is not None and not found:
        faults.invalid(path, default.canonical(), "default value is not valid according to the requestPolicy")


def _valid_range(
    faults: Faults, path: str, given: Object, value: Quantity, default: Quantity | None, default_path: str
) -> None:
    if given.get("min") is None:
        faults.required(f"{path}.min")
        return
    low = shared.quantity(faults, f"{path}.min", given["min"])
    high = shared.quantity(faults, f"{path}.max", given["max"]) if given.get("max") is not None else None
    step = shared.quantity(faults, f"{path}.step", given["step"]) if given.get("step") is not None else None
    if low is None:
        return
    if low > value:
        faults.invalid(f"{path}.min", given["min"], f"min is larger than capacity value: {value}")
    if default is not None and default < low:
        faults.invalid(default_path, default.canonical(), f"default is less than min: {low}")
    if high is not None:
        if high < low:
            faults.invalid(f"{path}.min", given["min"], f"min is larger than max: {high}")
        if high > value:
            faults.invalid(f"{path}.max", given["max"], f"max is larger than capacity value: {value}")
        if default is not None and default > high:
            faults.invalid(default_path, default.canonical(), f"default is more than max: {high}")
    if step is None:
        return
    if step.sign() <= 0:
        faults.invalid(f"{path}.step", given["step"], "step must be greater than zero")
        return
    parts = [part for part in (default, low, high, step) if part is not None]
    milli = not all(part.is_whole for part in parts)
    if milli and not all(part.has_milli for part in parts):
        faults.invalid(f"{path}.step", given["step"], "values finer than one thousandth are not supported with a step")
        return
    amounts = [part.to_milli() if milli else part.to_int() for part in parts]
    if any(not 0 <= amount <= INT64_MAX for amount in amounts):
        faults.invalid(path, given["step"], "values used with a step must be between 0 and 9223372036854775807")
        return
    if low + step > value:
        faults.invalid(f"{path}.step", given["step"], f"one step above min is larger than capacity value: {value}")
    for name, part, at_part in (("default", default, default_path), ("max", high, f"{path}.max")):
        if part is not None and (part - low).nanos % step.nanos:
            faults.invalid(at_part, part.canonical(), f"{name} is not a multiple of step ({step}) from min ({low})")


def _node_allocatable(faults: Faults, path: str, name: str, resource: Object, capacity: Object) -> None:
    if not formats.is_node_allocatable(name):
        faults.invalid(path, name, "must be a resource that nodes allocate, not an extended resource")
    mapping, overhead = resource.get("mapping"), resource.get("overhead")
    if mapping is None and overhead is None:
        faults.required(path, "at least one of `mapping` or `overhead` is required")
    if mapping is not None:
        _mapping(faults, f"{path}.mapping", child(resource, "mapping"), capacity)
    if overhead is not None:
        given = child(resource, "overhead")
        fields = [field for field in ("perPod", "perContainer") if given.get(field) is not None]
        if not fields:
            faults.required(f"{path}.overhead", "at least one of `perPod` or `perContainer` is required")
        for field in fields:
            amount = shared.quantity(faults, f"{path}.overhead.{field}", given[field])
            if amount is not None and amount.sign() < 0:
                faults.invalid(f"{path}.overhead.{field}", given[field], "must be greater than or equal to 0")


def _mapping(faults: Faults, path: str, mapping: Object, capacity: Object) -> None:
    key, per_device = mapping.get("capacityKey"), mapping.get("deviceMultiplier")
    wanted = "exactly one of `capacityKey` or `deviceMultiplier` is required"
    if key is None and per_device is None:
        faults.required(path, wanted)
    elif key is not None and per_device is not None:
        faults.invalid(path, None, f"{wanted}, but multiple fields are set")
    if key is not None:
        if mapping.get("capacityMultiplier") is None:
            faults.required(f"{path}.capacityMultiplier", "required when `capacityKey` is set")
        if key not in capacity:
            faults.invalid(f"{path}.capacityKey", key, "must be a capacity of the device")
    elif mapping.get("capacityMultiplier") is not None:
        faults.required(f"{path}.capacityKey", "required when `capacityMultiplier` is set")
    for field in ("capacityMultiplier", "deviceMultiplier"):
        if mapping.get(field) is not None:
            amount = shared.quantity(faults, f"{path}.{field}", mapping[field])
            if amount is not None and amount.sign() <= 0:
                faults.invalid(f"{path}.{field}", mapping[field], "must be greater than 0")
