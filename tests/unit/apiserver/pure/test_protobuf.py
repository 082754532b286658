"""Protobuf bodies: recorded ones, and objects that went through an independent encoder."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.apiserver import protobuf, schema
from drakkar.apiserver.status import StatusError
from tests.unit.apiserver.pure.protobuf_encoder import block, encode, number_field
from tests.unit.apiserver.pure.test_schema import without_nulls
from tests.unit.apiserver.pure.traces import exchanges, objects


def recorded_bodies():
    for _, request in exchanges("write", "helm", "auth"):
        body = request["requestBody"]
        if isinstance(body, str) and body.startswith("base64:") and not body.endswith("..."):
            yield request["path"], base64.b64decode(body.removeprefix("base64:"))


def test_recorded_bodies_decode_and_fit_their_schema():
    found = {}
    for path, body in recorded_bodies():
        obj = protobuf.decode(body)
        group, _, version = obj["apiVersion"].rpartition("/")
        node = schema.schemas().for_kind(group, version, obj["kind"])
        assert node is not None
        assert schema.check(obj, node) == []
        found[path.rpartition("/")[2] + "/" + obj["kind"]] = obj
    assert found["configmaps/ConfigMap"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c3"},
        "data": {"a": "b"},
    }
    assert found["secrets/Secret"]["data"] == {"a": "Yg=="}
    assert found["resourcequotas/ResourceQuota"]["spec"] == {"hard": {"pods": "100"}}
    assert found["jobs/Job"]["spec"]["template"]["spec"]["containers"][0]["image"] == "busybox"
    assert found["token/TokenRequest"]["kind"] == "TokenRequest"
    assert found["selfsubjectaccessreviews/SelfSubjectAccessReview"]["spec"]["resourceAttributes"]["verb"]


def test_recorded_objects_survive():
    seen = set()
    for obj in objects("read", "write", "delete", "node", "helm"):
        if obj["kind"] in ("CustomResourceDefinition", "Widget"):
            continue
        group, _, version = obj["apiVersion"].rpartition("/")
        node = schema.schemas().for_kind(group, version, obj["kind"])
        assert node is not None
        decoded = protobuf.decode(encode(without_nulls(obj)))
        schema.apply_schema_defaults(decoded, node)
        for entry in decoded["metadata"].get("managedFields", ()):
            entry.pop("fieldsV1", None)
        expected = without_nulls(obj)
        for entry in expected["metadata"].get("managedFields", ()):
            entry.pop("fieldsV1", None)
        assert decoded == expected
        seen.add(obj["kind"])
    assert {"Pod", "Node", "Job", "Deployment", "ResourceClaim", "ResourceSlice"} <= seen


def slice_(**attribute):
    device = {"name": "d", "attributes": {"a": attribute}, "capacity": {"m": {"value": "10Gi"}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "d.example.com",
            "pool": {"name": "p", "generation": 0, "resourceSliceCount": 1},
            "nodeName": "n",
            "devices": [device],
        },
    }


@pytest.mark.parametrize(
    "attribute",
    [{"int": 0}, {"int": -5}, {"int": (1 << 63) - 1}, {"bool": False}, {"bool": True}, {"string": ""},
     {"version": "1.2.3"}, {"ints": [0, -1, 3]}, {"bools": [False, True]}, {"strings": ["", "a"]}],
)  # fmt: skip
def test_zeros_behind_pointers_survive(attribute):
    assert protobuf.decode(encode(slice_(**attribute))) == slice_(**attribute)


def test_packed_numbers():
    attribute = block(6, bytes([0, 1, 2]))
    device = block(1, b"d") + block(2, block(1, b"a") + block(2, attribute))
    spec = block(1, b"drv") + block(6, device)
    body = b"k8s\0" + block(1, block(1, b"resource.k8s.io/v1") + block(2, b"ResourceSlice")) + block(2, block(2, spec))
    assert protobuf.decode(body)["spec"]["devices"][0]["attributes"]["a"] == {"ints": [0, 1, 2]}


def test_special_types():
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "resources": {"limits": {"cpu": "500m"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 3},
                    "readinessProbe": {"tcpSocket": {"port": 8080}},
                }
            ],
            "volumes": [{"name": "v", "configMap": {"name": "x", "optional": False}}],
        },
    }
    decoded = protobuf.decode(encode(pod))
    assert decoded["spec"]["containers"] == pod["spec"]["containers"]
    assert decoded["spec"]["volumes"] == pod["spec"]["volumes"]
    assert decoded["metadata"] == pod["metadata"]
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "h", "renewTime": "2026-01-01T00:00:00.000123Z", "leaseTransitions": 0},
    }
    assert protobuf.decode(encode(lease)) == lease


def test_unknown_fields_are_skipped():
    raw = block(1, block(1, b"c")) + number_field(900, 5) + block(901, b"zz") + b"\xa1\x06" + bytes(8)
    body = b"k8s\0" + block(1, block(1, b"v1") + block(2, b"ConfigMap")) + block(2, raw)
    assert protobuf.decode(body)["metadata"] == {"name": "c"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\0\x0a\xff",
        b"k8s\0" + block(1, block(1, b"v1") + block(2, b"Nope")),
        b"k8s\0" + block(1, block(1, b"v1") + block(2, b"Pod")) + block(2, b"\x0a\x7f"),
        b"k8s\0" + block(1, block(1, b"v1") + block(2, b"Pod")) + block(2, b"\x08\x01"),
        b"k8s\0" + block(1, block(1, b"v1") + block(2, b"Pod")) + block(2, block(1, block(1, b"\xff"))),
    ],
)
def test_malformed(body):
    with pytest.raises(StatusError) as caught:
        protobuf.decode(body)
    assert caught.value.code == 400


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_a_fault(data):
    body = b"k8s\0" + block(1, block(1, b"v1") + block(2, b"Pod")) + block(2, data)
    code = 200
    try:
        protobuf.decode(body)
    except StatusError as error:
        code = error.code
    assert code in (200, 400)
