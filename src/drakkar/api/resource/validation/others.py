"""Validation of DeviceClass, DeviceTaintRule and ResourcePoolStatusRequest (spec/api.md section 5)."""

from __future__ import annotations

from typing import Final

from drakkar.api import formats
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.tree import at, child, children, text

POOL_LIMIT_MAX: Final = 1000
POOL_CONDITIONS_MAX: Final = 10
VALIDATION_ERROR_MAX: Final = 256
SUMMARY_MAX: Final = 32


def validate_class(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a class; lists that did not change are not looked at again."""
    spec, before = child(obj, "spec"), child(old, "spec")
    selectors, config = children(spec, "selectors"), children(spec, "config")
    if old is None or not same_meaning(selectors, children(before, "selectors")):
        shared.selectors(faults, "spec.selectors", selectors, ctx)
    if (old is None or not same_meaning(config, children(before, "config"))) and faults.fits(
        "spec.config", config, shared.CONFIG_MAX
    ):
        known = [at(item, "opaque", "parameters") for item in children(before, "config")]
        for index, item in enumerate(config):
            shared.opaque(faults, f"spec.config[{index}]", item, known)
    if spec.get("extendedResourceName") is not None:
        faults.check("spec.extendedResourceName", text(spec, "extendedResourceName"), formats.extended_resource_name)


def validate_taint_rule(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a rule's ``spec``."""
    spec = child(obj, "spec")
    selector = child(spec, "deviceSelector")
    if selector.get("driver") is not None:
        shared.driver_name(faults, "spec.deviceSelector.driver", text(selector, "driver"))
    if selector.get("pool") is not None:
        shared.pool_name(faults, "spec.deviceSelector.pool", text(selector, "pool"))
    if selector.get("device") is not None:
        shared.named(faults, "spec.deviceSelector.device", text(selector, "device"), formats.dns_label)
    before = child(old, "spec", "taint") if old is not None else None
    shared.taint(faults, "spec.taint", child(spec, "taint"), before)


def validate_taint_rule_status(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a rule's ``status``."""
    shared.conditions(faults, "status.conditions", children(obj, "status", "conditions"))


def validate_pool_request(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a request for pool status."""
    if old is not None:
        shared.immutable(faults, "spec", obj.get("spec"), old.get("spec"))
        return
    spec = child(obj, "spec")
    shared.driver_name(faults, "spec.driver", text(spec, "driver"))
    if spec.get("poolName") is not None:
        shared.pool_name(faults, "spec.poolName", text(spec, "poolName"))
    limit = spec.get("limit")
    if limit is not None and not 1 <= limit <= POOL_LIMIT_MAX:
        faults.invalid("spec.limit", limit, f"must be between 1 and {POOL_LIMIT_MAX}, inclusive")
    if spec.get("defaultPartitionTypeAttribute") is not None:
        path = "spec.defaultPartitionTypeAttribute"
        if "DRAPartitionableDevicesType" not in ctx.features:
            faults.forbidden(path, "needs the feature gate DRAPartitionableDevicesType")
        else:
            shared.fully_qualified_name(faults, path, text(spec, "defaultPartitionTypeAttribute"))


def validate_pool_request_status(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of an answer; once given it stays."""
    before = (old or {}).get("status")
    if before is not None:
        shared.immutable(faults, "status", obj.get("status"), before)
        return
    status = child(obj, "status")
    if status.get("poolCount") is None:
        faults.required("status.poolCount")
    elif status["poolCount"] < 0:
        faults.invalid("status.poolCount", status["poolCount"], "must be greater than or equal to 0")
    shared.conditions(faults, "status.conditions", children(status, "conditions"), POOL_CONDITIONS_MAX)
    pools = children(status, "pools")
    if faults.fits("status.pools", pools, POOL_LIMIT_MAX):
        for index, pool in enumerate(pools):
            _pool(faults, f"status.pools[{index}]", pool)


def _pool(faults: Faults, path: str, pool: Object) -> None:
    shared.driver_name(faults, f"{path}.driver", text(pool, "driver"))
    shared.pool_name(faults, f"{path}.poolName", text(pool, "poolName"))
    if pool.get("nodeName") is not None:
        shared.node_name(faults, f"{path}.nodeName", text(pool, "nodeName"))
    if pool.get("resourceSliceCount") is not None and pool["resourceSliceCount"] < 1:
        faults.invalid(f"{path}.resourceSliceCount", pool["resourceSliceCount"], "must be greater than or equal to 1")
    for field in ("totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices"):
        if (pool.get(field) or 0) < 0:
            faults.invalid(f"{path}.{field}", pool[field], "must be greater than or equal to 0")
    if len(text(pool, "validationError").encode()) > VALIDATION_ERROR_MAX:
        faults.too_long(f"{path}.validationError", VALIDATION_ERROR_MAX)
    summary = children(pool, "partitionSummary")
    if faults.fits(f"{path}.partitionSummary", summary, SUMMARY_MAX):
        for index, item in enumerate(summary):
            at_item = f"{path}.partitionSummary[{index}]"
            for field in ("attribute", "type"):
                if not item.get(field):
                    faults.required(f"{at_item}.{field}")
            _counts(faults, at_item, item, ("total", "allocatable"))
        faults.unique(f"{path}.partitionSummary", [(text(item, "attribute"), text(item, "type")) for item in summary])
    if pool.get("shareableSummary") is None:
        return
    shareable, at_shareable = child(pool, "shareableSummary"), f"{path}.shareableSummary"
    _counts(faults, at_shareable, shareable, ("fullyAvailableDevices", "partiallyAvailableDevices"))
    capacity = children(shareable, "capacity")
    if faults.fits(f"{at_shareable}.capacity", capacity, SUMMARY_MAX):
        for index, item in enumerate(capacity):
            for field in ("name", "total", "consumed", "available"):
                if item.get(field) in (None, ""):
                    faults.required(f"{at_shareable}.capacity[{index}].{field}")


def _counts(faults: Faults, path: str, holder: Object, fields: tuple[str, ...]) -> None:
    """Numbers that have to be given and are not negative."""
    for field in fields:
        if holder.get(field) is None:
            faults.required(f"{path}.{field}")
        elif holder[field] < 0:
            faults.invalid(f"{path}.{field}", holder[field], "must be greater than or equal to 0")
