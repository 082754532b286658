"""What admission knows about a write beside its objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drakkar.apiserver.auth import User
from drakkar.apiserver.catalog import Served

Object = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Attributes:
    """One write by a client. The server's own writes have none and pass by policies and webhooks."""

    #: ``CREATE``, ``UPDATE``, ``DELETE`` or ``CONNECT``.
    operation: str
    served: Served
    namespace: str
    name: str
    subresource: str
    user: User
    #: CreateOptions, UpdateOptions, PatchOptions or DeleteOptions as they are passed on.
    options: Object = field(default_factory=dict[str, Any])
    dry_run: bool = False
    #: Group, version and kind of the object where it is not that of the resource (``Scale``, ``Eviction``).
    kind: tuple[str, str, str] | None = None
    #: For the client, as ``Warning`` headers.
    warnings: list[str] = field(default_factory=list[str])
    #: For the audit log.
    annotations: dict[str, str] = field(default_factory=dict[str, str])

    def warn(self, text: str) -> None:
        """Adds a warning, each text once."""
        if text not in self.warnings:
            self.warnings.append(text)
