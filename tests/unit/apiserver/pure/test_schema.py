"""Strict decoding, pruning and defaults against what a real server said."""

from __future__ import annotations

import copy
import json

import pytest

from drakkar.apiserver import schema
from drakkar.apiserver.schema.walk import strict_error
from drakkar.apiserver.status import StatusError
from tests.unit.apiserver.pure.traces import exchange, objects

FILES = ("read", "write", "delete", "node", "raw", "helm")


def of(obj):
    group, _, version = obj["apiVersion"].rpartition("/")
    return schema.schemas().for_kind(group, version, obj["kind"])


def without_nulls(value):
    """Go writes zero times as null where the field has no omitempty; absent means the same."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


POD = {"apiVersion": "v1", "kind": "Pod"}


def test_recorded_objects_have_no_faults_and_no_missing_defaults():
    seen = 0
    for obj in objects(*FILES):
        node = of(obj)
        if node is None:
            continue
        assert schema.check(obj, node) == []
        after = copy.deepcopy(obj)
        schema.prune(after, node)
        expected = without_nulls(obj)
        assert after == expected
        schema.apply_schema_defaults(after, node)
        assert after == expected
        seen += 1
    assert seen > 80


def test_strict_message_equals_recorded():
    body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"fv"},"bogus":1,"data":{"a":"b","a":"c"}}'
    obj, duplicates = schema.decode_json(body)
    faults = schema.check(obj, of(obj)) + duplicates
    assert strict_error(obj, faults) == exchange("fieldValidation=Strict")["responseBody"]
    schema.prune(obj, of(obj))
    assert obj == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fv"}, "data": {"a": "c"}}


def test_unknown_field_path_equals_recorded():
    recorded = exchange("create unknown field strict (400)", "write")
    obj = recorded["requestBody"]
    assert strict_error(obj, schema.check(obj, of(obj))) == recorded["responseBody"]


def test_bad_json_equals_recorded():
    with pytest.raises(StatusError) as caught:
        schema.decode_json(b"{", "ConfigMap")
    assert caught.value.status == exchange("bad json (400)")["responseBody"]


@pytest.mark.parametrize(
    ("body", "duplicates"),
    [
        (b'{"a": {"b": 1, "b": 2, "b": 3}, "l": [{"x": 1, "x": 1}]}', ["a.b", "l[0].x"]),
        (b'{"a": "\\u003c", "b": 1.50}', []),
        (b'{"a":{"a":1}}', []),
    ],
)
def test_duplicates(body, duplicates):
    obj, found = schema.decode_json(body)
    assert found == [f'duplicate field "{path}"' for path in duplicates]
    assert obj == json.loads(body)


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        (
            {**POD, "spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": 1}]}]}},
            "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
        ),
        (
            {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "3"}},
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        ({**POD, "spec": "x"}, "json: cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec"),
        (
            {**POD, "metadata": {"labels": {"a": True}}},
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            {**POD, "spec": {"containers": {}}},
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {**POD, "spec": {"priority": 1 << 40}},
            "json: cannot unmarshal number 1099511627776 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            {**POD, "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "x"}}}]}},
            r"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            {**POD, "metadata": {"creationTimestamp": "now"}},
            'parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006"',
        ),
        (
            {"apiVersion": "v1", "kind": "Secret", "data": {"a": "a*bc"}},
            "illegal base64 data at input byte 1",
        ),
    ],
)
def test_type_faults_in_the_words_of_go(obj, text):
    with pytest.raises(StatusError) as caught:
        schema.check(obj, of(obj))
    kind, version = obj["kind"], "v1"
    assert caught.value.status["message"] == f'{kind} in version "{version}" cannot be handled as a {kind}: {text}'
    assert caught.value.code == 400


def test_prune_drops_nulls_and_spells_quantities():
    obj = {
        **POD,
        "metadata": {"name": "a", "creationTimestamp": None},
        "spec": {"x": 1, "containers": [{"name": "c", "resources": {"limits": {"cpu": 2, "memory": "1024Mi"}}}]},
    }
    schema.prune(obj, of(obj))
    assert obj == {
        **POD,
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]},
    }


def test_defaults_are_those_go_always_writes():
    obj = {**POD, "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}]}]}}
    schema.apply_schema_defaults(obj, of(obj))
    assert obj["status"] == {}
    assert obj["spec"]["containers"] == [
        {"name": "c", "ports": [{"containerPort": 1, "protocol": "TCP"}], "resources": {}}
    ]


def test_defaults_are_not_shared_between_objects():
    one, two = {**POD}, {**POD}
    for obj in (one, two):
        schema.apply_schema_defaults(obj, of(obj))
    one["status"]["phase"] = "Running"
    assert two["status"] == {}


def test_yaml_is_json_with_duplicates_and_times_as_text():
    obj, faults = schema.decode_yaml(b"kind: A\nt: 2026-01-01T00:00:00Z\nd: {a: 1, a: 2}\non: yes\n1: x\n")
    assert obj == {"kind": "A", "t": "2026-01-01T00:00:00Z", "d": {"a": 2}, "on": True, "1": "x"}
    assert faults == ['duplicate field "d.a"']
    with pytest.raises(StatusError):
        schema.decode_yaml(b"a: [")


def test_custom_schema():
    node = schema.custom_schema(
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "size": {"type": "integer", "default": 3},
                        "port": {"x-kubernetes-int-or-string": True},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        "any": {
                            "type": "object",
                            "properties": {"a": {"type": "string"}},
                            "x-kubernetes-preserve-unknown-fields": True,
                        },
                    },
                }
            },
        }
    )
    obj = {
        "apiVersion": "g/v1",
        "kind": "W",
        "metadata": {"name": "x", "bad": 1},
        "spec": {"port": "a", "free": {"q": {"z": None}}, "any": {"a": "b", "c": 1}, "bogus": 1},
    }
    assert schema.check(obj, node) == ['unknown field "metadata.bad"', 'unknown field "spec.bogus"']
    schema.prune(obj, node)
    schema.apply_schema_defaults(obj, node)
    assert obj["spec"] == {"port": "a", "free": {"q": {"z": None}}, "any": {"a": "b", "c": 1}, "size": 3}
