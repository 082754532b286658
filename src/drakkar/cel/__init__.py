"""CEL as device selectors speak it: compile an expression once, evaluate it on many devices.

program = compile_selector('device.driver == "gpu.example.com"')
program.evaluate(DeviceInput(driver, device))

Admission policies and rules of custom resources use :mod:`drakkar.cel.expressions`.
"""

from drakkar.cel.device import DeviceInput
from drakkar.cel.errors import CompileError, EvaluationError, Issue
from drakkar.cel.expressions import Budget, Expression, OutOfBudget, compile_expression
from drakkar.cel.program import (
    ALL,
    COST_LIMIT,
    MAX_LENGTH,
    Program,
    attribute_of,
    compile_derived,
    compile_selector,
)

__all__ = [
    "ALL",
    "COST_LIMIT",
    "MAX_LENGTH",
    "Budget",
    "CompileError",
    "DeviceInput",
    "EvaluationError",
    "Expression",
    "Issue",
    "OutOfBudget",
    "Program",
    "attribute_of",
    "compile_derived",
    "compile_expression",
    "compile_selector",
]
