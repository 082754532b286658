"""Verbs of the Kubernetes API over any transport.

Waits out what the server asks to wait out (``Retry-After``) and repeats reads when the
connection breaks; a write that got no answer is never repeated here, because the caller
alone knows whether that is safe. What the server says about missing rights and credentials
is kept in :attr:`Client.rights`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import Kind
from drakkar.api.wire import Request, Response
from drakkar.client.access import Rights
from drakkar.client.clock import SystemClock
from drakkar.client.codec import (
    decode_envelope,
    decode_json,
    decode_known,
    decode_list,
    decode_object,
    encode,
    error_of,
    meta,
)
from drakkar.client.transport import TimedOut, Transport, Unreachable

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}

#: Attempts of one request, the first included.
ATTEMPTS = 5
#: Longest wait that a server can impose, in seconds.
LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class ListResult:
    """A list and the revision at which it was true."""

    items: list[Any]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; the object of a bookmark is a dict."""

    type: str
    object: Any


class Client:
    """One identity at one API server; see the architecture page for the verbs."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        role: str = "",
        lasting: bool = True,
    ):
        """``role`` is the name of the roles that the owner of this client should have, for what is said of them.

        ``lasting``: whether the owner tries again what it is refused.
        """
        self.transport = transport
        self.clock: Clock = clock or SystemClock()
        self.rights = Rights(self.clock, role, lasting=lasting)
        self._rng = rng or random.Random()

    async def close(self) -> None:
        """Closes the transport."""
        await self.transport.close()

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        content_type: str = "application/json",
    ) -> Response:
        """One request, repeated while the server says Retry-After; raises ApiError or Unreachable."""
        headers = {"accept": "application/json"}
        if body:
            headers["content-type"] = content_type
        pairs = tuple((key, value) for key, value in (query or {}).items() if value != "")
        request = Request(method, path, pairs, headers, body)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                response = await self.transport.request(request)
            except TimedOut:
                # Waited for long enough; again and again would be minutes.
                raise
            except Unreachable:
                if method != "GET" or attempt == ATTEMPTS:
                    raise
                await self.clock.sleep(self._pause(attempt))
                continue
            if response.status < 400:
                if self.rights:
                    self.rights.answered(request)
                return response
            wait = self._wait_for(method, response, attempt)
            if wait is None or attempt == ATTEMPTS:
                error = error_of(response)
                self.rights.refused(request, error)
                raise error
            await self.clock.sleep(wait)
        raise AssertionError("unreachable")

    def _pause(self, attempt: int) -> float:
        return min(0.1 * 2**attempt, 5.0) * (0.5 + self._rng.random())

    def _wait_for(self, method: str, response: Response, attempt: int) -> float | None:
        """Seconds to wait before the next attempt; None: the answer is final."""
        if response.status == 429 or response.status >= 500:
            after = response.headers.get("retry-after", "")
            if after.isdigit():
                # Not all at the same moment; and "0" is no invitation to ask without a pause.
                return max(min(float(after), LONGEST_WAIT) * (1 + self._rng.random() / 4), self._pause(1))
            if method == "GET" and response.status in (502, 503, 504):
                return self._pause(attempt)
        return None

    async def get(self, kind: Kind, name: str, namespace: str | None = None, subresource: str | None = None) -> Any:
        """One object."""
        response = await self.send("GET", kind.path(namespace, name, subresource))
        return decode_object(kind, response.body)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        *,
        limit: int = 0,
    ) -> ListResult:
        """All objects, in pages of ``limit`` when given; a list that expires half-way is read anew in one piece."""
        query = {"labelSelector": label_selector, "fieldSelector": field_selector}
        items: list[Any] = []
        token = ""
        while True:
            paging = {"limit": str(limit) if limit else "", "continue": token}
            try:
                response = await self.send("GET", kind.path(namespace), {**query, **paging})
            except ApiError as error:
                if error.code == 410 and token:
                    return await self.list(kind, namespace, label_selector, field_selector)
                raise
            page = decode_list(response.body)
            items.extend(obj for item in page.items or () if (obj := decode_known(kind, item)) is not None)
            token = page.metadata.continue_
            if not token:
                return ListResult(items, page.metadata.resourceVersion)

    async def create(
        self,
        kind: Kind,
        obj: Any,
        namespace: str | None = None,
        subresource: str | None = None,
        *,
        dry_run: bool = False,
    ) -> Any:
        """POST; with ``subresource`` (binding, eviction, token) to the object that ``obj`` names, answering a dict."""
        namespace = namespace or meta(obj, "namespace") or None
        path = kind.path(namespace, meta(obj, "name") if subresource else None, subresource)
        response = await self.send("POST", path, {"dryRun": "All" if dry_run else ""}, encode(obj))
        return decode_json(response.body) if subresource else decode_object(kind, response.body)

    async def update(self, kind: Kind, obj: Any, subresource: str | None = None) -> Any:
        """PUT; conditional when the metadata names a resourceVersion."""
        path = kind.path(meta(obj, "namespace") or None, meta(obj, "name"), subresource)
        return decode_object(kind, (await self.send("PUT", path, body=encode(obj))).body)

    async def patch(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        body: Any,
        type: str = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Any:
        """PATCH; ``type`` is merge, json, strategic or apply (which needs ``field_manager``)."""
        query = {"fieldManager": field_manager or "", "force": "true" if force else ""}
        path = kind.path(namespace, name, subresource)
        response = await self.send("PATCH", path, query, encode(body), PATCH_TYPES[type])
        return decode_object(kind, response.body)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace: int | None = None,
        propagation: str | None = None,
    ) -> dict[str, Any]:
        """DELETE; answers what the server sent: the object while it is still going, or a Status."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if uid or resource_version:
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation:
            options["propagationPolicy"] = propagation
        response = await self.send("DELETE", kind.path(namespace, name), body=encode(options))
        return decode_json(response.body)

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        *,
        resource_version: str = "",
        send_initial_events: bool = False,
        timeout: int | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events until the server ends the stream; bookmarks included.

        Raises ApiError for an ERROR event (410 Expired: list again) and Unreachable when the stream breaks.
        With ``send_initial_events`` the state comes first and ends with a bookmark (WatchList).
        An object that does not decode is logged and left out, so that one bad object does not stop a component.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout) if timeout else "",
        }
        if send_initial_events:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        response = await self.send("GET", kind.path(namespace), query)
        if response.stream is None:
            raise Unreachable(f"the server did not answer the watch of {kind.plural} with a stream")
        rest = b""
        try:
            async for chunk in response.stream:
                lines = (rest + chunk if rest else chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    event = _event(kind, line) if line else None
                    if event is not None:
                        yield event
        finally:
            close = getattr(response.stream, "aclose", None)
            if close is not None:
                await close()


def _event(kind: Kind, line: bytes) -> WatchEvent | None:
    frame = decode_envelope(line)
    if frame.type == "ERROR":
        status = decode_json(frame.object)
        raise ApiError(status if isinstance(status, dict) else {"message": str(status), "code": 500})
    if frame.type == "BOOKMARK":
        return WatchEvent(frame.type, decode_json(frame.object))
    obj = decode_known(kind, frame.object)
    return None if obj is None else WatchEvent(frame.type, obj)
