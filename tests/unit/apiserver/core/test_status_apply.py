"""Server-side apply of a status: what each manager said is its own, also for kinds without a strategy of their own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from drakkar.api.kinds import DEPLOYMENT, RESOURCECLAIM, Kind
from tests.support.eventually import memory_plane

CRD = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False)
THING = Kind("example.com", "v1", "Thing", "things", True)


def _definition() -> dict[str, Any]:
    part = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "up": {"type": "string"}},
    }
    parts = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": part}
    status = {"type": "object", "properties": {"parts": parts}}
    schema = {"type": "object", "properties": {"status": status}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def test_an_entry_goes_with_the_manager_that_no_longer_says_it() -> None:
    async def story() -> None:
        async with memory_plane() as client:
            await client.create(CRD, _definition())
            thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
            await client.create(THING, thing, "default")
            template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
            head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "t"}}
            await client.create(DEPLOYMENT, {**head, "spec": spec}, "default")

            async def said(kind: Kind, manager: str, field: str, entries: list[Any]) -> list[str]:
                body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "t"}}
                body["status"] = {field: entries}
                answer = await client.patch(
                    kind, "t", "default", body, type="apply", subresource="status", field_manager=manager
                )
                managers = {entry["manager"] for entry in answer["metadata"]["managedFields"]}
                assert manager in managers or not entries
                key = "name" if field == "parts" else "type"
                return sorted(entry[key] for entry in answer["status"].get(field) or ())

            for kind, field, one, two in (
                (THING, "parts", {"name": "a", "up": "yes"}, {"name": "b", "up": "no"}),
                (DEPLOYMENT, "conditions", {"type": "a", "status": "True"}, {"type": "b", "status": "True"}),
            ):
                assert await said(kind, "first", field, [one]) == ["a"]
                assert await said(kind, "second", field, [two]) == ["a", "b"]
                assert await said(kind, "first", field, []) == ["b"]

    asyncio.run(story())


def test_what_go_writes_of_itself_is_there_at_once_and_nobodys() -> None:
    """A required text left out is empty, as after any other write: else the next writer of another part changes it."""

    async def story() -> None:
        async with memory_plane() as client:
            claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
            request = {"name": "r", "exactly": {"deviceClassName": "x"}}
            finalizers = ["resource.kubernetes.io/delete-protection"]
            await client.create(
                RESOURCECLAIM,
                {
                    **claim,
                    "metadata": {"name": "c", "finalizers": finalizers},
                    "spec": {"devices": {"requests": [request]}},
                },
                "default",
            )
            place = {"driver": "d.example.com", "pool": "p", "device": "v"}
            status = {"allocation": {"devices": {"results": [{"request": "r", **place}]}}}
            await client.patch(RESOURCECLAIM, "c", "default", {"status": status}, subresource="status")
            said = {"type": "Up", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            body = {**claim, "status": {"devices": [{**place, "conditions": [said]}]}}
            path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
            await client.patch(
                RESOURCECLAIM, "c", "default", body, type="apply", subresource="status", field_manager="m"
            )
            stored = json.loads((await client.send("GET", path)).body)
            assert stored["status"]["devices"][0]["conditions"] == [{**said, "message": ""}]
            assert "f:message" not in json.dumps(stored["metadata"]["managedFields"])
            reserved = {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
            await client.patch(RESOURCECLAIM, "c", "default", reserved, subresource="status")
            after = json.loads((await client.send("GET", path)).body)
            assert after["status"]["devices"] == stored["status"]["devices"]

    asyncio.run(story())
