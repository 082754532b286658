"""Tokens of service accounts (TokenRequest): opaque, bound to the life of the process and to a time."""

from __future__ import annotations

from typing import Any

from drakkar.api.errors import FieldError
from drakkar.apiserver import status
from drakkar.apiserver.auth import Authenticator
from drakkar.apiserver.claims import NODE_KEY
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.times import rfc3339

Object = dict[str, Any]

_SHORTEST, _USUAL, _LONGEST = 600, 3600, 1 << 32
_AUDIENCE = "https://kubernetes.default.svc"


def request_token(authenticator: Authenticator, account: Object, body: Object, now: float, node: str) -> Object:
    """The TokenRequest with its token; ``node`` is that of the pod it is bound to. StatusError 422."""
    meta = account["metadata"]
    spec: Object = body.get("spec") or {}
    seconds = spec.get("expirationSeconds") or _USUAL
    if not _SHORTEST <= seconds <= _LONGEST:
        detail = "may not specify a duration less than 10 minutes"
        if seconds > _LONGEST:
            detail = "may not specify a duration larger than 2^32 seconds"
        fault = FieldError(type="FieldValueInvalid", field="spec.expirationSeconds", value=seconds, detail=detail)
        raise StatusError(status.invalid("authentication.k8s.io", "TokenRequest", meta["name"], [fault]))
    namespace, name = meta["namespace"], meta["name"]
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    extra = ((NODE_KEY, (node,)),) if node else ()
    token = authenticator.issue(
        f"system:serviceaccount:{namespace}:{name}", groups, uid=meta["uid"], extra=extra, until=now + seconds
    )
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace, "uid": meta["uid"], "creationTimestamp": rfc3339(now)},
        "spec": {
            "audiences": spec.get("audiences") or [_AUDIENCE],
            "expirationSeconds": seconds,
            "boundObjectRef": spec.get("boundObjectRef"),
        },
        "status": {"token": token, "expirationTimestamp": rfc3339(now + seconds)},
    }
