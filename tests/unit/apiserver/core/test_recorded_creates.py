"""What kube-apiserver 1.37 answered to kubectl's creates, whole bodies with defaults and owners of fields."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl

from drakkar.api.wire import Request
from tests.support.recorded import commands
from tests.unit.apiserver.core.serving import Api

#: Command → why the answer is another.
DIFFERENT = {
    "create taintrule": "the time of a taint is filled in later, so the creator does not own it",
    "run": "tokens of service accounts are not mounted",
    "expose": "the address is another one",
    "create crd": "the definition is established in the answer already",
}

_VARIABLE = ("uid", "resourceVersion", "creationTimestamp", "time", "timeAdded")


def _normal(value: Any, uid: str) -> Any:
    """Without what every cluster makes anew; a Job's labels repeat its uid."""
    if isinstance(value, dict):
        return {key: "" if key in _VARIABLE else _normal(item, uid) for key, item in value.items()}
    if isinstance(value, list):
        return [_normal(item, uid) for item in value]
    return "<uid>" if value == uid else value


def test_creates_answer_as_recorded() -> None:
    async def run() -> tuple[list[str], list[str]]:
        api = await Api.start()
        same: list[str] = []
        other: list[str] = []
        for command in commands("write"):
            for request in command.requests:
                body, expected = request["requestBody"], request["responseBody"]
                if request["method"] != "POST" or request["status"] != 201 or not isinstance(body, dict):
                    continue
                if command.name in ("replace force", "create token"):
                    continue
                query = tuple(parse_qsl(request["query"]))
                headers = {key.lower(): value for key, value in request["requestHeaders"].items()}
                answer = await api.ask(Request("POST", request["path"], query, headers, json.dumps(body).encode()))
                assert answer.status == 201, (command.name, answer.body)
                found = json.loads(answer.body)
                normal = [_normal(one, one["metadata"].get("uid", "")) for one in (found, expected)]
                (same if normal[0] == normal[1] else other).append(command.name)
        await api.close()
        return same, other

    same, other = asyncio.run(run())
    assert sorted(other) == sorted(DIFFERENT)
    assert len(same) >= 11
