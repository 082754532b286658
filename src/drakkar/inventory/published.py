"""What slices publish, turned on its side: for each driver and name, the values of all its devices.

Filled while a slice is taken in, when its parts have just been made and are at hand; going through a
large fleet later for one attribute would take ten times as long. A *raw* value is a string or an
int as it is, None where there is nothing, else a tuple that begins with the field of the
attribute. An attribute with several fields set, which the API refuses, counts by its scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final, cast

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import DeviceAttribute, DeviceCapacity
from drakkar.api.semver import Semver
from drakkar.inventory.devices import DeviceRecord

#: Names per driver for which values are gathered; those of further names are looked up on the devices.
_MOST_NAMES: Final = 64

_NO_ATTRIBUTES: Final[dict[str, DeviceAttribute]] = {}
_NO_CAPACITIES: Final[dict[str, DeviceCapacity]] = {}
_NO_ATTRIBUTE: Final = DeviceAttribute()
_NO_CAPACITY: Final = DeviceCapacity(value="")
_TRUE: Final = ("bool", True)
_FALSE: Final = ("bool", False)
#: ``dict.get``, for maps of maps.
_GET: Final = cast("Callable[..., Any]", dict[str, Any].get)


class Gathered:
    """Values of one name, one per device of the driver; those at the end may be missing (nothing there)."""

    __slots__ = ("texts", "values")

    def __init__(self, missing: int) -> None:
        self.values: list[Any] = [None] * missing
        #: Whether all are strings or nothing.
        self.texts = True


class Published:
    """The values of one driver's devices, by name as published (with or without a domain)."""

    __slots__ = ("attributes", "capacities", "damaged", "devices", "driver", "overflow")

    def __init__(self, driver: str) -> None:
        self.driver = driver
        self.devices: list[DeviceRecord] = []
        self.attributes: dict[str, Gathered] = {}
        self.capacities: dict[str, Gathered] = {}
        #: Whether there are names that are not gathered.
        self.overflow = False
        #: Places of devices with an attribute or capacity that cannot be turned into a CEL value.
        self.damaged: list[int] = []

    def add(self, devices: Sequence[DeviceRecord]) -> None:
        """Takes in more devices; many at once are cheaper than one by one."""
        odd = False
        for name, found in _turned([one.device.attributes or _NO_ATTRIBUTES for one in devices], _NO_ATTRIBUTE):
            values: list[Any] = [one.string for one in found]
            texts = None not in values
            if not texts:
                values, texts, sound = _not_all_texts(found, values)
                odd = odd or not sound
            self._put(self.attributes, name, values, texts)
        for name, found in _turned([one.device.capacity or _NO_CAPACITIES for one in devices], _NO_CAPACITY):
            amounts = [None if one is _NO_CAPACITY else one.value for one in found]
            odd = odd or not all([amount is None or _is_quantity(amount) for amount in set(amounts)])
            self._put(self.capacities, name, amounts, False)
        if odd:
            first = len(self.devices)
            self.damaged += [first + place for place, one in enumerate(devices) if is_damaged(one)]
        self.devices += devices

    def _put(self, names: dict[str, Gathered], name: str, values: list[Any], texts: bool) -> None:
        known = names.get(name)
        missing = len(self.devices)
        if known is None:
            if len(self.attributes) + len(self.capacities) >= _MOST_NAMES:
                self.overflow = True
                return
            known = names[name] = Gathered(missing)
        elif len(known.values) < missing:
            known.values += [None] * (missing - len(known.values))
        known.values += values
        known.texts = known.texts and texts

    def values(self, kind: str, domain: str, name: str, start: int, end: int) -> tuple[list[Any], bool]:
        """Raw values of an attribute or capacity on some devices, and whether they are strings or nothing.

        A name may be published with its domain or, in the domain of the driver, without; the first counts.
        """
        names: dict[str, Gathered] = self.attributes if kind == "attributes" else self.capacities
        qualified = f"{domain}/{name}"
        spelled = (qualified, name) if domain == self.driver else (qualified,)
        if self.overflow and any(one not in names for one in spelled):
            return looked_up(self.devices[start:end], kind, domain, name), False
        known = [names[one] for one in spelled if one in names]
        if not known:
            return [None] * (end - start), True
        values = _part(known[0].values, start, end)
        if len(known) == 1:
            return values, known[0].texts
        short = _part(known[1].values, start, end)
        merged = [other if one is None else one for one, other in zip(values, short, strict=True)]
        return merged, known[0].texts and known[1].texts


def looked_up(devices: Iterable[DeviceRecord], kind: str, domain: str, name: str) -> list[Any]:
    """Raw values of an attribute or capacity, from device to device."""
    qualified = f"{domain}/{name}"
    values: list[Any] = []
    for one in devices:
        device = one.device
        spelled = (qualified, name) if one.slice.driver == domain else (qualified,)
        if kind == "attributes":
            attributes = device.attributes or _NO_ATTRIBUTES
            found = next((raw_of(attributes[at]) for at in spelled if at in attributes), None)
        else:
            capacities = device.capacity or _NO_CAPACITIES
            found = next((capacities[at].value for at in spelled if at in capacities), None)
        values.append(found)
    return values


def _part(values: list[Any], start: int, end: int) -> list[Any]:
    found = values[start:end]
    missing = end - start - len(found)
    return found + [None] * missing if missing else found


def _turned(maps: list[Any], nothing: Any) -> Iterable[tuple[str, Any]]:
    """From maps by name to the values of all maps for each name."""
    if not maps:
        return ()
    # Nothing is kept per map while this runs, because a thousand new containers wake the garbage collector.
    names = list(maps[0])
    alike = all([list(one) == names for one in maps])
    every = names if alike else list(dict.fromkeys(chain.from_iterable(maps)))
    return ((name, list(map(_GET, maps, repeat(name), repeat(nothing)))) for name in every)


def _not_all_texts(found: Sequence[DeviceAttribute], texts: list[str | None]) -> tuple[list[Any], bool, bool]:
    """Raw values, whether they are strings or nothing, and whether all can be turned into CEL values.

    One kind for all is common, and fast.
    """
    if texts.count(None) == len(texts):
        numbers = [one.int for one in found]
        if None not in numbers:
            return numbers, False, True
        flags = [one.bool for one in found]
        if None not in flags:
            return [_TRUE if flag else _FALSE for flag in flags], False, True
        versions = [one.version for one in found]
        if None not in versions:
            parsed = {version: ("version", version) for version in set(versions)}
            return [parsed[version] for version in versions], False, all(map(_is_sound, parsed.values()))
        if None not in [one.strings for one in found]:
            return _shared_lists(found), False, True
    values = [raw_of(one) for one in found]
    plain = all([value is None or type(value) is str for value in values])
    valueless = [one for value, one in zip(values, found, strict=True) if value is None and one is not _NO_ATTRIBUTE]
    return values, plain, not valueless and (plain or all(map(_is_sound, values)))


def _shared_lists(found: Sequence[DeviceAttribute]) -> list[Any]:
    raws: dict[tuple[str, ...], Any] = {}
    values: list[Any] = []
    for one in found:
        items = tuple(one.strings or ())
        known = raws.get(items)
        if known is None:
            known = raws[items] = ("strings", items)
        values.append(known)
    return values


def raw_of(found: DeviceAttribute) -> Any:
    """What stands for an attribute here."""
    if found.string is not None:
        return found.string
    if found.int is not None:
        return found.int
    if found.bool is not None:
        return _TRUE if found.bool else _FALSE
    if found.version is not None:
        return ("version", found.version)
    for field in ("ints", "bools", "strings", "versions"):
        values = cast("list[Any] | None", getattr(found, field))
        if values is not None:
            return (field, tuple(values))
    return None


def decoded(kind: str, raw: Any) -> Any:
    """A raw value as expressions see it; :data:`drakkar.cel.values.ABSENT` for nothing."""
    from drakkar.cel.values import ABSENT

    if kind == "multi":
        return raw is True
    if raw is None:
        return ABSENT
    if kind == "capacity":
        return _parsed(Quantity.parse, raw)
    if type(raw) is not tuple:
        return raw
    field, value = cast("tuple[str, Any]", raw)
    if field == "version":
        return _parsed(Semver.parse, value)
    if field == "versions":
        return [_parsed(Semver.parse, version) for version in value]
    return value if field == "bool" else list(value)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    from drakkar.cel.values import ABSENT

    try:
        return parse(text)
    except ParseError:
        # Only on devices on which every expression fails anyway.
        return ABSENT


# Damage.


def is_damaged(row: DeviceRecord) -> bool:
    """Whether some attribute or capacity of the device cannot be turned into a CEL value."""
    device = row.device
    for attribute in (device.attributes or _NO_ATTRIBUTES).values():
        if _is_valueless(attribute) or not _is_sound(raw_of(attribute)):
            return True
    return any(not _is_quantity(capacity.value) for capacity in (device.capacity or _NO_CAPACITIES).values())


def _is_valueless(attribute: DeviceAttribute) -> bool:
    return attribute is not _NO_ATTRIBUTE and raw_of(attribute) is None


def _is_sound(raw: Any) -> bool:
    if type(raw) is not tuple:
        return True
    field, value = cast("tuple[str, Any]", raw)
    if field == "version":
        return _is_version(value)
    return field != "versions" or all(map(_is_version, value))


@lru_cache(maxsize=4096)
def _is_version(text: str) -> bool:
    try:
        Semver.parse(text)
    except ParseError:
        return False
    return True


@lru_cache(maxsize=4096)
def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except ParseError:
        return False
    return True
