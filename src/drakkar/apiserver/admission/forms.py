"""How an object looks to a webhook or a policy, and how it comes back from one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from drakkar.api import registry as kinds
from drakkar.apiserver import scale, status
from drakkar.apiserver.catalog import Served
from drakkar.apiserver.schema import SchemaNode, check, prune, write_zeros
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.views import View

Object = dict[str, Any]


def copy(obj: Object) -> Object:
    """A tree that shares nothing with the argument."""
    return msgspec.json.decode(msgspec.json.encode(obj))


class Forms(Protocol):
    """An object as the versions of its resource show it."""

    def show(self, obj: Object, served: Served) -> Object:
        """A copy in this version, from what admission works on."""
        ...

    def take(self, obj: Object, served: Served, before: Object) -> Object:
        """The way back; ``before`` is what the object was. StatusError when the schema does not know such a thing."""
        ...


class ObjectForms:
    """Of objects that are stored: admission works on the stored version."""

    def __init__(self, view: Callable[[Served], View], schema: Callable[[Served], SchemaNode | None]):
        self._view = view
        self._schema = schema

    def show(self, obj: Object, served: Served) -> Object:
        return self._view(served).from_hub(copy(obj))

    def take(self, obj: Object, served: Served, before: Object) -> Object:
        if (obj.get("kind"), obj.get("apiVersion")) != (served.kind, served.api_version):
            raise StatusError(status.bad_request("kind and apiVersion of the object may not be changed"))
        schema = self._schema(served)
        if schema is not None:
            check(obj, schema)
            prune(obj, schema)
            write_zeros(obj, schema)
        defaults = kinds.defaults_for(served.kind, served.version)
        if defaults is not None:
            defaults(obj)
        found = self._view(served).to_hub(obj)
        _same_identity(found, before)
        return found


class ScaleForms:
    """Of a ``scale`` subresource: what is shown is the Scale of the object."""

    def __init__(self, paths: Callable[[Served], scale.ScalePaths]):
        self._paths = paths

    def show(self, obj: Object, served: Served) -> Object:
        return scale.scale_of(copy(obj), self._paths(served))

    def take(self, obj: Object, served: Served, before: Object) -> Object:
        return scale.rescale(copy(before), obj, self._paths(served))


class BodyForms:
    """Of bodies that are no objects of the resource: a Binding, an Eviction."""

    def show(self, obj: Object, served: Served) -> Object:
        return copy(obj)

    def take(self, obj: Object, served: Served, before: Object) -> Object:
        _same_identity(obj, before)
        return obj


def _same_identity(obj: Object, before: Object) -> None:
    """Name and place of an object are not for webhooks to choose, except a name where there is none yet."""
    meta, old = obj.get("metadata") or {}, before.get("metadata") or {}
    for field in ("name", "namespace", "uid"):
        if old.get(field) and meta.get(field) != old[field]:
            raise StatusError(status.bad_request(f"metadata.{field} may not be changed"))
