"""Static types: every node gets its type, every call the overloads that may run.

The rules follow the reference implementation closely, because what is refused here is
refused when an object is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from drakkar.cel import types
from drakkar.cel.errors import Issue
from drakkar.cel.parser import Source
from drakkar.cel.signatures import LIST_ATTRIBUTE_FUNCTIONS, TYPE_NAMES, Overload, functions
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
    qualified_name,
)
from drakkar.cel.types import BOOL, DYN, ERROR, INT, STRING, Bindings, ListType, StructType, Type
from drakkar.cel.values import Duration, Timestamp, TypeValue, Uint


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """What is declared. Two environments are the same only if they are one object.

    ``variables`` by name, which may be dotted; ``includes`` says whether that function exists, ``bind`` whether
    ``cel.bind`` does; ``attribute`` is the type of device attributes where there is a device.
    """

    variables: Mapping[str, Type]
    includes: bool
    bind: bool
    attribute: Type | None = None

    @staticmethod
    def of(environment: str, list_attributes: bool, consumable_capacity: bool) -> Environment:
        """The environment of a device for ``stored`` or ``new-expressions`` (in short ``new``).

        Stored expressions see everything, whatever the gates say.
        """
        if is_stored(environment):
            return _device(DYN, True, True)
        return _device(DYN if list_attributes else types.ANY, list_attributes, consumable_capacity)

    @property
    def dotted(self) -> frozenset[str]:
        """Names of variables that contain a dot."""
        return frozenset(name for name in self.variables if "." in name)

    def struct(self, name: str) -> StructType | None:
        """The object type of a name, among those that the variables lead to."""
        return _structs(tuple(self.variables.values())).get(name)


def is_stored(environment: str) -> bool:
    """Whether expressions are stored ones (everything declared); raises ``ValueError`` for an unknown word."""
    if environment not in ("stored", "new-expressions", "new"):
        raise ValueError(f"environment {environment!r} is neither 'stored' nor 'new-expressions'")
    return environment == "stored"


@cache
def _device(attribute: Type, includes: bool, multi: bool) -> Environment:
    fields = {
        "driver": STRING,
        "attributes": types.map_of(STRING, types.map_of(STRING, attribute)),
        "capacity": types.map_of(STRING, types.map_of(STRING, types.QUANTITY)),
    }
    if multi:
        fields["allowMultipleAllocations"] = BOOL
    return Environment({"device": StructType("kubernetes.DRADevice", fields)}, includes, True, attribute)


def _structs(roots: tuple[Type, ...]) -> dict[str, StructType]:
    found: dict[str, StructType] = {}
    pending = list(roots)
    while pending:
        type_ = pending.pop()
        pending += type_.params
        if isinstance(type_, StructType) and type_.name not in found:
            found[type_.name] = type_
            pending += type_.fields.values()
    return found


_LITERALS: dict[type, Type] = {
    bool: BOOL, int: INT, Uint: types.UINT, float: types.DOUBLE, str: STRING, bytes: types.BYTES,
    type(None): types.NULL, Duration: types.DURATION, Timestamp: types.TIMESTAMP,
}  # fmt: skip


_SHORT_NAMES: dict[str, Type] = {"duration": types.DURATION, "timestamp": types.TIMESTAMP}


def check(node: Node, environment: Environment, source: Source) -> list[Issue]:
    """Type the tree in place; returns what is wrong."""
    checker = _Checker(environment, source)
    checker.visit(node)
    if checker.issues:
        return checker.issues
    if checker.undefined is not None:
        return [Issue("undeclared", f"reference to undefined type: {checker.undefined}")]
    checker.finish(node)
    return []


class _Checker:
    def __init__(self, environment: Environment, source: Source) -> None:
        self._environment = environment
        self._source = source
        self._mapping = Bindings()
        self._scopes: list[Mapping[str, Type]] = [environment.variables]
        self._fresh = 0
        self.undefined: str | None = None
        self.issues: list[Issue] = []

    def _report(self, error_class: str, message: str, pos: int) -> None:
        self.issues.append(self._source.issue(error_class, message, pos))

    def _variable(self) -> Type:
        self._fresh += 1
        return types.param(f"_var{self._fresh}")

    def _mismatch(self, wanted: Type, found: Type, pos: int) -> None:
        wanted, found = self._mapping.substitute(wanted, True), self._mapping.substitute(found, True)
        self._report("type-mismatch", f"expected type '{wanted}' but found '{found}'", pos)

    def finish(self, node: Node) -> None:
        """Replace what type parameters remain in the whole tree."""
        from drakkar.cel.syntax import children

        stack = [node]
        while stack:
            one = stack.pop()
            one.type = self._mapping.substitute(one.type, True)
            stack.extend(children(one))

    def visit(self, node: Node) -> None:
        """Type one node and what is below it."""
        match node:
            case Literal():
                node.type = _LITERALS[type(node.value)]
            case Ident():
                self._ident(node)
            case Select():
                self._select(node)
            case Call():
                self._call(node)
            case ListNode():
                self._list(node)
            case MapNode():
                self._map(node)
            case StructNode():
                self._struct(node)
            case Comprehension():
                self._comprehension(node)
            case _:
                raise TypeError(f"unknown node {type(node).__name__}")

    def _lookup(self, name: str) -> Type | None:
        if name.startswith("."):
            return self._scopes[0].get(name[1:])
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _ident(self, node: Ident) -> None:
        found = self._lookup(node.name)
        if found is not None:
            node.type = found
            node.name = node.name.lstrip(".")
            return
        named = TYPE_NAMES.get(node.name.lstrip("."))
        if named is not None:
            node.type = types.type_of(named)
            node.constant = TypeValue(named.name)
            return
        if node.name in _SHORT_NAMES:
            # These name types for messages only: what is not refused for another reason is refused at last.
            self.undefined = self.undefined or node.name
            node.type = types.type_of(_SHORT_NAMES[node.name])
            return
        self._report("undeclared", f"undeclared reference to '{node.name}' (in container '')", node.pos)
        node.type = ERROR

    def _select(self, node: Select) -> None:
        if not node.test and (name := qualified_name(node)) is not None:
            named = TYPE_NAMES.get(name)
            if named is not None and "." in name:
                node.type = types.type_of(named)
                node.constant = TypeValue(named.name)
                return
        result = self._field(node, node.operand, node.field, False)
        node.type = BOOL if node.test else self._mapping.substitute(result)

    def _field(self, node: Node, operand: Node, field: str, optional: bool) -> Type:
        self.visit(operand)
        target, is_optional = types.unwrap_optional(self._mapping.substitute(operand.type))
        if target.kind == "map":
            result = target.params[1]
        elif target.kind == "struct":
            result = target.fields.get(field, ERROR) if isinstance(target, StructType) else ERROR
            if result is ERROR:
                self._report("undefined-field", f"undefined field '{field}'", node.pos)
        elif target.kind == "param":
            self._mapping.assignable(DYN, target)
            result = DYN
        else:
            if target.kind not in ("dyn", "any", "error"):
                self._report("no-field-selection", f"type '{target}' does not support field selection", node.pos)
            result = DYN
        return types.optional_of(result) if is_optional or optional else result

    def _call(self, node: Call) -> None:
        if node.function == "_?._":
            field = node.args[1]
            assert isinstance(field, Literal)
            field.type = STRING
            node.type = self._mapping.substitute(self._field(node, node.args[0], str(field.value), True))
            node.overloads = ("select_optional_field",)
            return
        for arg in node.args:
            self.visit(arg)
        if node.function in ("_&&_", "_||_"):
            # No early end: every operand that is no bool is reported.
            sound = all([self._expect(arg, BOOL) for arg in node.args])
            node.type = BOOL if sound else ERROR
            node.overloads = ("logical_and" if node.function == "_&&_" else "logical_or",)
            return
        if node.target is None:
            node.function = node.function.lstrip(".")
            overloads = self._function(node.function)
            if overloads is None:
                self._undeclared(node, node.function)
                return
            self._resolve(node, overloads)
            return
        prefix = qualified_name(node.target)
        if prefix is not None:
            name = f"{prefix.lstrip('.')}.{node.function}"
            overloads = self._function(name)
            if overloads is not None:
                node.function, node.target = name, None
                self._resolve(node, overloads)
                return
        self.visit(node.target)
        overloads = self._function(node.function)
        if overloads is None:
            self._undeclared(node, node.function)
            return
        self._resolve(node, overloads)

    def _function(self, name: str) -> tuple[Overload, ...] | None:
        if name in LIST_ATTRIBUTE_FUNCTIONS and not self._environment.includes:
            return None
        return functions().get(name)

    def _undeclared(self, node: Call, name: str) -> None:
        self._report("undeclared", f"undeclared reference to '{name}' (in container '')", node.pos)
        node.type = ERROR

    def _resolve(self, node: Call, overloads: tuple[Overload, ...]) -> None:
        given = [self._mapping.substitute(operand.type) for operand in node.operands]
        member = node.target is not None
        result: Type | None = None
        found: list[str] = []
        for overload in overloads:
            if overload.member != member or len(overload.params) != len(given):
                continue
            params, candidate = overload.params, overload.result
            if overload.type_params:
                fresh = {name: self._variable() for name in overload.type_params}
                params = tuple(types.replace(param, fresh) for param in params)
                candidate = types.replace(candidate, fresh)
            if not self._mapping.assignable_all(given, params):
                continue
            found.append(overload.id)
            candidate = self._mapping.substitute(candidate)
            if result is None:
                result = candidate
            elif result.kind != "dyn" and result != candidate:
                result = DYN
        if result is None:
            shown = [str(self._mapping.substitute(type_, True)) for type_ in given]
            applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
            self._report(
                "no-matching-overload",
                f"found no matching overload for '{node.function}' applied to '{applied}'{_cure(node, shown)}",
                node.pos,
            )
            node.type = ERROR
            return
        # A sum of sets or maps (lists by schema) is one again.
        node.type = given[0] if node.function == "_+_" and isinstance(given[0], ListType) else result
        node.overloads = tuple(found)

    def _expect(self, node: Node, wanted: Type) -> bool:
        """Whether the node has a type; reported when not."""
        if self._mapping.assignable(node.type, wanted):
            return True
        self._mismatch(wanted, node.type, node.pos)
        return False

    def _join(self, node: Node, before: Type | None, now: Type) -> Type:
        if before is None:
            return now
        if self._mapping.assignable(before, now):
            return types.most_general(before, now)
        return DYN

    def _list(self, node: ListNode) -> None:
        element: Type | None = None
        for index, one in enumerate(node.elements):
            self.visit(one)
            type_ = self._mapping.substitute(one.type)
            if index in node.optional:
                type_ = self._unwrap(one, type_)
            element = self._join(one, element, type_)
        node.type = types.list_of(self._variable() if element is None else element)

    def _unwrap(self, node: Node, type_: Type) -> Type:
        inner, optional = types.unwrap_optional(type_)
        if not optional and not types.is_dyn(type_):
            self._mismatch(types.optional_of(type_), type_, node.pos)
        return inner

    def _map(self, node: MapNode) -> None:
        key: Type | None = None
        value: Type | None = None
        for entry in node.entries:
            self.visit(entry.key)
            key = self._join(entry.key, key, self._mapping.substitute(entry.key.type))
            self.visit(entry.value)
            type_ = self._mapping.substitute(entry.value.type)
            if entry.optional:
                type_ = self._unwrap(entry.value, type_)
            value = self._join(entry.value, value, type_)
        node.type = types.map_of(key or self._variable(), value or self._variable())

    def _struct(self, node: StructNode) -> None:
        name = node.name.lstrip(".")
        struct = self._environment.struct(name)
        if struct is None:
            if name in TYPE_NAMES:
                self._report("type-mismatch", f"'{name}' is not a message type", node.pos)
            else:
                self._report("undeclared", f"undeclared reference to '{name}' (in container '')", node.pos)
            node.type = ERROR
        else:
            node.type = struct
        for entry in node.entries:
            self.visit(entry.value)
            assert isinstance(entry.key, Literal)
            field = str(entry.key.value)
            if struct is None:
                continue
            wanted = struct.fields.get(field)
            if wanted is None:
                self._report("undefined-field", f"undefined field '{field}'", entry.pos)
                continue
            type_ = entry.value.type
            if entry.optional:
                type_ = self._unwrap(entry.value, type_)
            if not self._mapping.assignable(wanted, type_):
                self._mismatch(wanted, type_, entry.pos)

    def _comprehension(self, node: Comprehension) -> None:
        self.visit(node.range)
        self.visit(node.init)
        range_ = self._mapping.substitute(node.range.type)
        first, second = DYN, DYN
        if range_.kind == "list":
            first, second = (INT, range_.params[0]) if node.var2 else (range_.params[0], DYN)
        elif range_.kind == "map":
            first, second = range_.params
        elif range_.kind in ("dyn", "error", "param"):
            self._mapping.assignable(DYN, range_)
        else:
            self._report(
                "not-iterable",
                f"expression of type '{range_}' cannot be range of a comprehension (must be list, map, or dynamic)",
                node.range.pos,
            )
            first = second = ERROR
        self._scopes.append({node.accu: node.init.type})
        variables = {node.var: first}
        if node.var2:
            variables[node.var2] = second
        self._scopes.append(variables)
        self.visit(node.condition)
        self._expect(node.condition, BOOL)
        self.visit(node.step)
        self._expect(node.step, node.init.type)
        self._scopes.pop()
        self.visit(node.result)
        self._scopes.pop()
        node.type = self._mapping.substitute(node.result.type)


def _cure(node: Call, shown: list[str]) -> str:
    """What to write instead, for the mistakes that are made most."""
    if node.function == "sign" and node.target is not None:
        return "; sign is a function: write sign(quantity)"
    if node.function in ("_<_", "_<=_", "_>_", "_>=_") and shown[0] in ("kubernetes.Quantity", "kubernetes.Semver"):
        return "; use isLessThan, isGreaterThan or compareTo"
    if node.function in ("_==_", "_!=_") and "kubernetes.Quantity" in shown:
        return '; compare with a quantity: quantity("1Gi")'
    if node.function in ("_==_", "_!=_") and set(shown) <= {"int", "uint", "double"}:
        return "; write both numbers in the same form, such as 1.0 or double(1)"
    return ""
