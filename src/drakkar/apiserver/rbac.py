"""Who may do what."""

from __future__ import annotations

from drakkar.apiserver import status
from drakkar.apiserver.auth import MASTERS, User
from drakkar.apiserver.cache import State
from drakkar.apiserver.routes import RequestInfo
from drakkar.apiserver.status import StatusError


class Authorizer:
    """Judges requests."""

    def __init__(self, state: State):
        self._state = state

    def check(self, user: User, info: RequestInfo) -> None:
        """StatusError 403 when the user may not do that."""
        if MASTERS in user.groups:
            return
        resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        text = f'User "{user.name}" cannot {info.verb} resource "{resource}" in API group "{info.group}"'
        text += f' in the namespace "{info.namespace}"' if info.namespace else " at the cluster scope"
        raise StatusError(status.forbidden(info.group, info.resource, info.name, text))
