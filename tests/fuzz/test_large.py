"""Bodies up to the limit, made of the longest lists and maps a kind knows, are answered in moments.

Nothing is measured: a step that looks through a list for each element of another takes minutes
for these, and then the time limit ends the test. Upstream bounds the same bodies by size alone.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from drakkar.api.wire import Request
from drakkar.apiserver.server import BODY_LIMIT
from tests.unit.apiserver.core.serving import Api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

N = 25_000
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

ENV = [{"name": f"e{i}", "value": "v"} for i in range(N)]
FINALIZERS = [f"a.b/k{i}" for i in range(N)]
OWNERS = [{"apiVersion": "v1", "kind": "Pod", "name": f"n{i}", "uid": f"u{i}"} for i in range(N // 2)]


def pod(spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", **container}], **(spec or {})},
    }


def configmap(meta: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", **(meta or {})}, **parts}


def claim(devices: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "spec": {"devices": devices}}


REQUEST = {"name": "r", "exactly": {"deviceClassName": "x"}}
USES = [{"name": f"c{i}"} for i in range(N // 2)]

#: Steps on one server: method, path, kind of body, body.
STORIES: dict[str, list[tuple[str, str, str, Any]]] = {
    "create": [
        ("POST", PODS, "", pod(env=ENV)),
        ("POST", PODS, "", pod({"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(N)]})),
        ("POST", PODS, "", {**pod(), "metadata": {"name": "o", "ownerReferences": OWNERS}}),
        ("POST", PODS, "", pod({"containers": [{"name": f"c{i}", "image": "i"} for i in range(N)]})),
        (
            "POST",
            PODS,
            "",
            pod({"resourceClaims": [{**use, "resourceClaimName": "x"} for use in USES]}, resources={"claims": USES}),
        ),
        ("POST", CLAIMS, "", claim({"requests": [{**REQUEST, "name": f"r{i}"} for i in range(N)]})),
        (
            "POST",
            CLAIMS,
            "",
            claim({"requests": [REQUEST], "constraints": [{"matchAttribute": f"x.y/a{i}"} for i in range(N)]}),
        ),
        ("POST", MAPS, "", configmap({"labels": {f"-k{i}": "-" for i in range(N)}})),
    ],
    "strategic merge": [
        ("POST", PODS, "", pod(env=ENV)),
        ("PATCH", f"{PODS}/p", "strategic-merge", pod(env=[{**entry, "value": "w"} for entry in ENV])),
        ("PATCH", f"{PODS}/p", "strategic-merge", pod(**{"env": ENV, "$setElementOrder/env": ENV[::-1]})),
        ("PATCH", f"{PODS}/p", "strategic-merge", pod(env=[{"name": e["name"], "$patch": "delete"} for e in ENV])),
        ("PATCH", f"{PODS}/p", "strategic-merge", {"metadata": {"finalizers": FINALIZERS}}),
        ("PATCH", f"{PODS}/p", "strategic-merge", {"metadata": {"finalizers": [*reversed(FINALIZERS)]}}),
        (
            "PATCH",
            f"{PODS}/p",
            "strategic-merge",
            {"metadata": {"$deleteFromPrimitiveList/finalizers": FINALIZERS[1:]}},
        ),
        (
            "PATCH",
            f"{PODS}/p",
            "strategic-merge",
            {"metadata": {"labels": {"$retainKeys": FINALIZERS, **dict.fromkeys(FINALIZERS, "v")}}},
        ),
    ],
    "apply": [
        ("PATCH", f"{PODS}/p", "apply", pod(env=ENV)),
        ("PATCH", f"{PODS}/p", "apply", pod(env=ENV[::-1])),
        ("PATCH", f"{MAPS}/m", "apply", configmap(data={f"k{i}": "v" for i in range(N)})),
        ("PATCH", f"{MAPS}/m", "apply", configmap(data={f"q{i}": "v" for i in range(N)})),
        ("PATCH", f"{MAPS}/m", "apply", configmap()),
        ("PATCH", f"{MAPS}/m", "apply", configmap({"finalizers": FINALIZERS})),
        ("PATCH", f"{MAPS}/m", "apply", configmap({"finalizers": FINALIZERS[1::2]})),
        ("DELETE", f"{MAPS}/m", "", None),
        ("PATCH", f"{MAPS}/m", "merge", {"metadata": {"finalizers": FINALIZERS[1::4]}}),
    ],
    "json patch": [
        ("POST", PODS, "", pod(env=[])),
        (
            "PATCH",
            f"{PODS}/p",
            "json",
            [{"op": "add", "path": "/spec/containers/0/env/0", "value": {"name": f"e{i}"}} for i in range(10_000)],
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_long_lists(story: str) -> None:
    async def run() -> list[int]:
        api = await Api.start()
        answers: list[int] = []
        for method, path, kind, value in STORIES[story]:
            body = json.dumps(value).encode() if value is not None else b""
            assert len(body) < BODY_LIMIT
            media = "application/apply-patch+yaml" if kind == "apply" else f"application/{kind}-patch+json"
            headers = {"content-type": media if kind else "application/json"}
            response = await api.ask(Request(method, path, (("fieldManager", "m"),), headers, body))
            assert response.status < 500, response.body[:300]
            answers.append(response.status)
        await api.close()
        return answers

    assert set(asyncio.run(run())) & {200, 201, 422}
