"""Checks on constants that a type checker does not see.

Literal patterns, durations and timestamps have to parse, literals of lists and maps have
to hold one type, and templates of ``format`` have to suit their arguments.
"""

from __future__ import annotations

from typing import Final

from drakkar.cel.errors import EvaluationError, Issue
from drakkar.cel.library import FUNCTIONS
from drakkar.cel.parser import Source
from drakkar.cel.regex import problem
from drakkar.cel.strings import clauses
from drakkar.cel.syntax import Call, ListNode, Literal, MapNode, Node, children
from drakkar.cel.timelib import parse_duration, parse_timestamp
from drakkar.cel.types import Type, unwrap_optional

_ALLOWED: Final = {
    "d": ("int", "uint"),
    # Strings, because "NaN", "Infinity" and "-Infinity" are taken.
    "f": ("double", "string"),
    "e": ("double", "string"),
    "b": ("int", "uint", "bool"),
    "o": ("int", "uint"),
    "x": ("int", "uint", "string", "bytes"),
    "X": ("int", "uint", "string", "bytes"),
    "s": ("bool", "bytes", "double", "int", "uint", "string", "null", "duration", "timestamp", "type", "list", "map"),
}


def validate(node: Node, source: Source) -> list[Issue]:
    """Faults in constants, in the whole tree."""
    issues: list[Issue] = []
    _walk(node, False, source, issues)
    return issues


def _walk(node: Node, exempt: bool, source: Source, issues: list[Issue]) -> None:
    if isinstance(node, Call):
        _constants(node, source, issues)
        if node.function == "format" and node.target is not None:
            _format(node, source, issues)
            exempt = True
    elif not exempt and isinstance(node, ListNode):
        _list(node, source, issues)
    elif not exempt and isinstance(node, MapNode):
        _map(node, source, issues)
    for child in children(node):
        _walk(child, exempt, source, issues)


def _constants(node: Call, source: Source, issues: list[Issue]) -> None:
    if not node.args or not isinstance(node.args[-1], Literal):
        return
    literal = node.args[-1]
    text = node.args[-1].value
    fault: str | None = None
    if node.function in ("duration", "timestamp") and not isinstance(text, str):
        try:
            FUNCTIONS[node.function](text)
        except EvaluationError as error:
            message = f"invalid {node.function} argument: {error.message}"
            issues.append(source.issue("bad-constant-argument", message, literal.pos))
    if not isinstance(text, str):
        return
    if node.function == "matches":
        fault = problem(text)
        fault = fault and f"the regular expression is malformed: {fault}"
    elif node.function == "duration" and parse_duration(text) is None:
        fault = "the duration is malformed; write for example 1h30m"
    elif node.function == "timestamp" and parse_timestamp(text) is None:
        fault = "the timestamp is malformed; write RFC 3339, for example 2024-01-31T12:00:00Z"
    if fault:
        issues.append(source.issue("bad-constant-argument", f"invalid {node.function} argument: {fault}", literal.pos))


def _mismatch(wanted: Type, found: Type, pos: int, source: Source, issues: list[Issue]) -> None:
    issues.append(
        source.issue(
            "type-mismatch",
            f"expected type '{wanted}' but found '{found}'; elements of a literal have one type",
            pos,
        )
    )


def _list(node: ListNode, source: Source, issues: list[Issue]) -> None:
    wanted: Type | None = None
    for index, element in enumerate(node.elements):
        type_ = unwrap_optional(element.type)[0] if index in node.optional else element.type
        if wanted is None:
            wanted = type_
        elif wanted != type_:
            _mismatch(wanted, type_, element.pos, source, issues)
            return


def _map(node: MapNode, source: Source, issues: list[Issue]) -> None:
    key: Type | None = None
    value: Type | None = None
    for entry in node.entries:
        key_type = entry.key.type
        value_type = unwrap_optional(entry.value.type)[0] if entry.optional else entry.value.type
        if key is None or value is None:
            key, value = key_type, value_type
            continue
        if key != key_type:
            _mismatch(key, key_type, entry.key.pos, source, issues)
        if value != value_type:
            _mismatch(value, value_type, entry.value.pos, source, issues)


def _format(node: Call, source: Source, issues: list[Issue]) -> None:
    template = node.target
    if not isinstance(template, Literal) or not isinstance(template.value, str):
        return
    if not node.args or not isinstance(node.args[0], ListNode):
        return
    arguments = node.args[0].elements
    fault: tuple[str, int] | None = None
    used = 0
    try:
        for piece in clauses(template.value):
            if isinstance(piece, str):
                continue
            if used >= len(arguments):
                fault = f"no argument for clause number {used + 1} (%{piece[0]})", node.pos
                break
            unsuited = _unsuited(piece[0], arguments[used])
            if unsuited is not None:
                fault = f"%{piece[0]} does not take a value of type '{unsuited.type}'", unsuited.pos
                break
            used += 1
        else:
            if used < len(arguments):
                fault = f"{len(arguments)} arguments for {used} clauses", node.pos
    except ValueError as error:
        fault = str(error), node.pos
    if fault is not None:
        issues.append(source.issue("bad-format", f"format: {fault[0]}", fault[1]))


def _unsuited(letter: str, node: Node) -> Node | None:
    """The node that the clause does not take; elements of literals are looked at as well."""
    if node.type.kind != "dyn" and node.type.kind not in _ALLOWED[letter]:
        return node
    if letter == "s" and isinstance(node, ListNode | MapNode):
        return next((found for child in children(node) if (found := _unsuited(letter, child))), None)
    return None
