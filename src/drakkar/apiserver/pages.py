"""Discovery and OpenAPI documents behind their paths."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from drakkar.api.wire import Request, Response
from drakkar.apiserver import discovery
from drakkar.apiserver.tokens import ISSUER

if TYPE_CHECKING:
    from drakkar.apiserver.server import ApiServer

_encode = msgspec.json.Encoder().encode
_HEADERS = {"cache-control": "no-cache, private", "content-type": "application/json"}

_AGGREGATED = {discovery.AGGREGATED_V2: "v2", discovery.AGGREGATED_V2BETA1: "v2beta1"}


def answer(server: ApiServer, request: Request, path: str) -> Response | None:
    """The document, or None where there is none."""
    parts = path.split("/")[1:]
    resources = server.catalog.resources()
    if path in ("/api", "/apis"):
        return _root(request, path, resources)
    match parts:
        case ["api", "v1"]:
            return _json(discovery.api_resource_list("", "v1", resources))
        case ["apis", group]:
            found = discovery.api_group(group, resources)
            return _json(found) if found is not None else None
        case ["apis", group, version]:
            if (group, version) in server.catalog.group_versions:
                return _json(discovery.api_resource_list(group, version, resources))
            return None
        case ["openapi", *rest]:
            return _openapi(request, rest, resources, server.registry.custom.schemas)
        case [".well-known", "openid-configuration"]:
            return _json(
                {
                    "issuer": ISSUER,
                    "jwks_uri": f"{ISSUER}/openid/v1/jwks",
                    "response_types_supported": ["id_token"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["ES256"],
                }
            )
        case ["openid", "v1", "jwks"]:
            return Response(200, {"content-type": "application/jwk-set+json"}, _encode(server.accounts.jwks()))
        case [""]:
            return _json({"paths": _paths(server)})
        case ["metrics"]:
            body = server.metrics.text(server)
            return Response(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, body)
        case _:
            return None


def _json(value: Any) -> Response:
    return Response(200, dict(_HEADERS), _encode(value))


def _root(request: Request, path: str, resources: tuple[discovery.Resource, ...]) -> Response:
    core = path == "/api"
    accept = request.headers.get("accept", "").replace(" ", "")
    for media, version in _AGGREGATED.items():
        if media in accept.split(","):
            body = _encode(discovery.aggregated(core, resources, version))
            etag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
            headers = {"content-type": media, "cache-control": "public", "etag": etag, "vary": "Accept"}
            if request.headers.get("if-none-match") == etag:
                return Response(304, headers)
            return Response(200, headers, body)
    if core:
        return _json(discovery.api_versions(request.headers.get("host", "")))
    return _json(discovery.api_group_list(resources))


def _openapi(
    request: Request,
    rest: list[str],
    resources: tuple[discovery.Resource, ...],
    custom: dict[tuple[str, str, str], dict[str, Any]],
) -> Response | None:
    from drakkar.apiserver import openapi

    if rest == ["v3"]:
        return _tagged(
            request, _encode(openapi.index(resources, custom)), "text/plain; charset=utf-8", "no-cache, private"
        )
    match rest:
        case ["v3", "api", version]:
            group = ""
        case ["v3", "apis", group, version]:
            pass
        case ["v2"]:
            # The answer spells the type without the @, which is no character of media types.
            if openapi.V2_PROTOBUF in request.headers.get("accept", ""):
                return _tagged(
                    request, openapi.v2_protobuf(), openapi.V2_PROTOBUF.replace("@", "."), "no-cache, private"
                )
            return _tagged(request, openapi.v2(resources, custom), "application/json", "no-cache, private")
        case _:
            return None
    body = openapi.document(group, version, resources, custom)
    if body is None:
        return None
    hashed = any(key == "hash" for key, _ in request.query)
    return _tagged(request, body, "application/json", "public, immutable" if hashed else "no-cache, private")


def _tagged(request: Request, body: bytes, media: str, caching: str) -> Response:
    etag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
    headers = {"content-type": media, "cache-control": caching, "etag": etag, "vary": "Accept-Encoding, Accept"}
    if request.headers.get("if-none-match") == etag:
        return Response(304, headers)
    return Response(200, headers, body)


def _paths(server: ApiServer) -> list[str]:
    paths = {"/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz"}
    paths.add("/version")
    for group, version in server.catalog.group_versions:
        if group:
            paths |= {f"/apis/{group}", f"/apis/{group}/{version}"}
    return sorted(paths)
