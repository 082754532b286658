"""Server-side apply: owners, merge, conflicts, against recorded answers and by rule."""

from __future__ import annotations

import copy
import json

import pytest

from drakkar.apiserver import apply, schema
from drakkar.apiserver.status import StatusError
from tests.unit.apiserver.pure.test_schema import of, without_nulls
from tests.unit.apiserver.pure.traces import exchanges

NOW = 1_780_000_000.0
POD = schema.schemas().for_kind("", "v1", "Pod")
CONFIGMAP = schema.schemas().for_kind("", "v1", "ConfigMap")


def config_map(data=None, **meta):
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "d", **meta}}
    return obj if data is None else {**obj, "data": data}


def ssa(live, applied, manager, force=False, node=CONFIGMAP, subresource="", now=NOW):
    before = copy.deepcopy((live, applied))
    result = apply.server_side_apply(live, applied, manager, force, node, subresource, now)
    assert (live, applied) == before
    return result


def owners(obj):
    return {(e["manager"], e["operation"]): e["fieldsV1"] for e in obj["metadata"].get("managedFields", [])}


def test_sets_to_json_and_back():
    tree = {"f:a": {".": {}, "f:b": {}}, 'k:{"x":1}': {}, "f:c": {"f:d": {"f:e": {}}}}
    fields = apply.from_fields_v1(tree)
    assert fields == {("f:a",), ("f:a", "f:b"), ('k:{"x":1}',), ("f:c", "f:d", "f:e")}
    assert apply.to_fields_v1(fields) == tree
    with pytest.raises(ValueError, match="objects"):
        apply.from_fields_v1({"f:a": 1})


def test_path_texts():
    path = ("f:spec", 'k:{"containerPort":80,"protocol":"TCP"}', "f:a", 'v:"x"')
    assert apply.path_text(path) == '.spec[containerPort=80,protocol="TCP"].a[="x"]'


def test_recorded_creates_have_the_recorded_owners():
    """Owners of created objects, from the stored object alone."""
    seen = set()
    for name, request in exchanges("write"):
        body = request["responseBody"]
        if request["method"] != "POST" or request["status"] != 201 or not isinstance(body, dict):
            continue
        entries = body["metadata"].get("managedFields") if "metadata" in body else None
        if not entries or " more" in json.dumps(body):
            continue
        node = of(body)
        entry = entries[0]
        if node is None or len(entries) != 1 or not isinstance(entry.get("fieldsV1"), dict):
            continue
        new = copy.deepcopy(without_nulls(body))
        del new["metadata"]["managedFields"]
        apply.track_update(None, new, entry["manager"], "Update", node, "", NOW)
        made = new["metadata"]["managedFields"]
        # Admission adds fields after the owners were noted; such objects have more here.
        if body["kind"] in ("Pod", "Job", "Deployment", "Namespace", "Service"):
            continue
        assert made[0]["fieldsV1"] == entry["fieldsV1"], name
        assert list(made[0]) == list(entry)
        seen.add(body["kind"])
    assert {"Node", "DeviceClass", "ResourceSlice", "ResourceClaim", "ConfigMap", "DeviceTaintRule"} <= seen


def test_recorded_apply_of_a_pod():
    name, request = next(
        (name, request)
        for name, request in exchanges("write")
        if name == "apply server-side create" and request["method"] == "PATCH"
    )
    body = request["requestBody"]
    applied = json.loads(body) if isinstance(body, str) else body
    made = ssa(None, applied, "kubectl", node=POD)
    recorded = request["responseBody"]["metadata"]["managedFields"][0]
    assert made["metadata"]["managedFields"][0]["fieldsV1"] == recorded["fieldsV1"]
    assert name


def test_recorded_sequence_on_a_config_map():
    """Apply, forced apply and conflict, one after the other, as the real server answered them."""
    live = None
    compared = 0
    names = ("apply server-side force", "apply server-side conflict", "apply server-side force m2")
    for name, request in exchanges("write"):
        if request["path"].endswith("/configmaps/cm-a") and name.startswith("apply server-side"):
            recorded = request["responseBody"]
            if request["method"] == "GET" or name not in names:
                if isinstance(recorded, dict) and recorded.get("kind") == "ConfigMap":
                    live = recorded
                continue
            force = "force=true" in request["query"]
            manager = "m2" if "fieldManager=m2" in request["query"] else "m1"
            body = request["requestBody"]
            applied = json.loads(body) if isinstance(body, str) else body
            if request["status"] == 409:
                with pytest.raises(StatusError) as caught:
                    ssa(live, applied, manager, force)
                assert caught.value.status == recorded
            else:
                made = ssa(live, applied, manager, force)
                assert made["data"] == recorded["data"]
                assert owners(made) == owners(recorded)
                live = recorded
            compared += 1
    assert compared == 3


def test_owned_fields_that_are_not_applied_any_more_go():
    one = ssa(None, config_map({"a": "1", "b": "2"}), "m1")
    two = ssa(one, config_map({"a": "1"}), "m1")
    assert two["data"] == {"a": "1"}
    shared = ssa(one, config_map({"b": "2"}), "m2")
    assert ssa(shared, config_map({"a": "1"}), "m1")["data"] == {"a": "1", "b": "2"}
    none = ssa(one, config_map(), "m1")
    assert "data" not in none
    assert none["metadata"]["name"] == "c"


def test_conflict_and_force():
    one = ssa(None, config_map({"a": "1"}), "m1")
    ssa(one, config_map({"a": "1"}), "m2")
    with pytest.raises(StatusError) as caught:
        ssa(one, config_map({"a": "2"}), "m2")
    assert caught.value.code == 409
    assert caught.value.status["message"] == 'Apply failed with 1 conflict: conflict with "m1": .data.a'
    forced = ssa(one, config_map({"a": "2"}), "m2", force=True)
    assert owners(forced) == {("m2", "Apply"): {"f:data": {"f:a": {}}}}


def test_updates_take_fields_over_and_conflict_with_appliers():
    one = ssa(None, config_map({"a": "1", "b": "1"}), "m1")
    new = copy.deepcopy(one)
    new["data"] = {"a": "2", "b": "1", "c": "3"}
    apply.track_update(one, new, "editor", "Update", CONFIGMAP, "", NOW + 5)
    assert owners(new) == {
        ("m1", "Apply"): {"f:data": {"f:b": {}}},
        ("editor", "Update"): {"f:data": {"f:a": {}, "f:c": {}}},
    }
    with pytest.raises(StatusError) as caught:
        ssa(new, config_map({"a": "1", "b": "1"}), "m1")
    assert caught.value.status["message"] == ('Apply failed with 1 conflict: conflict with "editor" using v1: .data.a')
    gone = copy.deepcopy(new)
    gone["data"] = {"b": "1"}
    apply.track_update(new, gone, "remover", "Update", CONFIGMAP, "", NOW + 9)
    assert owners(gone) == {("m1", "Apply"): {"f:data": {"f:b": {}}}}


def test_objects_without_owners():
    plain = config_map({"a": "1"}, uid="u", creationTimestamp="2026-01-01T00:00:00Z")
    changed = copy.deepcopy(plain)
    changed["data"] = {"a": "2"}
    apply.track_update(plain, changed, "editor", "Update", CONFIGMAP, "", NOW)
    assert "managedFields" not in changed["metadata"]
    with pytest.raises(StatusError) as caught:
        ssa(plain, config_map({"a": "2"}), "m1")
    assert 'conflict with "before-first-apply" using v1: .data.a' in caught.value.status["message"]
    assert set(owners(ssa(plain, config_map({"a": "1"}), "m1"))) == {
        ("m1", "Apply"),
        ("before-first-apply", "Update"),
    }


def test_kubectl_is_given_what_its_annotation_says_and_nothing_more():
    """Else its migration to server-side apply drops what the server filled in."""
    last = json.dumps(config_map({"a": "1", "gone": "1"}))
    plain = config_map({"a": "1", "b": "2"}, annotations={apply.LAST_APPLIED: last})
    found = owners(ssa(plain, config_map(), "m1"))
    annotations = {".": {}, f"f:{apply.LAST_APPLIED}": {}}
    assert found["kubectl-client-side-apply", "Update"] == {
        "f:metadata": {"f:annotations": annotations},
        "f:data": {"f:a": {}},
    }
    assert found["before-first-apply", "Update"] == {"f:data": {".": {}, "f:b": {}}}
    with pytest.raises(StatusError) as caught:
        ssa(plain, config_map({"a": "2"}), "m1")
    assert 'conflict with "kubectl-client-side-apply" using v1: .data.a' in caught.value.status["message"]
    for broken in ("{", "[]", json.dumps({"apiVersion": "v2"})):
        odd = config_map({"a": "1"}, annotations={apply.LAST_APPLIED: broken})
        assert ("kubectl-client-side-apply", "Update") not in owners(ssa(odd, config_map(), "m1"))


def test_reset_of_owners():
    one = ssa(None, config_map({"a": "1"}), "m1")
    new = copy.deepcopy(one)
    new["metadata"]["managedFields"] = [{}]
    apply.track_update(one, new, "x", "Update", CONFIGMAP, "", NOW)
    assert "managedFields" not in new["metadata"]


def test_times_stay_when_nothing_changes():
    one = ssa(None, config_map({"a": "1"}), "m1")
    assert ssa(one, config_map({"a": "1"}), "m1", now=NOW + 100) == one
    later = ssa(one, config_map({"a": "2"}), "m1", now=NOW + 100)
    assert later["metadata"]["managedFields"][0]["time"] != one["metadata"]["managedFields"][0]["time"]
    same = copy.deepcopy(one)
    apply.track_update(one, same, "y", "Update", CONFIGMAP, "", NOW + 100)
    assert same == one


def pod(*containers, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": list(containers), **spec},
    }


def test_lists_of_type_map_merge_by_keys_in_order():
    one = ssa(None, pod({"name": "a", "image": "1"}, {"name": "b", "image": "1"}), "m1", node=POD)
    two = ssa(one, pod({"name": "c", "image": "2"}, {"name": "b", "tty": True}), "m2", node=POD)
    assert [item["name"] for item in two["spec"]["containers"]] == ["c", "a", "b"]
    assert two["spec"]["containers"][2] == {"name": "b", "image": "1", "tty": True}
    three = ssa(two, pod({"name": "a", "image": "1"}), "m1", node=POD)
    # m2 still owns element b, so only what m1 alone owned goes.
    assert three["spec"]["containers"] == [
        {"name": "c", "image": "2"},
        {"name": "a", "image": "1"},
        {"name": "b", "tty": True},
    ]


def test_default_keys_identify_ports():
    ports = [{"containerPort": 80}]
    made = ssa(None, pod({"name": "a", "ports": ports}), "m1", node=POD)
    text = json.dumps(made["metadata"]["managedFields"])
    assert json.dumps('k:{"containerPort":80,"protocol":"TCP"}') in text


def test_atomic_parts_have_one_owner():
    node = schema.schemas().for_kind("resource.k8s.io", "v1", "ResourceSlice")
    obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"driver": "d", "pool": {"name": "p"}, "devices": [{"name": "x"}]},
    }
    made = ssa(None, obj, "m1", node=node)
    assert owners(made)[("m1", "Apply")]["f:spec"]["f:devices"] == {}
    other = copy.deepcopy(obj)
    other["spec"]["devices"] = [{"name": "y"}]
    with pytest.raises(StatusError):
        ssa(made, other, "m2", node=node)
    assert ssa(made, other, "m2", True, node)["spec"]["devices"] == [{"name": "y"}]


def test_unkeyed_elements_are_refused():
    with pytest.raises(StatusError) as caught:
        ssa(None, pod({"image": "x"}), "m1", node=POD)
    assert caught.value.code == 422


def test_endpoints_ignore_what_is_not_theirs():
    base = ssa(None, pod({"name": "a"}) | {"status": {"phase": "Failed"}}, "m1", node=POD)
    assert "status" not in base
    applied = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"x": "y"}},
        "spec": {"nodeName": "zzz"},
        "status": {"conditions": [{"type": "A", "status": "True"}]},
    }
    made = ssa(base, applied, "m2", node=POD, subresource="status")
    assert made["status"]["conditions"] == [{"type": "A", "status": "True"}]
    assert "nodeName" not in made["spec"]
    assert "labels" not in made["metadata"]
    entry = next(e for e in made["metadata"]["managedFields"] if e["manager"] == "m2")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {
        "f:status": {"f:conditions": {'k:{"type":"A"}': {".": {}, "f:status": {}, "f:type": {}}}}
    }


def test_unowned_defaults_under_an_abandoned_struct_go_with_it():
    node = schema.schemas().for_kind("apps", "v1", "Deployment")
    base = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    one = ssa(None, {**base, "spec": {"replicas": 1, "strategy": {"type": "RollingUpdate"}}}, "m1", node=node)
    one["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": 1}
    two = ssa(one, {**base, "spec": {"replicas": 1}}, "m1", node=node)
    assert two["spec"] == {"replicas": 1}


def test_managed_fields_may_not_be_applied():
    with pytest.raises(StatusError) as caught:
        ssa(None, config_map({}, managedFields=[{"manager": "x"}]), "m1")
    assert caught.value.code == 400


def test_many_updaters_are_folded():
    obj = config_map({})
    apply.track_update(None, obj, "u0", "Update", CONFIGMAP, "", NOW)
    for number in range(1, 15):
        new = copy.deepcopy(obj)
        new["data"][f"k{number}"] = "x"
        apply.track_update(obj, new, f"u{number}", "Update", CONFIGMAP, "", NOW + number)
        obj = new
    entries = obj["metadata"]["managedFields"]
    assert len(entries) == 10
    assert entries[0]["manager"] == "ancient-changes"
