"""Which functions exist, in which forms, and what they take.

One line per overload: its id, the parameter types and the result. A leading dot marks a
method (the first parameter is the receiver). Capital letters are type parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from drakkar.cel import types
from drakkar.cel.types import Type


@dataclass(frozen=True, slots=True)
class Overload:
    """One form of a function."""

    id: str
    params: tuple[Type, ...]
    result: Type
    member: bool
    type_params: tuple[str, ...]


_SCALARS: Final = ("int", "uint", "double")

_TABLE: Final = """
!_
 logical_not (bool) bool
-_
 negate_double (double) double
 negate_int64 (int) int
@not_strictly_false
 not_strictly_false (bool) bool
_?_:_
 conditional (bool, T, T) T
_&&_
 logical_and (bool, bool) bool
_||_
 logical_or (bool, bool) bool
_==_
 equals (T, T) bool
_!=_
 not_equals (T, T) bool
@in
 in_list (T, list(T)) bool
 in_map (K, map(K, V)) bool
_[_]
 index_list (list(T), int) T
 index_map (map(K, V), K) V
 optional_list_index_value (optional(list(T)), int) optional(T)
 optional_map_index_value (optional(map(K, V)), K) optional(V)
_[?_]
 list_optindex_optional_int (list(T), int) optional(T)
 optional_list_optindex_optional_int (optional(list(T)), int) optional(T)
 map_optindex_optional_value (map(K, V), K) optional(V)
 optional_map_optindex_optional_value (optional(map(K, V)), K) optional(V)
_+_
 add_bytes (bytes, bytes) bytes
 add_double (double, double) double
 add_duration_duration (duration, duration) duration
 add_duration_timestamp (duration, timestamp) timestamp
 add_timestamp_duration (timestamp, duration) timestamp
 add_int64 (int, int) int
 add_list (list(T), list(T)) list(T)
 add_string (string, string) string
 add_uint64 (uint, uint) uint
_-_
 subtract_double (double, double) double
 subtract_duration_duration (duration, duration) duration
 subtract_int64 (int, int) int
 subtract_timestamp_duration (timestamp, duration) timestamp
 subtract_timestamp_timestamp (timestamp, timestamp) duration
 subtract_uint64 (uint, uint) uint
_*_
 multiply_double (double, double) double
 multiply_int64 (int, int) int
 multiply_uint64 (uint, uint) uint
_/_
 divide_double (double, double) double
 divide_int64 (int, int) int
 divide_uint64 (uint, uint) uint
_%_
 modulo_int64 (int, int) int
 modulo_uint64 (uint, uint) uint
size
 size_bytes (bytes) int
 bytes_size .(bytes) int
 size_list (list(T)) int
 list_size .(list(T)) int
 size_map (map(K, V)) int
 map_size .(map(K, V)) int
 size_string (string) int
 string_size .(string) int
type
 type (T) type(T)
dyn
 to_dyn (T) dyn
bool
 bool_to_bool (bool) bool
 string_to_bool (string) bool
bytes
 bytes_to_bytes (bytes) bytes
 string_to_bytes (string) bytes
double
 double_to_double (double) double
 int64_to_double (int) double
 string_to_double (string) double
 uint64_to_double (uint) double
int
 int64_to_int64 (int) int
 double_to_int64 (double) int
 duration_to_int64 (duration) int
 string_to_int64 (string) int
 timestamp_to_int64 (timestamp) int
 uint64_to_int64 (uint) int
uint
 uint64_to_uint64 (uint) uint
 double_to_uint64 (double) uint
 int64_to_uint64 (int) uint
 string_to_uint64 (string) uint
string
 string_to_string (string) string
 bool_to_string (bool) string
 bytes_to_string (bytes) string
 double_to_string (double) string
 duration_to_string (duration) string
 int64_to_string (int) string
 timestamp_to_string (timestamp) string
 uint64_to_string (uint) string
 ip_to_string (ip) string
 cidr_to_string (cidr) string
duration
 duration_to_duration (duration) duration
 string_to_duration (string) duration
timestamp
 timestamp_to_timestamp (timestamp) timestamp
 string_to_timestamp (string) timestamp
 int64_to_timestamp (int) timestamp
contains
 contains_string .(string, string) bool
endsWith
 ends_with_string .(string, string) bool
startsWith
 starts_with_string .(string, string) bool
matches
 matches (string, string) bool
 matches_string .(string, string) bool
optional.of
 optional_of (V) optional(V)
optional.ofNonZeroValue
 optional_ofNonZeroValue (V) optional(V)
optional.none
 optional_none () optional(V)
value
 optional_value .(optional(V)) V
hasValue
 optional_hasValue .(optional(V)) bool
or
 optional_or_optional .(optional(V), optional(V)) optional(V)
orValue
 optional_orValue_value .(optional(V), V) V
optional.unwrap
 optional_unwrap (list(optional(V))) list(V)
unwrapOpt
 optional_unwrapOpt .(list(optional(V))) list(V)
path
 authorizer_path .(authorizer, string) pathcheck
group
 authorizer_group .(authorizer, string) groupcheck
serviceAccount
 authorizer_serviceaccount .(authorizer, string, string) authorizer
resource
 groupcheck_resource .(groupcheck, string) resourcecheck
subresource
 resourcecheck_subresource .(resourcecheck, string) resourcecheck
namespace
 resourcecheck_namespace .(resourcecheck, string) resourcecheck
name
 resourcecheck_name .(resourcecheck, string) resourcecheck
fieldSelector
 authorizer_fieldselector .(resourcecheck, string) resourcecheck
labelSelector
 authorizer_labelselector .(resourcecheck, string) resourcecheck
check
 pathcheck_check .(pathcheck, string) decision
 resourcecheck_check .(resourcecheck, string) decision
errored
 decision_errored .(decision) bool
error
 decision_error .(decision) string
allowed
 decision_allowed .(decision) bool
reason
 decision_reason .(decision) string
first
 list_first .(list(V)) optional(V)
last
 list_last .(list(V)) optional(V)
charAt
 string_char_at_int .(string, int) string
indexOf
 string_index_of_string .(string, string) int
 string_index_of_string_int .(string, string, int) int
 list_a_index_of_int .(list(T), T) int
lastIndexOf
 string_last_index_of_string .(string, string) int
 string_last_index_of_string_int .(string, string, int) int
 list_a_last_index_of_int .(list(T), T) int
join
 list_join .(list(string)) string
 list_join_string .(list(string), string) string
lowerAscii
 string_lower_ascii .(string) string
upperAscii
 string_upper_ascii .(string) string
replace
 string_replace_string_string .(string, string, string) string
 string_replace_string_string_int .(string, string, string, int) string
split
 string_split_string .(string, string) list(string)
 string_split_string_int .(string, string, int) list(string)
substring
 string_substring_int .(string, int) string
 string_substring_int_int .(string, int, int) string
trim
 string_trim .(string) string
format
 string_format .(string, list(dyn)) string
strings.quote
 strings_quote (string) string
sets.contains
 sets_contains_list_list (list(T), list(T)) bool
sets.equivalent
 sets_equivalent_list_list (list(T), list(T)) bool
sets.intersects
 sets_intersects_list_list (list(T), list(T)) bool
slice
 list_slice .(list(T), int, int) list(T)
flatten
 list_flatten .(list(list(T))) list(T)
 list_flatten_int .(list(dyn), int) list(dyn)
lists.range
 lists_range (int) list(int)
reverse
 list_reverse .(list(T)) list(T)
distinct
 list_distinct .(list(T)) list(T)
cel.@mapInsert
 @mapInsert_map_map (map(K, V), map(K, V)) map(K, V)
 @mapInsert_map_key_value (map(K, V), K, V) map(K, V)
includes
 list_includes_dyn_dyn .(dyn, dyn) bool
find
 string_find_string .(string, string) string
findAll
 string_find_all_string .(string, string) list(string)
 string_find_all_string_int .(string, string, int) list(string)
url
 string_to_url (string) url
isURL
 is_url_string (string) bool
getScheme
 url_get_scheme .(url) string
getHost
 url_get_host .(url) string
getHostname
 url_get_hostname .(url) string
getPort
 url_get_port .(url) string
getEscapedPath
 url_get_escaped_path .(url) string
getQuery
 url_get_query .(url) map(string, list(string))
ip
 string_to_ip (string) ip
 cidr_ip .(cidr) ip
isIP
 is_ip (string) bool
ip.isCanonical
 ip_is_canonical (string) bool
family
 family .(ip) int
isUnspecified
 is_unspecified .(ip) bool
isLoopback
 is_loopback .(ip) bool
isLinkLocalMulticast
 is_link_local_multicast .(ip) bool
isLinkLocalUnicast
 is_link_local_unicast .(ip) bool
isGlobalUnicast
 is_global_unicast .(ip) bool
cidr
 string_to_cidr (string) cidr
isCIDR
 is_cidr (string) bool
containsIP
 cidr_contains_ip_string .(cidr, string) bool
 cidr_contains_ip_ip .(cidr, ip) bool
containsCIDR
 cidr_contains_cidr_string .(cidr, string) bool
 cidr_contains_cidr .(cidr, cidr) bool
masked
 cidr_masked .(cidr) cidr
prefixLength
 cidr_prefix_length .(cidr) int
quantity
 string_to_quantity (string) quantity
isQuantity
 is_quantity_string (string) bool
sign
 quantity_sign (quantity) int
asInteger
 quantity_get_int .(quantity) int
asApproximateFloat
 quantity_get_float .(quantity) double
isInteger
 quantity_is_integer .(quantity) bool
add
 quantity_add .(quantity, quantity) quantity
 quantity_add_int .(quantity, int) quantity
sub
 quantity_sub .(quantity, quantity) quantity
 quantity_sub_int .(quantity, int) quantity
isGreaterThan
 quantity_is_greater_than .(quantity, quantity) bool
 semver_is_greater_than .(semver, semver) bool
isLessThan
 quantity_is_less_than .(quantity, quantity) bool
 semver_is_less_than .(semver, semver) bool
compareTo
 quantity_compare_to .(quantity, quantity) int
 semver_compare_to .(semver, semver) int
semver
 string_to_semver (string) semver
 string_bool_to_semver (string, bool) semver
isSemver
 is_semver_string (string) bool
 is_semver_string_bool (string, bool) bool
major
 semver_major .(semver) int
minor
 semver_minor .(semver) int
patch
 semver_patch .(semver) int
format.named
 format_named (string) optional(format)
validate
 format_validate .(format, string) optional(list(string))
"""

#: Functions that exist for new expressions only with the list attribute feature.
LIST_ATTRIBUTE_FUNCTIONS: Final = frozenset({"includes"})

FORMATS: Final = (
    "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix",
    "dns1123SubdomainPrefix", "dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date", "datetime",
)  # fmt: skip

COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")

_NAMES: Final = {
    "bool": types.BOOL, "int": types.INT, "uint": types.UINT, "double": types.DOUBLE, "string": types.STRING,
    "bytes": types.BYTES, "dyn": types.DYN, "timestamp": types.TIMESTAMP, "duration": types.DURATION,
    "quantity": types.QUANTITY, "semver": types.SEMVER, "url": types.URL, "ip": types.IP, "cidr": types.CIDR,
    "format": types.FORMAT, "authorizer": types.AUTHORIZER, "pathcheck": types.PATH_CHECK,
    "groupcheck": types.GROUP_CHECK, "resourcecheck": types.RESOURCE_CHECK, "decision": types.DECISION,
}  # fmt: skip

#: Names that stand for a type in an expression.
TYPE_NAMES: Final = {
    **{type_.name: type_ for type_ in (types.BOOL, types.INT, types.UINT, types.DOUBLE, types.STRING, types.BYTES,
        types.NULL, types.TIMESTAMP, types.DURATION, types.IP, types.CIDR)},
    "list": types.list_of(types.DYN),
    "map": types.map_of(types.DYN, types.DYN),
    "type": types.type_of(types.DYN),
    "optional_type": types.optional_of(types.DYN),
}  # fmt: skip


@cache
def functions() -> dict[str, tuple[Overload, ...]]:
    """Function name to its overloads."""
    table: dict[str, list[Overload]] = {}
    name = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith(" "):
            table.setdefault(name, []).append(_overload(line))
        else:
            name = line
    for name, line in _generated():
        table.setdefault(name, []).append(_overload(line))
    return {name: tuple(overloads) for name, overloads in table.items()}


def _generated() -> list[tuple[str, str]]:
    """Families of overloads that differ in the type only."""
    lines: list[tuple[str, str]] = []
    ids = {"int": "int64", "uint": "uint64"}
    for function, word in (("_<_", "less"), ("_<=_", "less_equals"), ("_>_", "greater"), ("_>=_", "greater_equals")):
        for kind in ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"):
            lines.append((function, f"{word}_{ids.get(kind, kind)} ({kind}, {kind}) bool"))
        for one in _SCALARS:
            for other in _SCALARS:
                if one != other:
                    lines.append(
                        (function, f"{word}_{ids.get(one, one)}_{ids.get(other, other)} ({one}, {other}) bool")
                    )
    for kind in COMPARABLE:
        lines.append(("sort", f"list_{kind}_sort .(list({kind})) list({kind})"))
        lines.append(("@sortByAssociatedKeys", f"list_{kind}_sortByAssociatedKeys .(list(T), list({kind})) list(T)"))
        lines.append(("isSorted", f"list_{kind}_is_sorted .(list({kind})) bool"))
        lines.append(("min", f"list_{kind}_min .(list({kind})) {kind}"))
        lines.append(("max", f"list_{kind}_max .(list({kind})) {kind}"))
    for kind in ("int", "uint", "double", "duration"):
        lines.append(("sum", f"list_{kind}_sum .(list({kind})) {kind}"))
    for name in FORMATS:
        lines.append((f"format.{name}", f"format_{name} () format"))
    for getter in ("FullYear", "Month", "DayOfYear", "DayOfMonth", "Date", "DayOfWeek"):
        lines.append((f"get{getter}", f"timestamp_to_{getter} .(timestamp) int"))
        lines.append((f"get{getter}", f"timestamp_to_{getter}_with_tz .(timestamp, string) int"))
    for getter in ("Hours", "Minutes", "Seconds", "Milliseconds"):
        lines.append((f"get{getter}", f"timestamp_to_{getter} .(timestamp) int"))
        lines.append((f"get{getter}", f"timestamp_to_{getter}_with_tz .(timestamp, string) int"))
        lines.append((f"get{getter}", f"duration_to_{getter} .(duration) int"))
    return lines


def _overload(line: str) -> Overload:
    overload_id, rest = line.strip().split(" ", 1)
    member = rest.startswith(".")
    reader = _Reader(rest.lstrip("."))
    params = reader.list()
    result = reader.type()
    names: dict[str, None] = {}
    for type_ in (*params, result):
        _collect(type_, names)
    return Overload(overload_id, params, result, member, tuple(names))


def _collect(type_: Type, names: dict[str, None]) -> None:
    if type_.kind == "param":
        names[type_.name] = None
    for one in type_.params:
        _collect(one, names)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def list(self) -> tuple[Type, ...]:
        """``(type, ...)``."""
        self._at += 1
        found: list[Type] = []
        while self._text[self._at] != ")":
            found.append(self.type())
            if self._text[self._at] == ",":
                self._at += 2
        self._at += 1
        return tuple(found)

    def type(self) -> Type:
        """A name, possibly with arguments."""
        while self._text[self._at] == " ":
            self._at += 1
        start = self._at
        while self._at < len(self._text) and self._text[self._at].isalnum():
            self._at += 1
        name = self._text[start : self._at]
        arguments: tuple[Type, ...] = ()
        if self._at < len(self._text) and self._text[self._at] == "(":
            arguments = self.list()
        return _named(name, arguments)


def _named(name: str, arguments: tuple[Type, ...]) -> Type:
    match name:
        case "list":
            return types.list_of(arguments[0])
        case "map":
            return types.map_of(arguments[0], arguments[1])
        case "optional":
            return types.optional_of(arguments[0])
        case "type":
            return types.type_of(arguments[0])
        case _ if len(name) == 1:
            return types.param(name)
        case _:
            return _NAMES[name]
