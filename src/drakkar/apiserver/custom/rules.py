"""Validation rules in CEL of custom resources (``x-kubernetes-validations``).

Rules stand anywhere in a schema and see the value there as ``self``. One that mentions ``oldSelf``
judges changes: it runs only where an old value belongs to the new one. A rule about a value
that an update leaves as it was is not run again (ratcheting), except one that wants to see
even that (``optionalOldSelf``). All rules of an object have one budget.

Source: apiextensions.k8s.io/v1 ValidationRule; texts are kube-apiserver's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drakkar.api.errors import FieldError
from drakkar.api.faults import DUPLICATE, FORBIDDEN, INVALID, REQUIRED, Faults
from drakkar.api.tree import children, text
from drakkar.apiserver.custom.values import NOTHING, by_key, key_of, map_keys
from drakkar.apiserver.expressions import as_upstream

if TYPE_CHECKING:
    from drakkar.cel.expressions import Budget, Expression
    from drakkar.cel.schemas import Schema

Object = dict[str, Any]

KEY = "x-kubernetes-validations"
#: What one rule may cost by its estimate, and all rules of one version together.
RULE_LIMIT, TOTAL_LIMIT = 10_000_000, 100_000_000
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_CAUSES = {
    "FieldValueDuplicate": DUPLICATE,
    "FieldValueForbidden": FORBIDDEN,
    "FieldValueRequired": REQUIRED,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule."""

    program: Expression
    message: str
    message_program: Expression | None
    reason: str
    #: Appended to the path of the value.
    field_path: str
    #: Whether it judges a change.
    transition: bool
    #: Whether it runs without an old value too, which it sees as an optional.
    optional: bool


@dataclass(slots=True)
class RuleTree:
    """The rules of a schema, where they stand; parts without any are left out."""

    schema: Schema | None
    json: Object
    rules: list[Rule] = field(default_factory=list[Rule])
    fields: dict[str, RuleTree] = field(default_factory=dict[str, "RuleTree"])
    items: RuleTree | None = None
    values: RuleTree | None = None

    def __bool__(self) -> bool:
        return bool(self.rules or self.fields or self.items or self.values)


def has_rules(schema: Object) -> bool:
    """Whether a rule stands anywhere in a schema; cheap, without the compiler."""
    if schema.get(KEY):
        return True
    below = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return any(isinstance(part, dict) and has_rules(part) for part in below)


def rule_text(schema: Object) -> int:
    """Characters of all rules of a schema, which is what compiling them costs."""
    own = sum(len(text(rule, "rule")) + len(text(rule, "messageExpression")) for rule in children(schema, KEY))
    below = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return own + sum(rule_text(part) for part in below if isinstance(part, dict))


def compile_rules(schema: Object, faults: Faults | None = None, path: str = "") -> RuleTree:
    """The rules of a whole schema. With ``faults`` bad ones are reported there; without, left out."""
    total = _Costs()
    tree = _compile(schema, faults, path, root=True, below_list=False, cardinality=1, total=total)
    if faults is not None and total.sum > TOTAL_LIMIT:
        factor = _factor(total.sum, TOTAL_LIMIT)
        faults.forbidden(
            path,
            f"{KEY} estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of {factor} {_CURE}",
        )
    return tree


_CURE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are "
    "declared)"
)


@dataclass(slots=True)
class _Costs:
    sum: int = 0


def _factor(cost: int, limit: int) -> str:
    return "more than 100x" if cost > 100 * limit else f"{cost / limit:.1f}x"


def _compile(
    schema: Object,
    faults: Faults | None,
    path: str,
    *,
    root: bool,
    below_list: bool,
    cardinality: int | None,
    total: _Costs,
) -> RuleTree:
    """``below_list``: no old value belongs to one here. ``cardinality``: of how many values, None without a bound."""
    from drakkar.cel.schemas import schema_of

    rules = children(schema, KEY)
    typed = schema_of(schema, root=root) if rules else None
    tree = RuleTree(typed, schema)
    for index, rule in enumerate(rules):
        place = f"{path}.{KEY}[{index}]"
        found = _rule(schema, typed, rule, faults, place, below_list, cardinality, total)
        if found is not None:
            tree.rules.append(found)
    for name, part in (schema.get("properties") or {}).items():
        where = f"{path}.properties[{name}]"
        below = _compile(part, faults, where, root=False, below_list=below_list, cardinality=cardinality, total=total)
        if below:
            tree.fields[name] = below
    items = schema.get("items")
    if isinstance(items, dict):
        loose = below_list or schema.get("x-kubernetes-list-type") != "map"
        many = _times(cardinality, schema.get("maxItems"))
        below = _compile(items, faults, f"{path}.items", root=False, below_list=loose, cardinality=many, total=total)
        tree.items = below or None
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        many = _times(cardinality, schema.get("maxProperties"))
        below = _compile(
            more,
            faults,
            f"{path}.additionalProperties",
            root=False,
            below_list=below_list,
            cardinality=many,
            total=total,
        )
        tree.values = below or None
    return tree


def _times(cardinality: int | None, bound: int | None) -> int | None:
    return None if cardinality is None or bound is None else cardinality * max(bound, 0)


def _rule(
    schema: Object,
    typed: Schema | None,
    rule: Object,
    faults: Faults | None,
    path: str,
    below_list: bool,
    cardinality: int | None,
    total: _Costs,
) -> Rule | None:
    from drakkar.cel import types
    from drakkar.cel.errors import CompileError
    from drakkar.cel.expressions import compile_expression

    source = text(rule, "rule")
    if typed is None:
        if faults is not None:
            faults.invalid(path, source, "rules can only be set on values whose type the schema says")
        return None
    optional = rule.get("optionalOldSelf") is True
    old_type = types.optional_of(typed.type) if optional else typed.type
    declared = {"self": typed.type, "oldSelf": old_type}
    limits = {"self": typed.limit, "oldSelf": typed.limit}
    environment = "stored" if faults is None else "new-expressions"
    try:
        program = compile_expression(source, declared, environment=environment, limits=limits)
    except CompileError as error:
        if faults is not None:
            faults.invalid(f"{path}.rule", source, f"compilation failed: {as_upstream(error)}")
        return None
    message_program: Expression | None = None
    said = text(rule, "messageExpression")
    if said:
        try:
            message_program = compile_expression(
                said, declared, result=types.STRING, environment=environment, limits=limits
            )
        except CompileError as error:
            if faults is not None:
                detail = f"messageExpression compilation failed: {as_upstream(error)}"
                faults.invalid(f"{path}.messageExpression", said, detail)
            return None
    transition = "oldSelf" in program.names
    if faults is not None:
        if transition and below_list:
            detail = (
                f"oldSelf cannot be used on the uncorrelatable portion of the schema within {path.rpartition('.')[0]}"
            )
            faults.invalid(f"{path}.rule", source, detail)
        if optional and not transition:
            detail = "may not be set if oldSelf is not used in rule"
            faults.invalid(f"{path}.optionalOldSelf", True, detail)
        many = cardinality if cardinality is not None else typed.max_cardinality
        for name, one in (("rule", program), ("messageExpression", message_program)):
            if one is None:
                continue
            cost = one.max_cost * many
            total.sum += cost
            if cost > RULE_LIMIT:
                faults.forbidden(
                    f"{path}.{name}",
                    f"estimated rule cost exceeds budget by factor of {_factor(cost, RULE_LIMIT)} {_CURE}",
                )
    return Rule(
        program,
        text(rule, "message").strip(),
        message_program,
        text(rule, "reason"),
        text(rule, "fieldPath"),
        transition,
        optional,
    )


# Evaluation.


def rule_faults(tree: RuleTree, obj: Object, old: Object | None) -> list[FieldError]:
    """What the rules have against an object; ``old`` is its state before an update."""
    from drakkar.cel import expressions
    from drakkar.cel.expressions import Budget, OutOfBudget

    found: list[FieldError] = []
    try:
        found.extend(_judge(tree, "", obj, NOTHING if old is None else old, Budget(expressions.BUDGET)))
    except OutOfBudget as error:
        found.append(FieldError(type=INVALID, field="", value="object", detail=str(error)))
    return found


def _judge(tree: RuleTree, path: str, value: Any, old: Any, budget: Budget) -> Iterator[FieldError]:
    if value is None or not tree:
        return
    if tree.rules and tree.schema is not None:
        yield from _run(tree, tree.schema, path, value, old, budget)
    if isinstance(value, dict):
        before: Object = old if isinstance(old, dict) else {}
        for name, item in value.items():
            part = tree.fields.get(name) or (tree.values if name not in (tree.json.get("properties") or {}) else None)
            if part is not None:
                where = f"{path}.{name}" if name in tree.fields and path else name if not path else f"{path}[{name}]"
                yield from _judge(part, where, item, before.get(name, NOTHING), budget)
    elif isinstance(value, list) and tree.items is not None:
        known, keys = by_key(old, tree.json), map_keys(tree.json)
        for index, item in enumerate(value):
            one = known.get(key_of(item, keys), NOTHING) if known else NOTHING
            yield from _judge(tree.items, f"{path}[{index}]", item, one, budget)


def _run(tree: RuleTree, schema: Schema, path: str, value: Any, old: Any, budget: Budget) -> Iterator[FieldError]:
    from drakkar.cel.errors import EvaluationError
    from drakkar.cel.expressions import OutOfBudget
    from drakkar.cel.values import NONE, Optional

    same = old is not NOTHING and old == value
    try:
        values: Object = {"self": schema.value(value)}
        before = None if old is NOTHING or old is None else schema.value(old)
    except EvaluationError as error:
        yield FieldError(type=INVALID, field=path, value=_word(tree), detail=str(error))
        return
    for rule in tree.rules:
        if rule.transition and before is None and not rule.optional:
            continue
        if same and not rule.optional:
            continue
        if rule.transition:
            values["oldSelf"] = (NONE if before is None else Optional(True, before)) if rule.optional else before
        try:
            if rule.program.evaluate(values, budget) is True:
                continue
            said = rule.message_program.message(values, budget) if rule.message_program is not None else None
        except OutOfBudget:
            raise
        except EvaluationError as error:
            detail = f"{error} evaluating rule: {rule.message or rule.program.text.strip()}"
            yield FieldError(type=INVALID, field=path, value=_word(tree), detail=detail)
            continue
        detail = said or rule.message or f"failed rule: {rule.program.text.strip()}"
        where = f"{path}{rule.field_path}" if path else rule.field_path.removeprefix(".")
        cause = _CAUSES.get(rule.reason, INVALID)
        yield FieldError(type=cause, field=where, value=_word(tree), detail=detail)


def _word(tree: RuleTree) -> str:
    return text(tree.json, "type") or "object"
