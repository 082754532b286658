"""Who asks: client certificates and bearer tokens.

Certificates are verified by TLS before they get here; the subject's common name is the user,
its organizations are the groups. Tokens of components are kept in memory only, one per component and
start; others have their sources (`drakkar.apiserver.tokens`: service accounts; a file of the administrator).
A wrong credential is refused even where none would have been needed.
"""

from __future__ import annotations

import csv
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from drakkar.api.errors import UsageError
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


def static_tokens(path: str | os.PathLike[str]) -> Callable[[str], User | None]:
    """The tokens of a file as kube-apiserver takes it: lines of token, user, uid and, quoted, groups.

    Raises UsageError that names the line.
    """
    owners: dict[str, User] = {}
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--token-auth-file {path}: {why}; it holds lines of token,user,uid") from None
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        if len(row) < 3 or not row[0] or not row[1]:
            raise UsageError(f'--token-auth-file {path}: line {number} needs token,user,uid[,"group,group"]')
        groups = tuple(name.strip() for name in row[3].split(",") if name.strip()) if len(row) > 3 else ()
        if row[0] in owners:
            raise UsageError(f"--token-auth-file {path}: line {number} repeats a token")
        owners[row[0]] = User(row[1], (*groups, AUTHENTICATED), row[2])
    return owners.get


ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


class Authenticator:
    """Knows the tokens that were handed out; ``now`` tells the time in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens: dict[str, tuple[User, float]] = {}
        self._peers: dict[tuple[str, tuple[str, ...]], User] = {}
        #: Know the owners of other tokens: service accounts', bootstrap tokens.
        self.sources: list[Callable[[str], User | None]] = []

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
        if held is not None:
            return held[0] if held[1] > self._now() else None
        for source in self.sources:
            user = source(token)
            if user is not None:
                return user
        return None

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
