"""Whole fleets at once give the same answers as one device at a time."""

from __future__ import annotations

import random

import pytest

from drakkar.api.resource.v1 import Device, DeviceAttribute, DeviceCapacity
from drakkar.cel import DeviceInput, EvaluationError, Program, compile_selector
from drakkar.cel.columns import ERROR, FALSE, TRUE, ColumnEvaluator, DeviceColumns

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
