"""Values at run time.

Plain Python holds null, bool, int, double, string, bytes, lists and maps; the classes here
hold the rest. Boolean map keys are wrapped, because Python takes ``True`` and ``1`` for the
same key. Equality and order follow CEL, not Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from drakkar.api.quantity import Quantity
from drakkar.api.semver import Semver
from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.limits import MAX_COMPARED, WORK, LimitExceeded

#: ``type``, for dispatch on exact types without the static narrowing that would make elements unknown.
kind_of: Final = cast("Callable[[Any], Any]", type)

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class Uint(int):
    """An unsigned integer; compares by value with every other number."""

    __slots__ = ()


class BoolKey:
    """A boolean as a map key."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


_TRUE_KEY: Final = BoolKey(True)
_FALSE_KEY: Final = BoolKey(False)


class DomainMap(dict[str, Any]):
    """The outer map of attributes or capacity: an unknown domain reads as an empty map."""

    __slots__ = ()

    def __missing__(self, key: object) -> dict[str, Any]:
        return EMPTY_MAP


EMPTY_MAP: Final[dict[str, Any]] = {}


class Optional:
    """A value that may be absent."""

    __slots__ = ("present", "value")

    def __init__(self, present: bool, value: Any = None) -> None:
        self.present = present
        self.value = value


NONE: Final = Optional(False)

#: Stands for a value that is not there, where values are listed.
ABSENT: Final = object()


class TypeValue:
    """The type of a value, as ``type(x)`` returns it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Timestamp:
    """A moment: nanoseconds since the Unix epoch."""

    __slots__ = ("nanos",)

    def __init__(self, nanos: int) -> None:
        self.nanos = nanos


class Duration:
    """A length of time in nanoseconds."""

    __slots__ = ("nanos",)

    def __init__(self, nanos: int) -> None:
        self.nanos = nanos


class Address:
    """An IP address. ``number`` is its value, ``bits`` 32 or 128."""

    __slots__ = ("bits", "number")

    def __init__(self, number: int, bits: int) -> None:
        self.number = number
        self.bits = bits


class Network:
    """A CIDR: an address and the length of its prefix."""

    __slots__ = ("address", "prefix")

    def __init__(self, address: Address, prefix: int) -> None:
        self.address = address
        self.prefix = prefix


class Url:
    """A parsed URL."""

    __slots__ = ("host", "path", "query", "scheme", "text")

    def __init__(self, text: str, scheme: str, host: str, path: str, query: str) -> None:
        self.text = text
        self.scheme = scheme
        self.host = host
        self.path = path
        self.query = query


class Sum(Quantity):
    """A quantity that ``add`` or ``sub`` gave. On the right of ``==`` upstream takes it for another type."""

    __slots__ = ()


class OtherKey:
    """A value of a type that maps look up by identity, as the key of a map; times count by their value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OtherKey) or type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, Timestamp | Duration):
            return bool(self.value.nanos == other.value.nanos)
        return self.value is other.value

    def __hash__(self) -> int:
        return hash(self.value.nanos) if isinstance(self.value, Timestamp | Duration) else id(self.value)


class Format:
    """A named text format."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Fields:
    """An object whose fields are computed when first asked for, once. ``compute`` says how, by name.

    A computation that raises :class:`EvaluationError` makes every access to its field fail that way.
    """

    __slots__ = ("_compute", "_known")

    def __init__(self, compute: Mapping[str, Callable[[], Any]]) -> None:
        self._compute = compute
        self._known: dict[str, Any] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._compute

    def get(self, name: str) -> Any:
        """The value of a field that exists."""
        if name not in self._known:
            try:
                self._known[name] = self._compute[name]()
            except EvaluationError as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, EvaluationError):
            raise found
        return found


_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes", type(None): "null_type",
    list: "list", dict: "map", DomainMap: "map", Optional: "optional_type", TypeValue: "type",
    Timestamp: "google.protobuf.Timestamp", Duration: "google.protobuf.Duration", Quantity: "kubernetes.Quantity",
    Sum: "kubernetes.Quantity",
    Semver: "kubernetes.Semver", Address: "net.IP", Network: "net.CIDR", Url: "kubernetes.URL",
    Format: "kubernetes.NamedFormat",
}  # fmt: skip


def type_name(value: object) -> str:
    """CEL's name for the type of a value. Classes defined in other modules carry theirs as ``cel_type``."""
    found = _TYPE_NAMES.get(kind_of(value))
    return found if found is not None else str(getattr(value, "cel_type", "object"))


def is_map(value: object) -> bool:
    """Whether a value is a map."""
    return kind_of(value) is dict or kind_of(value) is DomainMap


def to_key(value: Any) -> Any:
    """A value as the key of a Python dict; raises for bytes. Whole doubles are ints as keys."""
    kind = kind_of(value)
    if kind is str or kind is int or kind is Uint:
        return value
    if kind is bool:
        return _TRUE_KEY if value else _FALSE_KEY
    if kind is float:
        return int(value) if value.is_integer() else value
    if value is None:
        return None
    if kind is bytes:
        raise EvaluationError("no-such-overload", "unsupported key type: bytes")
    return OtherKey(value)


def from_key(key: Any) -> Any:
    """The value that a key stands for."""
    return key.value if kind_of(key) is BoolKey or kind_of(key) is OtherKey else key


def key_text(key: object) -> str:
    """A key as messages print it."""
    key = from_key(key)
    if key is None:
        return "null"
    if kind_of(key) is bool:
        return "true" if key else "false"
    return str(key)


_NUMBERS: Final = (int, Uint, float)
_PLAIN: Final = frozenset((str, bool, int, Uint, float, bytes))
_STRICT: Final = frozenset((Semver, Quantity, Sum, Address, Network, Url, Format))


def is_opaque(value: Any) -> bool:
    """Whether a value is of a type that only Kubernetes' functions look into."""
    return kind_of(value) in _STRICT


def equals(one: Any, other: Any) -> bool:
    """``==``; opaque values on the left refuse to be compared with other types."""
    kind = kind_of(one)
    kind2 = kind_of(other)
    if kind is kind2 and kind in _PLAIN:
        return one == other
    if one is None or other is None:
        return one is other
    if kind in _NUMBERS:
        return kind2 in _NUMBERS and one == other
    if kind is list or kind is dict or kind is DomainMap:
        return _Comparison().containers(one, other)
    if kind in _STRICT:
        if kind2 is not kind and not (kind is Sum and kind2 is Quantity):
            raise no_overload("==", one, other)
        if kind2 is Sum:
            raise no_overload("==", one, other)
        return _same_opaque(one, other)
    if kind is not kind2:
        return False
    if kind is Optional:
        if one.present and other.present:
            return equals(one.value, other.value)
        return one.present == other.present
    if kind is Timestamp or kind is Duration:
        return one.nanos == other.nanos
    if kind is TypeValue:
        return one.name == other.name
    return one is other


def _same_opaque(one: Any, other: Any) -> bool:
    if kind_of(one) is Address:
        return one.bits == other.bits and one.number == other.number
    if kind_of(one) is Network:
        return one.prefix == other.prefix and _same_opaque(one.address, other.address)
    if kind_of(one) is Url:
        return one.text == other.text
    if kind_of(one) is Format:
        return one.name == other.name
    return one == other


class _Comparison:
    """One comparison of two lists or maps. Pairs met before are not compared again: parts may be shared many times."""

    __slots__ = ("_known", "_left")

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}
        self._left = MAX_COMPARED

    def containers(self, one: Any, other: Any) -> bool:
        """Whether two values, the first of which is a list or map, are equal."""
        if kind_of(one) is list:
            if kind_of(other) is not list or len(one) != len(other):
                return False
            pairs = zip(one, other, strict=True)
        else:
            if not is_map(other) or len(one) != len(other) or any(key not in other for key in one):
                return False
            pairs = ((value, other[key]) for key, value in one.items())
        self._left -= len(one)
        WORK.done += len(one)
        if self._left < 0:
            raise LimitExceeded
        place = (id(one), id(other))
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = all([self._parts(left, right) for left, right in pairs])
        return found

    def _parts(self, one: Any, other: Any) -> bool:
        """Equality of parts: what cannot be compared counts as equal there, as upstream has it."""
        kind = kind_of(one)
        if kind is list or kind is dict or kind is DomainMap:
            return self.containers(one, other)
        if kind is Optional and kind_of(other) is Optional and one.present and other.present:
            return self._parts(one.value, other.value)
        try:
            return equals(one, other)
        except EvaluationError:
            return True


def same(one: Any, other: Any) -> bool:
    """Equality where an error counts as false (``in``, ``!=``, functions of lists and sets)."""
    try:
        return equals(one, other)
    except EvaluationError:
        return False


def compare(one: Any, other: Any, operator: str) -> int:
    """Order of two values: -1, 0, 1; 2 when a NaN has none."""
    kind = kind_of(one)
    kind2 = kind_of(other)
    if (kind is kind2 and kind in _PLAIN) or (kind in _NUMBERS and kind2 in _NUMBERS):
        return -1 if one < other else 1 if one > other else 0 if one == other else 2
    if kind is kind2 and (kind is Timestamp or kind is Duration):
        return (one.nanos > other.nanos) - (one.nanos < other.nanos)
    raise no_overload(operator, one, other)


def ordered(one: Any, other: Any, operator: str) -> int:
    """Order of two values; a NaN is an error."""
    found = compare(one, other, operator)
    if found == 2:
        raise EvaluationError("invalid-argument", "NaN values cannot be ordered")
    return found


def size_of(value: Any) -> int:
    """The size that costs count with; 1 for values without a size."""
    kind = kind_of(value)
    if kind is str or kind is bytes or kind is list or kind is dict or kind is DomainMap:
        return len(value)
    if kind is Address:
        return value.bits // 8
    if kind is Network:
        return -(-value.prefix // 8)
    return 1


def optional(value: Any) -> Optional:
    """A present optional."""
    return Optional(True, value)
