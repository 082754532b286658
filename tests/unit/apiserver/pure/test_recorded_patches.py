"""Patches that real clients sent, applied to what the real server had, give what it answered."""

from __future__ import annotations

import json

from drakkar.api.resource.defaults import apply_defaults
from drakkar.apiserver import patch, schema
from tests.unit.apiserver.pure.test_schema import of, without_nulls
from tests.unit.apiserver.pure.traces import exchanges

_TYPES = {
    "application/strategic-merge-patch+json": "strategic",
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
}


def comparable(obj):
    """Without what the server or its controllers change by themselves."""
    obj = json.loads(json.dumps(without_nulls(obj)))
    for name in ("resourceVersion", "generation", "managedFields"):
        obj["metadata"].pop(name, None)
    obj["metadata"].get("annotations", {}).pop("deployment.kubernetes.io/revision", None)
    obj.pop("status", None)
    return obj


def test_patches():
    seen = {}
    kinds = {"strategic": 0, "merge": 0, "json": 0}
    for name, request in exchanges("write", "edit", "read"):
        path, body, answer = request["path"], request["requestBody"], request["responseBody"]
        if not isinstance(answer, dict) or answer.get("kind") in (None, "Status", "Table", "List") or "items" in answer:
            continue
        if " more" in json.dumps(answer):
            continue
        key = path.removesuffix("/status")
        if request["method"] == "POST":
            key = f"{path}/{answer['metadata'].get('name')}"
        kind = _TYPES.get(request["requestHeaders"].get("Content-Type", ""))
        if request["method"] == "PATCH" and kind and key in seen and request["status"] == 200:
            change = json.loads(body) if isinstance(body, str) else body
            if " more" in json.dumps(change):
                continue
            node = of(answer)
            old = seen[key]
            if kind == "strategic":
                assert node is not None
                new = patch.apply_strategic_patch(old, change, node)
            elif kind == "merge":
                new = patch.apply_merge_patch(old, change)
            else:
                new = patch.apply_json_patch(old, change)
            if node is not None:
                schema.prune(new, node)
                schema.apply_schema_defaults(new, node)
            if new["apiVersion"].startswith("resource.k8s.io/"):
                apply_defaults(new["apiVersion"].partition("/")[2], new["kind"], new)
            assert comparable(new) == comparable(answer), (name, kind, change)
            kinds[kind] += 1
        if "dryRun" not in request["query"] and request["status"] < 300 and request["method"] != "DELETE":
            seen[key] = answer
    assert kinds["strategic"] > 5, kinds
    assert kinds["merge"] > 0, kinds
    assert kinds["json"] > 0, kinds
