"""The worst cost of an expression, estimated from its tree.

An API server refuses expressions whose estimate exceeds the limit, so the numbers have to
be its numbers. They are 64-bit and saturate; sizes are ranges. What a device can hold at
most is known from the API's limits; every other size is unbounded, which is why some
harmless expressions saturate.

Source: spec/cel.md section 6, spec/cel-choice.md section 3.4, corpus/cel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from drakkar.cel import types
from drakkar.cel.signatures import COMPARABLE
from drakkar.cel.syntax import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    StructNode,
)
from drakkar.cel.types import Type

SATURATED: Final = 2**64 - 1

#: Cost per character of a traversed string, and per character of a regular expression.
TEXT: Final = 0.1
REGEX: Final = 0.25
LIST_BASE: Final = 10
MAP_BASE: Final = 30
STRUCT_BASE: Final = 40
AUTHORIZATION_CHECK: Final = 350_000

#: Pattern lengths that stand for the named formats.
FORMAT_PATTERNS: Final = {
    "dns1123Label": 30, "dns1123Subdomain": 60, "dns1035Label": 30, "qualifiedName": 60, "dns1123LabelPrefix": 30,
    "dns1123SubdomainPrefix": 60, "dns1035LabelPrefix": 30, "labelValue": 40, "uri": 1103, "uuid": 70, "byte": 84,
    "date": 71, "datetime": 71,
}  # fmt: skip
#: The longest pattern a format may have, assumed where the format is not known.
_MAX_FORMAT_PATTERN: Final = 128

_MAX_FORMAT_NAME: Final = 64
_MAX_ENTRIES: Final = 32
_MAX_VALUE: Final = 64
_MAX_NAME: Final = 63
_MAX_ID: Final = 32


def scale(amount: int, factor: float) -> int:
    """``amount * factor`` rounded up, saturating."""
    product = math.ceil(float(amount) * factor)
    return SATURATED if product >= 2**64 else product


def _add(one: int, other: int) -> int:
    return min(one + other, SATURATED)


def _times(one: int, other: int) -> int:
    return min(one * other, SATURATED)


class Size(NamedTuple):
    """Least and greatest size of a string, list, map or bytes; 1 for scalars."""

    low: int
    high: int

    def plus(self, other: Size) -> Size:
        """Sizes side by side."""
        return Size(_add(self.low, other.low), _add(self.high, other.high))

    def times(self, other: Size) -> Size:
        """As many of the other."""
        return Size(_times(self.low, other.low), _times(self.high, other.high))

    def union(self, other: Size) -> Size:
        """Either."""
        return Size(min(self.low, other.low), max(self.high, other.high))


UNKNOWN: Final = Size(0, SATURATED)


class EntrySize(NamedTuple):
    """Sizes of a container's keys and values."""

    kind: str
    key: Size
    value: Size


class _Variable(NamedTuple):
    path: tuple[str, ...] | None
    size: Size | None
    entry: EntrySize | None


class Limit:
    """What the API allows a value to hold: its size, and the limits of its keys, elements and fields."""

    __slots__ = ("element", "fields", "key", "size")

    def __init__(
        self,
        size: int,
        key: Limit | None = None,
        element: Limit | None = None,
        fields: dict[str, Limit] | None = None,
    ) -> None:
        self.size = size
        self.key = key
        self.element = element
        self.fields = fields or {}


_ATTRIBUTE: Final = Limit(_MAX_VALUE)
#: What is not said by the reference implementation's declarations: elements of attributes are bounded, too.
_ATTRIBUTE_ELEMENT: Final = Limit(_MAX_VALUE)


def _domains(element: Limit) -> Limit:
    inner = Limit(_MAX_ENTRIES, Limit(_MAX_ID), element)
    return Limit(_MAX_ENTRIES, Limit(_MAX_NAME), inner)


_DEVICE: Final = Limit(
    0,
    fields={
        "driver": Limit(_MAX_NAME),
        "attributes": _domains(_ATTRIBUTE),
        "capacity": _domains(Limit(SATURATED)),
        "allowMultipleAllocations": Limit(1),
    },
)


#: Limits of the variables of a device expression.
DEVICE_LIMITS: Final[Mapping[str, Limit]] = {"device": _DEVICE}


def _limit_of(roots: Mapping[str, Limit], path: tuple[str, ...] | None, tight: bool) -> Size | None:
    limit = roots.get(path[0]) if path else None
    if not path or limit is None:
        return None
    for step in path[1:]:
        if step in ("@items", "@values"):
            limit = _ATTRIBUTE_ELEMENT if tight and limit is _ATTRIBUTE else limit.element
        elif step == "@keys":
            limit = limit.key
        elif step in limit.fields:
            limit = limit.fields[step]
        elif limit.element is _ATTRIBUTE:
            limit = _ATTRIBUTE
        else:
            return None
        if limit is None:
            return None
    return Size(0, limit.size)


def estimate(node: Node, roots: Mapping[str, Limit] = DEVICE_LIMITS) -> int:
    """The greatest cost of evaluating the checked tree, as an API server sees it; :data:`SATURATED` at most.

    ``roots`` holds what is known about the sizes of the variables.
    """
    return _Estimator(roots, tight=False).cost(node)


def bound(node: Node) -> int:
    """A closer bound than :func:`estimate`: it follows sizes through optional values, opaque types and list elements.

    Where it stays below the limit, evaluation need not count.
    """
    return _Estimator(DEVICE_LIMITS, tight=True).cost(node)


_Result = tuple[int, Size | None]


class _Estimator:
    def __init__(self, roots: Mapping[str, Limit], *, tight: bool) -> None:
        self._roots = roots
        self._tight = tight
        self._paths: dict[int, tuple[str, ...]] = {}
        self._sizes: dict[int, Size] = {}
        self._entries: dict[int, EntrySize] = {}
        self._variables: dict[str, list[_Variable]] = {}

    def cost(self, node: Node) -> int:
        """Cost of a node and everything below it."""
        match node:
            case Literal():
                return 0
            case Ident():
                variable = self._peek(node.name)
                self._paths[id(node)] = (variable.path or ()) if variable else (node.name,)
                return 1
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListNode():
                return self._list(node)
            case MapNode():
                return self._map(node)
            case StructNode():
                total = STRUCT_BASE
                for entry in node.entries:
                    total = _add(total, self.cost(entry.value))
                return total
            case Comprehension():
                return self._bind(node) if node.is_bind else self._loop(node)
            case _:
                raise TypeError(f"unknown node {type(node).__name__}")

    # What is known about nodes.

    def _peek(self, name: str) -> _Variable | None:
        stack = self._variables.get(name)
        return stack[-1] if stack else None

    def _push(self, name: str, path: tuple[str, ...] | None, size: Size | None, entry: EntrySize | None) -> None:
        self._variables.setdefault(name, []).append(_Variable(path, size, entry))

    def _pop(self, name: str) -> None:
        self._variables[name].pop()

    def path(self, node: Node) -> tuple[str, ...]:
        """Way from a variable to the node, empty when there is none."""
        if isinstance(node, Ident) and (variable := self._peek(node.name)) is not None:
            return variable.path or ()
        return self._paths.get(id(node), ())

    def _known_size(self, node: Node) -> Size | None:
        found = self._sizes.get(id(node)) or _literal_size(node)
        if found is not None:
            return found
        limit = _limit_of(self._roots, self.path(node), self._tight)
        if limit is not None:
            self._sizes[id(node)] = limit
            return limit
        if _is_scalar(node.type):
            return Size(1, 1)
        if self._tight and (node.type.name in _OPAQUE_SIZES):
            return Size(0, _OPAQUE_SIZES[node.type.name])
        if isinstance(node, Ident) and (variable := self._peek(node.name)) is not None:
            return variable.size
        return None

    def size(self, node: Node) -> Size:
        """Size of a node's value."""
        return self._known_size(node) or UNKNOWN

    def entry(self, node: Node) -> EntrySize | None:
        """Sizes of what a node's container holds."""
        found = self._entries.get(id(node))
        if found is None and isinstance(node, Ident) and (variable := self._peek(node.name)) is not None:
            return variable.entry
        return found

    def element(self, node: Node) -> tuple[Type, Size] | None:
        """Type and size of the elements of a list whose type is known."""
        if not node.type.params:
            return None
        limit = _limit_of(self._roots, (*self.path(node), "@items"), self._tight) if self.path(node) else None
        return node.type.params[0], limit or UNKNOWN

    # Nodes.

    def _select(self, node: Select) -> int:
        total = self.cost(node.operand)
        if node.test:
            return total
        if node.operand.type.kind in ("map", "struct", "param"):
            total = _add(total, 1)
        self._paths[id(node)] = (*self.path(node.operand), node.field)
        return total

    def _call(self, node: Call) -> int:
        if node.function == "dyn":
            total = _add(1, self.cost(node.args[0]))
            self._copy(node, node.args[0])
            return total
        costs = [self.cost(arg) for arg in node.args]
        total = self.cost(node.target) if node.target is not None else 0
        arguments = 0
        for cost in costs:
            arguments = _add(arguments, cost)
        worst = 0
        result: Size | None = None
        for overload in node.overloads:
            cost, size = self._overload(node, overload, costs, arguments)
            worst = max(worst, cost)
            if size is not None:
                result = size if result is None else result.union(size)
            if overload in ("index_list", "index_map"):
                entry = self.entry(node.args[0])
                result = entry.value if entry else None
                step = "@items" if overload == "index_list" else "@values"
                self._paths[id(node)] = (*self.path(node.args[0]), step)
            if result is None:
                result = self._known_size(node)
        if self._tight and result is None:
            result = self._through(node)
        if result is not None:
            self._sizes[id(node)] = result
        return _add(total, worst)

    def _through(self, node: Call) -> Size | None:
        """Size of what an optional access hands on."""
        match node.function:
            case "_?._" | "_[?_]":
                field = node.args[1]
                step = str(field.value) if isinstance(field, Literal) and node.function == "_?._" else "@values"
                self._paths[id(node)] = (*self.path(node.args[0]), step)
                return self._known_size(node)
            case "value" | "optional.of" | "optional.ofNonZeroValue" | "or" | "orValue":
                first, *rest = node.operands
                if all(_small(one) for one in rest):
                    self._paths[id(node)] = self.path(first)
                size = self._known_size(first)
                for one in rest:
                    other = self._known_size(one)
                    size = size.union(other) if size and other else None
                return size
            case _:
                return None

    def _copy(self, node: Node, source: Node) -> None:
        size = self._known_size(source)
        if size is not None:
            self._sizes[id(node)] = size
        entry = self.entry(source)
        if entry is not None:
            self._entries[id(node)] = entry

    def _list(self, node: ListNode) -> int:
        total, size = LIST_BASE, Size(0 if not node.elements else SATURATED, 0)
        for element in node.elements:
            total = _add(total, self.cost(element))
            size = size.union(self.size(element))
        self._entries[id(node)] = EntrySize("list", Size(1, 1), size)
        return total

    def _map(self, node: MapNode) -> int:
        total = MAP_BASE
        keys = values = Size(0 if not node.entries else SATURATED, 0)
        for entry in node.entries:
            total = _add(_add(total, self.cost(entry.key)), self.cost(entry.value))
            keys = keys.union(self.size(entry.key))
            values = values.union(self.size(entry.value))
        self._entries[id(node)] = EntrySize("map", keys, values)
        return total

    def _bind(self, node: Comprehension) -> int:
        total = _add(self.cost(node.range), self.cost(node.init))
        self._push(node.accu, self.path(node.init), self._known_size(node.init), self.entry(node.init))
        total = _add(total, self.cost(node.result))
        self._copy(node, node.result)
        self._pop(node.accu)
        return total

    def _loop(self, node: Comprehension) -> int:
        total = _add(self.cost(node.range), self.cost(node.init))
        self._push(node.accu, self.path(node.init), self._known_size(node.init), self.entry(node.init))
        entry = self.entry(node.range)
        path = self.path(node.range)
        kind = entry.kind if entry else node.range.type.kind
        key, value = (entry.key, entry.value) if entry else (None, None)
        if node.var2:
            self._push(node.var, (*path, "@indices" if kind == "list" else "@keys"), key, None)
            self._push(node.var2, (*path, "@items" if kind == "list" else "@values"), value, None)
        elif kind == "list":
            self._push(node.var, (*path, "@items"), value, None)
        else:
            self._push(node.var, (*path, "@keys"), key, None)
        each = _add(self.cost(node.condition), self.cost(node.step))
        step_entry = self.entry(node.step)
        self._pop(node.var)
        if node.var2:
            self._pop(node.var2)
        total = _add(total, self.cost(node.result))
        self._pop(node.accu)
        count = self.size(node.range)
        total = _add(total, _times(count.high, each))
        if isinstance(node.init, Literal):
            size = self._known_size(node.init)
            if size is not None:
                self._sizes[id(node)] = size
        else:
            self._sizes[id(node)] = count
            if step_entry is not None:
                self._entries[id(node)] = step_entry
        return total

    # Functions.

    def _overload(self, node: Call, overload: str, costs: list[int], arguments: int) -> _Result:
        if self._tight and node.function in _COMPARING and self._is_deep(node.operands[0]):
            return SATURATED, None
        special = _BY_OVERLOAD.get(overload)
        if special is not None:
            found = special(self, node)
        else:
            by_name = _BY_FUNCTION.get(node.function)
            found = by_name(self, node, overload) if by_name is not None else None
        if found is not None:
            return _add(found[0], arguments), found[1]
        return self._standard(node, overload, costs, arguments)

    def _standard(self, node: Call, overload: str, costs: list[int], arguments: int) -> _Result:
        args = node.args
        match overload:
            case "string_format" if self._tight and not _prints_scalars(args[0]):
                return SATURATED, None
            case "string_format":
                assert node.target is not None
                return _add(scale(self.size(node.target).high, TEXT), arguments), None
            case "string_to_bytes" | "bytes_to_string" | "strings_quote":
                size = self.size(args[0])
                result = {
                    "string_to_bytes": Size(size.low, (size.high * 4) & SATURATED),
                    "bytes_to_string": Size(size.low // 4, size.high),
                    "strings_quote": Size(size.low + 2, (size.high * 2 + 2) & SATURATED),
                }[overload]
                return _add(scale(size.high, TEXT), arguments), result
            case "starts_with_string" | "ends_with_string":
                return _add(scale(self.size(args[0]).high, TEXT), arguments), None
            case "in_list":
                return _add(scale(self.size(args[1]).high, 1), arguments), None
            case "matches" | "matches_string":
                subject, pattern = node.operands
                text = scale(_add(self.size(subject).high, 1), TEXT)
                return _add(_times(text, scale(self.size(pattern).high, REGEX)), arguments), None
            case "contains_string" if node.target is not None:
                text = scale(self.size(node.target).high, TEXT)
                return _add(_times(text, scale(self.size(args[0]).high, TEXT)), arguments), None
            case "logical_and" | "logical_or":
                return arguments, None
            case "conditional":
                size = self.size(args[1]).union(self.size(args[2]))
                one, other = self.entry(args[1]), self.entry(args[2])
                if one and other:
                    self._entries[id(node)] = EntrySize(
                        one.kind, one.key.union(other.key), one.value.union(other.value)
                    )
                return _add(costs[0], max(costs[1], costs[2])), size
            case "add_string" | "add_bytes" | "add_list":
                size = self.size(args[0]).plus(self.size(args[1]))
                one, other = self.entry(args[0]), self.entry(args[1])
                if one and other:
                    self._entries[id(node)] = EntrySize(
                        one.kind, one.key.union(other.key), one.value.union(other.value)
                    )
                # The reference does not count what a longer list needs; the closer bound has to.
                free = overload == "add_list" and not self._tight
                return _add(1 if free else scale(size.high, TEXT), arguments), size
            case "equals" | "not_equals" | "in_list" if self._tight and all(map(self._is_deep, args)):
                return SATURATED, None
            case "equals" | "not_equals":
                return _add(scale(min(self.size(args[0]).high, self.size(args[1]).high), TEXT), arguments), None
            case _ if node.function in ("_<_", "_<=_", "_>_", "_>=_") and overload.endswith(("_string", "_bytes")):
                return _add(scale(min(self.size(args[0]).high, self.size(args[1]).high), TEXT), arguments), None
            case _:
                return _add(1, arguments), None

    def _is_deep(self, node: Node) -> bool:
        """Whether the value may be a list or map with lists or maps in it, which take long to compare."""
        if _limit_of(self._roots, self.path(node), self._tight) is not None:
            # Attributes hold plain values, and lists of those.
            return False
        if node.type.kind in ("list", "map"):
            return node.type.params[-1].kind in ("list", "map", "dyn", "any", "param")
        return node.type.kind in ("dyn", "any", "param") or types.unwrap_optional(node.type)[1]


def _literal_size(node: Node) -> Size | None:
    if isinstance(node, Literal):
        size = len(node.value) if isinstance(node.value, str | bytes) else 1
        return Size(size, size)
    if isinstance(node, ListNode):
        return Size(len(node.elements), len(node.elements))
    if isinstance(node, MapNode):
        return Size(len(node.entries), len(node.entries))
    return None


def _prints_scalars(arguments: Node) -> bool:
    return isinstance(arguments, ListNode) and all(
        _is_scalar(one.type) or one.type.kind == "string" for one in arguments.elements
    )


def _small(node: Node) -> bool:
    """Whether a constant holds nothing larger than an attribute may hold."""
    if isinstance(node, ListNode):
        return all(_small(element) for element in node.elements)
    size = _literal_size(node)
    return isinstance(node, Literal) and size is not None and size.high <= _MAX_VALUE


#: Sizes of values that only the closer bound knows.
_OPAQUE_SIZES: Final = {
    "kubernetes.Quantity": 1, "kubernetes.Semver": 1, "kubernetes.NamedFormat": 1, "net.IP": 16, "net.CIDR": 16,
    "type": 1,
}  # fmt: skip


def _is_scalar(type_: Type) -> bool:
    inner, is_optional = types.unwrap_optional(type_)
    if is_optional:
        return _is_scalar(inner)
    return type_.kind in ("bool", "double", "duration", "int", "timestamp", "uint")


# Functions whose cost is not the standard one.


def _traverse(factor: float, keeps_size: bool = False) -> Callable[[_Estimator, Call, str], _Result]:
    """Reading a string once or more: the receiver's or the first argument's."""

    def cost(estimator: _Estimator, node: Call, overload: str) -> _Result:
        size = estimator.size(node.operands[0])
        return scale(size.high, factor), size if keeps_size else None

    return cost


def _each(estimator: _Estimator, node: Call, overload: str) -> _Result | None:
    if node.target is None:
        return None
    size = estimator.size(node.target)
    element = estimator.element(node.target)
    if element is None:
        return scale(size.high, TEXT), None
    each = 1
    if element[0].kind in ("string", "bytes"):
        each = _add(each, scale(element[1].high, TEXT))
    return _times(size.high, each), None


def _includes(estimator: _Estimator, node: Call, overload: str) -> _Result:
    assert node.target is not None
    return estimator.size(node.target).high, None


def _replace(estimator: _Estimator, node: Call, overload: str) -> _Result | None:
    if node.target is None:
        return None
    size = estimator.size(node.target)
    old, new = estimator.size(node.args[0]), estimator.size(node.args[1])
    if old.low == 0:
        high = _add(_times(_add(size.high, 1), new.high), size.high)
    elif new.high <= old.low:
        high = size.high
    else:
        high = _times(scale(size.high, 1 / old.low), new.high)
    if old.high == 0:
        low = _add(_times(_add(size.low, 1), new.low), size.low)
    elif old.high <= new.low:
        low = size.low
    else:
        low = _times(scale(size.low, 1 / old.high), new.low)
    return scale(size.high, 2 * TEXT), Size(low, high)


def _split(estimator: _Estimator, node: Call, overload: str) -> _Result | None:
    if node.target is None:
        return None
    size = estimator.size(node.target)
    most = size.high
    if len(node.args) > 1 and isinstance(node.args[1], Literal) and isinstance(node.args[1].value, int):
        limit = node.args[1].value
        most = limit if limit >= 0 else most
    return scale(size.high, 2 * TEXT), Size(0, most)


def _join(estimator: _Estimator, node: Call, overload: str) -> _Result | None:
    if node.target is None:
        return None
    count = estimator.size(node.target)
    size = Size(0, 0)
    element = estimator.element(node.target)
    if element is not None:
        size = count.times(element[1])
    if node.args:
        gaps = Size(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(estimator.size(node.args[0]).times(gaps))
    return scale(size.high, TEXT), size


def _search(estimator: _Estimator, node: Call, overload: str) -> _Result | None:
    if node.target is None:
        return None
    size = estimator.size(node.target)
    text = scale(_add(size.high, 1), TEXT)
    return _times(text, scale(estimator.size(node.args[0]).high, REGEX)), Size(0, size.high)


def _ip(estimator: _Estimator, node: Call, overload: str) -> _Result:
    if overload == "cidr_ip":
        return 1, None
    return scale(estimator.size(node.args[0]).high, TEXT), None


def _contains_network(estimator: _Estimator, node: Call, overload: str) -> _Result:
    cost = scale(32, TEXT)
    if node.function == "containsCIDR":
        cost += scale(16, TEXT) + 1
    if overload.endswith("_string"):
        cost = _add(cost, scale(estimator.size(node.args[0]).high, TEXT))
    return cost, None


#: Functions that compare the elements of a list with each other or with another value, or print them.
_COMPARING: Final = frozenset(
    ("indexOf", "lastIndexOf", "includes", "distinct", "flatten", "sets.contains", "sets.equivalent", "sets.intersects")
)
_CONSTANT_EQUALITY: Final = ("kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR")


def _equality(estimator: _Estimator, node: Call, overload: str) -> _Result | None:
    one, other = node.args[0].type, node.args[1].type
    if one != other:
        return None
    if one.name in _CONSTANT_EQUALITY:
        return 1, None
    if one == types.URL:
        return scale(estimator.size(node.args[1]).high, TEXT), None
    return (scale(_MAX_FORMAT_NAME, TEXT), None) if one == types.FORMAT else None


def _validate(estimator: _Estimator, node: Call, overload: str) -> _Result:
    text = scale(estimator.size(node.args[0]).high, TEXT)
    return _times(text, scale(_MAX_FORMAT_PATTERN, REGEX)), None


def _sets(factor: int) -> Callable[[_Estimator, Call, str], _Result]:
    def cost(estimator: _Estimator, node: Call, overload: str) -> _Result:
        product = estimator.size(node.args[0]).times(estimator.size(node.args[1]))
        return _add(scale(product.high, factor), 1), None

    return cost


def _authorization_check(estimator: _Estimator, node: Call, overload: str) -> _Result:
    return AUTHORIZATION_CHECK, None


_BY_FUNCTION: Final[dict[str, Callable[[_Estimator, Call, str], _Result | None]]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _each),
    "includes": _includes,
    "check": _authorization_check,
    "url": _traverse(TEXT, keeps_size=True),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _traverse(TEXT, keeps_size=True)),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _search),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"), _traverse(TEXT)),
    "ip": _ip,
    "ip.isCanonical": _traverse(2 * TEXT),
    **dict.fromkeys(("containsIP", "containsCIDR"), _contains_network),
    "_==_": _equality,
    "validate": _validate,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}


def _allocating(cost: int, size: Size) -> _Result:
    return _add(_add(cost, 1), LIST_BASE), size


def _number(node: Node, default: int) -> int:
    if isinstance(node, Literal) and type(node.value) is int:
        return max(node.value, 0)
    return default


def _slice_cost(estimator: _Estimator, node: Call) -> _Result:
    assert node.target is not None
    start, end = _number(node.args[0], 0), _number(node.args[1], estimator.size(node.target).high)
    count = (end - start) & SATURATED
    return _allocating(count, Size(count, count))


def _range_cost(estimator: _Estimator, node: Call) -> _Result:
    count = _number(node.args[0], SATURATED)
    return _allocating(scale(count, 1), Size(count, count))


def _reverse_cost(estimator: _Estimator, node: Call) -> _Result:
    size = estimator.size(node.operands[0])
    return _allocating(scale(size.high, 1), size)


def _flatten_cost(estimator: _Estimator, node: Call) -> _Result:
    size = estimator.size(node.operands[0])
    depth = _number(node.args[0], SATURATED) if node.args else 1
    return _allocating(scale(size.high, float(depth)), size)


def _square(size: Size, factor: float) -> _Result:
    square = size.times(size)
    return _allocating(scale(square.high, factor), square)


def _distinct_cost(estimator: _Estimator, node: Call) -> _Result:
    return _square(estimator.size(node.operands[0]), 2.0)


def _sort_cost(kind: str) -> Callable[[_Estimator, Call], _Result]:
    factor = 2.0 + TEXT if kind in ("string", "bytes") else 2.0

    def cost(estimator: _Estimator, node: Call) -> _Result:
        return _square(estimator.size(node.operands[-1]), factor)

    return cost


_BY_OVERLOAD: Final[dict[str, Callable[[_Estimator, Call], _Result]]] = {
    "list_slice": _slice_cost,
    "lists_range": _range_cost,
    "list_reverse": _reverse_cost,
    "list_flatten": _flatten_cost,
    "list_flatten_int": _flatten_cost,
    "list_distinct": _distinct_cost,
    **{f"list_{kind}_sort": _sort_cost(kind) for kind in COMPARABLE},
    **{f"list_{kind}_sortByAssociatedKeys": _sort_cost(kind) for kind in COMPARABLE},
}
