"""Which parts of a device an expression reads.

A *path* is what an expression names without computing: ``("device",)``, ``("driver",)``,
``("multi",)``, ``("attributes",)``, ``("attributes", domain)`` or ``("attributes", domain,
id)``, likewise for capacity. Names given by ``cel.bind`` to paths are paths too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from drakkar.cel.syntax import Call, Comprehension, Ident, Literal, Node, Select, children

Path: TypeAlias = tuple[str, ...]
#: Paths by name, in an expression's scope; None hides an outer name.
Aliases: TypeAlias = Mapping[str, Path | None]

ROOT: Final[Aliases] = {"device": ("device",)}
_FIELDS: Final[dict[str, Path]] = {
    "driver": ("driver",),
    "allowMultipleAllocations": ("multi",),
    "attributes": ("attributes",),
    "capacity": ("capacity",),
}


def path_of(node: Node, aliases: Aliases) -> Path | None:
    """The path that the node names, or None."""
    if isinstance(node, Ident):
        return aliases.get(node.name)
    if isinstance(node, Select) and not node.test:
        return _below(path_of(node.operand, aliases), node.field)
    if isinstance(node, Call) and node.function == "_[_]":
        key = node.args[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            base = path_of(node.args[0], aliases)
            return None if base == ("device",) else _below(base, key.value)
    return None


def _below(base: Path | None, key: str) -> Path | None:
    if base is None:
        return None
    if base == ("device",):
        return _FIELDS.get(key)
    if base[0] in ("attributes", "capacity") and len(base) < 3:
        return (*base, key)
    return None


def presence_path(node: Node, aliases: Aliases) -> Path | None:
    """The attribute or capacity whose presence a ``has``, ``in``, ``.?`` or ``[?]`` asks for."""
    if isinstance(node, Select) and node.test:
        path = _below(path_of(node.operand, aliases), node.field)
    elif isinstance(node, Call) and node.function in ("_?._", "_[?_]", "@in"):
        base, key = (node.args[1], node.args[0]) if node.function == "@in" else (node.args[0], node.args[1])
        if not isinstance(key, Literal) or not isinstance(key.value, str):
            return None
        path = _below(path_of(base, aliases), key.value)
    else:
        return None
    return path if path is not None and (len(path) == 3 or path[0] in ("driver", "multi")) else None


def reads(node: Node) -> frozenset[Path] | None:
    """Everything that the expression reads, or None when it looks at the device as a whole."""
    found: set[Path] = set()
    return frozenset(found) if _collect(node, ROOT, found) else None


def _collect(node: Node, aliases: Aliases, found: set[Path]) -> bool:
    path = path_of(node, aliases) or presence_path(node, aliases)
    if path is not None:
        if len(path) == 3 or path[0] in ("driver", "multi"):
            found.add(path)
            return True
        return False
    if isinstance(node, Comprehension):
        inner: dict[str, Path | None] = dict(aliases)
        inner[node.accu] = None
        if node.is_bind:
            alias = path_of(node.init, aliases)
            inner[node.accu] = alias
            return (alias is not None or _collect(node.init, aliases, found)) and _collect(node.result, inner, found)
        inner[node.var] = None
        if node.var2:
            inner[node.var2] = None
        outer = all(_collect(one, aliases, found) for one in (node.range, node.init))
        return outer and all(_collect(one, inner, found) for one in (node.condition, node.step, node.result))
    return all(_collect(child, aliases, found) for child in children(node))
