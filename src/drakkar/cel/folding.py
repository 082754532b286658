"""What is constant: literals, type names, conversions of constants, literals made of constants."""

from __future__ import annotations

from typing import Any

from drakkar.cel.errors import EvaluationError, Issue
from drakkar.cel.library import FUNCTIONS
from drakkar.cel.operators import CONVERSIONS
from drakkar.cel.regex import problem
from drakkar.cel.syntax import Call, Ident, ListNode, Literal, MapNode, Node, Select, children
from drakkar.cel.values import Uint, to_key, type_name


class Constants:
    """Values of the constant nodes of one tree, by node."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}

    def __contains__(self, node: Node) -> bool:
        return id(node) in self._values

    def __getitem__(self, node: Node) -> Any:
        return self._values[id(node)]

    def __setitem__(self, node: Node, value: Any) -> None:
        self._values[id(node)] = value


class FoldError(Exception):
    """A constant conversion fails whatever the device is."""

    def __init__(self, issue: Issue) -> None:
        self.issue = issue
        super().__init__(issue.message)


def fold(node: Node) -> Constants:
    """Find the constants; raises :class:`FoldError`."""
    constants = Constants()
    _fold(node, constants)
    return constants


def _fold(node: Node, constants: Constants) -> None:
    for child in children(node):
        _fold(child, constants)
    if isinstance(node, Literal):
        constants[node] = node.value
    elif isinstance(node, Ident | Select):
        if node.constant is not None:
            constants[node] = node.constant
    elif isinstance(node, Call):
        _call(node, constants)
    elif isinstance(node, ListNode):
        if not node.optional and all(element in constants for element in node.elements):
            constants[node] = [constants[element] for element in node.elements]
    elif isinstance(node, MapNode):
        _map(node, constants)


def _call(node: Call, constants: Constants) -> None:
    operands = node.operands
    if node.function in CONVERSIONS and node.target is None and len(operands) == 1 and operands[0] in constants:
        try:
            constants[node] = FUNCTIONS[node.function](constants[operands[0]])
        except EvaluationError as error:
            raise FoldError(
                Issue("constant-folding", f"{node.function}(...) of a constant fails: {error.message}")
            ) from None
    if node.function == "@in" and operands[1] in constants and constants[operands[1]] == []:
        # Nothing is in an empty literal; the left side is not even looked at.
        constants[node] = False
    if node.function in ("_[_]", "_[?_]") and operands[1] in constants:
        key = constants[operands[1]]
        if type(key) not in (str, int, Uint, float, bool):
            raise FoldError(Issue("constant-folding", f"a value of type {type_name(key)} cannot be an index or key"))
    if node.function in ("matches", "find", "findAll") and len(operands) > 1 and operands[1] in constants:
        pattern = constants[operands[1]]
        if isinstance(pattern, str) and (fault := problem(pattern)):
            message = f"the regular expression {pattern!r} is malformed: {fault}"
            raise FoldError(Issue("constant-folding", message))


def _map(node: MapNode, constants: Constants) -> None:
    if any(entry.optional or entry.key not in constants or entry.value not in constants for entry in node.entries):
        return
    try:
        constants[node] = {to_key(constants[entry.key]): constants[entry.value] for entry in node.entries}
    except EvaluationError:
        # A key of a type that maps do not take: left to evaluation, which reports it.
        return


def is_set_membership(node: Call, constants: Constants) -> bool:
    """Whether ``x in [...]`` looks into a constant list of plain values, which costs nothing."""
    if node.function != "@in" or node.overloads != ("in_list",) or node.args[1] not in constants:
        return False
    items = constants[node.args[1]]
    return isinstance(items, list) and all(
        isinstance(item, bool | int | float | str)
        for item in items  # pyright: ignore[reportUnknownVariableType]
    )
