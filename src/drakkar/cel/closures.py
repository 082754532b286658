"""Checked trees to closures, for fast evaluation without counting costs.

A closure takes the environment, a list whose first item is the device and whose other
items are local variables. What real selectors consist of (an attribute by constant domain
and name, compared with a constant) becomes one closure each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, cast

from drakkar.cel.access import ROOT, Aliases, Path, path_of, presence_path
from drakkar.cel.errors import EvaluationError, no_overload, no_such_key
from drakkar.cel.folding import Constants, is_set_membership
from drakkar.cel.library import FUNCTIONS
from drakkar.cel.members import has, not_iterable, select, select_optional
from drakkar.cel.syntax import Call, Comprehension, Ident, ListNode, Literal, MapNode, Node, Select, StructNode
from drakkar.cel.values import Optional, Uint, equals, from_key, is_map, kind_of, to_key

Env: TypeAlias = list[Any]
Closure: TypeAlias = Callable[[Env], Any]

_UNSET: Final = object()
#: How many answers of a regular expression are kept.
_REMEMBERED: Final = 512
#: Parsing functions; with constant arguments they run once.
_EARLY: Final = frozenset(("quantity", "semver", "ip", "cidr", "url"))


def build(node: Node, constants: Constants) -> tuple[Closure, int]:
    """The closure of a tree and the length its environment needs."""
    builder = _Builder(constants)
    closure = builder.build(node, ROOT, {})
    return closure, builder.slots


class _Builder:
    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self.slots = 1

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def build(self, node: Node, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        if node in self._constants:
            return _constant(self._constants[node])
        path = path_of(node, aliases)
        if path is not None:
            return _path(path, node.pos)
        if isinstance(node, Ident):
            return slots[node.name]
        if isinstance(node, Select):
            return self._select(node, aliases, slots)
        if isinstance(node, Call):
            return self._call(node, aliases, slots)
        if isinstance(node, ListNode):
            return self._list(node, aliases, slots)
        if isinstance(node, MapNode):
            return self._map(node, aliases, slots)
        if isinstance(node, StructNode):
            return _unknown_type(node.name, node.pos)
        if isinstance(node, Comprehension):
            return self._comprehension(node, aliases, slots)
        raise TypeError(f"unknown node {type(node).__name__}")

    def _select(self, node: Select, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        operand, field, pos = self.build(node.operand, aliases, slots), node.field, node.pos
        if node.test:
            base = path_of(node.operand, aliases)
            if base is not None and len(base) == 2:
                return _in_domain(base, field)
            return _positioned(lambda env: has(operand(env), field), pos)
        return _positioned(lambda env: select(operand(env), field), pos)

    def _call(self, node: Call, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        function, pos = node.function, node.pos
        match function:
            case "_&&_":
                return _and(*(self.build(arg, aliases, slots) for arg in node.args))
            case "_||_":
                return _or(*(self.build(arg, aliases, slots) for arg in node.args))
            case "_?_:_":
                condition, yes, no = (self.build(arg, aliases, slots) for arg in node.args)
                return _conditional(condition, yes, no, pos)
            case "_?._":
                field = node.args[1]
                assert isinstance(field, Literal)
                base = path_of(node.args[0], aliases)
                if base is not None and len(base) == 2:
                    return _optional_in_domain(base, str(field.value))
                operand, name = self.build(node.args[0], aliases, slots), str(field.value)
                return _positioned(lambda env: select_optional(operand(env), name), pos)
            case "or" | "orValue":
                return self._or_value(node, aliases, slots)
            case "matches" if node.operands[1] in self._constants:
                pattern = self._constants[node.operands[1]]
                return _matches(self.build(node.operands[0], aliases, slots), pattern, pos)
            case "@in" | "_==_" | "_<_" | "_<=_" | "_>_" | "_>=_":
                fused = self._fused(node, aliases, slots)
                if fused is not None:
                    return fused
            case _:
                pass
        operands = node.operands
        if function in _EARLY and all(operand in self._constants for operand in operands):
            return _early(FUNCTIONS[function], [self._constants[operand] for operand in operands], pos)
        if function == "hasValue" and (path := presence_path(operands[0], aliases)) and len(path) == 3:
            return _in_domain(path[:2], path[2])
        args = [self.build(operand, aliases, slots) for operand in operands]
        return _apply(FUNCTIONS[function], args, pos)

    def _fused(self, node: Call, aliases: Aliases, slots: dict[str, Closure]) -> Closure | None:
        """Shorter ways for the comparisons that selectors are made of."""
        left, right = node.args
        if node.function == "@in":
            path = path_of(right, aliases)
            if path is not None and len(path) == 2 and left in self._constants:
                key = self._constants[left]
                if type(key) is str:
                    return _in_domain(path, key)
            if is_set_membership(node, self._constants):
                if not self._constants[right]:
                    # Nothing is in an empty literal; the left side is not even looked at.
                    return _constant(False)
                return _member(self.build(left, aliases, slots), self._constants[right])
            return None
        path = path_of(left, aliases)
        if path is None or right not in self._constants:
            return None
        constant = self._constants[right]
        if node.function == "_==_" and type(constant) is str:
            return _equals_text(path, constant, left.pos, node.pos)
        if type(constant) is int and len(path) == 3 and path[0] == "attributes":
            return _compares_int(path, node.function, constant, left.pos, node.pos)
        return None

    def _or_value(self, node: Call, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        assert node.target is not None
        optional = self.build(node.target, aliases, slots)
        other = self.build(node.args[0], aliases, slots)
        function, wrapped = node.function, node.function == "or"
        path = presence_path(node.target, aliases)
        if path is not None and len(path) == 3 and not wrapped:
            return _value_or(path, other)

        def run(env: Env) -> Any:
            value = optional(env)
            if type(value) is not Optional:
                raise no_overload(function, value)
            if value.present:
                return value if wrapped else value.value
            return other(env)

        return _positioned(run, node.pos)

    def _list(self, node: ListNode, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        parts = [self.build(element, aliases, slots) for element in node.elements]
        if not node.optional:
            return lambda env: [part(env) for part in parts]
        flags = [index in node.optional for index in range(len(parts))]

        def run(env: Env) -> list[Any]:
            result: list[Any] = []
            for part, is_optional in zip(parts, flags, strict=True):
                value = part(env)
                if not is_optional:
                    result.append(value)
                elif type(value) is not Optional:
                    raise no_overload("[?]", value)
                elif value.present:
                    result.append(value.value)
            return result

        return _positioned(run, node.pos)

    def _map(self, node: MapNode, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        parts = [
            (self.build(entry.key, aliases, slots), self.build(entry.value, aliases, slots), entry.optional)
            for entry in node.entries
        ]

        def run(env: Env) -> dict[Any, Any]:
            result: dict[Any, Any] = {}
            for key, value, is_optional in parts:
                name, item = to_key(key(env)), value(env)
                if not is_optional:
                    result[name] = item
                elif type(item) is not Optional:
                    raise no_overload("{?}", item)
                elif item.present:
                    result[name] = item.value
            return result

        return _positioned(run, node.pos)

    # Loops.

    def _comprehension(self, node: Comprehension, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        if node.is_bind:
            return self._bind(node, aliases, slots)
        range_ = self.build(node.range, aliases, slots)
        first = self._slot()
        second = self._slot() if node.var2 else None
        accu = self._slot()
        inner_aliases = {**aliases, node.var: None, node.accu: None}
        inner = {**slots, node.var: _local(first), node.accu: _local(accu)}
        if node.var2 and second is not None:
            inner_aliases[node.var2] = None
            inner[node.var2] = _local(second)
        items = _items(range_, second is not None, node.range.pos)
        if node.macro in ("all", "exists"):
            step = node.step
            assert isinstance(step, Call)
            predicate = self.build(step.args[1], inner_aliases, inner)
            return _quantifier(items, predicate, first, second, node.macro == "all")
        if node.macro in ("map", "filter"):
            return self._collect(node, items, first, second, inner_aliases, inner)
        outer = {name: path for name, path in inner_aliases.items() if name not in (node.var, node.var2)}
        return _fold(
            items,
            (first, second, accu),
            self.build(node.init, aliases, slots),
            self.build(node.step, inner_aliases, inner),
            self.build(node.result, outer, inner),
        )

    def _bind(self, node: Comprehension, aliases: Aliases, slots: dict[str, Closure]) -> Closure:
        path = path_of(node.init, aliases)
        if path is not None:
            return self.build(node.result, {**aliases, node.accu: path}, slots)
        slot = self._slot()
        value = self.build(node.init, aliases, slots)

        def get(env: Env) -> Any:
            found = env[slot]
            if found is _UNSET:
                found = env[slot] = value(env)
            return found

        result = self.build(node.result, {**aliases, node.accu: None}, {**slots, node.accu: get})

        def run(env: Env) -> Any:
            env[slot] = _UNSET
            return result(env)

        return run

    def _collect(
        self,
        node: Comprehension,
        items: Closure,
        first: int,
        second: int | None,
        aliases: Aliases,
        slots: dict[str, Closure],
    ) -> Closure:
        step = node.step
        predicate: Closure | None = None
        assert isinstance(step, Call)
        if step.function == "_?_:_":
            predicate = self.build(step.args[0], aliases, slots)
            step = step.args[1]
            assert isinstance(step, Call)
        added = step.args[1]
        assert isinstance(added, ListNode)
        value = self.build(added.elements[0], aliases, slots)

        def run(env: Env) -> list[Any]:
            result: list[Any] = []
            for item in items(env):
                _assign(env, item, first, second)
                if predicate is not None:
                    chosen = predicate(env)
                    if chosen is False:
                        continue
                    if chosen is not True:
                        raise no_overload("filter", chosen)
                result.append(value(env))
            return result

        return run


def _assign(env: Env, item: Any, first: int, second: int | None) -> None:
    if second is None:
        env[first] = item
    else:
        env[first], env[second] = item


def _constant(value: Any) -> Closure:
    return lambda env: value


def _local(slot: int) -> Closure:
    return lambda env: env[slot]


def _positioned(closure: Closure, pos: int) -> Closure:
    def run(env: Env) -> Any:
        try:
            return closure(env)
        except EvaluationError as error:
            if error.offset is None:
                error.offset = pos
            raise

    return run


def _unknown_type(name: str, pos: int) -> Closure:
    def run(env: Env) -> Any:
        raise EvaluationError("unknown-type", f"unknown type: {name}")

    return _positioned(run, pos)


def _early(function: Callable[..., Any], args: list[Any], pos: int) -> Closure:
    """A pure function of constants, computed once; its failure is kept for evaluation."""
    try:
        return _constant(function(*args))
    except EvaluationError:
        return _positioned(lambda env: function(*args), pos)


def _apply(function: Callable[..., Any], args: list[Closure], pos: int) -> Closure:
    if len(args) == 1:
        (only,) = args

        def one(env: Env) -> Any:
            try:
                return function(only(env))
            except EvaluationError as error:
                if error.offset is None:
                    error.offset = pos
                raise

        return one
    if len(args) == 2:
        first, second = args

        def two(env: Env) -> Any:
            try:
                return function(first(env), second(env))
            except EvaluationError as error:
                if error.offset is None:
                    error.offset = pos
                raise

        return two
    return _positioned(lambda env: function(*[arg(env) for arg in args]), pos)


# Paths into the device.


def _missing(key: str, pos: int) -> EvaluationError:
    error = no_such_key(key)
    error.offset = pos
    return error


def _path(path: Path, pos: int) -> Closure:
    match path:
        case ("device",):
            return lambda env: env[0]
        case ("driver",):
            return lambda env: env[0].driver
        case ("multi",):
            return lambda env: env[0].multi
        case ("attributes",):
            return lambda env: env[0].attributes
        case ("capacity",):
            return lambda env: env[0].capacity
        case ("attributes", domain):
            return lambda env: env[0].attributes[domain]
        case (_, domain):
            return lambda env: env[0].capacity[domain]
        case ("attributes", domain, name):

            def attribute(env: Env) -> Any:
                try:
                    return env[0].attributes[domain][name]
                except KeyError:
                    raise _missing(name, pos) from None

            return attribute
        case (_, domain, name):

            def capacity(env: Env) -> Any:
                try:
                    return env[0].capacity[domain][name]
                except KeyError:
                    raise _missing(name, pos) from None

            return capacity
        case _:
            raise TypeError(f"unknown path {path}")


def _in_domain(path: Path, key: str) -> Closure:
    kind, domain = path
    if kind == "attributes":
        return lambda env: key in env[0].attributes[domain]
    return lambda env: key in env[0].capacity[domain]


def _optional_in_domain(path: Path, key: str) -> Closure:
    from drakkar.cel.values import NONE

    kind, domain = path
    attributes = kind == "attributes"

    def run(env: Env) -> Optional:
        inner = (env[0].attributes if attributes else env[0].capacity)[domain]
        return Optional(True, inner[key]) if key in inner else NONE

    return run


def _value_or(path: Path, other: Closure) -> Closure:
    kind, domain, name = path
    if kind == "attributes":

        def attribute(env: Env) -> Any:
            inner = env[0].attributes[domain]
            return inner[name] if name in inner else other(env)

        return attribute

    def capacity(env: Env) -> Any:
        inner = env[0].capacity[domain]
        return inner[name] if name in inner else other(env)

    return capacity


def _equals_text(path: Path, text: str, pos: int, operator_pos: int) -> Closure:
    if path == ("driver",):
        return lambda env: env[0].driver == text
    if len(path) == 3 and path[0] == "attributes":
        _, domain, name = path

        def attribute(env: Env) -> bool:
            try:
                value = env[0].attributes[domain][name]
            except KeyError:
                raise _missing(name, pos) from None
            return value == text if type(value) is str else _at(operator_pos, equals, value, text)

        return attribute
    return _apply(equals, [_path(path, pos), _constant(text)], operator_pos)


_INT_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "_==_": operator.eq,
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
}


def _compares_int(path: Path, function: str, number: int, pos: int, operator_pos: int) -> Closure:
    _, domain, name = path
    compare, general = _INT_COMPARISONS[function], FUNCTIONS[function]

    def run(env: Env) -> bool:
        try:
            value = env[0].attributes[domain][name]
        except KeyError:
            raise _missing(name, pos) from None
        return compare(value, number) if type(value) is int else _at(operator_pos, general, value, number)

    return run


def _at(pos: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; its errors point to ``pos``."""
    try:
        return function(*args)
    except EvaluationError as error:
        error.offset = pos
        raise


def _member(item: Closure, constants: list[Any]) -> Closure:
    texts = frozenset(one for one in constants if type(one) is str)
    bools = [one for one in constants if type(one) is bool]
    numbers = [one for one in constants if type(one) in (int, Uint, float)]

    def run(env: Env) -> bool:
        value = item(env)
        if type(value) is str:
            return value in texts
        if type(value) is bool:
            return value in bools
        return type(value) in (int, Uint, float) and value in numbers

    return run


def _matches(text: Closure, pattern: Any, pos: int) -> Closure:
    """A constant pattern. Attribute values repeat from device to device, so answers are remembered."""
    function = FUNCTIONS["matches"]
    known: dict[str, bool] = {}

    def run(env: Env) -> bool:
        value = text(env)
        if type(value) is str:
            found = known.get(value)
            if found is not None:
                return found
        result = function(value, pattern)
        if len(known) >= _REMEMBERED:
            known.clear()
        known[value] = result
        return result

    return _positioned(run, pos)


# Logic.


def _and(left: Closure, right: Closure) -> Closure:
    def run(env: Env) -> bool:
        try:
            value = left(env)
        except EvaluationError as error:
            return _absorb(error, right, env, False)
        if value is False:
            return False
        if value is not True:
            return _absorb(no_overload("&&", value), right, env, False)
        value = right(env)
        if value is True or value is False:
            return value
        raise no_overload("&&", True, value)

    return run


def _or(left: Closure, right: Closure) -> Closure:
    def run(env: Env) -> bool:
        try:
            value = left(env)
        except EvaluationError as error:
            return _absorb(error, right, env, True)
        if value is True:
            return True
        if value is not False:
            return _absorb(no_overload("||", value), right, env, True)
        value = right(env)
        if value is True or value is False:
            return value
        raise no_overload("||", False, value)

    return run


def _absorb(error: EvaluationError, other: Closure, env: Env, decides: bool) -> bool:
    """The other side's value if it decides alone, else the first error."""
    try:
        value = other(env)
    except EvaluationError:
        raise error from None
    if value is decides:
        return decides
    raise error


def _conditional(condition: Closure, yes: Closure, no: Closure, pos: int) -> Closure:
    def run(env: Env) -> Any:
        value = condition(env)
        if value is True:
            return yes(env)
        if value is False:
            return no(env)
        error = no_overload("?:", value)
        error.offset = pos
        raise error

    return run


# Loops.


def iterate(value: Any, pairs: bool) -> Iterable[Any]:
    """What a loop runs over: elements or keys; with ``pairs`` (index, element) or (key, value)."""
    if kind_of(value) is list:
        items = cast("list[Any]", value)
        return enumerate(items) if pairs else items
    if is_map(value):
        if pairs:
            return [(from_key(key), item) for key, item in value.items()]
        return [from_key(key) for key in value]
    raise not_iterable(value)


def _items(range_: Closure, pairs: bool, pos: int) -> Closure:
    return _positioned(lambda env: iterate(range_(env), pairs), pos)


def _quantifier(items: Closure, predicate: Closure, first: int, second: int | None, universal: bool) -> Closure:
    decides = not universal
    name = "&&" if universal else "||"

    def run(env: Env) -> bool:
        failure: EvaluationError | None = None
        for item in items(env):
            if second is None:
                env[first] = item
            else:
                env[first], env[second] = item
            try:
                value = predicate(env)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decides:
                return decides
            if value is not universal:
                failure = failure or no_overload(name, value)
        if failure is not None:
            raise failure
        return universal

    return run


def _fold(items: Closure, slots: tuple[int, int | None, int], init: Closure, step: Closure, result: Closure) -> Closure:
    first, second, accu = slots

    def run(env: Env) -> Any:
        begin = init(env)
        env[accu] = dict(begin) if kind_of(begin) is dict else begin
        for item in items(env):
            _assign(env, item, first, second)
            env[accu] = step(env)
        return result(env)

    return run
