"""Expressions that ask one thing of one string: they run over thousands of strings without being evaluated.

``path == "x"``, ``path in ["x", "y"]``, ``path.startsWith("x")`` and their like, also with
``path.?….orValue("…")`` on the left. Only what holds for a string is said here; every other value, and a missing
one, is left to evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drakkar.cel.access import ROOT, path_of, presence_path
from drakkar.cel.folding import Constants, is_set_membership
from drakkar.cel.regex import searcher
from drakkar.cel.syntax import Call, Literal, Node, Select
from drakkar.cel.values import kind_of


@dataclass(frozen=True, slots=True)
class TextTest:
    """``wanted`` are the strings that pass (or, if ``negated``, do not); None when ``apply`` has to be asked."""

    apply: Callable[[Sequence[str]], Iterable[bool]]
    wanted: frozenset[str] | None = None
    negated: bool = False


def text_test(node: Node, constants: Constants) -> TextTest | None:
    """The test that the expression is of the only thing it reads, or None."""
    if isinstance(node, Select):
        return _ALWAYS if node.test and presence_path(node, ROOT) is not None else None
    if not isinstance(node, Call):
        return None
    operands = node.operands
    if node.function == "@in" and presence_path(node, ROOT) is not None:
        return _ALWAYS
    if node.function == "hasValue":
        return _ALWAYS if presence_path(operands[0], ROOT) is not None else None
    if len(operands) != 2:
        return None
    left, right = operands
    if node.function == "@in":
        if not _is_value(left) or not is_set_membership(node, constants):
            return None
        return _among(frozenset(one for one in constants[right] if kind_of(one) is str), False)
    if node.function in ("_==_", "_!=_") and not _is_value(left):
        left, right = right, left
    if not _is_value(left) or right not in constants or kind_of(constants[right]) is not str:
        return None
    text = str(constants[right])
    if node.function in ("_==_", "_!=_"):
        return _among(frozenset((text,)), node.function == "_!=_")
    make = _TESTS.get(node.function)
    return None if make is None else TextTest(make(text))


def _is_value(node: Node) -> bool:
    """Whether the node is the value at a path, perhaps with a default where it is absent."""
    if isinstance(node, Call) and node.function == "orValue":
        assert node.target is not None
        return presence_path(node.target, ROOT) is not None and isinstance(node.args[0], Literal)
    path = path_of(node, ROOT)
    return path is not None and (len(path) == 3 or path[0] == "driver")


def _always(texts: Sequence[str]) -> Iterable[bool]:
    return [True] * len(texts)


_ALWAYS: Final = TextTest(_always, frozenset(), True)


def _among(wanted: frozenset[str], negated: bool) -> TextTest:
    def apply(texts: Sequence[str]) -> Iterable[bool]:
        return [(text in wanted) is not negated for text in texts]

    return TextTest(apply, wanted, negated)


def _each(test: Callable[[str], Any]) -> Callable[[Sequence[str]], Iterable[bool]]:
    return lambda texts: [bool(test(text)) for text in texts]


_TESTS: Final[dict[str, Callable[[str], Callable[[Sequence[str]], Iterable[bool]]]]] = {
    "startsWith": lambda part: lambda texts: [text.startswith(part) for text in texts],
    "endsWith": lambda part: lambda texts: [text.endswith(part) for text in texts],
    "contains": lambda part: lambda texts: [part in text for text in texts],
    "matches": lambda pattern: _each(searcher(pattern)),
    "_<_": lambda other: lambda texts: [text < other for text in texts],
    "_<=_": lambda other: lambda texts: [text <= other for text in texts],
    "_>_": lambda other: lambda texts: [text > other for text in texts],
    "_>=_": lambda other: lambda texts: [text >= other for text in texts],
}
