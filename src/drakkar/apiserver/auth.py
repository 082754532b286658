"""Who asks: client certificates and bearer tokens.

Certificates are verified by TLS before they get here; the subject's common name is the user,
its organizations are the groups. Tokens are kept in memory only, one per component and start.
A wrong credential is refused even where none would have been needed.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

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
    """Knows the tokens that were handed out."""

    def __init__(self) -> None:
        self._tokens: dict[str, User] = {}
        self._peers: dict[tuple[str, tuple[str, ...]], User] = {}

    def issue(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """A new token of this user, valid while the process lives."""
        token = secrets.token_urlsafe(24)
        self.accept(token, name, groups)
        return token

    def accept(self, token: str, name: str, groups: tuple[str, ...] = ()) -> None:
        """Accepts a token that somebody else chose."""
        self._tokens[token] = User(name, (*groups, AUTHENTICATED))

    def user_of(self, token: str) -> User | None:
        """The owner of a token."""
        return self._tokens.get(token)

    def authenticate(self, request: Request) -> User:
        """The user of a request; anonymous without credentials, StatusError 401 with wrong ones."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() == "bearer":
                token = token.strip()
                user = self._tokens.get(token)
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
