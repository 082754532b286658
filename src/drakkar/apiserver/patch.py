"""The three patch formats beside server-side apply.

Nothing here changes its input: a result shares the parts of the document that the patch
leaves alone, so callers must not change it in place either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NoReturn

import msgspec

from drakkar.api.errors import FieldError
from drakkar.apiserver import status
from drakkar.apiserver.schema.nodes import SchemaNode
from drakkar.apiserver.schema.walk import check

#: Upstream's limit of operations in one JSON patch.
MAX_JSON_PATCH_OPERATIONS = 10_000
#: Upstream's limit of what the copies of one JSON patch add up to, in bytes of JSON.
MAX_JSON_PATCH_COPIES = 3 << 20

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"


# Merge patches (RFC 7396) ----------------------------------------------------------------


def apply_merge_patch(doc: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """``doc`` after a JSON merge patch.

    Raises:
        StatusError: 400 when the patch is no object.
    """
    if type(patch) is not dict:
        _bad_request(f"json: cannot unmarshal {_json_type(patch)} into Go value of type map[string]interface {{}}")
    return _merge(doc, patch)


def _merge(doc: Any, patch: dict[str, Any]) -> dict[str, Any]:
    result = dict(doc) if type(doc) is dict else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif type(value) is dict:
            result[name] = _merge(result.get(name), value)
        else:
            result[name] = value
    return result


# JSON patches (RFC 6902) -----------------------------------------------------------------


class _Unapplicable(Exception):
    """An operation does not fit the document."""


def apply_json_patch(doc: dict[str, Any], ops: list[dict[str, Any]]) -> dict[str, Any]:
    """``doc`` after the operations.

    Raises:
        StatusError: 400 when ``ops`` is no list of operations, 413 when there are too many,
            422 when one does not apply (a ``test`` that fails included).
    """
    if type(ops) is not list or any(type(op) is not dict for op in ops):
        _bad_request(f"json: cannot unmarshal {_json_type(ops)} into Go value of type jsonpatch.Patch")
    if len(ops) > MAX_JSON_PATCH_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {len(ops)}"
        raise status.StatusError(status.entity_too_large(message))
    result: Any = doc
    copied = 0
    try:
        for op in ops:
            if op.get("op") == "copy":
                # Copies of copies double what they copy; counted before they are made.
                copied += len(json.dumps(_look_up(result, _pointer(op.get("from")))))
                if copied > MAX_JSON_PATCH_COPIES:
                    message = f"The copies of a JSON patch may add up to {MAX_JSON_PATCH_COPIES} bytes"
                    raise status.StatusError(status.entity_too_large(message))
            result = _operate(result, op)
    except (_Unapplicable, RecursionError):
        raise status.StatusError(status.rejected()) from None
    if type(result) is not dict:
        raise status.StatusError(status.rejected())
    return result


def _operate(doc: Any, op: dict[str, Any]) -> Any:
    path = _pointer(op.get("path"))
    match op.get("op"):
        case "add":
            return _edit(doc, path, _adder(_value(op)))
        case "remove":
            return _edit(doc, path, _remove)
        case "replace":
            return _edit(doc, path, _replacer(_value(op)))
        case "move":
            source = _pointer(op.get("from"))
            if path[: len(source)] == source and len(path) > len(source):
                raise _Unapplicable
            value = _look_up(doc, source)
            return _edit(_edit(doc, source, _remove), path, _adder(value))
        case "copy":
            return _edit(doc, path, _adder(_look_up(doc, _pointer(op.get("from")))))
        case "test":
            if not _equal(_look_up(doc, path, missing_ok=True), op.get("value")):
                raise _Unapplicable
            return doc
        case _:
            raise _Unapplicable


def _value(op: dict[str, Any]) -> Any:
    if "value" not in op:
        raise _Unapplicable
    return op["value"]


def _pointer(text: Any) -> list[str]:
    """The parts of a JSON pointer; the empty pointer is the document."""
    if type(text) is not str or (text and text[0] != "/"):
        raise _Unapplicable
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(part: str, length: int) -> int:
    """Position of an existing element; negative numbers count from the end, as upstream's library allows."""
    try:
        index = int(part)
    except ValueError:
        raise _Unapplicable from None
    if index < 0:
        index += length
    if not 0 <= index < length:
        raise _Unapplicable
    return index


def _look_up(doc: Any, path: list[str], *, missing_ok: bool = False) -> Any:
    for position, part in enumerate(path):
        if type(doc) is dict:
            if part not in doc:
                # A test against null holds for a member that is not there.
                if missing_ok and position == len(path) - 1:
                    return None
                raise _Unapplicable
            doc = doc[part]
        elif type(doc) is list:
            doc = doc[_index(part, len(doc))]
        else:
            raise _Unapplicable
    return doc


_Edit = Callable[[Any, str], None]


def _edit(doc: Any, path: list[str], edit: _Edit) -> Any:
    """Copies the containers along ``path`` and edits the last one."""
    if not path:
        whole: dict[str, Any] = {"": doc}
        edit(whole, "")
        return whole.get("")
    if type(doc) is dict:
        copy: Any = dict(doc)
        if len(path) == 1:
            edit(copy, path[0])
        elif path[0] in copy:
            copy[path[0]] = _edit(copy[path[0]], path[1:], edit)
        else:
            raise _Unapplicable
    elif type(doc) is list:
        copy = list(doc)
        if len(path) == 1:
            edit(copy, path[0])
        else:
            index = _index(path[0], len(copy))
            copy[index] = _edit(copy[index], path[1:], edit)
    else:
        raise _Unapplicable
    return copy


def _adder(value: Any) -> _Edit:
    def add(container: Any, part: str) -> None:
        if type(container) is dict:
            container[part] = value
        elif part == "-":
            container.append(value)
        else:
            # One past the end is a place to insert at.
            container.insert(_index(part, len(container) + 1), value)

    return add


def _replacer(value: Any) -> _Edit:
    def replace(container: Any, part: str) -> None:
        if type(container) is dict:
            if part not in container:
                raise _Unapplicable
            container[part] = value
        else:
            container[_index(part, len(container))] = value

    return replace


def _remove(container: Any, part: str) -> None:
    if type(container) is dict:
        if part not in container:
            raise _Unapplicable
        del container[part]
    else:
        del container[_index(part, len(container))]


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: unlike Python's, true is not 1."""
    if type(one) is not type(other):
        return type(one) in (int, float) and type(other) in (int, float) and one == other
    if type(one) is dict:
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if type(one) is list:
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


# Strategic merge patches -----------------------------------------------------------------


def apply_strategic_patch(doc: dict[str, Any], patch: dict[str, Any], schema: SchemaNode) -> dict[str, Any]:
    """``doc`` after a strategic merge patch; lists are merged where ``schema`` says so.

    Understands ``$patch``, ``$retainKeys``, ``$setElementOrder/…`` and
    ``$deleteFromPrimitiveList/…``.

    Raises:
        StatusError: 400 when a directive is malformed, 422 when a list cannot be merged or
            the result does not fit the schema.
    """
    if type(patch) is not dict:
        _bad_request("invalid JSON document")
    result = _merge_map(doc, patch, schema)
    try:
        check(result, schema)
    except status.StatusError as error:
        detail = _conversion_fault(result, schema) or error.status["message"].partition(": ")[2]
        fault = FieldError(type="FieldValueInvalid", field="patch", value=go_text(patch), detail=detail)
        raise status.StatusError(status.invalid("", "", "", [fault])) from None
    return result


def _merge_map(doc: dict[str, Any], patch: dict[str, Any], node: SchemaNode | None) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive is not None:
        patch = {name: value for name, value in patch.items() if name != _PATCH}
        if directive == "replace":
            return patch
        if directive == "delete":
            return {}
        if directive != "merge":
            _bad_request(f"Unknown patch type found: {directive}")
    result = dict(doc)
    if _RETAIN in patch:
        patch = _retain(result, patch)
    done = _set_orders(result, patch, node)
    for name, value in patch.items():
        if name in done:
            continue
        if name.startswith(_ORDER):
            continue
        if name.startswith(_DELETE_PRIMITIVES):
            if type(value) is not list:
                _bad_request("patch list should be of the form $deleteFromPrimitiveList/<field>: [...]")
            field = name.removeprefix(_DELETE_PRIMITIVES)
            present = result.get(field)
            if type(present) is list:
                gone = {_identity(item) for item in value}
                result[field] = [item for item in present if _identity(item) not in gone]
            continue
        if value is None:
            result.pop(name, None)
            continue
        result[name] = _merge_value(result.get(name), value, _child(node, name))
    return result


def _child(node: SchemaNode | None, name: str) -> SchemaNode | None:
    if node is None:
        return None
    return node.fields.get(name) or node.additional


def _merge_value(present: Any, value: Any, node: SchemaNode | None) -> Any:
    strategy = node.patch_strategy if node is not None else frozenset[str]()
    if type(value) is dict:
        if type(present) is dict and "replace" not in strategy:
            return _merge_map(present, value, node)
        return _merge_map({}, value, node)
    if type(value) is list:
        if node is not None and "merge" in strategy:
            return _merge_list(present if type(present) is list else [], value, node)
        return value
    return value


def _retain(result: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Drops from ``result`` what ``$retainKeys`` does not name; returns the patch without the directive."""
    keep = patch[_RETAIN]
    rest = {name: value for name, value in patch.items() if name != _RETAIN}
    kept = {name for name in keep if type(name) is str} if type(keep) is list else set[str]()
    well_formed = type(keep) is list and all(
        name in kept for name, value in rest.items() if value is not None and not name.startswith("$")
    )
    if not well_formed:
        _bad_request("patch format for retainKeys is invalid: the list must name every field the patch sets")
    for name in [name for name in result if name not in kept]:
        del result[name]
    return rest


def _set_orders(result: dict[str, Any], patch: dict[str, Any], node: SchemaNode | None) -> set[str]:
    """Handles the lists that have an order directive; returns the names that are done."""
    done: set[str] = set()
    for name, order in patch.items():
        if not name.startswith(_ORDER):
            continue
        if type(order) is not list:
            _bad_request("patch list should be of the form $setElementOrder/<field>: [...]")
        field = name.removeprefix(_ORDER)
        before = result.get(field)
        change = patch.get(field)
        if field in patch and change is None:
            # The list is deleted; the general loop does it.
            continue
        child = _child(node, field)
        if type(before) is not list and type(change) is not list:
            continue
        old = before if type(before) is list else []
        merged = _merge_value(old, change, child) if type(change) is list else old
        key = child.merge_key if child is not None else ""
        result[field] = _in_order(merged, order, old, key)
        done.add(field)
    return done


def _key_of(item: Any, key: str) -> Any:
    """What identifies an element: the value of its merge key, or itself."""
    if not key:
        return item
    if type(item) is not dict or key not in item:
        _unprocessable(f"map: {go_text(item)} does not contain declared merge key: {key}")
    return item[key]


def _identity(item: Any, key: str = "") -> Hashable:
    """The same, as something that sets and dicts take."""
    value = _key_of(item, key)
    # Texts are the rule; the tuple keeps the text "1" apart from the number.
    return value if type(value) is str else ("", msgspec.json.encode(value, order="sorted"))


def _positions(items: list[Any], key: str) -> dict[Hashable, int]:
    """Where each element stands first."""
    found: dict[Hashable, int] = {}
    for position, item in enumerate(items):
        found.setdefault(_identity(item, key), position)
    return found


def _distinct(items: list[Any]) -> Iterable[Any]:
    found: dict[Hashable, Any] = {}
    for item in items:
        found.setdefault(_identity(item), item)
    return found.values()


def _in_order(items: list[Any], order: list[Any], server_order: list[Any], key: str) -> list[Any]:
    """Items named in ``order`` in that order, the others woven in where the server had them."""
    wanted, server = _positions(order, key), _positions(server_order, key)
    named: list[tuple[int, Hashable, Any]] = []
    others: list[tuple[int, Hashable, Any]] = []
    for item in items:
        identity = _identity(item, key)
        if identity in wanted:
            named.append((wanted[identity], identity, item))
        else:
            others.append((server.get(identity, len(server_order)), identity, item))
    named.sort(key=lambda entry: entry[0])
    others.sort(key=lambda entry: entry[0])
    result: list[Any] = []
    left, right = 0, 0
    while left < len(others) and right < len(named):
        mine, theirs = server.get(others[left][1]), server.get(named[right][1])
        if mine is not None and theirs is not None and mine < theirs:
            result.append(others[left][2])
            left += 1
        else:
            result.append(named[right][2])
            right += 1
    return result + [entry[2] for entry in others[left:]] + [entry[2] for entry in named[right:]]


def _merge_list(present: list[Any], patch: list[Any], node: SchemaNode) -> list[Any]:
    if not present and not patch:
        return present
    sample = patch[0] if patch else present[0]
    if type(sample) is not dict:
        if any(type(item) in (dict, list) for item in (*present, *patch)):
            _unprocessable("lists of lists and mixed lists cannot be merged")
        merged = [*_distinct([*present, *patch])]
        return _in_order(merged, patch, present, "")
    key = node.merge_key
    if not key:
        _unprocessable(f"cannot merge lists without merge key for type {node.go_type()}")
    changes: list[dict[str, Any]] = []
    gone: set[Hashable] = set()
    replaced = False
    for item in patch:
        if type(item) is not dict:
            _unprocessable("lists of lists and mixed lists cannot be merged")
        directive = item.get(_PATCH)
        if directive is None or directive == "merge":
            rest = {name: value for name, value in item.items() if name != _PATCH}
            if rest:
                changes.append(rest)
        elif directive == "delete":
            gone.add(_identity(item, key))
        elif directive == "replace":
            replaced = True
            rest = {name: value for name, value in item.items() if name != _PATCH}
            if rest:
                changes.append(rest)
        else:
            _bad_request(f"Unknown patch type found: {directive}")
    if replaced:
        return changes
    result = [item for item in present if _identity(item, key) not in gone]
    places = _positions(result, key)
    for change in changes:
        place = places.setdefault(_identity(change, key), len(result))
        if place < len(result):
            result[place] = _merge_map(result[place], change, node.items)
        else:
            result.append(_merge_map({}, change, node.items))
    return _in_order(result, changes, present, key)


# Words -----------------------------------------------------------------------------------


def _bad_request(message: str) -> NoReturn:
    raise status.StatusError(status.bad_request(message))


def _unprocessable(message: str) -> NoReturn:
    raise status.StatusError(status.status_error(422, "Invalid", message, details={}))


def _json_type(value: Any) -> str:
    return {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")


def go_text(value: Any) -> str:
    """A JSON value as Go's %v prints it: ``map[a:1 b:[x y]]``."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return "map[" + " ".join(f"{name}:{go_text(value[name])}" for name in sorted(value)) + "]"
        case list():
            return "[" + " ".join(map(go_text, value)) + "]"
        case str():
            return value
        case _:
            return json.dumps(value)


_GO_KINDS = {dict: "map", list: "slice", str: "string", bool: "bool", int: "int64", float: "float64"}


def _conversion_fault(value: Any, node: SchemaNode) -> str:
    """The first value that does not fit its type, in the words of upstream's converter."""
    given = _GO_KINDS[type(value)]
    match node.kind:
        case "struct" | "map":
            if type(value) is not dict:
                return f"cannot restore {'map from' if node.kind == 'map' else 'struct from:'} {given}"
            below = [(item, _child(node, name)) for name, item in value.items()]
        case "list":
            if type(value) is not list:
                return f"cannot restore slice from {given}"
            below = [(item, node.items) for item in value]
        case "string" | "boolean" | "integer" | "number":
            wanted = {"string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float)}[node.kind]
            return "" if type(value) in wanted else f"unrecognized type: {node.go_type()}"
        case _:
            return ""
    for item, child in below:
        if child is not None and item is not None and (fault := _conversion_fault(item, child)):
            return fault
    return ""
