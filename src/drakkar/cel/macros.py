"""Macros: calls that are rewritten into loops, bindings and conditions while parsing."""

from __future__ import annotations

from typing import Final

from drakkar.cel.syntax import Call, Comprehension, Ident, ListNode, Literal, MapNode, Node, Select

#: Name of the hidden variable that loops fold into.
ACCUMULATOR: Final = "@result"


class MacroError(Exception):
    """A macro was given something it cannot work on."""

    def __init__(self, message: str, pos: int) -> None:
        self.message = message
        self.pos = pos
        super().__init__(message)


def expand(pos: int, name: str, target: Node | None, args: list[Node], with_bind: bool) -> Node | None:
    """What the call stands for, or None when it is no macro; ``with_bind`` says whether ``cel.bind`` is one."""
    count = len(args)
    if target is None:
        return _has(pos, args[0]) if name == "has" and count == 1 else None
    match name, count:
        case (("all" | "exists" | "exists_one"), 2):
            return _quantifier(pos, name, target, _variable(args[0], name), None, args[1])
        case (("all" | "exists" | "exists_one" | "existsOne"), 3):
            first, second = _two_variables(args, name)
            return _quantifier(pos, name, target, first, second, args[2])
        case "map", (2 | 3):
            predicate = args[1] if count == 3 else None
            return _collect(pos, target, _variable(args[0], name), None, predicate, args[-1])
        case "filter", 2:
            variable = _variable(args[0], name)
            return _collect(pos, target, variable, None, args[1], Ident(args[0].pos, variable), "filter")
        case "transformList", (3 | 4):
            first, second = _two_variables(args, name)
            return _collect(pos, target, first, second, args[2] if count == 4 else None, args[-1])
        case (("transformMap" | "transformMapEntry"), (3 | 4)):
            return _transform_map(pos, name, target, args)
        case "bind", 3 if with_bind and isinstance(target, Ident) and target.name == "cel":
            return bind(pos, _simple(args[0], "cel.bind() variable"), args[1], args[2])
        case (("optMap" | "optFlatMap"), 2):
            return _opt_map(pos, name, target, args)
        case "sortBy", 2:
            return _sort_by(pos, target, args)
        case _:
            return None


def bind(pos: int, variable: str, value: Node, result: Node) -> Comprehension:
    """``result`` with ``variable`` standing for ``value``, which is evaluated at most once."""
    return Comprehension(
        pos,
        "bind",
        ListNode(pos, []),
        "#unused",
        None,
        variable,
        value,
        Literal(pos, False),
        Ident(pos, variable),
        result,
    )


def _has(pos: int, arg: Node) -> Node:
    if isinstance(arg, Select) and not arg.test:
        return Select(pos, arg.operand, arg.field, test=True)
    raise MacroError("has() takes a field selection such as has(a.b)", arg.pos)


def _simple(node: Node, what: str) -> str:
    if isinstance(node, Ident) and not node.name.startswith("."):
        return node.name
    raise MacroError(f"{what} has to be a simple name", node.pos)


def _variable(node: Node, macro: str) -> str:
    name = _simple(node, f"the variable of {macro}()")
    if name in (ACCUMULATOR, "__result__"):
        raise MacroError(f"the variable of {macro}() overwrites the loop's own variable", node.pos)
    return name


def _two_variables(args: list[Node], macro: str) -> tuple[str, str]:
    first, second = _variable(args[0], macro), _variable(args[1], macro)
    if first == second:
        raise MacroError(f"the two variables of {macro}() need different names", args[1].pos)
    return first, second


def _loop(
    pos: int,
    macro: str,
    range_: Node,
    var: str,
    var2: str | None,
    init: Node,
    condition: Node,
    step: Node,
    result: Node,
) -> Comprehension:
    return Comprehension(pos, macro, range_, var, var2, ACCUMULATOR, init, condition, step, result)


def _quantifier(pos: int, name: str, target: Node, var: str, var2: str | None, predicate: Node) -> Node:
    def accu() -> Node:
        return Ident(pos, ACCUMULATOR)

    def call(function: str, *args: Node) -> Node:
        return Call(pos, function, list(args))

    if name == "all":
        return _loop(
            pos, name, target, var, var2, Literal(pos, True), call("@not_strictly_false", accu()),
            call("_&&_", accu(), predicate), accu(),
        )  # fmt: skip
    if name == "exists":
        return _loop(
            pos, name, target, var, var2, Literal(pos, False), call("@not_strictly_false", call("!_", accu())),
            call("_||_", accu(), predicate), accu(),
        )  # fmt: skip
    return _loop(
        pos, "exists_one", target, var, var2, Literal(pos, 0), Literal(pos, True),
        call("_?_:_", predicate, call("_+_", accu(), Literal(pos, 1)), accu()), call("_==_", accu(), Literal(pos, 1)),
    )  # fmt: skip


def _collect(
    pos: int, target: Node, var: str, var2: str | None, predicate: Node | None, value: Node, macro: str = "map"
) -> Node:
    step: Node = Call(pos, "_+_", [Ident(pos, ACCUMULATOR), ListNode(pos, [value])])
    if predicate is not None:
        step = Call(pos, "_?_:_", [predicate, step, Ident(pos, ACCUMULATOR)])
    return _loop(
        pos, macro, target, var, var2, ListNode(pos, []), Literal(pos, True), step, Ident(pos, ACCUMULATOR)
    )  # fmt: skip


def _transform_map(pos: int, name: str, target: Node, args: list[Node]) -> Node:
    first, second = _two_variables(args, name)
    accu = Ident(pos, ACCUMULATOR)
    inserted: list[Node] = [accu, args[-1]] if name == "transformMapEntry" else [accu, Ident(pos, first), args[-1]]
    step: Node = Call(pos, "cel.@mapInsert", inserted)
    if len(args) == 4:
        step = Call(pos, "_?_:_", [args[2], step, Ident(pos, ACCUMULATOR)])
    return _loop(
        pos, name, target, first, second, MapNode(pos, []), Literal(pos, True), step, Ident(pos, ACCUMULATOR)
    )  # fmt: skip


def _opt_map(pos: int, name: str, target: Node, args: list[Node]) -> Node:
    variable = _simple(args[0], f"the variable of {name}()")
    inner: Node = bind(pos, variable, Call(pos, "value", [], target), args[1])
    if name == "optMap":
        inner = Call(pos, "optional.of", [inner])
    return Call(pos, "_?_:_", [Call(pos, "hasValue", [], target), inner, Call(pos, "optional.none", [])])


def _sort_by(pos: int, target: Node, args: list[Node]) -> Node:
    if isinstance(target, Literal | MapNode):
        raise MacroError("sortBy() sorts lists only", target.pos)
    hidden = "@__sortBy_input__"
    keys = _collect(pos, Ident(pos, hidden), _variable(args[0], "sortBy"), None, None, args[1])
    return bind(pos, hidden, target, Call(pos, "@sortByAssociatedKeys", [keys], Ident(pos, hidden)))
