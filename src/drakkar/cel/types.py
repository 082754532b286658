"""Static types of expressions and the rules by which one fits another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final


class Type:
    """A type: ``kind`` groups types, ``name`` is what messages print, ``params`` its type arguments."""

    __slots__ = ("kind", "name", "params")

    def __init__(self, kind: str, name: str, params: tuple[Type, ...] = ()) -> None:
        self.kind = kind
        self.name = name
        self.params = params

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Type):
            return NotImplemented
        return self is other or (self.kind == other.kind and self.name == other.name and self.params == other.params)

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.params))

    def __str__(self) -> str:
        name = _SHOWN.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.params))})" if self.params else name

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def output_name(self) -> str:
        """The name as output types are reported."""
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(param.output_name for param in self.params)})"


#: Names in messages, where they are not those of the types.
_SHOWN: Final = {
    "google.protobuf.Any": "any", "null_type": "null", "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration", "*error*": "!error!",
}  # fmt: skip


class StructType(Type):
    """An object with declared fields. ``name`` tells one from another: equal names mean the same type."""

    __slots__ = ("fields",)

    def __init__(self, name: str, fields: Mapping[str, Type]) -> None:
        super().__init__("struct", name)
        self.fields = fields


class ListType(Type):
    """A list that an OpenAPI schema calls a ``set``, or a ``map`` whose elements are told apart by ``keys``.

    It fits wherever a plain list does; only equality and ``+`` of two such lists differ
    (``x-kubernetes-list-type``).
    """

    __slots__ = ("keys",)

    def __init__(self, element: Type, keys: tuple[str, ...] = ()) -> None:
        super().__init__("list", "list", (element,))
        self.keys = keys


DYN: Final = Type("dyn", "dyn")
ANY: Final = Type("any", "google.protobuf.Any")
ERROR: Final = Type("error", "*error*")
NULL: Final = Type("null", "null_type")
BOOL: Final = Type("bool", "bool")
INT: Final = Type("int", "int")
UINT: Final = Type("uint", "uint")
DOUBLE: Final = Type("double", "double")
STRING: Final = Type("string", "string")
BYTES: Final = Type("bytes", "bytes")
TIMESTAMP: Final = Type("timestamp", "google.protobuf.Timestamp")
DURATION: Final = Type("duration", "google.protobuf.Duration")
QUANTITY: Final = Type("opaque", "kubernetes.Quantity")
SEMVER: Final = Type("opaque", "kubernetes.Semver")
URL: Final = Type("opaque", "kubernetes.URL")
FORMAT: Final = Type("opaque", "kubernetes.NamedFormat")
IP: Final = Type("opaque", "net.IP")
CIDR: Final = Type("opaque", "net.CIDR")
AUTHORIZER: Final = Type("opaque", "kubernetes.authorization.Authorizer")
PATH_CHECK: Final = Type("opaque", "kubernetes.authorization.PathCheck")
GROUP_CHECK: Final = Type("opaque", "kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = Type("opaque", "kubernetes.authorization.ResourceCheck")
DECISION: Final = Type("opaque", "kubernetes.authorization.Decision")


def list_of(element: Type) -> Type:
    """``list(element)``."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """``map(key, value)``."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """``optional_type(value)``."""
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type) -> Type:
    """The type of a type."""
    return Type("type", "type", (value,))


def replace(type_: Type, table: dict[str, Type]) -> Type:
    """``type_`` with its type parameters replaced by those of ``table``."""
    if type_.kind == "param":
        return table[type_.name]
    if not type_.params:
        return type_
    return Type(type_.kind, type_.name, tuple(replace(one, table) for one in type_.params))


def param(name: str) -> Type:
    """A type parameter."""
    return Type("param", name)


def unwrap_optional(type_: Type) -> tuple[Type, bool]:
    """The wrapped type and whether ``type_`` was optional."""
    if type_.kind == "opaque" and type_.name == "optional_type":
        return type_.params[0], True
    return type_, False


def is_dyn(type_: Type) -> bool:
    """Whether everything fits the type."""
    return type_.kind == "dyn" or type_.kind == "any"


def _wild(type_: Type) -> bool:
    return type_.kind in ("dyn", "any", "error")


class Bindings:
    """Which type stands for which type parameter; assignments that fail leave no trace."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Type] = {}

    def assignable(self, given: Type, wanted: Type) -> bool:
        """Whether a value of ``given`` fits ``wanted``; type parameters are bound on success."""
        return self.assignable_all([given], [wanted])

    def assignable_all(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        """The same for argument lists; all or nothing."""
        if len(given) != len(wanted):
            return False
        before = self._known
        self._known = dict(before)
        for one, other in zip(given, wanted, strict=True):
            if not self._fits(one, other):
                self._known = before
                return False
        return True

    def substitute(self, type_: Type, free_to_dyn: bool = False) -> Type:
        """``type_`` with known parameters replaced; unknown ones stay or become dyn."""
        if not self._known and not free_to_dyn:
            return type_
        if type_.kind == "param":
            known = self._known.get(type_.name)
            if known is not None:
                return self.substitute(known, free_to_dyn)
            return DYN if free_to_dyn else type_
        if not type_.params:
            return type_
        params = tuple(self.substitute(one, free_to_dyn) for one in type_.params)
        return type_ if params == type_.params else Type(type_.kind, type_.name, params)

    def _fits(self, one: Type, other: Type) -> bool:
        if other.kind == "param":
            valid, known = self._bind(one, other)
            if valid:
                return True
            if known:
                return False
        if one.kind == "param":
            return self._bind(other, one)[0]
        if _wild(one) or _wild(other):
            return True
        if one.kind == "null":
            return _nullable(other)
        if other.kind == "null":
            return _nullable(one)
        if one.kind == "type":
            return other.kind == "type"
        if one.kind in ("opaque", "list", "map"):
            if one.kind != other.kind or one.name != other.name or len(one.params) != len(other.params):
                return False
            return all(self._fits(left, right) for left, right in zip(one.params, other.params, strict=True))
        return one == other

    def _bind(self, type_: Type, parameter: Type) -> tuple[bool, bool]:
        """Take ``type_`` for ``parameter``: (whether it fits, whether the parameter was known)."""
        if type_ == parameter:
            return True, True
        known = self._known.get(parameter.name)
        if known is not None:
            if known == type_:
                return True, True
            if self._fits(type_, known):
                general = most_general(type_, known)
                if self._not_within(parameter, general):
                    self._known[parameter.name] = general
                return True, True
            return False, True
        if self._not_within(parameter, type_):
            self._known[parameter.name] = type_
            return True, False
        return False, False

    def _not_within(self, parameter: Type, type_: Type) -> bool:
        if type_ == parameter:
            return False
        if type_.kind == "param":
            known = self._known.get(type_.name)
            return True if known is None else self._not_within(parameter, known)
        return all(self._not_within(parameter, one) for one in type_.params)


def _nullable(type_: Type) -> bool:
    return type_.kind in ("null", "opaque", "struct", "duration", "timestamp", "any", "dyn")


def most_general(one: Type, other: Type) -> Type:
    """The less specific of two types that fit each other."""
    return one if _less_specific(one, other) else other


def _less_specific(one: Type, other: Type) -> bool:
    if is_dyn(one) or one.kind == "param":
        return True
    if is_dyn(other) or other.kind == "param" or one.kind != other.kind:
        return False
    if one.kind in ("list", "map", "opaque"):
        if one.name != other.name or len(one.params) != len(other.params):
            return False
        return all(_less_specific(left, right) for left, right in zip(one.params, other.params, strict=True))
    return one.kind == "type" or one == other
