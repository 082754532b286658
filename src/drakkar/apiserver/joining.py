"""What lets a machine join: bootstrap tokens, and requests for certificates that name who made them.

A bootstrap token is ``ID.SECRET``; it stands in the Secret ``kube-system/bootstrap-token-ID`` of type
``bootstrap.kubernetes.io/token``, as kubeadm makes them. Its owner is ``system:bootstrap:ID`` in the group
``system:bootstrappers``.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from drakkar.apiserver.auth import AUTHENTICATED, User
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Stored

Object = dict[str, Any]

_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")
_REQUESTS = "/certificates.k8s.io/certificatesigningrequests/"


def bootstrap_users(state: State, now: Callable[[], float]) -> Callable[[str], User | None]:
    """A function that knows the owner of a bootstrap token."""

    def user_of(token: str) -> User | None:
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        table = state.tables["/core/secrets/"]
        entry = table.entries.get(f"kube-system/bootstrap-token-{match.group(1)}")
        if entry is None:
            return None
        secret = table.decode(entry)
        if secret.get("type") != "bootstrap.kubernetes.io/token" or secret["metadata"].get("deletionTimestamp"):
            return None
        data = {
            name: base64.b64decode(value or "").decode("latin-1") for name, value in (secret.get("data") or {}).items()
        }
        if data.get("token-id") != match.group(1) or not hmac.compare_digest(
            data.get("token-secret", ""), match.group(2)
        ):
            return None
        if data.get("usage-bootstrap-authentication") != "true" or _expired(data.get("expiration", ""), now()):
            return None
        extra = [group for group in data.get("auth-extra-groups", "").split(",") if _GROUP.fullmatch(group)]
        return User(f"system:bootstrap:{match.group(1)}", ("system:bootstrappers", *extra, AUTHENTICATED))

    return user_of


def _expired(given: str, now: float) -> bool:
    if not given:
        return False
    try:
        return datetime.fromisoformat(given).timestamp() <= now
    except ValueError:
        return True


def name_requester(stored: Stored, user: User, obj: Object) -> None:
    """In a new request for a certificate: who makes it, whatever it says itself."""
    if stored.prefix != _REQUESTS or not isinstance(obj.get("spec"), dict):
        return
    spec: Object = obj["spec"]
    for field in ("username", "uid", "groups", "extra"):
        spec.pop(field, None)
    spec["username"] = user.name
    spec["groups"] = list(user.groups)
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra}
    obj.pop("status", None)
