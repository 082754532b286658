"""Older servers: resource.k8s.io in the version that a server has, for components that know v1.

A component asks for v1. Where a server answers that it knows no such resource, its discovery says which of the
versions of `drakkar.api.resource.conversion` it has; from then on paths name that one, and bodies are converted on
their way, both ways. A server that is upgraded below a running component leads to the same question again.

Fields that a version or a server does not have are not this module's business: they are missed by who wrote them.
One thing that only an old version has is: see :func:`_without_unreadable_selector`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec

from drakkar.api.kinds import DEVICECLASS, DEVICETAINTRULE, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE
from drakkar.api.resource.conversion import GROUP, VERSIONS, convert
from drakkar.api.tree import child
from drakkar.api.wire import Request, Response
from drakkar.client.codec import decode_json, encode
from drakkar.client.transport import Transport

logger = logging.getLogger(__name__)

#: The resources that are served in several versions, by the name in a path.
_KINDS = {
    kind.plural: kind.kind
    for kind in (RESOURCESLICE, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, DEVICECLASS, DEVICETAINTRULE)
}
_ROOT = f"/apis/{GROUP}"
#: Fields by which a DeviceTaintRule of 1.34 narrows what it means.
_NARROWING = {"deviceClassName", "selectors"}


class Versions:
    """A transport that speaks to ``inner`` in the version of resource.k8s.io that the server there has."""

    def __init__(self, inner: Transport):
        self._inner = inner
        #: Plural -> the version it is served in, where that is not the one asked for.
        self._served: dict[str, str] = {}
        self._asking = asyncio.Lock()

    async def close(self) -> None:
        """Closes the inner transport."""
        await self._inner.close()

    async def request(self, request: Request) -> Response:
        """The server's answer, in the version that was asked for."""
        wanted, plural = _resource(request.path)
        if plural not in _KINDS or wanted != VERSIONS[_KINDS[plural]][0]:
            # Somebody who asks for another version has it from discovery.
            return await self._inner.request(request)
        known = self._served.get(plural, wanted)
        response = await self._exchange(request, plural, wanted, known)
        if not _is_unknown(response):
            return response
        async with self._asking:
            # Whoever waited here finds the answer.
            if self._served.get(plural, wanted) == known:
                await self._discover(plural, wanted, request)
        served = self._served.get(plural, wanted)
        return response if served == known else await self._exchange(request, plural, wanted, served)

    async def _exchange(self, request: Request, plural: str, wanted: str, served: str) -> Response:
        if served == wanted:
            return await self._inner.request(request)
        kind = _KINDS[plural]
        path = f"{_ROOT}/{served}/" + request.path.removeprefix(f"{_ROOT}/{wanted}/")
        body = _converted(request.body, kind, wanted, served) if request.body else b""
        response = await self._inner.request(replace(request, path=path, body=body))
        if response.stream is not None:
            response.stream = _frames(response.stream, lambda obj: _one(obj, kind, served, wanted))
        elif response.status < 400:
            response.body = _converted(response.body, kind, served, wanted)
        return response

    async def _discover(self, plural: str, wanted: str, request: Request) -> None:
        """Learns in which of the known versions the server has the resource, best first; none: nothing changes."""
        headers = {key: value for key, value in request.headers.items() if key != "content-type"}
        group = await self._inner.request(Request("GET", _ROOT, headers=headers))
        if group.status != 200:
            return
        offered = {version.get("version") for version in decode_json(group.body).get("versions") or ()}
        for version in VERSIONS[_KINDS[plural]]:
            if version not in offered:
                continue
            listed = await self._inner.request(Request("GET", f"{_ROOT}/{version}", headers=headers))
            names = decode_json(listed.body).get("resources") or () if listed.status == 200 else ()
            if any(resource.get("name") == plural for resource in names):
                if self._served.get(plural, wanted) != version:
                    logger.info("%s: this server has them in %s/%s", plural, GROUP, version)
                self._served[plural] = version
                return


def _resource(path: str) -> tuple[str, str]:
    """Version and plural of a path below resource.k8s.io; empty for other paths."""
    parts = path.split("/")
    if len(parts) < 5 or parts[1:3] != ["apis", GROUP]:
        return "", ""
    rest = parts[6:] if parts[4] == "namespaces" else parts[4:]
    return parts[3], rest[0] if rest else ""


def _is_unknown(response: Response) -> bool:
    """Whether the server does not know the resource at all; an object that is missing is named in the Status."""
    if response.status != 404 or response.stream is not None:
        return False
    try:
        status = decode_json(response.body)
    except msgspec.DecodeError:
        return True
    return not (isinstance(status, dict) and (status.get("details") or {}).get("name"))


def _converted(body: bytes, kind: str, source: str, target: str) -> bytes:
    """A body with one object, a patch of one, or a list of them; everything else (Status, DeleteOptions) as it is."""
    obj = decode_json(body)
    if not isinstance(obj, dict):
        return body
    if obj.get("kind") == f"{kind}List" and "items" in obj:
        items = [_one(item, kind, source, target) for item in obj["items"] or ()]
        return encode({**obj, "apiVersion": f"{GROUP}/{target}", "items": items})
    return encode(_one(obj, kind, source, target))


def _one(obj: Any, kind: str, source: str, target: str) -> Any:
    if not isinstance(obj, dict) or obj.get("kind", kind) != kind:
        return obj
    if set(obj) == {"kind", "apiVersion", "metadata"}:
        # A bookmark.
        return {**obj, "apiVersion": f"{GROUP}/{target}"}
    if kind == DEVICETAINTRULE.kind and source == "v1alpha3":
        obj = _without_unreadable_selector(obj)
    return convert(obj, kind, source, target)


def _without_unreadable_selector(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule of Kubernetes 1.34 that means devices by class or CEL: no later version can say that.

    Without these fields it would mean many more devices, and pods would be evicted from all of them. Without a selector
    it means none.
    """
    asked = _NARROWING & {key for key, value in child(rule, "spec", "deviceSelector").items() if value}
    if not asked:
        return rule
    name = child(rule, "metadata").get("name")
    message = "DeviceTaintRule %s selects by %s, which only Kubernetes 1.34 knows: it is taken as a rule for no device"
    logger.warning(message + "; name devices by driver, pool and device", name, " and ".join(sorted(asked)))
    return {**rule, "spec": {key: value for key, value in rule["spec"].items() if key != "deviceSelector"}}


async def _frames(stream: AsyncIterator[bytes], change: Callable[[Any], Any]) -> AsyncIterator[bytes]:
    """A watch with the object of every frame changed."""
    rest = b""
    try:
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line:
                    frame = decode_json(line)
                    yield encode({**frame, "object": change(frame.get("object"))}) + b"\n"
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
