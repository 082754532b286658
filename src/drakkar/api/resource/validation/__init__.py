"""Validation of every kind of resource.k8s.io, with the paths and causes of Kubernetes 1.37.

Objects are JSON in the hub version; structs of `drakkar.api.resource.v1` are accepted by
:func:`validate_create` and :func:`validate_update`. Paths are reported in the version that
the client speaks: v1beta1 users see ``basic`` in slices and no ``exactly`` in claims.

Source: spec/api.md sections 2 to 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import msgspec

from drakkar.api import formats
from drakkar.api.errors import FieldError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.metadata import check_metadata, check_metadata_update
from drakkar.api.resource.validation.claims import validate_claim, validate_claim_status, validate_template
from drakkar.api.resource.validation.others import (
    validate_class,
    validate_pool_request,
    validate_pool_request_status,
    validate_taint_rule,
    validate_taint_rule_status,
)
from drakkar.api.resource.validation.slices import validate_slice
from drakkar.api.rules import Validate, ValidationContext
from drakkar.api.tree import child

Check = Callable[[Faults, Object, Object | None, ValidationContext], None]

# Kind → namespaced, checks of the main endpoint and of its status.
_KINDS: Final[dict[str, tuple[bool, Check, Check | None]]] = {
    "ResourceSlice": (False, validate_slice, None),
    "ResourceClaim": (True, validate_claim, validate_claim_status),
    "ResourceClaimTemplate": (True, validate_template, None),
    "DeviceClass": (False, validate_class, None),
    "DeviceTaintRule": (False, validate_taint_rule, validate_taint_rule_status),
    "ResourcePoolStatusRequest": (False, validate_pool_request, validate_pool_request_status),
}

_DEVICE: Final = re.compile(r"^(spec\.devices\[\d+\]\.)(?!name$)")
_EXACTLY: Final = re.compile(r"(\.devices\.requests\[\d+\])\.exactly\b")


def _client_path(path: str, kind: str, version: str) -> str:
    if version != "v1beta1":
        return path
    if kind == "ResourceSlice":
        return _DEVICE.sub(r"\1basic.", path)
    return _EXACTLY.sub(r"\1", path)


def _validate(
    kind: str, obj: Object, old: Object | None, subresource: str | None, ctx: ValidationContext, /
) -> list[FieldError]:
    namespaced, main, status = _KINDS[kind]
    faults = Faults()
    if old is None:
        check_metadata(faults, child(obj, "metadata"), namespaced, formats.dns_subdomain, "metadata")
    else:
        check_metadata_update(faults, child(obj, "metadata"), child(old, "metadata"), namespaced)
    if subresource == "status" and status is not None:
        status(faults, obj, old, ctx)
    else:
        main(faults, obj, old, ctx)
    return [
        msgspec.structs.replace(error, field=_client_path(error.field, kind, ctx.version)) for error in faults.found
    ]


VALIDATORS: Final[dict[str, Validate]] = {kind: partial(_validate, kind) for kind in _KINDS}
"""Kind → its validation, metadata included."""


def _plain(obj: Any) -> Object:
    return cast(Object, obj if isinstance(obj, dict) else msgspec.to_builtins(obj))


def validate_create(kind: str, obj: Any, ctx: ValidationContext | None = None) -> list[FieldError]:
    """Faults of a new object of this kind (dict or struct), defaulted, in the hub version."""
    return _validate(kind, _plain(obj), None, None, ctx or ValidationContext())


def validate_update(
    kind: str, new: Any, old: Any, subresource: str | None = None, ctx: ValidationContext | None = None
) -> list[FieldError]:
    """Faults of a change from ``old`` to ``new`` through the main endpoint or a subresource."""
    return _validate(kind, _plain(new), _plain(old), subresource, ctx or ValidationContext())
