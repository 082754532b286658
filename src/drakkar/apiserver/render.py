"""Objects in the form a client asked for: as they are, as metadata only, as rows of a table, as YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from drakkar.apiserver.cache import Entry
from drakkar.apiserver.catalog import Served
from drakkar.apiserver.negotiate import JSON, PLAIN, YAML, Form
from drakkar.apiserver.views import View

_encode = msgspec.json.Encoder().encode
#: Objects of a list that go out in one piece.
_AT_A_TIME = 32


class _MetadataOnly(msgspec.Struct):
    metadata: msgspec.Raw


_metadata = msgspec.json.Decoder(_MetadataOnly)


class Renderer:
    """One answer's form. ``now`` is the time of the answer, for ages in tables."""

    def __init__(
        self,
        form: Form,
        now: Callable[[], float],
        include_object: str = "Metadata",
        printer_of: Callable[[Served], Any] = lambda served: None,
    ):
        self.form = form
        self._now = now
        self._include = include_object
        self._printer_of = printer_of
        #: Names a form whose frames watchers can share; empty when every frame is different.
        self.shared = "object" if form == PLAIN else "metadata" if form == Form("metadata") else ""
        self._columns_sent = False

    @property
    def content_type(self) -> str:
        return YAML if self.form.yaml else JSON

    def one(self, view: View, entry: Entry) -> bytes:
        """A single object, also inside a watch frame."""
        kind = self.form.kind
        if kind == "object":
            return view.head + view.tail(entry)
        if kind == "metadata":
            raw = bytes(_metadata.decode(b"{" + entry.tail).metadata)
            return self._metadata_head("PartialObjectMetadata") + b'"metadata":' + raw + b"}"
        first = not self._columns_sent
        self._columns_sent = True
        return _encode(self._table(view, [entry], {"resourceVersion": str(entry.revision)}, first))

    def many(self, view: View, entries: list[Entry], metadata: Mapping[str, Any]) -> bytes:
        """A list."""
        return b"".join(self.pieces(view, entries, metadata))

    def pieces(self, view: View, entries: list[Entry], metadata: Mapping[str, Any]) -> Iterator[bytes]:
        """A list, some objects at a time."""
        kind = self.form.kind
        if kind == "table":
            yield from map(self.finish, self._rows(view, entries, metadata))
            return
        if self.form.yaml:
            yield from self._yaml(view, entries, metadata)
            return
        single = b""
        if kind == "metadata":
            single = self._metadata_head("PartialObjectMetadata")[1:]
            head = self._metadata_head("PartialObjectMetadataList")
        else:
            head = _head(view.served.kind + "List", view.served.api_version)
        head += b'"metadata":' + _encode(metadata) + b',"items":['
        for begin in range(0, len(entries), _AT_A_TIME):
            some = entries[begin : begin + _AT_A_TIME]
            if kind == "metadata":
                items = [
                    single + b'"metadata":' + bytes(_metadata.decode(b"{" + entry.tail).metadata) + b"}"
                    for entry in some
                ]
            else:
                items = [view.tail(entry) for entry in some]
            yield (b",{" if begin else head + b"{") + b",{".join(items)
        yield b"]}" if entries else head + b"]}"

    def _rows(self, view: View, entries: list[Entry], metadata: Mapping[str, Any]) -> Iterator[bytes]:
        """A table; in YAML, where rows cannot follow one another, in one piece."""
        at_a_time = _AT_A_TIME if not self.form.yaml else max(1, len(entries))
        for begin in range(0, len(entries) or 1, at_a_time):
            table = self._table(view, entries[begin : begin + at_a_time], metadata, begin == 0)
            rows = b",".join([_encode(row) for row in table.pop("rows")])
            end = b"]}" if begin + at_a_time >= len(entries) else b""
            yield (b"," if begin else _encode(table)[:-1] + b',"rows":[') + rows + end

    def _yaml(self, view: View, entries: list[Entry], metadata: Mapping[str, Any]) -> Iterator[bytes]:
        """A list in YAML, one object at a time: this is slow, and others want a turn."""
        if self.form.kind == "metadata":
            kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{self.form.version}"
        else:
            kind, version = view.served.kind + "List", view.served.api_version
        yield to_yaml({"apiVersion": version}) + (b"items:\n" if entries else b"items: []\n")
        for entry in entries:
            obj = msgspec.json.decode(self.one(view, entry))
            if self.form.kind == "object":
                # As in JSON, where the list says of what kind its objects are.
                del obj["kind"], obj["apiVersion"]
            yield to_yaml([obj])
        yield to_yaml({"kind": kind, "metadata": metadata})

    def bookmark(self, view: View, metadata: Mapping[str, Any]) -> bytes:
        """The object of a BOOKMARK event."""
        if self.form.kind == "table":
            return _encode(self._table(view, [], metadata, False))
        if self.form.kind == "metadata":
            return self._metadata_head("PartialObjectMetadata") + b'"metadata":' + _encode(metadata) + b"}"
        return view.head + b'"metadata":' + _encode(metadata) + b"}"

    def finish(self, body: bytes) -> bytes:
        """The body in the media type of the answer."""
        if not self.form.yaml:
            return body
        return to_yaml(msgspec.json.decode(body))

    def _metadata_head(self, kind: str) -> bytes:
        return _head(kind, f"meta.k8s.io/{self.form.version}")

    def _table(self, view: View, entries: Iterable[Entry], metadata: Mapping[str, Any], columns: bool) -> Any:
        from drakkar.apiserver import printers

        objs = (view.decode(entry) for entry in entries)
        served = view.served
        return printers.table(
            served.group,
            served.kind,
            objs,
            self._now(),
            dict(metadata),
            self._include,
            with_columns=columns,
            printer=self._printer_of(served),
            api_version=self.form.version,
        )


def _head(kind: str, api_version: str) -> bytes:
    return b'{"kind":' + _encode(kind) + b',"apiVersion":' + _encode(api_version) + b","


def to_yaml(value: Any) -> bytes:
    """YAML with sorted keys, as Go's encoder writes it."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(value, Dumper=dumper, sort_keys=True, allow_unicode=True, default_flow_style=False).encode()
