"""Which objects a list or watch is about: namespace, name, labels and fields, judged on headers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drakkar.api.selectors import FieldSelector, LabelSelector
from drakkar.apiserver import status
from drakkar.apiserver.cache import Entry, Table
from drakkar.apiserver.catalog import Stored
from drakkar.apiserver.status import StatusError

#: What an absent field counts as, where that is not the empty string.
_ABSENT = {
    "spec.hostNetwork": "false",
    "spec.unschedulable": "false",
    "status.successful": "0",
    "status.replicas": "0",
}


class Selection:
    """A compiled filter."""

    def __init__(self, stored: Stored, namespace: str, name: str, labels: LabelSelector, fields: FieldSelector):
        for field in fields.fields:
            if field not in stored.fields and field not in ("metadata.name", "metadata.namespace"):
                raise StatusError(status.bad_request(f"field label not supported: {field}"))
        exact = fields.exact("metadata.name")
        self.namespace = namespace or (fields.exact("metadata.namespace") or "" if stored.namespaced else "")
        self.name = name or exact or ""
        self._labels = labels if labels.requirements or labels.nothing else None
        self._fields = fields if fields.requirements else None
        self._indexed = [(field, value) for field in stored.indexed if (value := fields.exact(field))]
        #: Whether every object of the table is selected.
        self.everything = not (self.namespace or self.name or self._labels or self._fields)

    def matches(self, entry: Entry) -> bool:
        """Whether the object is selected."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        if self._labels is not None and not self._labels.matches(entry.labels):
            return False
        return self._fields is None or self._fields.matches(lambda field: _value(entry, field))

    def entries(self, table: Table, start: str = "") -> Iterator[Entry]:
        """The selected objects of the current state in order, those after the key ``start``."""
        entries = table.entries
        if self.name and (self.namespace or not table.namespaced):
            key = f"{self.namespace}/{self.name}" if self.namespace else self.name
            candidates = [key] if key in entries else []
        elif self._indexed:
            sets = [table.indexes[field].get(value, set()) for field, value in self._indexed]
            candidates = sorted(min(sets, key=len))
        else:
            candidates = table.keys(self.namespace, start)
            if not (self.name or self._labels or self._fields):
                return map(entries.__getitem__, candidates)
        return (entry for key in candidates if key > start and self.matches(entry := entries[key]))

    def among(self, state: Mapping[str, Entry], start: str = "") -> Iterator[Entry]:
        """The same of a past state."""
        return (entry for key in sorted(state) if key > start and self.matches(entry := state[key]))


def _value(entry: Entry, field: str) -> str:
    if field == "metadata.name":
        return entry.name
    if field == "metadata.namespace":
        return entry.namespace
    found = entry.fields.get(field) if entry.fields else None
    return _ABSENT.get(field, "") if found is None else found
