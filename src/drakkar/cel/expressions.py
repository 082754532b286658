"""Expressions about anything: admission policies, validation rules of custom resources.

    rule = compile_expression("object.spec.replicas <= params.max", {"object": DYN, "params": DYN})
    rule.evaluate({"object": deployment, "params": {"max": 5}})

Variables are declared with a type; objects without a schema are ``DYN`` and hold plain JSON, objects with
one come from :func:`drakkar.cel.schemas.schema_of`. Costs are always counted, because here they have a common
budget: upstream gives each policy, and all rules of one object, ten million.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from drakkar.cel import schemas
from drakkar.cel.checker import Environment, is_stored
from drakkar.cel.cost import Limit, estimate
from drakkar.cel.errors import CompileError, EvaluationError, Issue
from drakkar.cel.folding import Constants
from drakkar.cel.members import has, select_optional
from drakkar.cel.parser import Source
from drakkar.cel.program import COST_LIMIT, analyse
from drakkar.cel.syntax import Call, Comprehension, Ident, Node, Select, children
from drakkar.cel.tracked import Meter, run
from drakkar.cel.types import BOOL, ListType, StructType, Type
from drakkar.cel.values import NONE, Fields, kind_of

#: What all expressions of one policy, or all rules of one object, may cost together.
BUDGET: Final = 10_000_000
#: The same for the match conditions of a webhook or policy.
MATCH_CONDITIONS_BUDGET: Final = 2_500_000
#: Longest text that a messageExpression may yield, in bytes; longer ones are not shown.
MAX_MESSAGE: Final = 5 * 1024


class OutOfBudget(EvaluationError):
    """The common budget is spent; nothing more is evaluated."""

    def __init__(self) -> None:
        super().__init__(
            "cost-budget",
            "validation failed due to running out of cost budget, no further validation rules will be run",
        )


class Budget:
    """Costs that several expressions may have together."""

    __slots__ = ("_owed", "left")

    def __init__(self, limit: int = BUDGET) -> None:
        self.left = limit
        self._owed = 0

    def owe(self, cost: int) -> None:
        """Remember a cost of a part; it is charged with the whole, because no operator may absorb the refusal."""
        self._owed += cost

    def charge(self, cost: int) -> None:
        """Take a cost, and what is owed, away; raises :class:`OutOfBudget` when it is more than what is left."""
        cost, self._owed = cost + self._owed, 0
        if cost > self.left:
            self.left = 0
            raise OutOfBudget
        self.left -= cost


class Expression:
    """A compiled expression. Immutable; may be used from several threads.

    ``output_type`` is its static type, ``names`` are the declared variables that it mentions.
    """

    __slots__ = ("_constants", "_cost_limit", "_limits", "_node", "_overrides", "_source", "names", "output_type")

    def __init__(
        self, source: Source, node: Node, constants: Constants, limits: Mapping[str, Limit], cost_limit: int
    ) -> None:
        self._source = source
        self._node = node
        self._constants = constants
        self._limits = _Limits(limits)
        self._cost_limit = cost_limit
        self._overrides = _overrides(node)
        self.output_type: Type = node.type
        self.names = _names(node)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    @property
    def text(self) -> str:
        """The expression."""
        return self._source.text

    @property
    def max_cost(self) -> int:
        """Estimated worst cost of one evaluation, as an API server computes it; ``cost.SATURATED`` at most."""
        return estimate(self._node, self._limits)

    def evaluate(self, values: Mapping[str, Any], budget: Budget | None = None) -> Any:
        """The result with these variables; raises :class:`EvaluationError`, when the budget is spent its child.

        A variable that is declared but not given is an error only where the expression looks at it. A variable may
        be a :class:`~drakkar.cel.values.Fields`.
        """
        value, error, cost = self.measure(values)
        if budget is not None:
            budget.charge(cost)
        if error is not None:
            raise error
        return value

    def measure(self, values: Mapping[str, Any]) -> tuple[Any, EvaluationError | None, int]:
        """Evaluate: (value, error, cost)."""
        scope = {name: values[name] if name in values else _missing(name) for name in self.names}
        meter = Meter(self._cost_limit)
        try:
            return run(self._node, self._constants, scope, meter, self._overrides), None, meter.cost
        except EvaluationError as error:
            if error.offset is not None and error.position is None:
                error.position = self._source.place(error.offset)
            return None, error, meter.cost
        except RecursionError:
            message = "the expression is nested too deeply to be evaluated"
            return None, EvaluationError("too-deep", message), meter.cost

    def message(self, values: Mapping[str, Any], budget: Budget | None = None) -> str | None:
        """The text that a messageExpression yields; None where it is not to be shown (use the fixed message then).

        Not shown are empty texts, such of several lines or of more than five kibibytes, and errors other than
        :class:`OutOfBudget`.
        """
        try:
            text = self.evaluate(values, budget)
        except OutOfBudget:
            raise
        except EvaluationError:
            return None
        if type(text) is not str:
            return None
        text = text.strip()
        return text if text and "\n" not in text and len(text.encode()) <= MAX_MESSAGE else None


def compile_expression(
    text: str,
    variables: Mapping[str, Type],
    *,
    result: Type | Collection[Type] | None = BOOL,
    environment: str = "stored",
    limits: Mapping[str, Limit] | None = None,
    cost_limit: int = COST_LIMIT,
) -> Expression:
    """Compile an expression; raises :class:`CompileError`.

    ``variables`` are all that it may name (names may contain a dot); ``result`` is the type, or the types, that it
    has to have exactly, None allows every type. ``environment`` is ``stored`` or ``new-expressions``: the second lacks
    what the release before does not know. ``limits`` bounds the sizes of variables for :attr:`Expression.max_cost`
    (everything else that a name stands for has the first of these bounds: upstream's estimate does not look at
    names); ``cost_limit`` is what one evaluation may cost.
    """
    declared = Environment(variables, includes=is_stored(environment), bind=False)
    source = Source(text)
    allowed = (result,) if isinstance(result, Type) else result
    try:
        node, constants = analyse(source, declared, lambda type_: _output_issue(type_, allowed))
    except RecursionError:
        raise CompileError(text, [Issue("syntax", "the expression is nested too deeply", 1, 1)]) from None
    return Expression(source, node, constants, limits or {}, cost_limit)


def _output_issue(type_: Type, allowed: Collection[Type] | None) -> Issue | None:
    if allowed is None or type_ in allowed:
        return None
    if len(allowed) == 1:
        return Issue("output-type", f"must evaluate to {next(iter(allowed))} but got {type_}")
    return Issue("output-type", f"must evaluate to one of {', '.join(map(str, allowed))} but got {type_}")


def composed(
    definitions: Mapping[str, Expression], values: Mapping[str, Any], budget: Budget | None = None
) -> dict[str, Any]:
    """``values`` and the variable ``variables``, whose fields are computed when first asked for, once.

    Each definition sees ``values`` and, through ``variables``, the definitions before it. Its costs are charged to the
    budget together with those of the expression that asked for it.
    """
    scope: dict[str, Any] = dict(values)

    def compute(name: str, expression: Expression) -> Callable[[], Any]:
        def get() -> Any:
            value, error, cost = expression.measure(scope)
            if budget is not None:
                budget.owe(cost)
            if error is not None:
                message = f'composited variable "{name}" fails to evaluate: {error}'
                raise EvaluationError(error.error_class, message, error.key)
            return value

        return get

    scope["variables"] = Fields({name: compute(name, expression) for name, expression in definitions.items()})
    return scope


def composed_type(definitions: Mapping[str, Expression]) -> StructType:
    """The type of ``variables`` for expressions that come after these definitions."""
    return StructType("kubernetes.variables", {name: one.output_type for name, one in definitions.items()})


class _Limits(dict[str, Limit]):
    """Limits by variable; the first one for every other name."""

    def get(self, name: str, default: Any = None) -> Any:
        """The limit of a name; the default only where there are none at all."""
        found = super().get(name)
        return found if found is not None else next(iter(self.values()), default)


def _missing(name: str) -> EvaluationError:
    return EvaluationError("no-such-attribute", f"no such attribute: {name}")


def _names(node: Node, hidden: frozenset[str] = frozenset()) -> frozenset[str]:
    """Variables that no loop around them declares."""
    if isinstance(node, Ident):
        return frozenset() if node.name in hidden or node.constant is not None else frozenset((node.name,))
    if isinstance(node, Comprehension):
        outer = hidden | {node.accu}
        inner = outer | {node.var, node.var2 or node.var}
        found = _names(node.range, hidden) | _names(node.init, hidden) | _names(node.result, outer)
        return found | _names(node.condition, inner) | _names(node.step, inner)
    return frozenset(name for child in children(node) for name in _names(child, hidden))


def _overrides(node: Node) -> dict[int, Callable[..., Any]]:
    """What differs where a schema gives the type: a list may be a set or a map, and null is no presence."""
    found: dict[int, Callable[..., Any]] = {}
    pending = [node]
    while pending:
        one = pending.pop()
        pending += children(one)
        if isinstance(one, Select) and one.test and isinstance(one.operand.type, StructType):
            found[id(one)] = _has
        if isinstance(one, Call) and one.function == "_?._" and isinstance(one.args[0].type, StructType):
            found[id(one)] = _select_optional
        if not isinstance(one, Call) or one.function not in ("_==_", "_!=_", "_+_"):
            continue
        type_ = _behind_dyn(one.args[0]).type
        if one.function == "_+_":
            if isinstance(type_, ListType):
                found[id(one)] = _merging(type_)
        elif schemas.is_special(type_):
            found[id(one)] = _equating(type_, one.function == "_==_")
    return found


def _behind_dyn(node: Node) -> Node:
    while isinstance(node, Call) and node.function == "dyn":
        node = node.args[0]
    return node


def _has(value: Any, field: str) -> bool:
    return has(value, field) and (kind_of(value) is not dict or value[field] is not None)


def _select_optional(value: Any, field: str) -> Any:
    found = select_optional(value, field)
    return NONE if found.present and found.value is None else found


def _merging(type_: ListType) -> Callable[[Any, Any], Any]:
    return lambda one, other: schemas.merge(type_, one, other)


def _equating(type_: Type, wanted: bool) -> Callable[[Any, Any], bool]:
    return lambda one, other: schemas.equal(type_, one, other) is wanted
