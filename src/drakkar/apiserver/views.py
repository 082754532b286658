"""A resource in the version that a client speaks: bytes out, hub dicts in.

Most versions of a resource differ only in the name of the version; then the stored bytes
are served behind another head. The others are converted, and the newest results kept,
because watchers ask for the same object one after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from drakkar.api.resource.conversion import convert
from drakkar.apiserver.autoscaling import from_v1, to_v1
from drakkar.apiserver.cache import Entry, Table
from drakkar.apiserver.catalog import Served, Stored
from drakkar.apiserver.custom.resources import Coercion
from drakkar.apiserver.events import from_events_v1, to_events_v1

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode
#: Converted objects kept per view.
_KEPT = 512


class View:
    """One served version of one table."""

    def __init__(self, served: Served, stored: Stored, table: Table, coercion: Coercion | None = None):
        self.served = served
        self.stored = stored
        self.table = table
        self.hub = served.version == stored.version and served.group == stored.group
        self.head = b'{"kind":' + _encode(served.kind) + b',"apiVersion":' + _encode(served.api_version) + b","
        self._to, self._from = _conversions(served, stored)
        if coercion is not None:
            self._to, self._from = coercion.to_own, coercion.to_hub
        self._converted: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def to_hub(self, obj: Object) -> Object:
        """An object of a client in the stored version; the argument may be used up."""
        if self._from is not None:
            obj = self._from(obj)
        obj["apiVersion"] = self.stored.api_version
        obj["kind"] = self.stored.kind
        return obj

    def from_hub(self, obj: Object) -> Object:
        """A stored object in the client's version; the argument may be used up."""
        if self._to is not None:
            obj = self._to(obj)
        obj["apiVersion"] = self.served.api_version
        obj["kind"] = self.served.kind
        return obj

    def tail(self, entry: Entry) -> bytes:
        """The object's JSON behind :attr:`head`."""
        if self._to is None:
            return entry.tail
        key = (entry.key, entry.revision)
        found = self._converted.get(key)
        if found is None:
            obj = self.from_hub(self.table.decode(entry))
            metadata = obj.pop("metadata")
            rest = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
            found = _encode({"metadata": metadata, **rest})[1:]
            self._converted[key] = found
            if len(self._converted) > _KEPT:
                self._converted.popitem(last=False)
        return found

    def decode(self, entry: Entry) -> Object:
        """A fresh tree in the client's version."""
        obj = self.table.decode(entry)
        return obj if self.hub else self.from_hub(obj)


def _conversions(
    served: Served, stored: Stored
) -> tuple[Callable[[Object], Object] | None, Callable[[Object], Object] | None]:
    if served.group == "events.k8s.io":
        return to_events_v1, from_events_v1
    if (served.group, served.version) == ("autoscaling", "v1"):
        return to_v1, from_v1
    # Only v1beta1 differs from the others in more than its name.
    if served.group == "resource.k8s.io" and served.version == "v1beta1":
        kind, hub, own = stored.kind, stored.version, served.version
        return (lambda obj: convert(obj, kind, hub, own)), (lambda obj: convert(obj, kind, own, hub))
    return None, None
