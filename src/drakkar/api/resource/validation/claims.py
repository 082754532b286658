"""Validation of ResourceClaims and ResourceClaimTemplates (spec/api.md section 4, 6.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from drakkar.api import formats
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.metadata import check_annotations, check_labels
from drakkar.api.names import ADMIN_ACCESS_LABEL
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.tree import at, child, children, text, texts

REQUESTS_MAX: Final = 32
CONSTRAINTS_MAX: Final = 32
ALTERNATIVES_MAX: Final = 8
DERIVED_ATTRIBUTES_MAX: Final = 32
RESERVED_FOR_MAX: Final = 256
RESULTS_MAX: Final = 32
RESULT_CONFIG_MAX: Final = 64
IPS_MAX: Final = 16
INTERFACE_NAME_MAX: Final = 256
HARDWARE_ADDRESS_MAX: Final = 128

_NOT_ADMIN: Final = (
    f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
)
_NO_REQUEST: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


def validate_claim(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a claim written through its main endpoint."""
    if old is not None:
        shared.immutable(faults, "spec", obj.get("spec"), old.get("spec"))
        return
    _admin_access(faults, "spec", child(obj, "spec"), ctx)
    _claim_spec(faults, "spec", child(obj, "spec"), ctx)


def validate_template(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a template."""
    if old is not None:
        shared.immutable(faults, "spec", obj.get("spec"), old.get("spec"))
        return
    metadata = child(obj, "spec", "metadata")
    _admin_access(faults, "spec.spec", child(obj, "spec", "spec"), ctx)
    check_labels(faults, child(metadata, "labels"), "spec.metadata.labels")
    check_annotations(faults, child(metadata, "annotations"), "spec.metadata.annotations")
    for field, value in metadata.items():
        if field not in ("labels", "annotations") and value:
            faults.forbidden(f"spec.metadata.{field}", "must not be set")
    _claim_spec(faults, "spec.spec", child(obj, "spec", "spec"), ctx)


def _admin_access(faults: Faults, path: str, spec: Object, ctx: ValidationContext) -> None:
    if ctx.namespace_labels.get(ADMIN_ACCESS_LABEL) == "true":
        return
    for index, request in enumerate(children(spec, "devices", "requests")):
        if at(request, "exactly", "adminAccess") is True:
            # Upstream leaves ``exactly`` out of this one path.
            faults.forbidden(f"{path}.devices.requests[{index}].adminAccess", _NOT_ADMIN)
            return


def _claim_spec(faults: Faults, path: str, spec: Object, ctx: ValidationContext) -> None:
    devices = child(spec, "devices")
    path = f"{path}.devices"
    requests, constraints = children(devices, "requests"), children(devices, "constraints")
    references = request_references(spec)
    if faults.fits(f"{path}.requests", requests, REQUESTS_MAX):
        for index, request in enumerate(requests):
            _request(faults, f"{path}.requests[{index}]", request, constraints, ctx)
        faults.unique(f"{path}.requests", [text(request, "name") for request in requests], ".name")
    if faults.fits(f"{path}.constraints", constraints, CONSTRAINTS_MAX):
        for index, constraint in enumerate(constraints):
            _constraint(faults, f"{path}.constraints[{index}]", constraint, references)
    config = children(devices, "config")
    if faults.fits(f"{path}.config", config, shared.CONFIG_MAX):
        for index, item in enumerate(config):
            _references(faults, f"{path}.config[{index}].requests", texts(item, "requests"), references)
            shared.opaque(faults, f"{path}.config[{index}]", item)


def request_references(spec: Object) -> frozenset[str]:
    """What constraints, configuration and results of a claim may name: requests and ``request/subrequest``."""
    names: list[str] = []
    for request in children(spec, "devices", "requests"):
        name = text(request, "name")
        names.append(name)
        names += [f"{name}/{text(alternative, 'name')}" for alternative in children(request, "firstAvailable")]
    return frozenset(names)


def _references(faults: Faults, path: str, names: list[str], known: frozenset[str]) -> None:
    if not shared.string_set(faults, path, names, REQUESTS_MAX):
        return
    for index, name in enumerate(names):
        if name not in known:
            faults.invalid(f"{path}[{index}]", name, _NO_REQUEST)


def _request(faults: Faults, path: str, request: Object, constraints: list[Object], ctx: ValidationContext) -> None:
    name = text(request, "name")
    shared.named(faults, f"{path}.name", name, formats.dns_label)
    alternatives = children(request, "firstAvailable")
    wanted = "exactly one of `exactly` or `firstAvailable` is required"
    if request.get("exactly") is None and not alternatives:
        faults.required(path, wanted)
    elif request.get("exactly") is not None and alternatives:
        faults.invalid(path, None, f"{wanted}, but multiple fields are set")
    if request.get("exactly") is not None:
        main = child(request, "exactly")
        _main_fields(faults, f"{path}.exactly", main, ctx)
        _derived(faults, f"{path}.exactly.derivedAttributes", main, (name,), constraints, ctx)
    if faults.fits(f"{path}.firstAvailable", alternatives, ALTERNATIVES_MAX):
        for index, alternative in enumerate(alternatives):
            at_item = f"{path}.firstAvailable[{index}]"
            own = text(alternative, "name")
            shared.named(faults, f"{at_item}.name", own, formats.dns_label)
            _main_fields(faults, at_item, alternative, ctx)
            names = (name, f"{name}/{own}")
            _derived(faults, f"{at_item}.derivedAttributes", alternative, names, constraints, ctx)
        faults.unique(f"{path}.firstAvailable", [text(item, "name") for item in alternatives], ".name")


def _main_fields(faults: Faults, path: str, request: Object, ctx: ValidationContext) -> None:
    shared.named(faults, f"{path}.deviceClassName", text(request, "deviceClassName"), formats.dns_subdomain)
    shared.selectors(faults, f"{path}.selectors", children(request, "selectors"), ctx)
    count = request.get("count") or 0
    match text(request, "allocationMode"):
        case "All":
            if count:
                faults.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
        case "ExactCount":
            if count <= 0:
                faults.invalid(f"{path}.count", count, "must be greater than zero")
        case mode:
            faults.not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount"))
    shared.tolerations(faults, f"{path}.tolerations", children(request, "tolerations"))
    for name, spelled in sorted(child(request, "capacity", "requests").items()):
        shared.quantity(faults, f"{path}.capacity.requests[{name}]", spelled)


def _derived(
    faults: Faults,
    path: str,
    request: Object,
    names: Iterable[str],
    constraints: list[Object],
    ctx: ValidationContext,
) -> None:
    items = children(request, "derivedAttributes")
    if not faults.fits(path, items, DERIVED_ATTRIBUTES_MAX):
        return
    used: set[str] = set()
    for constraint in constraints:
        targets = texts(constraint, "requests")
        if not targets or not set(targets).isdisjoint(names):
            used |= {text(constraint, "matchAttribute"), text(constraint, "distinctAttribute")}
    for index, item in enumerate(items):
        name = text(item, "name")
        shared.fully_qualified_name(faults, f"{path}[{index}].name", name)
        if name and name not in used:
            faults.invalid(f"{path}[{index}].name", name, "must be referenced by a constraint that targets the request")
        expression = text(item, "expression")
        if not expression:
            faults.required(f"{path}[{index}].expression")
        else:
            shared.expression(faults, f"{path}[{index}].expression", expression, ctx.check_derived_attribute)
    faults.unique(path, [text(item, "name") for item in items], ".name")


def _constraint(faults: Faults, path: str, constraint: Object, references: frozenset[str]) -> None:
    _references(faults, f"{path}.requests", texts(constraint, "requests"), references)
    if constraint.get("matchAttribute") is not None:
        # Upstream looks at one of the two only, and accepts a constraint with both.
        shared.fully_qualified_name(faults, f"{path}.matchAttribute", text(constraint, "matchAttribute"))
    elif constraint.get("distinctAttribute") is not None:
        shared.fully_qualified_name(faults, f"{path}.distinctAttribute", text(constraint, "distinctAttribute"))
    else:
        faults.required(path, "exactly one of `matchAttribute` or `distinctAttribute` is required")


# Status.


def validate_claim_status(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a claim written through its status endpoint."""
    status, before = child(obj, "status"), child(old, "status")
    allocation, allocated = status.get("allocation"), before.get("allocation")
    _new_admin_access(faults, allocation, allocated, ctx)
    _reserved_for(faults, obj, status, before)
    if allocation is not None:
        if allocated is not None:
            shared.immutable(faults, "status.allocation", allocation, allocated)
        else:
            _allocation(
                faults, "status.allocation", child(status, "allocation"), request_references(child(obj, "spec"))
            )
    _device_statuses(faults, status, before)


def _new_admin_access(faults: Faults, allocation: Any, allocated: Any, ctx: ValidationContext) -> None:
    if ctx.namespace_labels.get(ADMIN_ACCESS_LABEL) == "true" or allocated is not None:
        return
    for index, result in enumerate(children(allocation, "devices", "results")):
        if result.get("adminAccess") is True:
            faults.forbidden(f"status.allocation.devices.results[{index}].adminAccess", _NOT_ADMIN)
            return


def _reserved_for(faults: Faults, obj: Object, status: Object, before: Object) -> None:
    path = "status.reservedFor"
    items, items_before = children(status, "reservedFor"), children(before, "reservedFor")
    if items and status.get("allocation") is None:
        faults.forbidden(path, "may not be specified when `allocated` is not set")
    if same_meaning(items, items_before):
        return
    if at(obj, "metadata", "deletionTimestamp") and any(item not in items_before for item in items):
        faults.forbidden(path, "new entries may not be added while `deletionTimestamp` is set")
    if not faults.fits(path, items, RESERVED_FOR_MAX):
        return
    for index, item in enumerate(items):
        for field in ("resource", "name", "uid"):
            if not item.get(field):
                faults.required(f"{path}[{index}].{field}")
    faults.unique(path, [text(item, "uid") for item in items], ".uid")


def _allocation(faults: Faults, path: str, allocation: Object, references: frozenset[str]) -> None:
    devices = child(allocation, "devices")
    results, config = children(devices, "results"), children(devices, "config")
    if faults.fits(f"{path}.devices.results", results, RESULTS_MAX):
        for index, result in enumerate(results):
            _result(faults, f"{path}.devices.results[{index}]", result, references)
    if faults.fits(f"{path}.devices.config", config, RESULT_CONFIG_MAX):
        for index, item in enumerate(config):
            at_item = f"{path}.devices.config[{index}]"
            source = text(item, "source")
            if not source:
                faults.required(f"{at_item}.source")
            elif source not in ("FromClass", "FromClaim"):
                faults.not_supported(f"{at_item}.source", source, ("FromClass", "FromClaim"))
            _references(faults, f"{at_item}.requests", texts(item, "requests"), references)
            shared.opaque(faults, at_item, item)
    if allocation.get("nodeSelector") is not None:
        shared.node_selector(faults, f"{path}.nodeSelector", child(allocation, "nodeSelector"))


def _result(faults: Faults, path: str, result: Object, references: frozenset[str]) -> None:
    request = text(result, "request")
    if not request:
        faults.required(f"{path}.request")
    elif request not in references:
        faults.invalid(f"{path}.request", request, _NO_REQUEST)
    shared.driver_name(faults, f"{path}.driver", text(result, "driver"))
    shared.pool_name(faults, f"{path}.pool", text(result, "pool"))
    shared.named(faults, f"{path}.device", text(result, "device"), formats.dns_label)
    shared.tolerations(faults, f"{path}.tolerations", children(result, "tolerations"))
    shared.binding_conditions(faults, path, result)
    if result.get("shareID") is not None:
        faults.check(f"{path}.shareID", text(result, "shareID"), formats.uid)
    for name, spelled in sorted(child(result, "consumedCapacity").items()):
        shared.qualified_name(faults, f"{path}.consumedCapacity[{name}]", name)
        shared.quantity(faults, f"{path}.consumedCapacity[{name}]", spelled)
    shared.skip_operations(faults, f"{path}.skipNodeOperations", texts(result, "skipNodeOperations"))


def device_key(item: Object) -> tuple[str, str, str, str]:
    """Driver, pool, device and share of a result or a device status."""
    return item.get("driver") or "", item.get("pool") or "", item.get("device") or "", item.get("shareID") or ""


def _device_statuses(faults: Faults, status: Object, before: Object) -> None:
    items = children(status, "devices")
    if not items:
        return
    known = {device_key(item): item for item in children(before, "devices")}
    allocated = {device_key(result) for result in children(status, "allocation", "devices", "results")}
    for index, item in enumerate(items):
        path = f"status.devices[{index}]"
        shared.driver_name(faults, f"{path}.driver", text(item, "driver"))
        shared.pool_name(faults, f"{path}.pool", text(item, "pool"))
        shared.named(faults, f"{path}.device", text(item, "device"), formats.dns_label)
        if item.get("shareID") is not None:
            faults.check(f"{path}.shareID", text(item, "shareID"), formats.uid)
        if device_key(item) not in allocated:
            faults.invalid(
                path, "/".join(part for part in device_key(item) if part), "must be an allocated device in the claim"
            )
        shared.conditions(faults, f"{path}.conditions", children(item, "conditions"))
        if item.get("data") is not None:
            earlier = known.get(device_key(item))
            shared.raw_object(faults, f"{path}.data", item["data"], [earlier.get("data")] if earlier else [])
        if item.get("networkData") is not None:
            _network(faults, f"{path}.networkData", child(item, "networkData"))
    keys = [device_key(item) for item in items]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            faults.duplicate(f"status.devices[{index}]", "/".join(part for part in key if part))


def _network(faults: Faults, path: str, data: Object) -> None:
    if len(text(data, "interfaceName").encode()) > INTERFACE_NAME_MAX:
        faults.too_long(f"{path}.interfaceName", INTERFACE_NAME_MAX)
    if len(text(data, "hardwareAddress").encode()) > HARDWARE_ADDRESS_MAX:
        faults.too_long(f"{path}.hardwareAddress", HARDWARE_ADDRESS_MAX)
    addresses = texts(data, "ips")
    if shared.string_set(faults, f"{path}.ips", addresses, IPS_MAX):
        for index, address in enumerate(addresses):
            faults.check(f"{path}.ips[{index}]", address, formats.interface_address)
