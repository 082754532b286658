"""The syntax tree of an expression.

Nodes carry the offset that error messages point to: an operator's own place, the opening
bracket of calls and indexes, the dot of selections. The checker fills in ``type`` and
``overloads``; macros are already expanded.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from drakkar.cel.types import DYN, Type


class Node:
    """Base of all nodes."""

    __slots__ = ("pos", "type")

    def __init__(self, pos: int) -> None:
        self.pos = pos
        self.type: Type = DYN


class Literal(Node):
    """A constant; ``value`` is the run-time value."""

    __slots__ = ("value",)

    def __init__(self, pos: int, value: Any) -> None:
        super().__init__(pos)
        self.value = value


class Ident(Node):
    """A variable or, when ``constant`` is set by the checker, the name of a type."""

    __slots__ = ("constant", "name")

    def __init__(self, pos: int, name: str) -> None:
        super().__init__(pos)
        self.name = name
        self.constant: Any = None


class Select(Node):
    """``operand.field``; with ``test`` it is ``has(operand.field)``."""

    __slots__ = ("constant", "field", "operand", "test")

    def __init__(self, pos: int, operand: Node, field: str, test: bool = False) -> None:
        super().__init__(pos)
        #: Set by the checker when the chain is the dotted name of a type.
        self.constant: Any = None
        self.operand = operand
        self.field = field
        self.test = test


class Call(Node):
    """A function or operator; ``target`` is the receiver of a method call."""

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(self, pos: int, function: str, args: list[Node], target: Node | None = None) -> None:
        super().__init__(pos)
        self.function = function
        self.args = args
        self.target = target
        self.overloads: tuple[str, ...] = ()

    @property
    def operands(self) -> list[Node]:
        """Receiver, if any, and arguments."""
        return self.args if self.target is None else [self.target, *self.args]


class ListNode(Node):
    """A list literal; ``optional`` holds the indexes written with ``?``."""

    __slots__ = ("elements", "optional")

    def __init__(self, pos: int, elements: list[Node], optional: frozenset[int] = frozenset()) -> None:
        super().__init__(pos)
        self.elements = elements
        self.optional = optional


class Entry:
    """One entry of a map literal or field of a struct literal."""

    __slots__ = ("key", "optional", "pos", "value")

    def __init__(self, pos: int, key: Node, value: Node, optional: bool) -> None:
        self.pos = pos
        self.key = key
        self.value = value
        self.optional = optional


class MapNode(Node):
    """A map literal."""

    __slots__ = ("entries",)

    def __init__(self, pos: int, entries: list[Entry]) -> None:
        super().__init__(pos)
        self.entries = entries


class StructNode(Node):
    """A message literal ``name{field: value}``; keys of the entries are string literals."""

    __slots__ = ("entries", "name")

    def __init__(self, pos: int, name: str, entries: list[Entry]) -> None:
        super().__init__(pos)
        self.name = name
        self.entries = entries


class Comprehension(Node):
    """A loop over ``range`` that folds into the variable ``accu`` (what all list macros become).

    ``macro`` remembers which macro it was, so that the closures can take a shorter way.
    """

    __slots__ = ("accu", "condition", "init", "macro", "range", "result", "step", "var", "var2")

    def __init__(
        self,
        pos: int,
        macro: str,
        range_: Node,
        var: str,
        var2: str | None,
        accu: str,
        init: Node,
        condition: Node,
        step: Node,
        result: Node,
    ) -> None:
        super().__init__(pos)
        self.macro = macro
        self.range = range_
        self.var = var
        self.var2 = var2
        self.accu = accu
        self.init = init
        self.condition = condition
        self.step = step
        self.result = result

    @property
    def is_bind(self) -> bool:
        """Whether this only names a value for ``result``: the loop never runs."""
        return self.macro == "bind"


Parsed: TypeAlias = Node


def children(node: Node) -> list[Node]:
    """Direct sub-nodes in evaluation order."""
    if isinstance(node, Select):
        return [node.operand]
    if isinstance(node, Call):
        return node.operands
    if isinstance(node, ListNode):
        return node.elements
    if isinstance(node, MapNode):
        return [part for entry in node.entries for part in (entry.key, entry.value)]
    if isinstance(node, StructNode):
        return [entry.value for entry in node.entries]
    if isinstance(node, Comprehension):
        return [node.range, node.init, node.condition, node.step, node.result]
    return []


def qualified_name(node: Node) -> str | None:
    """``a.b.c`` for a chain of plain selections on an identifier."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test:
        prefix = qualified_name(node.operand)
        return None if prefix is None else f"{prefix}.{node.field}"
    return None
