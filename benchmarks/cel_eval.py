"""Time of typical selectors: per device one by one, of compiling them, and over a whole fleet at once.

Run: ``python benchmarks/cel_eval.py [--nodes 5000]``; prints one line per selector. Processor time, best of a few.
Over a fleet: *first reader* is an expression on attributes that no expression has read before, *new* one whose
attributes others have read, *again* the same expression once more.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

import msgspec

from drakkar.api.resource.v1 import Device, DeviceAttribute, DeviceCapacity, ResourceSlice
from drakkar.cel import DeviceInput, compile_selector
from drakkar.cel.program import build_program, cache_clear
from drakkar.inventory import Inventory
from drakkar.inventory.selection import SelectorTable

_A = 'device.attributes["gpu.example.com"]'
SELECTORS = {
    "driver and model": f'device.driver == "gpu.example.com" && {_A}.model == "a100"',
    "capacity": 'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
    "version": f'{_A}.?version.orValue(semver("0.0.0")).isGreaterThan(semver("1.0.0"))',
    "tag": f'"x" in {_A}.?tags.orValue([])',
    "unique": f'{_A}.uuid == "GPU-17"',
    "regex": f'{_A}.model.matches("^a[0-9]+$")',
    "exists": f'{_A}.tags.exists(t, t == "mig")',
    "bind": f'cel.bind(a, {_A}, a.model == "a100" && a.index < 8 && a.numa == 1 && a.healthy)',
    "four conjuncts": (
        f'device.driver == "gpu.example.com" && {_A}.model == "a100" && {_A}.index < 8 && {_A}.uuid != ""'
    ),
    "whole device": "device.attributes.all(d, d != '')",
}
#: More for fleets: what is asked of an attribute that every device has its own value of, and of amounts.
OVER_FLEETS = {
    "uuid !=": f'{_A}.uuid != "GPU-17"',
    "uuid in": f'{_A}.uuid in ["GPU-17", "GPU-18", "none"]',
    "uuid or else": f'{_A}.?uuid.orValue("") == "GPU-17"',
    "has uuid": f"has({_A}.uuid)",
    "uuid starts with": f'{_A}.uuid.startsWith("GPU-1")',
    "index": f"{_A}.index < 4",
    "semver": f'{_A}.version.isGreaterThan(semver("1.0.0"))',
}


def device() -> DeviceInput:
    """A device as a driver may publish it."""
    return DeviceInput(
        "gpu.example.com",
        Device(
            name="gpu-0",
            attributes={
                "model": DeviceAttribute(string="a100"),
                "uuid": DeviceAttribute(string="GPU-17"),
                "version": DeviceAttribute(version="1.2.3"),
                "tags": DeviceAttribute(strings=["nvlink", "mig"]),
                "index": DeviceAttribute(int=3),
                "numa": DeviceAttribute(int=1),
                "healthy": DeviceAttribute(bool=True),
                "resource.kubernetes.io/pcieRoot": DeviceAttribute(string="pci0000:00"),
            },
            capacity={"memory": DeviceCapacity(value="80Gi")},
        ),
    )


def published(number: int) -> ResourceSlice:
    """One node's slice: eight devices with ten attributes and two amounts, every device with a uuid of its own."""
    devices = [
        {
            "name": f"gpu-{place}",
            "attributes": {
                "model": {"string": ("a100", "h100", "l4")[number % 3]},
                "uuid": {"string": f"GPU-{number * 8 + place}"},
                "version": {"version": ("1.2.3", "1.3.0", "1.4.1", "0.9.0")[number % 4]},
                "tags": {"strings": ["nvlink", "mig"] if number % 2 else ["x"]},
                "index": {"int": place},
                "numa": {"int": place // 4},
                "healthy": {"bool": True},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{place // 2:02x}"},
                "arch": {"string": "ampere"},
                "product": {"string": f"P{number % 3}"},
            },
            "capacity": {"memory": {"value": ("80Gi", "40Gi", "24Gi")[number % 3]}, "cores": {"value": "108"}},
        }
        for place in range(8)
    ]
    pool = {"name": f"n{number}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": f"n{number}", "pool": pool, "devices": devices}
    return msgspec.convert({"metadata": {"name": f"s{number:05d}"}, "spec": spec}, ResourceSlice)


def read(slices: list[ResourceSlice]) -> tuple[SelectorTable, float]:
    """The selector table of an inventory that has read the slices, and the processor time of reading."""
    gc.collect()
    books = Inventory()
    start = time.process_time()
    for one in slices:
        books.set_slice(one)
    return books.snapshot().shared.selectors, time.process_time() - start


def asked(table: SelectorTable, text: str) -> float:
    """Processor time of compiling an expression and asking it about all devices."""
    cache_clear()
    gc.collect()
    start = time.process_time()
    table.selector(text).extend(table)
    return time.process_time() - start


def fleet(nodes: int) -> None:
    """Measure selectors over a fleet of ``nodes`` times eight devices."""
    slices = [published(number) for number in range(nodes)]
    asked(read(slices[:600])[0], SELECTORS["bind"])
    line = "{:16} {:>12} {:>12} {:>12}\n"
    sys.stdout.write(f"\n{8 * nodes} devices, ms (with compiling):\n")
    sys.stdout.write(line.format("", "first reader", "new", "again"))
    reading: list[float] = []
    for name, text in {**SELECTORS, **OVER_FLEETS}.items():
        table, seconds = read(slices)
        reading.append(seconds)
        first = asked(table, text)
        # The same columns, but another expression as far as the table knows; the groups that it made are gone, too.
        new = float("inf")
        for _ in range(3):
            table.forget_answers()
            new = min(new, asked(table, text))
        again = float("inf")
        for _ in range(5):
            start = time.process_time()
            table.selector(text).extend(table)
            again = min(again, time.process_time() - start)
        sys.stdout.write(line.format(name, *(f"{1000 * one:.2f}" for one in (first, new, again))))
    sys.stdout.write(f"reading {nodes} slices into the inventory: {1000 * min(reading):.0f} ms at best\n")


def main() -> None:
    """Measure and print."""
    target = device()
    rounds = 20_000
    for name, text in SELECTORS.items():
        program = compile_selector(text)
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(rounds):
                program.evaluate(target)
            best = min(best, time.process_time() - start)
        compile_best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(20):
                build_program(text)
            compile_best = min(compile_best, time.process_time() - start)
        sys.stdout.write(
            f"{name:16} {best / rounds * 1e6:6.2f} us per device {compile_best / 20 * 1e6:7.0f} us compile\n"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000, help="nodes of eight devices in the fleet; 0: no fleet")
    arguments = parser.parse_args()
    main()
    if arguments.nodes:
        fleet(arguments.nodes)
