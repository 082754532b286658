"""Requests that schemathesis derives from OpenAPI documents: ours, and those of kube-apiserver 1.37."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

from drakkar.api.wire import Request
from tests.support.shared import shared_path
from tests.unit.apiserver.core.serving import Api

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # Of schemathesis' own dependencies.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

GROUP_VERSIONS = [
    "apis/resource.k8s.io/v1",
    "apis/resource.k8s.io/v1beta1",
    "apis/resource.k8s.io/v1alpha3",
    "apis/scheduling.k8s.io/v1",
    "apis/authorization.k8s.io/v1",
    "apis/coordination.k8s.io/v1",
]
#: Requests per operation.
EXAMPLES = 2


def _theirs(group_version: str) -> dict[str, Any]:
    name = "v3__" + group_version.replace("/", "__") + ".json.gz"
    return json.loads(gzip.decompress(shared_path(f"spec/openapi/{name}").read_bytes()))


async def _ours(group_version: str) -> dict[str, Any]:
    api = await Api.start()
    found = await api.get(f"/openapi/v3/{group_version}")
    await api.close()
    return found


def _request(case: Any) -> Request:
    """The request of a case; parts that no HTTP client could send are left out."""
    found = case.as_transport_kwargs(base_url="http://localhost")
    body = found.get("data") or b""
    if found.get("json") is not None:
        body = json.dumps(found["json"])
    query = tuple((name, str(value)) for name, value in (found.get("params") or {}).items())
    headers = {str(name).lower(): str(value) for name, value in (found.get("headers") or {}).items()}
    headers.setdefault("content-type", "application/json")
    if not isinstance(body, (str, bytes)):
        # Parts of a form; no media type of ours is one.
        body = json.dumps(body, default=str)
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return Request(found["method"], urlsplit(found["url"]).path, query, {**headers, "accept": "application/json"}, data)


@pytest.mark.parametrize("document", ["ours", "theirs"])
@pytest.mark.parametrize("group_version", GROUP_VERSIONS)
def test_operations(group_version: str, document: str) -> None:
    source = _theirs(group_version) if document == "theirs" else asyncio.run(_ours(group_version))
    schema = schemathesis.openapi.from_dict(source)
    with asyncio.Runner() as runner:
        api = runner.run(Api.start())
        asked = 0
        for result in schema.get_all_operations():
            operation = result.ok()

            @seed(37)
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(operation.as_strategy())
            def ask(case: Any) -> None:
                nonlocal asked
                request = _request(case)
                response = runner.run(asyncio.wait_for(api.ask(request), 20))
                asked += 1
                if response.stream is not None:
                    runner.run(response.stream.aclose())  # type: ignore[attr-defined]
                elif response.status >= 400 and response.headers["content-type"].startswith("application/json"):
                    answer = json.loads(response.body)
                    assert answer["kind"] == "Status"
                    assert response.status < 500 or "Too large resource version" in answer["message"], answer
                else:
                    assert response.status < 500

            ask()
        runner.run(api.close())
    assert asked > 0
