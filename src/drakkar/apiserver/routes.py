"""From a path and a method to what is asked: the same attributes that authorization judges.

Kubernetes' paths are regular, so splitting them is all the routing there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from drakkar.api.wire import Request


@dataclass(slots=True)
class RequestInfo:
    """What one request addresses. ``verb`` is that of RBAC; ``resource`` is empty for other paths."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    #: What follows the subresource (proxy).
    rest: str = ""
    #: As the request has it; narrows what a node may list or watch.
    field_selector: str = ""

    @property
    def is_resource(self) -> bool:
        return self.resource != ""


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def parse(request: Request, query: Mapping[str, str]) -> RequestInfo:
    """Reads method and path. Everything outside ``/api/v1/…`` and ``/apis/…/…/…`` is no resource."""
    parts = [unquote(part) for part in request.path.split("/")[1:]] or [""]
    method = request.method
    info = RequestInfo(method.lower(), request.path)
    if parts[0] == "api" and len(parts) > 2:
        info.version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        info.group, info.version, rest = parts[1], parts[2], parts[3:]
    else:
        return info
    if not rest[0]:
        return info
    watching = False
    if rest[0] == "watch" and len(rest) > 1:
        watching, rest = True, rest[1:]
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        info.namespace, rest = rest[1], rest[2:]
    info.resource = rest[0]
    if len(rest) > 1:
        info.name = rest[1]
    if len(rest) > 2:
        info.subresource = rest[2]
        info.rest = "/".join(rest[3:])
    if info.resource == "namespaces" and info.group == "":
        info.namespace = info.name
    if method in ("GET", "HEAD"):
        if watching or query.get("watch") in ("true", "1"):
            info.verb = "watch"
        else:
            info.verb = "get" if info.name else "list"
        info.field_selector = query.get("fieldSelector") or ""
    elif method == "DELETE" and not info.name:
        info.verb = "deletecollection"
    else:
        info.verb = _VERBS.get(method, method.lower())
    return info
