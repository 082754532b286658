"""Calling a webhook over HTTPS, by URL or by a Service.

There is no proxy of Services in an embedded plane: a Service is followed to the addresses of its
endpoint slices, or of the ready pods it selects, and the certificate is checked against
``<service>.<namespace>.svc`` as everywhere.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drakkar.api.objects import condition_is, is_deleting
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, child, children, text, texts
from drakkar.apiserver.cache import State
from drakkar.client.trust import trusting

if TYPE_CHECKING:
    import aiohttp

Object = dict[str, Any]

#: Largest answer of a webhook, in bytes.
ANSWER_LIMIT = 3 << 20
_SERVICE_NAME = "kubernetes.io/service-name"


class CallFailed(Exception):
    """A webhook gave no usable answer; the text says why and of which webhook's address it is."""


@dataclass(frozen=True, slots=True)
class _Target:
    url: str
    #: The name in the certificate, where it is not the host of the URL.
    server_name: str | None = None


class Caller:
    """Posts reviews; keeps connections and TLS settings."""

    def __init__(self, state: State):
        self._state = state
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Closes what is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, client: Object, body: bytes, timeout: float) -> bytes:
        """The body of the answer; CallFailed. ``timeout`` is in seconds and holds for everything together."""
        import aiohttp

        target = self._target(client)
        shown = f'failed to call webhook: Post "{target.url}?timeout={timeout:g}s"'
        try:
            context = self._context(text(client, "caBundle"))
        except (ssl.SSLError, ValueError) as error:
            raise CallFailed(f"{shown}: caBundle holds no certificates: {error}") from None
        if self._session is None:
            # No limit: a slow webhook must not keep those of other webhooks waiting.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        try:
            async with (
                asyncio.timeout(timeout),
                self._session.post(
                    target.url,
                    params={"timeout": f"{timeout:g}s"},
                    data=body,
                    headers={"content-type": "application/json", "accept": "application/json"},
                    ssl=context,
                    server_hostname=target.server_name,
                    allow_redirects=False,
                ) as answer,
            ):
                found = await _read(answer)
                if answer.status != 200:
                    said = found[:200].decode("utf-8", "replace").strip()
                    raise CallFailed(f"{shown}: the webhook answered {answer.status}{f': {said}' if said else ''}")
                return found
        except TimeoutError:
            raise CallFailed(f"{shown}: no answer within {timeout:g} seconds") from None
        except aiohttp.ClientError as error:
            raise CallFailed(f"{shown}: {error}") from None

    def _context(self, bundle: str) -> ssl.SSLContext:
        found = self._contexts.get(bundle)
        if found is None:
            pem = base64.b64decode(bundle, validate=True).decode("ascii") if bundle else None
            found = trusting(pem)
            if len(self._contexts) > 256:
                self._contexts.clear()
            self._contexts[bundle] = found
        return found

    # Services.

    def _target(self, client: Object) -> _Target:
        url = text(client, "url")
        if url:
            return _Target(url)
        service = child(client, "service")
        namespace, name, path = text(service, "namespace"), text(service, "name"), text(service, "path")
        port = at(service, "port") or 443
        host = f"{name}.{namespace}.svc"
        shown = f"https://{host}:{port}/{path.lstrip('/')}"
        table = self._state.tables["/core/services/"]
        entry = table.entries.get(f"{namespace}/{name}")
        if entry is None:
            raise CallFailed(f'failed to call webhook: Post "{shown}": service "{name}" not found')
        found = table.decode(entry)
        if text(found, "spec", "type") == "ExternalName":
            return _Target(f"https://{text(found, 'spec', 'externalName')}:{port}/{path.lstrip('/')}", host)
        wanted = next((item for item in children(found, "spec", "ports") if item.get("port") == port), None)
        if wanted is None:
            raise CallFailed(f'failed to call webhook: Post "{shown}": service "{name}" has no port {port}')
        address = self._from_slices(namespace, name, wanted) or self._from_pods(namespace, found, wanted)
        if address is None:
            text_ = (
                f'failed to call webhook: Post "{shown}": no endpoints available for service "{name}"; it needs a ready'
                " pod or an EndpointSlice with an address that this server can reach, or use clientConfig.url"
            )
            raise CallFailed(text_)
        return _Target(f"https://{address}/{path.lstrip('/')}", host)

    def _from_slices(self, namespace: str, name: str, wanted: Object) -> str | None:
        table = self._state.tables["/discovery.k8s.io/endpointslices/"]
        for key in table.keys(namespace):
            entry = table.entries[key]
            if (entry.labels or {}).get(_SERVICE_NAME) != name:
                continue
            found = table.decode(entry)
            for port in children(found, "ports"):
                if (port.get("name") or "") != (wanted.get("name") or "") or not port.get("port"):
                    continue
                for endpoint in children(found, "endpoints"):
                    if at(endpoint, "conditions", "ready") is not False and texts(endpoint, "addresses"):
                        return _host(texts(endpoint, "addresses")[0], port["port"])
        return None

    def _from_pods(self, namespace: str, service: Object, wanted: Object) -> str | None:
        labels = child(service, "spec", "selector")
        if not labels:
            return None
        selector = LabelSelector.from_object({"matchLabels": labels})
        table = self._state.tables["/core/pods/"]
        for key in table.keys(namespace):
            if not selector.matches(table.entries[key].labels or {}):
                continue
            pod = table.decode(table.entries[key])
            address = text(pod, "status", "podIP")
            port = _target_port(pod, wanted)
            if address and port and condition_is(pod, "Ready") and not is_deleting(pod):
                return _host(address, port)
        return None


def _target_port(pod: Object, wanted: Object) -> int | None:
    target = wanted.get("targetPort") or wanted.get("port")
    if isinstance(target, int):
        return target
    for container in children(pod, "spec", "containers"):
        for port in children(container, "ports"):
            if port.get("name") == target:
                return port.get("containerPort")
    return None


def _host(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body, up to the limit; CallFailed beyond."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > ANSWER_LIMIT:
            raise CallFailed(f"the answer of the webhook has more than {ANSWER_LIMIT} bytes")
        parts.append(part)
    return b"".join(parts)
