"""Writes as data: what a reconciler wants done, before anybody does it.

A reconciler returns a list of these in the order in which they have to happen; the
runner executes them. That keeps reconcilers free of I/O and lets tests compare lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drakkar.api.kinds import Kind


@dataclass(frozen=True, slots=True)
class Create:
    """POST ``obj`` (dict or struct); its namespace is taken from its metadata.

    Where the server refuses, ``refused`` is recorded, ``{error}`` in its message replaced by the server's
    words; a name that exists already is no refusal. ``blame`` makes what has to be patched then, from those words.
    """

    kind: Kind
    obj: Any
    refused: Record | None = None
    blame: Callable[[str], Patch | None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Patch:
    """PATCH; conditional when ``body`` names ``metadata.resourceVersion`` or ``metadata.uid``.

    ``where_served``: an older server may not have the subresource; there the patch is left out.
    """

    kind: Kind
    namespace: str
    name: str
    body: Any
    type: str = "merge"  # merge | json | strategic | apply
    subresource: str | None = None
    where_served: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE with preconditions; ``grace`` in seconds, ``propagation`` Background, Foreground or Orphan."""

    kind: Kind
    namespace: str
    name: str
    uid: str | None = None
    resource_version: str | None = None
    grace: int | None = None
    propagation: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An Event about ``obj``; ``type`` is Normal or Warning. Losing one is not an error."""

    kind: Kind
    obj: Any
    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class After:
    """Reconcile the key again in ``seconds``."""

    seconds: float


Write = Create | Patch | Delete | Record | After
