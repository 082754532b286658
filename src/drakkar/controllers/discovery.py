"""Which resources a server has, asked live: for duties that span kinds we were not written for."""

from __future__ import annotations

from typing import Any, Protocol

from drakkar.api.errors import ApiError
from drakkar.api.kinds import KINDS, Kind
from drakkar.api.meta import Object
from drakkar.api.wire import Response
from drakkar.client.client import ListResult
from drakkar.client.codec import decode_json


class Server(Protocol):
    """What is needed of a client beyond reading single objects."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any: ...

    async def list(self, kind: Kind, namespace: str | None = None) -> ListResult: ...

    async def update(self, kind: Kind, obj: Any, subresource: str | None = None) -> Any: ...

    async def send(self, method: str, path: str) -> Response: ...


async def resources(server: Server, group_version: str) -> list[Object]:
    """Entries of one group version, subresources left out; empty when the server does not serve it."""
    path = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
    try:
        found = decode_json((await server.send("GET", path)).body)
    except ApiError as error:
        if error.code == 404:
            return []
        raise
    return [resource for resource in found.get("resources") or () if "/" not in resource["name"]]


async def find_kind(server: Server, group_version: str, kind: str) -> Kind | None:
    """The resource of a kind; None when the server does not serve it."""
    group, _, version = group_version.rpartition("/")
    for resource in await resources(server, group_version):
        if resource["kind"] == kind:
            return Kind(group, version, kind, resource["name"], bool(resource["namespaced"]))
    return None


async def find_plural(server: Server, group: str, plural: str) -> Kind | None:
    """The resource of this name, in its preferred version; our own kinds are known without asking."""
    known = next((kind for kind in KINDS if (kind.group, kind.plural) == (group, plural)), None)
    if known is not None:
        return known
    version = "v1"
    if group:
        groups = decode_json((await server.send("GET", "/apis")).body).get("groups") or ()
        found = next((entry for entry in groups if entry["name"] == group), None)
        if found is None:
            return None
        version = found["preferredVersion"]["groupVersion"]
    for resource in await resources(server, version):
        if resource["name"] == plural and "list" in (resource.get("verbs") or ()):
            return Kind(group, version.rpartition("/")[2], resource["kind"], plural, bool(resource["namespaced"]))
    return None


async def namespaced_kinds(server: Server) -> list[Kind]:
    """Every resource with a namespace that can be listed and deleted, in its preferred version."""
    groups = decode_json((await server.send("GET", "/apis")).body).get("groups") or ()
    found: list[Kind] = []
    for group_version in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
        group, _, version = group_version.rpartition("/")
        for resource in await resources(server, group_version):
            verbs = resource.get("verbs") or ()
            if resource["namespaced"] and "delete" in verbs and "list" in verbs:
                found.append(Kind(group, version, resource["kind"], resource["name"], True))
    return found
