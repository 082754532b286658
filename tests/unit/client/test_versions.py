"""Servers that have resource.k8s.io in older versions only: ours, asked through a filter that hides newer ones."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from drakkar.api.errors import ApiError
from drakkar.api.kinds import DEVICECLASS, DEVICETAINTRULE, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.wire import Request, Response
from drakkar.apiserver.server import ApiServer
from drakkar.client import Caches, Client, MemoryTransport, SystemClock
from drakkar.client.versions import Versions
from drakkar.store.memory import MemoryBackend

ROOT = "/apis/resource.k8s.io"
SLICE = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": "one", "attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "1Gi"}}}
        ],
    },
}
CLAIM = {
    "metadata": {"name": "c", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "all", "count": 2}}]}},
}


class Older:
    """A server that hides versions, and remembers the paths that it was asked for."""

    def __init__(self, server: ApiServer, *hidden: str):
        self.hidden = set(hidden)
        self.paths: list[str] = []
        self._server = server

    async def handle(self, request: Request) -> Response:
        self.paths.append(request.path)
        version = request.path.removeprefix(f"{ROOT}/").split("/")[0]
        if request.path.startswith(f"{ROOT}/") and version in self.hidden:
            return Response(404, {"content-type": "text/plain"}, b"404 page not found\n")
        response = await self._server.handle(request)
        if request.path == ROOT:
            group = json.loads(response.body)
            group["versions"] = [each for each in group["versions"] if each["version"] not in self.hidden]
            response = replace(response, body=json.dumps(group).encode())
        return response


async def older(*hidden: str) -> tuple[Older, Client, Client]:
    """Such a server, a client that knows v1 through Versions, and one that sees all versions."""
    server = ApiServer(MemoryBackend(), clock=SystemClock())
    await server.start()
    token = server.token("admin", "system:masters")
    filtered = Older(server, *hidden)
    return (
        filtered,
        Client(Versions(MemoryTransport(filtered.handle, token))),
        Client(MemoryTransport(server.handle, token)),
    )


@pytest.mark.parametrize("hidden", [(), ("v1",), ("v1", "v1beta2")])
def test_all_verbs_in_the_version_that_there_is(hidden: tuple[str, ...]) -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            server, client, other = await older(*hidden)
            served = {0: "v1", 1: "v1beta2", 2: "v1beta1"}[len(hidden)]
            await client.create(DEVICECLASS, {"metadata": {"name": "all"}, "spec": {}})
            made = await client.create(RESOURCESLICE, SLICE)
            assert made.apiVersion == "resource.k8s.io/v1"
            assert made.spec.devices[0].attributes["model"].string == "x"
            assert (await other.get(RESOURCESLICE, "s")).spec == made.spec
            changed = [*SLICE["spec"]["devices"], {"name": "two"}]
            body = {"metadata": {"resourceVersion": made.metadata.resourceVersion}, "spec": {"devices": changed}}
            patched = await client.patch(RESOURCESLICE, "s", None, body)
            assert [device.name for device in patched.spec.devices] == ["one", "two"]
            assert patched.spec.devices[0] == made.spec.devices[0]
            claim = await client.create(RESOURCECLAIM, CLAIM)
            assert claim.spec.devices.requests[0].exactly.count == 2
            assert (await other.get(RESOURCECLAIM, "c", "default")).spec == claim.spec
            (listed,) = (await client.list(RESOURCECLAIM)).items
            assert listed == claim
            caches = Caches(client)
            slices = caches.of(RESOURCESLICE)
            await caches.start()
            await caches.synced()
            seen = slices.get("", "s")
            assert seen is not None
            assert seen.spec == patched.spec
            await other.patch(RESOURCESLICE, "s", None, {"spec": {"devices": changed[1:]}})
            assert await slices.until(lambda: any(len(found.spec.devices or ()) == 1 for found in slices), 5)
            await caches.stop()
            async with aclosing(client.watch(RESOURCECLAIM, send_initial_events=True)) as events:
                first = await anext(events)
                assert (first.type, first.object.spec) == ("ADDED", claim.spec)
            await client.delete(RESOURCESLICE, "s")
            with pytest.raises(ApiError) as refused:
                await client.get(RESOURCESLICE, "s")
            assert refused.value.code == 404
            used = {path.split("/")[3] for path in server.paths if path.startswith(f"{ROOT}/") and "/s" in path}
            assert served in used
            # It is found out once per resource, not with every request.
            assert server.paths.count(ROOT) == (3 if hidden else 0)

    asyncio.run(run())


def test_a_rule_has_its_own_order_of_versions_and_may_be_served_nowhere() -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            _, client, _ = await older("v1", "v1beta2")
            spec: dict[str, Any] = {"deviceSelector": {"driver": "d"}, "taint": {"key": "k", "effect": "NoExecute"}}
            made = await client.create(DEVICETAINTRULE, {"metadata": {"name": "r"}, "spec": spec})
            assert (made.apiVersion, made.spec.taint.key) == ("resource.k8s.io/v1", "k")
            _, client, _ = await older("v1", "v1beta2", "v1alpha3")
            with pytest.raises(ApiError) as refused:
                await client.list(DEVICETAINTRULE)
            assert refused.value.code == 404

    asyncio.run(run())


def test_who_asks_for_an_older_version_gets_it() -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            _, client, _ = await older("v1")
            await client.create(RESOURCECLAIM, CLAIM)
            plain = replace(RESOURCECLAIM, version="v1beta1", type=None)
            found = await client.get(plain, "c", "default")
            assert found["apiVersion"] == "resource.k8s.io/v1beta1"
            assert found["spec"]["devices"]["requests"][0]["count"] == 2

    asyncio.run(run())


def test_a_server_that_is_upgraded_meanwhile() -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            server, client, _ = await older("v1")
            await client.create(RESOURCECLAIM, CLAIM)
            server.hidden = {"v1beta2", "v1beta1"}
            assert (await client.get(RESOURCECLAIM, "c", "default")).apiVersion == "resource.k8s.io/v1"
            server.hidden = set()
            with pytest.raises(ApiError):
                await client.get(RESOURCECLAIM, "other", "default")
            assert (await client.list(RESOURCECLAIM)).items

    asyncio.run(run())


def test_a_taint_rule_that_means_devices_by_class_means_none(caplog: pytest.LogCaptureFixture) -> None:
    """Kubernetes 1.34 has rules that no later version can describe; read without these fields they mean everything."""

    def rule(name: str, **selector: Any) -> dict[str, Any]:
        spec = {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoExecute"}}
        return {"metadata": {"name": name}, "spec": spec}

    items = [
        rule("by-class", driver="d.example.com", deviceClassName="gpu"),
        rule("by-cel", selectors=[{"cel": {"expression": "true"}}]),
        rule("by-name", pool="p"),
    ]

    async def server(request: Request) -> Response:
        kinds = [{"name": "devicetaintrules"}]
        answers: dict[str, Any] = {
            ROOT: {"versions": [{"version": "v1alpha3"}]},
            f"{ROOT}/v1alpha3": {"resources": kinds},
            f"{ROOT}/v1alpha3/devicetaintrules": {"kind": "DeviceTaintRuleList", "metadata": {}, "items": items},
        }
        if request.path not in answers:
            return Response(404, {"content-type": "text/plain"}, b"404 page not found\n")
        return Response(200, {"content-type": "application/json"}, json.dumps(answers[request.path]).encode())

    async def run() -> None:
        client = Client(Versions(MemoryTransport(server, "")))
        found = {each.metadata.name: each.spec.deviceSelector for each in (await client.list(DEVICETAINTRULE)).items}
        assert found["by-class"] is found["by-cel"] is None
        assert found["by-name"] is not None
        assert found["by-name"].pool == "p"

    asyncio.run(run())
    assert "DeviceTaintRule by-class selects by deviceClassName" in caplog.text
    assert "by-name" not in caplog.text
