"""Time per device of typical selectors, evaluated one by one, and of compiling them.

Run: ``python benchmarks/cel_eval.py``; prints one line per selector. CPU time, best of five.
"""

from __future__ import annotations

import sys
import time

from drakkar.api.resource.v1 import Device, DeviceAttribute, DeviceCapacity
from drakkar.cel import DeviceInput, compile_selector
from drakkar.cel.program import build_program

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
    main()
