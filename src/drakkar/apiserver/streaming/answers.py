"""What the server answers to ``pods/log``, ``exec``, ``attach`` and ``portforward``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drakkar.api.tree import text
from drakkar.api.wire import Request, Response
from drakkar.apiserver import status
from drakkar.apiserver.auth import User
from drakkar.apiserver.routes import RequestInfo
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.streaming.targets import (
    Target,
    endpoint,
    exec_target,
    forward_target,
    log_path,
    node_of,
)

if TYPE_CHECKING:
    from drakkar.apiserver.server import ApiServer
    from drakkar.apiserver.streaming.agents import Agents

#: Subresources of pods that are conversations with an agent.
SUBRESOURCES = frozenset({"log", "exec", "attach", "portforward"})


async def answer(server: ApiServer, request: Request, info: RequestInfo, user: User) -> Response:
    """A log, or a 101 with ``upgrade`` for whoever holds the client's connection. StatusError for the rest."""
    pod = _read(server, "pods", info.namespace, info.name)
    if server.agents is None:
        why = f"{info.subresource} of {info.resource} needs a node agent, to which this server has no connection"
        raise StatusError(status.status_error(501, "NotImplemented", why))
    if info.subresource == "log":
        return await _log(server, server.agents, pod, request)
    upgrade = request.headers.get("upgrade", "").lower()
    if upgrade not in ("websocket", "spdy/3.1"):
        raise StatusError(status.bad_request("Upgrade request required"))
    if info.verb == "get":
        # A WebSocket begins with a GET, but runs commands: it needs the right that a POST needs.
        as_create = RequestInfo("create", info.path, "", info.version, info.resource, info.namespace, info.name)
        as_create.subresource = info.subresource
        server.authorizer.check(user, as_create)
    return Response(101, upgrade=_target(server, pod, request, info.subresource))


async def _log(server: ApiServer, agents: Agents, pod: dict[str, Any], request: Request) -> Response:
    path = log_path(pod, request.query)
    if not text(pod, "spec", "nodeName"):
        # There can be no output yet, which is no error.
        return Response(204)
    return await agents.logs(endpoint(_node(server, pod)) + path)


def _target(server: ApiServer, pod: dict[str, Any], request: Request, subresource: str) -> Target:
    base = endpoint(_node(server, pod))
    if subresource == "portforward":
        if text(pod, "status", "phase") not in ("", "Running"):
            why = f"unable to forward port because pod is not running. Current status={pod['status']['phase']}"
            raise StatusError(status.bad_request(why))
        return forward_target(pod, base)
    if text(pod, "status", "phase") in ("Succeeded", "Failed"):
        why = f"cannot {subresource} into a container in a completed pod; current phase is {pod['status']['phase']}"
        raise StatusError(status.bad_request(why))
    return exec_target(pod, request.query, base, attach=subresource == "attach")


def _node(server: ApiServer, pod: dict[str, Any]) -> dict[str, Any]:
    return _read(server, "nodes", "", node_of(pod))


def _read(server: ApiServer, plural: str, namespace: str, name: str) -> dict[str, Any]:
    served = server.catalog.find("", "v1", plural)
    assert served is not None
    view = server.registry.view(served)
    return view.decode(server.registry.entry(view, namespace, name))
