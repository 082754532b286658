"""Evaluation that counts costs as the reference implementation does.

Slower than the closures and used where the count matters: for expressions whose estimate
exceeds the limit, and to report actual costs. The tree is walked; errors of operands do
not stop the counting of their neighbours, because there they do not either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from drakkar.cel import operators, timelib
from drakkar.cel.closures import iterate
from drakkar.cel.cost import AUTHORIZATION_CHECK, FORMAT_PATTERNS, LIST_BASE, MAP_BASE, REGEX, STRUCT_BASE, TEXT
from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.folding import Constants, is_set_membership
from drakkar.cel.library import FUNCTIONS
from drakkar.cel.limits import MAX_WORK, WORK, LimitExceeded, check_size
from drakkar.cel.macros import ACCUMULATOR
from drakkar.cel.members import has, select, select_optional
from drakkar.cel.operators import index, optional_index
from drakkar.cel.syntax import Call, Comprehension, Ident, ListNode, MapNode, Node, Select, StructNode
from drakkar.cel.values import NONE, Format, Optional, is_map, is_opaque, kind_of, size_of, to_key


class Meter:
    """Counts costs against a limit."""

    __slots__ = ("_compared", "_made", "cost", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cost = 0
        self._made = 0
        self._compared = WORK.done

    def add(self, cost: int) -> None:
        """Count; raises beyond the limit."""
        self.cost += cost
        if self.cost > self.limit:
            raise LimitExceeded

    def use(self, size: int) -> None:
        """Count what was made and compared, which costs do not show; raises beyond what an evaluation may do."""
        self._made += size
        if self._made + WORK.done - self._compared > MAX_WORK:
            raise LimitExceeded


class _Lazy:
    """A bound value that is computed when first asked for."""

    __slots__ = ("done", "node", "scope", "value")

    def __init__(self, node: Node, scope: _Scope) -> None:
        self.node = node
        self.scope = scope
        self.done = False
        self.value: Any = None


_Scope = dict[str, Any]
#: Functions that stand in for those of the library, by the identity of the calling node.
Overrides: TypeAlias = Mapping[int, Callable[..., Any]]


def run(node: Node, constants: Constants, scope: _Scope, meter: Meter, overrides: Overrides | None = None) -> Any:
    """The value of the tree with the variables of ``scope``; raises :class:`EvaluationError`."""
    try:
        return _Tracker(constants, meter, overrides or {}).value(node, scope)
    except LimitExceeded:
        raise EvaluationError("cost-limit", "operation cancelled: actual cost limit exceeded") from None


class _Tracker:
    def __init__(self, constants: Constants, meter: Meter, overrides: Overrides) -> None:
        self._constants = constants
        self._meter = meter
        self._overrides = overrides

    def value(self, node: Node, scope: _Scope, bare: bool = False) -> Any:
        """Evaluate; ``bare`` leaves out the unit for the root of an attribute (branches of a conditional)."""
        try:
            return self._value(node, scope, bare)
        except EvaluationError as error:
            if error.offset is None:
                error.offset = node.pos
            raise

    def _value(self, node: Node, scope: _Scope, bare: bool) -> Any:
        if isinstance(node, Ident) and node.constant is None:
            return self._variable(node, scope, 0 if bare else 1)
        if node in self._constants:
            return self._constants[node]
        if isinstance(node, Call):
            if node.function in _STEPS:
                return self._attribute(node, scope, bare)
            return self._call(node, scope)
        if isinstance(node, Select):
            if node.test:
                if node.operand in self._constants:
                    self._meter.add(1)
                present = self._overrides.get(id(node)) or has
                return present(self.value(node.operand, scope), node.field)
            return self._attribute(node, scope, bare)
        if isinstance(node, ListNode):
            return self._list(node, scope)
        if isinstance(node, MapNode):
            return self._map(node, scope)
        if isinstance(node, Comprehension):
            return self._bind(node, scope) if node.is_bind else self._loop(node, scope)
        if isinstance(node, StructNode):
            for entry in node.entries:
                self.value(entry.value, scope)
            self._meter.add(STRUCT_BASE)
            raise EvaluationError("unknown-type", f"unknown type: {node.name}")
        raise TypeError(f"unknown node {type(node).__name__}")

    def _variable(self, node: Ident, scope: _Scope, own: int) -> Any:
        try:
            value = self._root(node, scope)
        except EvaluationError:
            self._meter.add(own)
            raise
        self._meter.add(own)
        return value

    # Attributes: a variable or another value, followed by selections and indexes.

    def _attribute(self, node: Node, scope: _Scope, bare: bool) -> Any:
        steps: list[Select | Call] = []
        root = node
        while root not in self._constants and (step := _step(root)) is not None:
            steps.append(step)
            root = step.operand if isinstance(step, Select) else step.args[0]
        own = 0 if bare or _is_conditional(root) else 1
        try:
            value = self._root(root, scope)
            for step in reversed(steps):
                value = self._step(step, value, scope)
                if value is NONE:
                    break
        except EvaluationError:
            self._meter.add(own)
            raise
        self._meter.add(own)
        return value

    def _root(self, root: Node, scope: _Scope) -> Any:
        if not isinstance(root, Ident):
            return self.value(root, scope)
        value = scope[root.name]
        if isinstance(value, _Lazy):
            if not value.done:
                try:
                    value.value = self.value(value.node, value.scope)
                except EvaluationError as error:
                    value.value = error
                value.done = True
            value = value.value
        if isinstance(value, EvaluationError):
            raise value
        return value

    def _step(self, step: Select | Call, value: Any, scope: _Scope) -> Any:
        if isinstance(step, Select):
            result = select(value, step.field) if type(value) is Optional else None
            if result is None or result.present:
                self._meter.add(1)
            return select(value, step.field) if result is None else result
        key_node = step.args[1]
        if key_node in self._constants:
            key = self._constants[key_node]
        else:
            try:
                key = self.value(key_node, scope, bare=_is_attribute(key_node))
            except EvaluationError:
                if step.function == "_[_]" and type(value) is not Optional:
                    self._meter.add(1)
                raise
        if step.function == "_[_]" and type(value) is not Optional:
            self._meter.add(1)
            return index(value, key)
        if step.function == "_?._":
            result = (self._overrides.get(id(step)) or select_optional)(value, str(key))
        else:
            result = optional_index(value, key)
        if result.present:
            self._meter.add(1)
        return result

    # Calls.

    def _call(self, node: Call, scope: _Scope) -> Any:
        function = node.function
        if function in ("_&&_", "_||_"):
            return self._logic(node, scope, function == "_||_")
        if function == "_?_:_":
            condition = self.value(node.args[0], scope)
            if condition is not True and condition is not False:
                raise no_overload("?:", condition)
            return self.value(node.args[1 if condition else 2], scope, bare=True)
        if function in ("or", "orValue"):
            return self._or_value(node, scope)
        if function == "@in" and is_set_membership(node, self._constants):
            return self._in_constants(node, scope)
        if function == "@not_strictly_false":
            return self._not_strictly_false(node, scope)
        return self._function(node, scope)

    def _function(self, node: Call, scope: _Scope) -> Any:
        operands = node.operands
        values: list[Any] = []
        failure: EvaluationError | None = None
        # Most calls of up to two operands look at both. Others end with the first error and are charged only when all
        # operands were looked at: longer ones, those with a prepared pattern, those whose form is chosen at run time.
        prepared = node.function in _WITH_PATTERN and operands[1] in self._constants
        dispatched = len(node.overloads) > 1 and node.function not in _STANDARD
        in_turn = len(operands) > 2 or prepared or dispatched or node.function == "format"
        for number, operand in enumerate(operands, start=1):
            try:
                values.append(self.value(operand, scope))
            except EvaluationError as error:
                if in_turn and number < len(operands):
                    raise
                failure = failure or error
                values.append(error)
        result: Any = failure
        if failure is None and _is_collecting(node) and type(values[0]) is list:
            values[0] += values[1]
            check_size(len(values[0]))
            self._meter.add(1)
            return values[0]
        if failure is None:
            try:
                result = (self._overrides.get(id(node)) or FUNCTIONS[node.function])(*values)
            except EvaluationError as error:
                result = failure = error
        self._meter.add(_call_cost(node, values, result))
        if failure is not None:
            raise failure
        kind = kind_of(result)
        self._meter.use(len(result) if kind is list or kind is str else 0)
        return result

    def _logic(self, node: Call, scope: _Scope, decides: bool) -> bool:
        failure: EvaluationError | None = None
        for arg in node.args:
            try:
                value = self.value(arg, scope)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decides:
                return decides
            if value is not (not decides):
                failure = failure or no_overload("||" if decides else "&&", value)
        if failure is not None:
            raise failure
        return not decides

    def _or_value(self, node: Call, scope: _Scope) -> Any:
        assert node.target is not None
        value = self.value(node.target, scope)
        if type(value) is not Optional:
            raise no_overload(node.function, value)
        if value.present:
            return value if node.function == "or" else value.value
        return self.value(node.args[0], scope)

    def _in_constants(self, node: Call, scope: _Scope) -> bool:
        items = self._constants[node.args[1]]
        if not items:
            return False
        return FUNCTIONS["@in"](self.value(node.args[0], scope), items)

    def _not_strictly_false(self, node: Call, scope: _Scope) -> bool:
        try:
            value = self.value(node.args[0], scope)
        except EvaluationError:
            value = True
        self._meter.add(1)
        return value is not False

    # Literals and loops.

    def _list(self, node: ListNode, scope: _Scope) -> list[Any]:
        result: list[Any] = []
        try:
            for at, element in enumerate(node.elements):
                value = self.value(element, scope)
                if at not in node.optional:
                    result.append(value)
                elif type(value) is not Optional:
                    raise no_overload("[?]", value)
                elif value.present:
                    result.append(value.value)
        except EvaluationError:
            self._meter.add(LIST_BASE)
            raise
        self._meter.add(LIST_BASE)
        return result

    def _map(self, node: MapNode, scope: _Scope) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        try:
            for entry in node.entries:
                key, value = self.value(entry.key, scope), self.value(entry.value, scope)
                if not entry.optional:
                    result[to_key(key)] = value
                elif type(value) is not Optional:
                    raise no_overload("{?}", value)
                elif value.present:
                    result[to_key(key)] = value.value
        except EvaluationError:
            self._meter.add(MAP_BASE)
            raise
        self._meter.add(MAP_BASE)
        return result

    def _bind(self, node: Comprehension, scope: _Scope) -> Any:
        return self.value(node.result, {**scope, node.accu: _Lazy(node.init, scope)})

    def _loop(self, node: Comprehension, scope: _Scope) -> Any:
        range_ = self.value(node.range, scope)
        items = iterate(range_, node.var2 is not None)
        inner = dict(scope)
        begin = self._settled(node.init, scope)
        # What a loop collects is its own, so that every step can add to it in place.
        inner[node.accu] = type(begin)(begin) if type(begin) in (list, dict) else begin
        for item in items:
            if node.var2:
                inner[node.var], inner[node.var2] = item
            else:
                inner[node.var] = item
            try:
                if self.value(node.condition, inner) is False:
                    break
            except EvaluationError:
                pass
            inner[node.accu] = self._settled(node.step, inner)
        final = {**scope, node.accu: inner[node.accu]}
        return self.value(node.result, final)

    def _settled(self, node: Node, scope: _Scope) -> Any:
        try:
            return self.value(node, scope)
        except EvaluationError as error:
            return error


#: Functions that find their form at run time themselves.
_STANDARD: Final = frozenset(operators.FUNCTIONS) | frozenset(timelib.FUNCTIONS)
_WITH_PATTERN: Final = frozenset(("matches", "find", "findAll"))


def _is_collecting(node: Call) -> bool:
    """Whether the call adds to what a loop collects."""
    return node.function == "_+_" and isinstance(node.args[0], Ident) and node.args[0].name == ACCUMULATOR


_STEPS: Final = frozenset(("_[_]", "_?._", "_[?_]"))


def _step(node: Node) -> Select | Call | None:
    if isinstance(node, Select) and not node.test and node.constant is None:
        return node
    if isinstance(node, Call) and node.function in _STEPS:
        return node
    return None


def _is_conditional(node: Node) -> bool:
    return isinstance(node, Call) and node.function == "_?_:_"


def _is_attribute(node: Node) -> bool:
    return isinstance(node, Ident) or _step(node) is not None


# Costs of calls.


def _text(size: int, factor: float = TEXT) -> int:
    return math.ceil(size * factor)


def _traversal(value: Any) -> int:
    if type(value) is str:
        return int(len(value.encode()) * TEXT)
    if type(value) is bytes:
        return int(len(value) * TEXT)
    if type(value) is list:
        return sum(map(_traversal, cast("list[Any]", value)))
    if is_map(value):
        return sum(_traversal(key) + _traversal(item) for key, item in value.items())
    return 1


def _first(factor: float) -> Callable[[list[Any], Any, Call], int]:
    return lambda args, result, node: _text(size_of(args[0]), factor)


def _regex(args: list[Any], result: Any, node: Call) -> int:
    return _text(1 + size_of(args[0])) * _text(size_of(args[1]), REGEX)


def _contains_network(args: list[Any], result: Any, node: Call) -> int:
    size = size_of(args[0])
    cost = _text(2 * size)
    if node.function == "containsCIDR":
        cost += _text(size) + 1
    if len(node.overloads) == 1 and node.overloads[0].endswith("_string"):
        cost += _text(size_of(args[1]))
    return cost


def _ip(args: list[Any], result: Any, node: Call) -> int:
    return 1 if node.overloads == ("cidr_ip",) else _text(size_of(args[0]))


def _validate(args: list[Any], result: Any, node: Call) -> int:
    if type(args[0]) is not Format:
        return 1
    pattern = FORMAT_PATTERNS[args[0].name]
    return _text(1 + size_of(args[1])) * _text(pattern, REGEX)


def _sets(factor: int) -> Callable[[list[Any], Any, Call], int]:
    return lambda args, result, node: size_of(args[0]) * size_of(args[1]) * factor + 1


def _shorter(args: list[Any], result: Any, node: Call) -> int:
    return _text(min(size_of(args[0]), size_of(args[1])))


def _allocating(cost: float) -> int:
    return int(cost) + 1 + LIST_BASE


def _flatten(args: list[Any], result: Any, node: Call) -> int:
    depth = args[1] if kind_of(args[1]) is int and args[1] >= 0 else 1
    return _allocating(size_of(args[0]) * depth)


def _self_compare(items: Any) -> int:
    size = size_of(items)
    factor = 2.0 + TEXT if kind_of(items) is list and items and kind_of(items[0]) in (str, bytes) else 2.0
    return _allocating(size * size * factor)


_BY_OVERLOAD: Final[dict[str, Callable[[list[Any], Any, Call], int]]] = {
    "list_slice": lambda args, result, node: _allocating(size_of(result)),
    "lists_range": lambda args, result, node: _allocating(size_of(result)),
    "list_reverse": lambda args, result, node: _allocating(size_of(result)),
    "list_flatten": lambda args, result, node: _allocating(size_of(args[0])),
    "list_flatten_int": _flatten,
    "list_distinct": lambda args, result, node: _self_compare(args[0]),
    "starts_with_string": lambda args, result, node: _text(size_of(args[1])),
    "ends_with_string": lambda args, result, node: _text(size_of(args[1])),
    "string_to_bytes": _first(TEXT),
    "bytes_to_string": _first(TEXT),
    "strings_quote": _first(TEXT),
    "string_format": _first(TEXT),
    "in_list": lambda args, result, node: size_of(args[1]),
    "equals": _shorter,
    "not_equals": _shorter,
    "add_string": lambda args, result, node: _text(size_of(args[0]) + size_of(args[1])),
    "add_bytes": lambda args, result, node: _text(size_of(args[0]) + size_of(args[1])),
    "matches": _regex,
    "matches_string": _regex,
    "contains_string": lambda args, result, node: _text(size_of(args[0])) * _text(size_of(args[1])),
}

_BY_FUNCTION: Final[dict[str, Callable[[list[Any], Any, Call], int]]] = {
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"),
        lambda args, result, node: _traversal(args[0]),
    ),
    **dict.fromkeys(
        ("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "quantity", "isQuantity",
         "semver", "isSemver"), _first(TEXT)),
    **dict.fromkeys(("replace", "split"), _first(2 * TEXT)),
    "join": lambda args, result, node: _text(size_of(result), 2 * TEXT),
    **dict.fromkeys(("find", "findAll"), _regex),
    "ip": _ip,
    "check": lambda args, result, node: AUTHORIZATION_CHECK,
    "ip.isCanonical": _first(2 * TEXT),
    **dict.fromkeys(("containsIP", "containsCIDR"), _contains_network),
    "validate": _validate,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}  # fmt: skip


def _call_cost(node: Call, args: list[Any], result: Any) -> int:
    """Cost of one call; what is dispatched at run time (several overloads) counts as one unit."""
    if node.function == "_==_" and is_opaque(args[0]):
        return 1
    by_name = _BY_FUNCTION.get(node.function)
    if len(node.overloads) == 1:
        overload = node.overloads[0]
        if overload.endswith("_sort"):
            return _self_compare(args[0])
        if overload.endswith("_sortByAssociatedKeys"):
            return _self_compare(args[1])
        by_overload = _BY_OVERLOAD.get(overload)
        if by_overload is not None and (by_name is None or overload.startswith("list")):
            return by_overload(args, result, node)
        if (
            by_name is None
            and node.function in ("_<_", "_<=_", "_>_", "_>=_")
            and overload.endswith(("_string", "_bytes"))
        ):
            return _shorter(args, result, node)
    return by_name(args, result, node) if by_name is not None else 1
