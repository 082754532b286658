"""Answer the cases of a corpus file (format: the README of the recorded cases)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from drakkar.api.errors import UsageError
from drakkar.api.features import Features
from drakkar.api.resource.v1 import Device
from drakkar.cel.cost import SATURATED
from drakkar.cel.device import DeviceInput
from drakkar.cel.errors import CompileError, EvaluationError
from drakkar.cel.program import COST_LIMIT, Program, attribute_of, compile_derived, compile_selector

_GATES: Final = {"listTypeAttributes": "DRAListTypeAttributes", "consumableCapacity": "DRAConsumableCapacity"}


class _File(msgspec.Struct):
    devices: dict[str, dict[str, Any]]
    cases: list[dict[str, Any]]


def run_file(path: str | Path) -> Iterator[dict[str, Any]]:
    """One answer per case of the file; :class:`UsageError` when it is no case file."""
    try:
        content = msgspec.json.decode(Path(path).read_bytes(), type=_File)
        devices = {name: device_of(fields) for name, fields in content.devices.items()}
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: no case file with devices and cases: {error}") from error
    except KeyError as error:
        raise UsageError(f"{path}: a device lacks the field {error}") from error
    for number, case in enumerate(content.cases, start=1):
        missing = [field for field in ("id", "device", "expression") if field not in case]
        if missing:
            raise UsageError(f"{path}: case {number} lacks {', '.join(missing)}")
        device = devices.get(case["device"])
        if device is None:
            raise UsageError(f"{path}: case {case['id']}: there is no device {case['device']!r}")
        yield {"id": case["id"], **run_case(case, device)}


def device_of(fields: Mapping[str, Any]) -> DeviceInput:
    """A device of a case file: the fields of a device in a slice, and ``driver``."""
    device = msgspec.convert({key: value for key, value in fields.items() if key != "driver"}, Device)
    return DeviceInput(str(fields["driver"]), device)


def features_of(case: Mapping[str, Any]) -> Features:
    """The gates under which a case is compiled: both optional features on unless it says otherwise."""
    return Features.drakkar().with_({_GATES[name]: on for name, on in case.get("features", {}).items()})


def run_case(case: Mapping[str, Any], device: DeviceInput) -> dict[str, Any]:
    """The answer to one case: ``value`` or ``error`` with ``message``, and types and costs where it compiles."""
    features = features_of(case)
    derived = case.get("mode") == "derived"
    compile_ = compile_derived if derived else compile_selector
    environment = case.get("environment", "stored")
    try:
        program = compile_(case["expression"], environment=environment, features=features)
    except CompileError as error:
        return {"error": _compile_error(error), "message": str(error)}
    answer = _evaluated(program, device, derived, case.get("costLimit", COST_LIMIT))
    answer["outputType"] = program.output_type
    answer["maxCost"] = "saturated" if program.max_cost == SATURATED else program.max_cost
    if program.too_expensive:
        answer["tooExpensiveAtCreate"] = True
    return answer


def _compile_error(error: CompileError) -> dict[str, Any]:
    first = error.issues[0]
    answer: dict[str, Any] = {"phase": "compile", "class": first.error_class}
    if first.line is not None:
        answer |= {"line": first.line, "column": first.column}
    return {**answer, "issues": len(error.issues)}


def _evaluated(program: Program, device: DeviceInput, derived: bool, limit: int) -> dict[str, Any]:
    if (failure := device.failure()) is not None:
        return {"error": _evaluation_error(failure), "message": failure.message}
    value, error, cost = program.measure(device, limit)
    answer: dict[str, Any] = {"actualCost": cost}
    if error is None:
        try:
            answer["value"] = attribute_of(value) if derived else program.as_bool(value)
        except EvaluationError as wrong:
            error = wrong
    if error is not None:
        answer |= {"error": _evaluation_error(error), "message": str(error)}
    return answer


def _evaluation_error(error: EvaluationError) -> dict[str, Any]:
    answer: dict[str, Any] = {"phase": "evaluate", "class": error.error_class}
    if error.key is not None:
        answer["key"] = error.key
    return answer
