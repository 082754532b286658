"""Everything that is no resource: health, version, discovery, OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from drakkar.api.wire import Request, Response
from drakkar.apiserver import status
from drakkar.apiserver.auth import ANONYMOUS, User
from drakkar.apiserver.routes import RequestInfo
from drakkar.apiserver.status import StatusError
from drakkar.version import __version__

if TYPE_CHECKING:
    from drakkar.apiserver.server import ApiServer

_encode = msgspec.json.Encoder().encode
_TEXT = {"content-type": "text/plain; charset=utf-8", "x-content-type-options": "nosniff"}
_HEADERS = {"cache-control": "no-cache, private", "content-type": "application/json"}

#: Open to everybody, credentials or not.
_OPEN = ("/healthz", "/livez", "/readyz", "/version")

VERSION = {
    "major": "1",
    "minor": "37",
    "emulationMajor": "1",
    "emulationMinor": "37",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "36",
    "gitVersion": f"v1.37.2+drakkar.{__version__.replace('+', '.')}",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-11-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}


def not_found() -> Response:
    """What a path gets that nobody serves."""
    return Response(404, dict(_TEXT), b"404 page not found\n")


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(200, {**_HEADERS, **(headers or {})}, _encode(value))


async def answer(server: ApiServer, request: Request, info: RequestInfo, user: User) -> Response:
    """The answer to a request for a path."""
    path = info.path.rstrip("/") or "/"
    root = "/" + path.removeprefix("/").partition("/")[0]
    if root in _OPEN:
        if request.method not in ("GET", "HEAD"):
            raise StatusError(status.method_not_allowed())
        return _health(server, root, path, request.query) if root != "/version" else _version()
    if user is ANONYMOUS:
        raise StatusError(status.unauthorized())
    server.authorizer.check(user, info)
    if request.method not in ("GET", "HEAD"):
        raise StatusError(status.method_not_allowed())
    from drakkar.apiserver import pages

    return pages.answer(server, request, path) or not_found()


def _version() -> Response:
    # Indented, since people read it with `kubectl get --raw /version`.
    return Response(200, dict(_HEADERS), msgspec.json.format(_encode(VERSION), indent=2))


def _health(server: ApiServer, root: str, path: str, query: Sequence[tuple[str, str]]) -> Response:
    """``?verbose`` lists the checks, ``?exclude=NAME`` leaves some out, a path below asks for one."""
    failed = server.committer.failure is not None
    checks = {"ping": True, "store": not failed}
    if root == "/readyz":
        checks |= {"loaded": server.ready, "shutdown": not server.ending}
        if server.peers is not None:
            checks["etcd"] = server.peers.reachable
    for name, value in query:
        if name == "exclude":
            checks.pop(value, None)
    single = path[len(root) + 1 :]
    if single:
        if single not in checks:
            return not_found()
        checks = {single: checks[single]}
    good = all(checks.values())
    if good and not any(name == "verbose" for name, _ in query):
        return Response(200, dict(_TEXT), b"ok")
    lines = [f"[+]{name} ok" if ok else f"[-]{name} failed: reason withheld" for name, ok in checks.items()]
    lines.append(f"{root[1:]} check {'passed' if good else 'failed'}")
    return Response(200 if good else 500, dict(_TEXT), ("\n".join(lines) + "\n").encode())
