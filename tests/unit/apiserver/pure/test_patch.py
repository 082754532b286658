"""JSON, merge and strategic merge patches."""

from __future__ import annotations

import copy

import pytest

from drakkar.apiserver import patch, schema
from drakkar.apiserver.status import StatusError
from tests.unit.apiserver.pure.traces import exchange

DEPLOYMENT = schema.schemas().for_kind("apps", "v1", "Deployment")
POD = schema.schemas().for_kind("", "v1", "Pod")
CONFIGMAP = schema.schemas().for_kind("", "v1", "ConfigMap")


def strategic(doc, change, node=POD):
    before, given = copy.deepcopy(doc), copy.deepcopy(change)
    result = patch.apply_strategic_patch(doc, change, node)
    assert doc == before
    assert change == given
    return result


def test_merge_patch():
    doc = {"a": {"b": 1, "c": 2}, "l": [1]}
    assert patch.apply_merge_patch(doc, {"a": {"b": None, "d": {"x": None, "y": 1}}, "l": [2]}) == {
        "a": {"c": 2, "d": {"y": 1}},
        "l": [2],
    }
    assert doc == {"a": {"b": 1, "c": 2}, "l": [1]}


@pytest.mark.parametrize(
    ("ops", "result"),
    [
        ([{"op": "add", "path": "/a/b", "value": 1}], {"a": {"b": 1}, "l": [1, 2]}),
        ([{"op": "add", "path": "/l/-", "value": 3}], {"a": {}, "l": [1, 2, 3]}),
        ([{"op": "add", "path": "/l/0", "value": 0}], {"a": {}, "l": [0, 1, 2]}),
        ([{"op": "add", "path": "/l/2", "value": 0}], {"a": {}, "l": [1, 2, 0]}),
        ([{"op": "remove", "path": "/l/0"}], {"a": {}, "l": [2]}),
        ([{"op": "replace", "path": "/l/1", "value": {"x~": 1}}], {"a": {}, "l": [1, {"x~": 1}]}),
        ([{"op": "move", "from": "/l", "path": "/a/m~1n"}], {"a": {"m/n": [1, 2]}}),
        ([{"op": "copy", "from": "/l/0", "path": "/c"}], {"a": {}, "l": [1, 2], "c": 1}),
        ([{"op": "test", "path": "/l/0", "value": 1}, {"op": "remove", "path": "/a"}], {"l": [1, 2]}),
        ([{"op": "test", "path": "/zz", "value": None}], {"a": {}, "l": [1, 2]}),
        ([{"op": "replace", "path": "", "value": {"n": 1}}], {"n": 1}),
    ],
)
def test_json_patch(ops, result):
    doc = {"a": {}, "l": [1, 2]}
    assert patch.apply_json_patch(doc, ops) == result
    assert doc == {"a": {}, "l": [1, 2]}


@pytest.mark.parametrize(
    "op",
    [
        {"op": "remove", "path": "/data/zz"},
        {"op": "replace", "path": "/zz", "value": 1},
        {"op": "add", "path": "/zz/y", "value": 1},
        {"op": "add", "path": "/l/5", "value": 1},
        {"op": "test", "path": "/l/0", "value": True},
        {"op": "add", "path": "/x"},
        {"op": "what", "path": "/x"},
        {"op": "add", "path": "x", "value": 1},
        {"op": "move", "from": "/data", "path": "/data/x"},
    ],
)
def test_json_patch_that_does_not_apply_answers_as_recorded(op):
    with pytest.raises(StatusError) as caught:
        patch.apply_json_patch({"data": {}, "l": [1]}, [op])
    assert caught.value.status == exchange("patch json bad path", "write")["responseBody"]


def test_json_patch_limits():
    with pytest.raises(StatusError) as caught:
        patch.apply_json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)
    assert caught.value.code == 413
    with pytest.raises(StatusError) as caught:
        patch.apply_json_patch({}, {"op": "add"})  # pyright: ignore[reportArgumentType]
    assert caught.value.code == 400


def containers(*names, **extra):
    return {"spec": {"containers": [{"name": name, "image": name, **extra} for name in names]}}


def names(doc):
    return [item["name"] for item in doc["spec"]["containers"]]


def test_lists_merge_by_key():
    result = strategic(containers("a", "b"), {"spec": {"containers": [{"name": "b", "image": "x"}, {"name": "c"}]}})
    assert result["spec"]["containers"] == [
        {"name": "a", "image": "a"},
        {"name": "b", "image": "x"},
        {"name": "c"},
    ]


def test_delete_and_replace_directives():
    doc = containers("a", "b")
    assert names(strategic(doc, {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}})) == ["b"]
    assert strategic(doc, {"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}) == {
        "spec": {"containers": [{"name": "z"}]}
    }
    assert strategic(doc, {"spec": {"$patch": "replace", "nodeName": "n"}}) == {"spec": {"nodeName": "n"}}
    assert strategic(doc, {"spec": {"$patch": "delete"}}) == {"spec": {}}
    assert strategic(doc, {"spec": None}) == {}
    with pytest.raises(StatusError) as caught:
        strategic(doc, {"spec": {"$patch": "perhaps"}})
    assert caught.value.code == 400


def test_order_directive():
    doc = containers("a", "b", "server")
    change = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
            "containers": [{"name": "c"}],
        }
    }
    assert names(strategic(doc, change)) == ["c", "b", "a", "server"]
    only_order = {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}
    assert names(strategic(doc, only_order)) == ["b", "a", "server"]
    first = containers("server", "a", "b")
    assert names(strategic(first, only_order)) == ["server", "b", "a"]


def test_primitive_lists():
    doc = {"metadata": {"finalizers": ["a", "b"]}}
    change = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "$setElementOrder/finalizers": ["c", "b"],
            "finalizers": ["c"],
        }
    }
    assert strategic(doc, change) == {"metadata": {"finalizers": ["c", "b"]}}
    assert strategic(doc, {"metadata": {"finalizers": ["b", "z"]}}) == {"metadata": {"finalizers": ["a", "b", "z"]}}


def test_retain_keys():
    doc = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    change = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic(doc, change, DEPLOYMENT) == {"spec": {"strategy": {"type": "Recreate"}}}
    volumes = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    swap = {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}
    assert strategic(volumes, swap) == {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}
    with pytest.raises(StatusError) as caught:
        strategic(doc, {"spec": {"strategy": {"$retainKeys": ["x"], "type": "Recreate"}}}, DEPLOYMENT)
    assert caught.value.code == 400


def test_new_parts_lose_their_directives_and_nulls():
    change = {"spec": {"containers": [{"name": "a", "command": None, "resources": {"limits": None}}], "volumes": None}}
    assert strategic({}, change) == {"spec": {"containers": [{"name": "a", "resources": {}}]}}


def test_atomic_lists_are_replaced():
    doc = {"spec": {"containers": [{"name": "a", "command": ["x", "y"]}]}}
    change = {"spec": {"containers": [{"name": "a", "command": ["z"]}]}}
    assert strategic(doc, change) == {"spec": {"containers": [{"name": "a", "command": ["z"]}]}}


def test_missing_merge_key():
    with pytest.raises(StatusError) as caught:
        strategic(containers("a"), {"spec": {"containers": [{"image": "x"}]}})
    assert caught.value.code == 422
    assert "does not contain declared merge key: name" in caught.value.status["message"]


def test_wrong_type_answers_as_recorded():
    recorded = exchange("edit producing an invalid document (422)", "write")
    with pytest.raises(StatusError) as caught:
        strategic({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}}, recorded["requestBody"], CONFIGMAP)
    assert caught.value.status == recorded["responseBody"]


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"spec": {"replicas": "x"}}, "unrecognized type: int32"),
        ({"spec": {"paused": 1}}, "unrecognized type: bool"),
        ({"metadata": {"labels": {"a": 1}}}, "unrecognized type: string"),
        ({"spec": 3}, "cannot restore struct from: int64"),
        ({"metadata": {"finalizers": {}}}, "cannot restore slice from map"),
        (
            {"metadata": {"creationTimestamp": "now"}},
            'parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006"',
        ),
    ],
)
def test_other_wrong_types(change, detail):
    doc = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    with pytest.raises(StatusError) as caught:
        strategic(doc, change, DEPLOYMENT)
    assert caught.value.code == 422
    assert caught.value.status["details"]["causes"][0]["message"].endswith(detail)
