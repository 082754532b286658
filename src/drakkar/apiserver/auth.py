"""Who asks: client certificates and bearer tokens.

Certificates are verified by TLS before they get here; the subject's common name is the user,
its organizations are the groups. Tokens are kept in memory only, one per component and start.
A wrong credential is refused even where none would have been needed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from drakkar.api.wire import Request
from drakkar.apiserver import status
from drakkar.apiserver.status import StatusError

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class User:
    """A subject: name, groups, and what else is known about it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())


ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


class Authenticator:
    """Knows the tokens that were handed out; ``now`` tells the time in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens: dict[str, tuple[User, float]] = {}
        self._peers: dict[tuple[str, tuple[str, ...]], User] = {}
        #: Knows further tokens, those that stand in the API.
        self.stored: Callable[[str], User | None] = lambda token: None

    def issue(
        self,
        name: str,
        groups: tuple[str, ...] = (),
        *,
        uid: str = "",
        extra: tuple[tuple[str, tuple[str, ...]], ...] = (),
        until: float = inf,
    ) -> str:
        """A new token of this user, valid until a time and while the process lives."""
        if until != inf:
            self._forget_expired()
        token = secrets.token_urlsafe(24)
        self._tokens[token] = (User(name, (*groups, AUTHENTICATED), uid, extra), until)
        return token

    def _forget_expired(self) -> None:
        now = self._now()
        self._tokens = {token: held for token, held in self._tokens.items() if held[1] > now}

    def user_of(self, token: str) -> User | None:
        """The owner of a token that is still good."""
        held = self._tokens.get(token)
        return held[0] if held is not None and held[1] > self._now() else self.stored(token)

    def authenticate(self, request: Request) -> User:
        """The user of a request; anonymous without credentials, StatusError 401 with wrong ones."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() == "bearer":
                token = token.strip()
                user = self.user_of(token)
                if user is not None:
                    return user
                raise StatusError(status.unauthorized())
        if request.peer is not None:
            user = self._peers.get(request.peer)
            if user is None:
                name, organizations = request.peer
                if len(self._peers) > 1000:
                    self._peers.clear()
                user = self._peers[request.peer] = User(name, (*organizations, AUTHENTICATED))
            return user
        if header is not None:
            raise StatusError(status.unauthorized())
        return ANONYMOUS
