"""Generated OpenAPI documents against the recorded ones."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from drakkar.apiserver import openapi
from drakkar.apiserver.discovery import Resource, resources
from tests.support.shared import shared_path

WIDGET = Resource(
    "demo.example.com", "v1", "Widget", "widgets", "widget", True, ("create", "get", "list", "patch", "update")
)
CUSTOM = {("demo.example.com", "v1", "Widget"): {"properties": {"spec": {"type": "object"}}}}


def recorded(group, version):
    name = f"apis__{group}__{version}" if group else f"api__{version}"
    return json.loads(gzip.decompress(shared_path(f"spec/openapi/v3__{name}.json.gz").read_bytes()))


def made(group, version):
    text = openapi.document(group, version, resources())
    assert text is not None
    return json.loads(text)


def without_enums(value):
    if isinstance(value, dict):
        return {key: without_enums(item) for key, item in value.items() if not (key == "enum" and type(item) is list)}
    return [without_enums(item) for item in value] if isinstance(value, list) else value


GROUPS = [
    ("", "v1"),
    ("apps", "v1"),
    ("batch", "v1"),
    ("resource.k8s.io", "v1"),
    ("resource.k8s.io", "v1beta1"),
    ("rbac.authorization.k8s.io", "v1"),
    ("coordination.k8s.io", "v1"),
    ("flowcontrol.apiserver.k8s.io", "v1"),
]


@pytest.mark.parametrize(("group", "version"), GROUPS)
def test_operations_equal_recorded(group, version):
    theirs, mine = recorded(group, version)["paths"], made(group, version)["paths"]
    compared = 0
    for path, item in theirs.items():
        # Upstream still lists the deprecated watch and proxy paths.
        if "/watch/" in path or "proxy" in path or path.startswith("/api/v1/namespaces/{namespace}/bindings"):
            continue
        assert path in mine
        for method in ("get", "post", "put", "patch", "delete"):
            if method not in item:
                continue
            one, other = item[method], mine[path][method]
            kind = one.get("x-kubernetes-group-version-kind")
            assert other.get("x-kubernetes-group-version-kind") == kind, (path, method)
            assert other["tags"] == one["tags"]
            special = any(word in path for word in ("/exec", "/attach", "/portforward", "/log", "/{name}/"))
            if not special:
                assert other["operationId"] == one["operationId"]
                names = {parameter["name"] for parameter in one.get("parameters", ())}
                # Where a path has one verb only, upstream moves the parameters to the path.
                if names:
                    assert {parameter["name"] for parameter in other["parameters"]} == names, (path, method)
            if method == "patch":
                assert other["requestBody"] == one["requestBody"]
                assert "fieldValidation" in {parameter["name"] for parameter in other["parameters"]}
            compared += 1
    assert compared > 5


@pytest.mark.parametrize(("group", "version"), GROUPS)
def test_schemas_equal_recorded(group, version):
    theirs, mine = recorded(group, version)["components"]["schemas"], made(group, version)["components"]["schemas"]
    for name, schema in mine.items():
        if name in theirs:
            # Upstream lists shared kinds once more for every group.
            shared = name.startswith("io.k8s.apimachinery")
            ignored = {"x-kubernetes-group-version-kind"} if shared else set[str]()
            one, other = ({k: v for k, v in x.items() if k not in ignored} for x in (schema, theirs[name]))
            # The table of types was harvested without enums.
            assert without_enums(one) == without_enums(other), name
    missing = {name for name in set(theirs) - set(mine) if name.startswith("io.k8s.api.")}
    # Kinds that are only spoken by subresources, and lists.
    assert not missing


def test_index_and_hashes():
    index = openapi.index(resources())["paths"]
    assert {"api/v1", "apis/resource.k8s.io/v1", "apis/batch/v1"} <= set(index)
    url = index["apis/resource.k8s.io/v1"]["serverRelativeURL"]
    assert url.startswith("/openapi/v3/apis/resource.k8s.io/v1?hash=")
    digest = openapi.document_hash("resource.k8s.io", "v1", resources())
    assert url.endswith(digest)
    assert len(digest) == 128
    fewer = [resource for resource in resources() if resource.kind != "DeviceTaintRule"]
    assert openapi.document_hash("resource.k8s.io", "v1", fewer) != digest
    assert openapi.document("no.such", "v1", resources()) is None


def test_custom_kinds():
    text = openapi.document("demo.example.com", "v1", [WIDGET], CUSTOM)
    assert text is not None
    document = json.loads(text)
    schema = document["components"]["schemas"]["com.example.demo.v1.Widget"]
    assert schema["x-kubernetes-group-version-kind"] == [
        {"group": "demo.example.com", "kind": "Widget", "version": "v1"}
    ]
    assert "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" in document["components"]["schemas"]
    patch = document["paths"]["/apis/demo.example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
    one = openapi.document_hash("demo.example.com", "v1", [WIDGET], CUSTOM)
    changed = {key: {"properties": {"spec": {"type": "string"}}} for key in CUSTOM}
    assert openapi.document_hash("demo.example.com", "v1", [WIDGET], changed) != one
    assert openapi.document_hash("demo.example.com", "v1", [replace(WIDGET, categories=("all",))], CUSTOM) != one


def test_references_resolve():
    for group, version in GROUPS:
        text = openapi.document(group, version, resources()) or b""
        names = set(json.loads(text)["components"]["schemas"])
        assert {ref.decode() for ref in openapi._REFERENCE.findall(text)} <= names


def test_v2():
    document = json.loads(openapi.v2([*resources(), WIDGET], CUSTOM))
    assert "io.k8s.api.core.v1.Pod" in document["definitions"]
    assert "com.example.demo.v1.Widget" in document["definitions"]
    assert "#/components" not in json.dumps(document)
