"""Selection of fields, plain, optional and as a test of presence."""

from __future__ import annotations

from typing import Any

from drakkar.cel.device import DeviceInput
from drakkar.cel.errors import EvaluationError, no_overload, no_such_key
from drakkar.cel.values import NONE, DomainMap, Fields, Optional, is_map, kind_of, optional


def device_field(device: DeviceInput, field: str) -> Any:
    """A field of the variable ``device``."""
    match field:
        case "driver":
            return device.driver
        case "attributes":
            return device.attributes
        case "capacity":
            return device.capacity
        case "allowMultipleAllocations":
            return device.multi
        case _:
            raise no_such_key(field)


def select(value: Any, field: str) -> Any:
    """``value.field``."""
    if is_map(value):
        try:
            return value[field]
        except KeyError:
            raise no_such_key(field) from None
    if type(value) is DeviceInput:
        return device_field(value, field)
    if type(value) is Optional:
        return select_optional(value, field)
    if type(value) is Fields:
        if field in value:
            return value.get(field)
        raise no_such_key(field)
    if kind_of(value) is list:
        raise no_overload(f".{field}", value)
    # A value without fields has no such field; it is no error of types.
    raise no_such_key(field)


def select_optional(value: Any, field: str) -> Optional:
    """``value.?field``."""
    if type(value) is Optional:
        if not value.present:
            return NONE
        value = value.value
    if type(value) is DomainMap:
        return optional(value[field])
    if type(value) is dict:
        return optional(value[field]) if field in value else NONE
    if type(value) is DeviceInput:
        return optional(device_field(value, field))
    if type(value) is Fields:
        return optional(value.get(field)) if field in value else NONE
    if kind_of(value) is list:
        raise no_overload(f".?{field}", value)
    return NONE


def has(value: Any, field: str) -> bool:
    """``has(value.field)``."""
    if type(value) is Optional:
        return value.present and has(value.value, field)
    if type(value) is DomainMap or type(value) is DeviceInput:
        return True
    if type(value) is dict or type(value) is Fields:
        return field in value
    if kind_of(value) is list:
        raise no_overload(f"has(.{field})", value)
    return False


def not_iterable(value: Any) -> EvaluationError:
    """The error of looping over something that is no list or map."""
    from drakkar.cel.values import type_name

    return EvaluationError("not-iterable", f"a value of type {type_name(value)} is no list or map to loop over")
