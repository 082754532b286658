"""The two operations on owners of fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from drakkar.apiserver import status
from drakkar.apiserver.apply.fields import (
    EMPTY,
    FieldSet,
    Path,
    closure,
    compare,
    fields_of,
    from_fields_v1,
    path_text,
    to_fields_v1,
)
from drakkar.apiserver.apply.merge import merge, remove
from drakkar.apiserver.schema.nodes import SchemaNode
from drakkar.apiserver.schema.walk import apply_schema_defaults

Object = dict[str, Any]

#: Owner of what was there before anybody applied.
BEFORE_FIRST_APPLY = "before-first-apply"
#: How kubectl calls itself when it applies from the client's side, and where it keeps what it applied.
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

#: More updating managers than this are folded into one.
MAX_UPDATE_MANAGERS = 10
_ANCIENT = "ancient-changes"

#: Nobody owns what the server sets and what names the object.
_UNOWNED: FieldSet = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
            )
        ),
    }
)

_IDENTITY = frozenset(
    {"name", "namespace", "generateName", "uid", "resourceVersion", "creationTimestamp", "generation"}
)


@dataclass(slots=True)
class _Owner:
    """One entry of ``managedFields``."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str | None
    fields: FieldSet

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Who this is: an applier is the same in every version, an updater is one per version."""
        version = "" if self.operation == "Apply" else self.api_version
        return (self.manager, self.operation, version, self.subresource)

    def title(self) -> str:
        """How conflicts name the owner."""
        text = '"' + self.manager.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        if self.operation == "Update":
            text += f" using {self.api_version}"
        return text

    def encode(self) -> Object:
        entry: Object = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
        }
        if self.time is not None:
            entry["time"] = self.time
        entry["fieldsType"] = "FieldsV1"
        entry["fieldsV1"] = to_fields_v1(self.fields)
        if self.subresource:
            entry["subresource"] = self.subresource
        return entry


_Owners = dict[tuple[str, str, str, str], _Owner]


def _read(entries: Iterable[Object] | None) -> _Owners:
    """Owners by key; entries that cannot be read make the whole list void, as upstream has it."""
    owners: _Owners = {}
    for entry in entries or ():
        if entry.get("operation") not in ("Apply", "Update") or entry.get("fieldsType") != "FieldsV1":
            return {}
        try:
            fields = from_fields_v1(entry.get("fieldsV1") or {})
        except ValueError:
            return {}
        owner = _Owner(
            manager=entry.get("manager", ""),
            operation=entry["operation"],
            api_version=entry.get("apiVersion", ""),
            subresource=entry.get("subresource", ""),
            time=entry.get("time"),
            fields=fields,
        )
        owners[owner.key] = owner
    return owners


def _write(obj: Object, owners: _Owners) -> None:
    """Stores the owners in ``metadata.managedFields``: appliers first, then by time and name."""
    entries = [owner for owner in owners.values() if owner.fields]
    entries = _fold_ancient(entries)
    entries.sort(key=lambda owner: (owner.operation, owner.time or "", owner.manager, owner.api_version))
    metadata = obj["metadata"] = dict(obj.get("metadata") or {})
    if entries:
        metadata["managedFields"] = [owner.encode() for owner in entries]
    else:
        metadata.pop("managedFields", None)


def _fold_ancient(entries: list[_Owner]) -> list[_Owner]:
    """Folds the oldest updaters into one per version when there are too many."""
    updates = sorted((owner for owner in entries if owner.operation == "Update"), key=lambda owner: owner.time or "")
    surplus = len(updates) - MAX_UPDATE_MANAGERS
    if surplus <= 0:
        return entries
    buckets: dict[str, _Owner] = {}
    folded = updates[: surplus + 1]
    for owner in folded:
        bucket = buckets.get(owner.api_version)
        if bucket is None:
            buckets[owner.api_version] = _Owner(_ANCIENT, "Update", owner.api_version, "", owner.time, owner.fields)
        else:
            bucket.fields |= owner.fields
            bucket.time = owner.time
    return [owner for owner in entries if owner not in folded] + list(buckets.values())


def _ignored(subresource: str, reset: Iterable[Path] | None) -> tuple[Path, ...]:
    """Paths that a write to this endpoint cannot own: the storage keeps the stored value there."""
    if reset is not None:
        return tuple(reset)
    if subresource == "status":
        return (("f:spec",), ("f:metadata",))
    return () if subresource else (("f:status",),)


def _strip(fields: Iterable[Path], ignored: tuple[Path, ...]) -> FieldSet:
    return frozenset(
        path for path in fields if path not in _UNOWNED and not any(path[: len(prefix)] == prefix for prefix in ignored)
    )


def _now(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _empty(obj: Object, schema: SchemaNode) -> Object:
    """What Go's zero value of the kind looks like: the baseline of a creation."""
    empty: Object = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": {}}
    apply_schema_defaults(empty, schema)
    _null_required(empty, schema)
    return empty


def _null_required(value: Object, node: SchemaNode) -> None:
    """Required lists and maps of the zero value are there, as null."""
    for name in node.required:
        value.setdefault(name, None)
    for name, field in node.fields.items():
        if field.kind == "struct" and type(value.get(name)) is dict:
            _null_required(value[name], field)


def _bare(obj: Object) -> Object:
    """The object without its owners, which are no part of what is compared."""
    metadata = obj.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def _settle(owners: _Owners, actor: _Owner, written: FieldSet, removed: FieldSet) -> None:
    """Takes written and removed fields away from everybody but the actor."""
    lost = written | removed
    for owner in list(owners.values()):
        if owner is not actor:
            owner.fields -= lost
            if not owner.fields:
                del owners[owner.key]


def server_side_apply(
    live: Object | None,
    applied: Object,
    manager: str,
    force: bool,
    schema: SchemaNode,
    subresource: str = "",
    now: float = 0.0,
    *,
    reset: Iterable[Path] | None = None,
) -> Object:
    """The object that results from an apply patch, ``managedFields`` included.

    ``live`` is None when the object does not exist yet. ``now`` is in seconds since the
    epoch. ``reset`` names paths that the endpoint ignores; by default ``status`` on the
    object itself, ``spec`` and ``metadata`` on its status. The inputs stay as they are.

    Raises:
        StatusError: 409 naming owner and field when others own what is changed and ``force``
            is not set; 400 when the patch carries managedFields; 422 when a list element
            cannot be identified.
    """
    if (applied.get("metadata") or {}).get("managedFields"):
        raise status.StatusError(status.bad_request("metadata.managedFields must be nil"))
    ignored = _ignored(subresource, reset)
    exists = live is not None
    before = _bare(live) if live is not None else {}
    base = before if exists else _empty(applied, schema)
    owners = _read((live.get("metadata") or {}).get("managedFields") if live is not None else None)
    if exists and not owners:
        _adopt(owners, before, schema)
    wanted = _without(applied, ignored)
    actor = _Owner(manager, "Apply", str(applied.get("apiVersion", "")), subresource, None, EMPTY)
    previous = owners.get(actor.key)
    actor.fields = _strip(fields_of(wanted, schema), ignored)
    owners[actor.key] = actor
    merged = merge(before, wanted, schema)
    if previous is not None:
        held = closure(path for owner in owners.values() for path in owner.fields)
        gone = {path for path in _named_closure(previous.fields) if path not in held and path not in _UNOWNED}
        if gone:
            merged = remove(merged, gone, schema) or {}
    change = compare(base, merged, schema)
    written, removed = _strip(change.written, ()), frozenset(change.removed)
    if not force:
        _raise_conflicts(owners, actor, written)
    _settle(owners, actor, written, removed)
    same = exists and compare(before, merged, schema).same
    unchanged = previous is not None and previous.fields == actor.fields and same
    actor.time = previous.time if previous is not None and unchanged else _now(now)
    result = dict(merged)
    _write(result, owners)
    return result


def _adopt(owners: _Owners, live: Object, schema: SchemaNode) -> None:
    """Gives the fields of an object without owners to kubectl, as far as it applied them, and to the synthetic owner.

    kubectl takes over what the owner of its annotation has and drops what the manifest lacks. So that
    owner must not have what the server filled in, such as the selector of a Job.
    """
    version = str(live.get("apiVersion", ""))
    fields = _strip(compare(_empty(live, schema), live, schema).written, ())
    applied = fields & _last_applied(live, schema)
    for manager, owned in ((CLIENT_SIDE_APPLY, applied), (BEFORE_FIRST_APPLY, fields - applied)):
        if owned:
            owner = _Owner(manager, "Update", version, "", None, owned)
            owner.time = (live.get("metadata") or {}).get("creationTimestamp")
            owners[owner.key] = owner


def _last_applied(live: Object, schema: SchemaNode) -> FieldSet:
    """What kubectl's annotation says was applied from the client's side, the annotation itself included."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    if not isinstance(text, str):
        return EMPTY
    try:
        applied = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return EMPTY
    if type(applied) is not dict or applied.get("apiVersion") != live.get("apiVersion"):
        return EMPTY
    annotations = ("f:metadata", "f:annotations")
    return fields_of(applied, schema) | {annotations, (*annotations, f"f:{LAST_APPLIED}")}


def _without(obj: Object, ignored: tuple[Path, ...]) -> Object:
    """The applied object without what the endpoint ignores; its identity stays."""
    result = dict(obj)
    for path in ignored:
        name = path[0].removeprefix("f:")
        if len(path) == 1 and name in result:
            if name == "metadata":
                result[name] = {key: value for key, value in (result[name] or {}).items() if key in _IDENTITY}
            else:
                del result[name]
        elif len(path) == 2 and type(result.get(name)) is dict:
            inner = path[1].removeprefix("f:")
            result[name] = {key: value for key, value in result[name].items() if key != inner}
    return result


def _named_closure(fields: FieldSet) -> set[Path]:
    """The fields and the structs above them; elements of lists count only when owned themselves."""
    return {path for path in closure(fields) if path in fields or path[-1].startswith("f:")}


def _raise_conflicts(owners: _Owners, actor: _Owner, written: FieldSet) -> None:
    conflicts: list[tuple[str, str]] = []
    for owner in owners.values():
        if owner is not actor:
            conflicts += [(owner.title(), path_text(path)) for path in sorted(owner.fields & written)]
    if conflicts:
        raise status.StatusError(status.apply_conflict(sorted(conflicts)))


def track_update(
    old: Object | None,
    new: Object,
    manager: str,
    operation: str,
    schema: SchemaNode,
    subresource: str = "",
    now: float = 0.0,
    *,
    reset: Iterable[Path] | None = None,
) -> None:
    """Sets ``new["metadata"]["managedFields"]`` after a create, update or other patch.

    ``old`` is None on create. ``operation`` is ``Update`` for all of them. An object that
    has no owners stays without until somebody applies; ``managedFields: [{}]`` removes them.
    ``new["metadata"]`` is replaced, not changed in place.
    """
    ignored = _ignored(subresource, reset)
    given = (new.get("metadata") or {}).get("managedFields")
    if given is not None and len(given) == 1 and not given[0]:
        # The documented way to forget all owners.
        owners: _Owners = {}
    else:
        owners = _read(given) if given else {}
        if not owners and old is not None:
            owners = _read((old.get("metadata") or {}).get("managedFields"))
    if old is not None and not owners:
        _write(new, {})
        return
    bare = _bare(new)
    base = _bare(old) if old is not None else _empty(new, schema)
    change = compare(base, bare, schema)
    if change.same:
        _write(new, owners)
        return
    actor = _Owner(manager, operation, str(new.get("apiVersion", "")), subresource, None, EMPTY)
    known = owners.get(actor.key)
    held = known.fields if known is not None else EMPTY
    written, removed = _strip(change.written, ()), frozenset(change.removed)
    actor.fields = (held - removed) | _strip(written, ignored)
    kept = known is not None and actor.fields == held and not (written or removed)
    actor.time = known.time if known is not None and kept else _now(now)
    owners[actor.key] = actor
    _settle(owners, actor, written, removed)
    if not actor.fields:
        del owners[actor.key]
    _write(new, owners)
