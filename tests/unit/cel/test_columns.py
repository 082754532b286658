"""Whole fleets at once give the same answers as one device at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from drakkar.api.resource.v1 import Device, DeviceAttribute, DeviceCapacity
from drakkar.api.semver import Semver
from drakkar.cel import DeviceInput, EvaluationError, Program, compile_selector
from drakkar.cel.access import Path
from drakkar.cel.columns import ERROR, FALSE, TRUE, Codes, ColumnEvaluator
from drakkar.cel.values import ABSENT, kind_of


class ValueColumn:
    """A column over a list of values, one per row."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._rows = values
        self._texts = all(value is ABSENT or kind_of(value) is str for value in values)
        interned: dict[Any, int] = {}
        self.codes: Codes = np.fromiter(
            (interned.setdefault(_identity(value), len(interned)) for value in values),
            dtype=np.int32,
            count=len(values),
        )
        firsts = dict(zip(reversed(self.codes.tolist()), reversed(values), strict=True))
        self.values: list[Any] = [firsts[code] for code in range(len(interned))]

    @property
    def texts(self) -> Sequence[str | None] | None:
        """The values, if all are strings or nothing."""
        return [None if value is ABSENT else value for value in self._rows] if self._texts else None

    @property
    def absent(self) -> NDArray[np.bool_] | None:
        """Rows without a value."""
        return np.fromiter((value is ABSENT for value in self._rows), dtype=np.bool_, count=len(self._rows))

    def having(self, texts: frozenset[str]) -> NDArray[np.bool_]:
        """Rows that hold one of the strings."""
        return np.fromiter((value in texts for value in self._rows), dtype=np.bool_, count=len(self._rows))


class DeviceColumns:
    """Columns made from a list of devices, built when first read."""

    def __init__(self, devices: Sequence[DeviceInput]) -> None:
        self._devices = devices
        self._columns: dict[Path, ValueColumn] = {}

    @property
    def rows(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    def failing(self) -> NDArray[np.bool_]:
        """Devices whose own data cannot be read."""
        return np.fromiter((device.error is not None for device in self._devices), dtype=np.bool_)

    def device(self, row: int) -> DeviceInput:
        """The device of a row."""
        return self._devices[row]

    def column(self, path: Path) -> ValueColumn:
        """What is at the path, for every device."""
        known = self._columns.get(path)
        if known is None:
            known = self._columns[path] = ValueColumn([_value(device, path) for device in self._devices])
        return known


def _value(device: DeviceInput, path: Path) -> Any:
    match path:
        case ("driver",):
            return device.driver
        case ("multi",):
            return device.multi
        case ("attributes", domain, name):
            return device.attributes[domain].get(name, ABSENT)
        case ("capacity", domain, name):
            return device.capacity[domain].get(name, ABSENT)
        case _:
            raise ValueError(f"{path} is no column")


def _identity(value: Any) -> Any:
    """A hashable stand-in that differs wherever an expression could tell two values apart."""
    if kind_of(value) is list:
        return (list, tuple(map(_identity, value)))
    if isinstance(value, Semver):
        return (Semver, str(value))
    if hasattr(value, "nanos"):
        return (type(value), value.nanos, value.scale)
    return (type(value), value)


A = 'device.attributes["gpu.example.com"]'
SELECTORS = [
    "true",
    "1 / 0 == 1",
    'device.driver == "gpu.example.com"',
    f'device.driver == "gpu.example.com" && {A}.model == "m1"',
    f'{A}.uuid == "u7"',
    f'"u7" == {A}.uuid',
    f'{A}.mixed == "1.0.0"',
    f'"1.0.0" == {A}.mixed',
    f'{A}.model == "m1" || {A}.index > 2',
    f'!({A}.model == "m1") && ({A}.nope == 1 || {A}.index < 3)',
    f'{A}.model == "absent" && {A}.uuid == "u1" && {A}.index == 1',
    f"has({A}.mixed) ? {A}.index == 1.0 : {A}.flag",
    f"{A}.flag",
    f"{A}.mixed",
    f'"x" in {A}.?tags.orValue([])',
    f'{A}.tags.exists(t, t == "x")',
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
    "device.attributes.exists(d, d == 'other.example.com')",
    "device.allowMultipleAllocations",
    f"cel.bind(a, {A}, a.model == 'm2' && a.index == 2)",
]


def _fleet(size: int) -> list[DeviceInput]:
    chance = random.Random(7)
    devices: list[DeviceInput] = []
    for number in range(size):
        attributes = {
            "model": DeviceAttribute(string=chance.choice(["m1", "m2"])),
            "uuid": DeviceAttribute(string=f"u{number}"),
            "index": DeviceAttribute(int=number % 5),
            "flag": DeviceAttribute(bool=number % 2 == 0),
            "tags": DeviceAttribute(strings=["x"] if number % 3 else ["y", "z"]),
        }
        if number % 7 == 0:
            attributes["other.example.com/a"] = DeviceAttribute(int=1)
        mixed = chance.choice([None, "version", "string", "int"])
        if mixed == "version":
            attributes["mixed"] = DeviceAttribute(version="1.0.0")
        elif mixed == "string":
            attributes["mixed"] = DeviceAttribute(string="1.0.0")
        elif mixed == "int":
            attributes["mixed"] = DeviceAttribute(int=1)
        if number % 11 == 3:
            del attributes["model"]
        if number % 13 == 5:
            attributes["broken"] = DeviceAttribute()
        devices.append(
            DeviceInput(
                chance.choice(["gpu.example.com", "nic.example.com"]),
                Device(
                    attributes=attributes,
                    capacity={"memory": DeviceCapacity(value=chance.choice(["40Gi", "80Gi", "10Gi"]))},
                    allowMultipleAllocations=number % 4 == 0,
                ),
            )
        )
    return devices


def _singly(program: Program, device: DeviceInput) -> int:
    try:
        return TRUE if program.evaluate(device) else FALSE
    except EvaluationError:
        return ERROR


@pytest.mark.parametrize("text", SELECTORS)
def test_the_fleet_answers_like_each_device(text: str) -> None:
    devices = _fleet(120)
    evaluator = ColumnEvaluator(DeviceColumns(devices))
    program = compile_selector(text)
    wanted = [_singly(program, device) for device in devices]
    assert evaluator.evaluate(program).tolist() == wanted
    assert evaluator.evaluate(program).tolist() == wanted


def test_an_empty_fleet_has_no_answers() -> None:
    assert ColumnEvaluator(DeviceColumns([])).evaluate(compile_selector("true")).tolist() == []
