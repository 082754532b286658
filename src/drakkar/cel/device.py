"""A device as expressions see it, prepared once from its slice."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import Device, DeviceAttribute
from drakkar.api.semver import Semver
from drakkar.cel.errors import EvaluationError
from drakkar.cel.values import ABSENT, DomainMap


class DeviceInput:
    """Attributes and capacity by domain and name.

    A name without a domain belongs to the driver's. When a device carries both the short and
    the qualified spelling of one name, the qualified one counts. Loops run over domains and
    names in alphabetical order. ``error`` is set for devices on which every expression fails
    (an attribute without value, a malformed version).
    """

    __slots__ = ("attributes", "capacity", "driver", "error", "multi")
    cel_type: Final = "kubernetes.DRADevice"

    def __init__(self, driver: str, device: Device) -> None:
        self.driver = driver
        self.multi: bool = bool(device.allowMultipleAllocations)
        self.error: str | None = None
        self.attributes = DomainMap()
        self.capacity = DomainMap()
        attributes, capacity = device.attributes, device.capacity
        if attributes:
            for domain, ident, name in _places(tuple(attributes), driver):
                try:
                    value = attribute_value(attributes[name])
                except (ValueError, ParseError) as error:
                    self.error = f"attribute {name}: {error}"
                    continue
                if domain not in self.attributes:
                    self.attributes[domain] = {}
                self.attributes[domain][ident] = value
        if capacity:
            for domain, ident, name in _places(tuple(capacity), driver):
                if domain not in self.capacity:
                    self.capacity[domain] = {}
                try:
                    self.capacity[domain][ident] = Quantity.parse(capacity[name].value)
                except ParseError as error:
                    self.error = f"capacity {name}: {error}"

    @classmethod
    def blank(cls) -> DeviceInput:
        """A device without anything, to be filled by :meth:`place`."""
        return cls("", Device())

    def place(self, path: tuple[str, ...]) -> Callable[[Any], None]:
        """How to put a value (or :data:`~drakkar.cel.values.ABSENT`) where expressions read it.

        ``path`` is one of those in :attr:`Program.reads <drakkar.cel.program.Program.reads>`. A program that reads
        nothing else cannot tell this device from a real one.
        """
        if len(path) != 3:
            field = "driver" if path == ("driver",) else "multi"
            return lambda value: setattr(self, field, value)
        kind, domain, name = path
        inner = (self.attributes if kind == "attributes" else self.capacity).setdefault(domain, {})

        def put(value: Any) -> None:
            if value is ABSENT:
                inner.pop(name, None)
            else:
                inner[name] = value

        return put

    def failure(self) -> EvaluationError | None:
        """The error that every expression meets on this device, if any."""
        return None if self.error is None else EvaluationError("device-data", self.error)


@lru_cache(maxsize=4096)
def _places(names: tuple[str, ...], driver: str) -> tuple[tuple[str, str, str], ...]:
    """Domain, identifier and name by domain, then identifier; the short spelling of a name before the qualified one.

    Devices of one kind have the same names, so this is worked out once for all of them.
    """
    ordered = sorted(names, key=lambda name: (*split_name(name, driver), "/" in name))
    return tuple((*split_name(name, driver), name) for name in ordered)


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier of an attribute or capacity name."""
    domain, slash, ident = name.partition("/")
    return (domain, ident) if slash else (driver, name)


def attribute_value(attribute: DeviceAttribute) -> Any:
    """The value of an attribute; raises ``ValueError`` when none is set or a version is malformed."""
    if attribute.ints is not None:
        return attribute.ints
    if attribute.bools is not None:
        return attribute.bools
    if attribute.strings is not None:
        return attribute.strings
    if attribute.versions is not None:
        return [Semver.parse(version) for version in attribute.versions]
    if attribute.int is not None:
        return attribute.int
    if attribute.bool is not None:
        return attribute.bool
    if attribute.string is not None:
        return attribute.string
    if attribute.version is not None:
        return Semver.parse(attribute.version)
    raise ValueError("unsupported attribute value: none of its fields is set")
