"""Expressions about objects other than devices: admission policies and rules of custom resources."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.cel import admission, schemas, types
from drakkar.cel.authorization import AccessDecision, AccessQuery, Authorizer, ResourceCheck
from drakkar.cel.errors import CompileError, EvaluationError
from drakkar.cel.expressions import Budget, OutOfBudget, compile_expression, composed, composed_type
from drakkar.cel.schemas import Schema, escape, schema_of
from drakkar.cel.types import BOOL, DYN, NULL, STRING

POLICY = admission.variables(params=True, authorizer=True)
POD: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "n", "labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "image": "i:1"}], "nodeName": "node-1"},
}
REQUEST = {"operation": "CREATE", "name": "a", "userInfo": {"username": "u", "groups": ["system:nodes"], "extra": {}}}


def policy(text: str, **values: Any) -> Any:
    expression = compile_expression(text, POLICY, result=None)
    return expression.evaluate({"object": POD, "oldObject": None, "request": REQUEST, **values})


@pytest.mark.parametrize(
    "text",
    [
        "object.metadata.name == 'a'",
        "object.spec.containers.all(c, c.image.endsWith(':1'))",
        "has(object.spec.nodeName) && !has(object.spec.hostname)",
        "object.?spec.?hostname.orValue('none') == 'none'",
        "oldObject == null",
        "request.operation == 'CREATE' && 'system:nodes' in request.userInfo.groups",
        "!has(request.userInfo.uid)",
        "object.metadata.labels.exists(k, v, k == 'app' && v == 'x')",
        "object.spec.replicas == 1 || object.metadata.name == 'a'",
    ],
)
def test_a_policy_sees_the_request(text: str) -> None:
    assert policy(text) is True


def test_a_missing_field_is_an_error_with_its_name() -> None:
    with pytest.raises(EvaluationError) as caught:
        policy("object.spec.replicas > 1")
    assert (caught.value.error_class, caught.value.key) == ("no-such-key", "replicas")


@pytest.mark.parametrize(
    ("text", "error_class"),
    [
        ("request.verb == 'x'", "undefined-field"),
        ("namespaceObject.spec.x", "undefined-field"),
        ("self == 1", "undeclared"),
        ("cel.bind(a, 1, a == 1)", "undeclared"),
        ("request.dryRun == 'x'", "no-matching-overload"),
        ("object.spec", "output-type"),
        ("authorizer.group('').check('get').allowed()", "no-matching-overload"),
        ("authorizer.requestResource == 1", "no-matching-overload"),
    ],
)
def test_what_is_wrong_is_found_while_compiling(text: str, error_class: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_expression(text, POLICY)
    assert caught.value.error_class == error_class


def test_results_have_exactly_one_of_the_allowed_types() -> None:
    assert compile_expression("'a'", {}, result=(STRING, NULL)).output_type == STRING
    assert compile_expression("null", {}, result=(STRING, NULL)).output_type == NULL
    with pytest.raises(CompileError, match="must evaluate to one of string, null but got dyn"):
        compile_expression("object.a", {"object": DYN}, result=(STRING, NULL))
    with pytest.raises(CompileError, match="must evaluate to bool but got dyn"):
        compile_expression("object.a", {"object": DYN})


def test_new_expressions_lack_what_the_last_release_lacks() -> None:
    compile_expression("object.tags.includes('x')", {"object": DYN})
    with pytest.raises(CompileError, match="includes"):
        compile_expression("object.tags.includes('x')", {"object": DYN}, environment="new-expressions")
    with pytest.raises(ValueError, match="environment"):
        compile_expression("true", {}, environment="newest")


def test_names_are_the_variables_that_are_mentioned() -> None:
    text = "object.all(oldObject, oldObject == 1) && params.x && type(1) == int"
    assert compile_expression(text, POLICY).names == {"object", "params"}
    assert compile_expression("authorizer.requestResource.check('get').allowed()", POLICY).names == {
        "authorizer.requestResource"
    }


def test_a_variable_that_is_not_given_fails_only_where_it_is_looked_at() -> None:
    expression = compile_expression("object.a == 1 || params.b == 2", POLICY)
    assert expression.evaluate({"object": {"a": 1}}) is True
    with pytest.raises(EvaluationError, match="no such attribute: params"):
        expression.evaluate({"object": {"a": 2}})


# The authorizer.


def test_the_authorizer_is_asked_with_all_parts() -> None:
    asked: list[AccessQuery] = []

    def decide(query: AccessQuery) -> AccessDecision:
        asked.append(query)
        return AccessDecision(query.verb == "get", "because", None if query.path == "" else "broken")

    text = (
        "authorizer.group('g').resource('r').subresource('s').namespace('n').name('m')"
        ".fieldSelector('f=1').labelSelector('l=1').check('get').allowed()"
    )
    values = {"authorizer": Authorizer(decide), "authorizer.requestResource": ResourceCheck(decide, AccessQuery())}
    assert policy(text, **values) is True
    assert asked[-1] == AccessQuery("get", "", "g", "r", "s", "n", "m", "f=1", "l=1")
    assert policy("authorizer.path('/healthz').check('post').allowed()", **values) is False
    assert policy("authorizer.path('/healthz').check('post').error()", **values) == "broken"
    assert policy("authorizer.path('/healthz').check('post').errored()", **values) is True
    assert policy("authorizer.serviceAccount('a', 'b').path('/x').check('get').reason()", **values) == "because"
    assert asked[-1] == AccessQuery("get", path="/x", service_account=("a", "b"))
    assert policy("authorizer.requestResource.check('get').allowed()", **values) is True
    with pytest.raises(EvaluationError, match="must not be empty"):
        policy("authorizer.path(' ').check('get').allowed()", **values)
    with pytest.raises(EvaluationError, match="Invalid service account"):
        policy("authorizer.serviceAccount('A', 'b').path('/x').check('get').allowed()", **values)


def test_a_check_costs_much() -> None:
    def decide(query: AccessQuery) -> AccessDecision:
        return AccessDecision(True)

    text = "[1, 2, 3, 4].all(x, authorizer.path('/x').check('get').allowed())"
    with pytest.raises(EvaluationError) as caught:
        policy(text, authorizer=Authorizer(decide))
    assert caught.value.error_class == "cost-limit"


# Composition and budget.


def test_variables_are_computed_when_asked_for_and_once() -> None:
    counted: list[AccessQuery] = []

    def decide(query: AccessQuery) -> AccessDecision:
        counted.append(query)
        return AccessDecision(True)

    definitions = {"allowed": compile_expression("authorizer.path('/x').check('get').allowed()", POLICY)}
    second = admission.variables(authorizer=True, composed=composed_type(definitions))
    definitions["both"] = compile_expression("variables.allowed && object.x == 1", second)
    definitions["broken"] = compile_expression("object.nope", second, result=None)
    declared = admission.variables(composed=composed_type(definitions))
    scope = composed(definitions, {"object": {"x": 1}, "authorizer": Authorizer(decide)})
    assert not counted
    assert compile_expression("variables.both && variables.allowed", declared).evaluate(scope) is True
    assert len(counted) == 1
    assert compile_expression("variables.broken == 1 || variables.both", declared).evaluate(scope) is True
    with pytest.raises(EvaluationError, match='variable "broken" fails to evaluate'):
        compile_expression("variables.broken == 1", declared).evaluate(scope)
    with pytest.raises(CompileError, match="undefined field"):
        compile_expression("variables.later", declared)


def test_a_budget_is_spent_together() -> None:
    expression = compile_expression("lists.range(1000).all(x, x >= 0)", {})
    cost = expression.measure({})[2]
    budget = Budget(2 * cost)
    assert expression.evaluate({}, budget)
    assert expression.evaluate({}, budget)
    assert budget.left == 0
    with pytest.raises(OutOfBudget):
        expression.evaluate({}, budget)


def test_costs_of_variables_count_and_nothing_absorbs_an_empty_budget() -> None:
    definitions = {"many": compile_expression("lists.range(1000).all(x, x >= 0)", {})}
    declared = {"variables": composed_type(definitions)}
    expression = compile_expression("variables.many || true", declared)
    budget = Budget(100)
    with pytest.raises(OutOfBudget):
        expression.evaluate(composed(definitions, {}, budget), budget)


def test_one_evaluation_is_limited_too() -> None:
    expression = compile_expression("lists.range(1000).all(x, x >= 0)", {}, cost_limit=100)
    with pytest.raises(EvaluationError) as caught:
        expression.evaluate({})
    assert caught.value.error_class == "cost-limit"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'too many: ' + string(object.n)", "too many: 3"),
        ("'  padded  '", "padded"),
        ("'   '", None),
        ("'a\\nb'", None),
        ("object.nope", None),
        ("['x'].map(x, 'y')[0] + string(1 / 0)", None),
    ],
)
def test_messages(text: str, message: str | None) -> None:
    assert compile_expression(text, {"object": DYN}, result=None).message({"object": {"n": 3}}) == message


def test_a_message_has_five_kibibytes_at_most() -> None:
    expression = compile_expression("object.m", {"object": DYN}, result=None)
    assert expression.message({"object": {"m": "é" * 2560}}) is not None
    assert expression.message({"object": {"m": "é" * 2561}}) is None


# Schemas.

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["replicas"],
    "properties": {
        "replicas": {"type": "integer"},
        "ratio": {"type": "number"},
        "name": {"type": "string", "maxLength": 10},
        "kind-of": {"type": "string"},
        "namespace": {"type": "string"},
        "when": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "wait": {"type": "string", "format": "duration"},
        "blob": {"type": "string", "format": "byte"},
        "port": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "unknown": {"x-kubernetes-preserve-unknown-fields": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}, "maxProperties": 3},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 4},
        "map": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["key"],
            "items": {"type": "object", "properties": {"key": {"type": "string"}, "v": {"type": "integer"}}},
        },
    },
}


def _prepared() -> Schema:
    found = schema_of(SCHEMA)
    assert found is not None
    return found


def rule(text: str, self: dict[str, Any], old: dict[str, Any] | None = None, **options: Any) -> Any:
    schema = _prepared()
    variables = {"self": schema.type, "oldSelf": schema.type}
    expression = compile_expression(text, variables, limits=dict.fromkeys(variables, schema.limit), **options)
    return expression.evaluate({"self": schema.value(self), "oldSelf": schema.value(old)})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("self.replicas > 1", {"replicas": 2}),
        ("self.ratio > 1.5", {"ratio": 2}),
        ("self.kind__dash__of == 'x' && self.__namespace__ == 'y'", {"kind-of": "x", "namespace": "y"}),
        ("self.when > timestamp('2024-01-01T00:00:00Z')", {"when": "2025-01-01T00:00:00Z"}),
        ("self.day == timestamp('2025-01-02T00:00:00Z')", {"day": "2025-01-02"}),
        ("self.wait == duration('90s')", {"wait": "1m30s"}),
        ("self.blob == b'hi'", {"blob": "aGk="}),
        ("type(self.port) == int ? self.port < 5 : self.port == '80%'", {"port": "80%"}),
        ("!has(self.name) && has(self.labels)", {"labels": {}}),
        ("self.labels.all(k, self.labels[k] == 'v')", {"labels": {"a": "v"}}),
        ("self.set == ['b', 'a']", {"set": ["a", "b"]}),
        ("self.set + ['b', 'c'] == ['c', 'b', 'a']", {"set": ["a", "b"]}),
        ("self.set != ['a', 'a']", {"set": ["a", "b"]}),
        ("dyn(self.set) == ['b', 'a']", {"set": ["a", "b"]}),
        ("self.namespace == 'y' && self.__namespace__ == 'y'", {"namespace": "y"}),
        ("!has(self.name) && !self.?name.hasValue()", {"name": None}),
    ],
)
def test_a_rule_sees_typed_fields(text: str, value: dict[str, Any]) -> None:
    assert rule(text, value) is True


def test_lists_that_are_maps_are_compared_by_key() -> None:
    one = {"map": [{"key": "a", "v": 1}, {"key": "b", "v": 2}]}
    turned = {"map": [{"key": "b", "v": 2}, {"key": "a", "v": 1}]}
    changed = {"map": [{"key": "b", "v": 3}, {"key": "a", "v": 1}]}
    assert rule("self.map == oldSelf.map && self == oldSelf", one, turned) is True
    assert rule("self.map != oldSelf.map && self != oldSelf", one, changed) is True
    assert rule("(self.map + oldSelf.map) == oldSelf.map", one, changed) is True
    assert rule("(self.map + oldSelf.map).map(e, e.key) == ['a', 'b']", one, changed) is True


@pytest.mark.parametrize("text", ["self.nope == 1", "self.replicas == 'x'", "self.unknown == 1", "self.free.a == 1"])
def test_fields_without_a_schema_do_not_exist(text: str) -> None:
    with pytest.raises(CompileError):
        rule(text, {})


@pytest.mark.parametrize(
    "value", [{"when": "soon"}, {"blob": "?"}, {"wait": "long"}, {"day": "2025-13-01"}, {"ratio": "x"}, {"map": {}}]
)
def test_data_that_does_not_suit_its_schema_is_an_error(value: dict[str, Any]) -> None:
    if "map" in value:
        with pytest.raises(EvaluationError):
            rule("self.map.all(e, e.key == 'a')", {"map": [1]})
        return
    with pytest.raises(EvaluationError) as caught:
        rule("true", value)
    assert caught.value.error_class == "invalid-data"


def test_old_self_may_be_optional() -> None:
    schema = _prepared()
    variables = {"self": schema.type, "oldSelf": types.optional_of(schema.type)}
    expression = compile_expression("!oldSelf.hasValue() || oldSelf.value().replicas <= self.replicas", variables)
    from drakkar.cel.values import NONE, optional

    assert expression.names == {"self", "oldSelf"}
    assert expression.evaluate({"self": {"replicas": 1}, "oldSelf": NONE}) is True
    assert expression.evaluate({"self": {"replicas": 1}, "oldSelf": optional({"replicas": 2})}) is False


def test_whole_objects_have_names_and_kinds() -> None:
    schema = schema_of({"type": "object", "properties": {"spec": {"type": "object"}}}, root=True)
    assert schema is not None
    text = "self.metadata.name == 'a' && self.kind == 'K' && self.apiVersion == 'v1'"
    expression = compile_expression(text, {"self": schema.type})
    assert expression.evaluate({"self": {"kind": "K", "apiVersion": "v1", "metadata": {"name": "a"}}}) is True
    with pytest.raises(CompileError):
        compile_expression("self.metadata.labels == {}", {"self": schema.type})


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        # Recorded from upstream's compiler of validation rules.
        ("self.replicas == 1", 2),
        ("self.name.size() == 3", 4),
        ("self.name.contains('x')", 6),
        ("self.labels.all(k, self.labels[k] == 'v')", 27),
        ("self.set.all(s, s.startsWith('x'))", 23),
        ("type(self.port) == string", 4),
        ("format.dns1123Label().validate(self.name).hasValue()", 132),
        ("[1, 2].all(x, x > 0)", 21),
    ],
)
def test_estimates_know_the_bounds_of_the_schema(text: str, cost: int) -> None:
    schema = _prepared()
    expression = compile_expression(text, {"self": schema.type}, limits={"self": schema.limit})
    assert expression.max_cost == cost


def test_cardinality_follows_from_the_smallest_value() -> None:
    schema = _prepared()
    assert schema.smallest == 2 + len("replicas") + 1 + 4
    assert schema.max_cardinality == schemas.MAX_REQUEST // 16


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("a", "a"), ("a-b", "a__dash__b"), ("a.b/c", "a__dot__b__slash__c"), ("a__b", "a__underscores__b"),
     ("in", "__in__"), ("namespace", "__namespace__"), ("1a", None), ("é", None), ("", None), ("$a", None)],
)  # fmt: skip
def test_names_are_escaped(name: str, escaped: str | None) -> None:
    assert escape(name) == escaped


def test_bool_is_the_default_result() -> None:
    assert compile_expression("true", {}).output_type == BOOL
