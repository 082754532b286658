"""ValidatingAdmissionPolicy: rules in CEL, bound to requests and parameters.

A policy is compiled when the first request needs it and kept until it changes. For every binding
and every parameter object its expressions have one common budget. What an expression fails to
say counts as a refusal or as nothing, as ``failurePolicy`` says.

Source: admissionregistration.k8s.io/v1; texts are kube-apiserver's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from drakkar.api.errors import ParseError
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, child, children, text, texts
from drakkar.apiserver import status
from drakkar.apiserver.admission.attributes import Attributes
from drakkar.apiserver.admission.conditions import Conditions, expression_values
from drakkar.apiserver.admission.forms import Forms
from drakkar.apiserver.admission.match import EXEMPT, REGISTRATION, Match
from drakkar.apiserver.admission.webhooks import namespace_object, request_of
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Catalog, Served
from drakkar.apiserver.rbac import Authorizer
from drakkar.apiserver.status import StatusError

if TYPE_CHECKING:
    from drakkar.cel.expressions import Budget, Expression

Object = dict[str, Any]

POLICIES = f"/{REGISTRATION}/validatingadmissionpolicies/"
BINDINGS = f"/{REGISTRATION}/validatingadmissionpolicybindings/"
FAILURE_ANNOTATION = "validation.policy.admission.k8s.io/validation_failure"
#: Longest value of an audit annotation, in bytes.
_MAX_ANNOTATION = 10 * 1024
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


class _Failed(Exception):
    """A policy or binding could not be evaluated; the text says why."""


@dataclass(frozen=True, slots=True)
class _Validation:
    program: Expression
    message: str
    message_program: Expression | None
    reason: str


@dataclass(slots=True)
class _Programs:
    variables: dict[str, Expression] = field(default_factory=dict[str, "Expression"])
    validations: list[_Validation] = field(default_factory=list[_Validation])
    annotations: list[tuple[str, Expression]] = field(default_factory=list[tuple[str, "Expression"]])


class _Policy:
    """One policy, with its programs once they are needed."""

    def __init__(self, obj: Object):
        spec = child(obj, "spec")
        self.name: str = obj["metadata"]["name"]
        self.match = Match.constraints(child(spec, "matchConstraints"))
        self.strict = text(spec, "failurePolicy") != "Ignore"
        self.param_kind: Object | None = spec.get("paramKind")
        self.conditions = Conditions(children(spec, "matchConditions"), params=self.param_kind is not None)
        self._spec = spec
        self._programs: _Programs | None = None

    def programs(self) -> _Programs:
        """Everything compiled; CompileError."""
        if self._programs is None:
            self._programs = compile_policy(self._spec)
        return self._programs


@dataclass(frozen=True, slots=True)
class _Binding:
    name: str
    policy: str
    match: Match | None
    ref: Object | None
    actions: tuple[str, ...]

    @staticmethod
    def of(obj: Object) -> _Binding:
        spec = child(obj, "spec")
        resources = spec.get("matchResources")
        return _Binding(
            obj["metadata"]["name"],
            text(spec, "policyName"),
            None if resources is None else Match.constraints(resources),
            spec.get("paramRef"),
            tuple(texts(spec, "validationActions")),
        )


@dataclass(frozen=True, slots=True)
class _Refusal:
    message: str
    reason: str
    index: int


def compile_policy(spec: Object) -> _Programs:
    """The expressions of a policy; raises CompileError for the first bad one."""
    from drakkar.cel.admission import variables
    from drakkar.cel.expressions import compile_expression, composed_type
    from drakkar.cel.types import NULL, STRING

    params = spec.get("paramKind") is not None
    found = _Programs()
    for entry in children(spec, "variables"):
        declared = variables(params=params, authorizer=True, composed=composed_type(found.variables))
        found.variables[text(entry, "name")] = compile_expression(text(entry, "expression"), declared, result=None)
    composed = composed_type(found.variables)
    declared = variables(params=params, authorizer=True, composed=composed)
    silent = variables(params=params, composed=composed)
    for entry in children(spec, "validations"):
        said = text(entry, "messageExpression")
        found.validations.append(
            _Validation(
                compile_expression(text(entry, "expression"), declared),
                text(entry, "message").strip(),
                compile_expression(said, silent, result=STRING) if said else None,
                text(entry, "reason"),
            )
        )
    for entry in children(spec, "auditAnnotations"):
        program = compile_expression(text(entry, "valueExpression"), declared, result=(STRING, NULL))
        found.annotations.append((text(entry, "key"), program))
    return found


class Policies:
    """All policies of a server and their bindings."""

    def __init__(self, state: State, catalog: Catalog, authorizer: Authorizer, forms: Forms):
        self._state = state
        self._catalog = catalog
        self._authorizer = authorizer
        self._forms = forms
        self._policies: dict[str, tuple[int, _Policy]] = {}
        self._bound: tuple[tuple[int, int], tuple[tuple[_Policy, tuple[_Binding, ...]], ...]] = ((-1, -1), ())

    def configured(self) -> bool:
        """Whether a policy could be in force."""
        return bool(self._state.tables[BINDINGS].entries) and bool(self._state.tables[POLICIES].entries)

    def _in_force(self) -> tuple[tuple[_Policy, tuple[_Binding, ...]], ...]:
        """Bound policies with their bindings, by name."""
        policies, bindings = self._state.tables[POLICIES], self._state.tables[BINDINGS]
        stamp = (policies.revision, bindings.revision)
        if self._bound[0] != stamp:
            by_policy: dict[str, list[_Binding]] = {}
            for key in bindings.keys(""):
                try:
                    binding = _Binding.of(bindings.decode(bindings.entries[key]))
                except ParseError:
                    continue  # only what an older program let in
                by_policy.setdefault(binding.policy, []).append(binding)
            kept: dict[str, tuple[int, _Policy]] = {}
            for name in sorted(by_policy):
                entry = policies.entries.get(name)
                if entry is None:
                    continue
                known = self._policies.get(name)
                try:
                    policy = known[1] if known and known[0] == entry.revision else _Policy(policies.decode(entry))
                except ParseError:
                    continue
                kept[name] = (entry.revision, policy)
            self._policies = kept
            self._bound = (stamp, tuple((policy, tuple(by_policy[name])) for name, (_, policy) in kept.items()))
        return self._bound[1]

    def validate(self, attributes: Attributes, new: Object | None, old: Object | None, forms: Forms) -> None:
        """StatusError when a policy denies; warnings and audit annotations go to ``attributes``."""
        if attributes.served.group == REGISTRATION and attributes.served.plural in EXEMPT:
            return
        denied: tuple[str, str] | None = None
        failures: list[Object] = []
        for policy, bindings in self._in_force():
            served = policy.match.served(attributes, self._catalog)
            if served is None or not policy.match.selects(self._state, attributes, new, old):
                continue
            values: Object | None = None
            for binding in bindings:
                if binding.match is not None and not (
                    binding.match.served(attributes, self._catalog)
                    and binding.match.selects(self._state, attributes, new, old)
                ):
                    continue
                if values is None:
                    values = self._values(attributes, served, new, old, forms)
                for refusal in self._evaluate(policy, binding, values, attributes):
                    label = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}'"
                    if "Deny" in binding.actions and denied is None:
                        denied = (f"{label} denied request: {refusal.message}", refusal.reason)
                    if "Warn" in binding.actions:
                        attributes.warn(f"Validation failed for {label}: {refusal.message}")
                    if "Audit" in binding.actions:
                        failures.append(
                            {
                                "message": refusal.message,
                                "policy": policy.name,
                                "binding": binding.name,
                                "expressionIndex": refusal.index,
                                "validationActions": list(binding.actions),
                            }
                        )
        if failures:
            attributes.annotations[FAILURE_ANNOTATION] = msgspec.json.encode(failures).decode()
        if denied is not None:
            raise StatusError(_denial(attributes, *denied))

    def _values(
        self, attributes: Attributes, served: Served, new: Object | None, old: Object | None, forms: Forms
    ) -> Object:
        def show(obj: Object | None) -> Object | None:
            return None if obj is None else forms.show(obj, served)

        namespace = namespace_object(self._state, attributes, new, old)
        request = request_of(attributes, served, "")
        return expression_values(attributes, request, show(new), show(old), namespace, self._authorizer)

    def _evaluate(
        self, policy: _Policy, binding: _Binding, values: Object, attributes: Attributes
    ) -> Iterator[_Refusal]:
        """What one binding of a policy has against a request."""
        from drakkar.cel.errors import CompileError

        try:
            programs = policy.programs()
            for params in self._params(policy, binding, attributes):
                scope = {**values, "params": params} if policy.param_kind is not None else values
                if policy.conditions:
                    verdict = policy.conditions.judge(scope)
                    if isinstance(verdict, str):
                        raise _Failed(verdict)
                    if not verdict:
                        continue
                yield from self._judge(policy, programs, scope, attributes)
        except CompileError as error:
            if policy.strict:
                yield _Refusal(f"failed to configure policy: compilation failed: {error}", "", 0)
        except _Failed as error:
            if policy.strict:
                yield _Refusal(str(error), "", 0)

    def _judge(self, policy: _Policy, programs: _Programs, scope: Object, attributes: Attributes) -> Iterator[_Refusal]:
        from drakkar.cel import expressions
        from drakkar.cel.errors import EvaluationError
        from drakkar.cel.expressions import Budget, OutOfBudget, composed

        budget = Budget(expressions.BUDGET)
        seen = composed(programs.variables, scope, budget)
        for index, validation in enumerate(programs.validations):
            try:
                if validation.program.evaluate(seen, budget) is not True:
                    yield _Refusal(_message(validation, seen, budget), validation.reason, index)
            except OutOfBudget as error:
                if policy.strict:
                    yield _Refusal(str(error), "", index)
                return
            except EvaluationError as error:
                if policy.strict:
                    said = f"expression '{validation.program.text}' resulted in error: {error}"
                    yield _Refusal(said, "", index)
        for key, program in programs.annotations:
            try:
                value = program.evaluate(seen, budget)
            except EvaluationError as error:
                if policy.strict:
                    yield _Refusal(f"expression '{program.text}' resulted in error: {error}", "", 0)
                continue
            if isinstance(value, str) and value.strip():
                _annotate(attributes, f"{policy.name}/{key}", value.strip())

    def _params(self, policy: _Policy, binding: _Binding, attributes: Attributes) -> Sequence[Object | None]:
        """The parameter objects of a binding; None stands for no parameter at all. Raises _Failed."""
        kind = policy.param_kind
        if kind is None:
            return (None,)
        ref = binding.ref
        if ref is None:
            return (None,)
        version, name = text(kind, "apiVersion"), text(kind, "kind")
        served = next(
            (one for one in self._catalog.served.values() if one.api_version == version and one.kind == name), None
        )
        if served is None or served.stored is None:
            raise _Failed(
                f"failed to configure policy: failed to find resource referenced by paramKind: '{version}, Kind={name}'"
            )
        namespace = text(ref, "namespace")
        if served.namespaced:
            namespace = namespace or attributes.namespace
            if not namespace:
                raise _Failed(
                    "failed to configure binding: cannot use namespaced paramRef in policy binding that matches "
                    "cluster-scoped resources"
                )
        elif namespace:
            raise _Failed(
                "failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
            )
        table = self._state.tables[served.stored.prefix]
        if text(ref, "name"):
            key = f"{namespace}/{text(ref, 'name')}" if namespace else text(ref, "name")
            entries = [table.entries[key]] if key in table.entries else []
        else:
            selector = LabelSelector.from_object(at(ref, "selector"))
            entries = [
                table.entries[key] for key in table.keys(namespace) if selector.matches(table.entries[key].labels or {})
            ]
        if not entries and text(ref, "parameterNotFoundAction") != "Allow":
            raise _Failed(
                "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
            )
        return [self._forms.show(table.decode(entry), served) for entry in entries]


def _message(validation: _Validation, values: Object, budget: Budget) -> str:
    said = validation.message_program.message(values, budget) if validation.message_program is not None else None
    return said or validation.message or f"failed expression: {validation.program.text.strip()}"


def _annotate(attributes: Attributes, key: str, value: str) -> None:
    """Values of several bindings stand side by side, each once."""
    value = value.encode()[:_MAX_ANNOTATION].decode("utf-8", "ignore")
    before = attributes.annotations.get(key)
    if before is None:
        attributes.annotations[key] = value
    elif value not in before.split(", "):
        attributes.annotations[key] = f"{before}, {value}"


def _denial(attributes: Attributes, message: str, reason: str) -> Object:
    served = attributes.served
    answer = status.forbidden(served.group, served.plural, attributes.name, message)
    reason = reason or "Invalid"
    answer["reason"], answer["code"] = reason, _CODES.get(reason, 422)
    answer["details"] = {**(answer.get("details") or {}), "causes": [{"message": message}]}
    return answer
