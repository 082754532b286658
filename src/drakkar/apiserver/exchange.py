"""What becomes known of one request on its way through the server: for warnings, metrics and the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drakkar.api.wire import Request

if TYPE_CHECKING:
    from drakkar.apiserver.auth import User
    from drakkar.apiserver.routes import RequestInfo


@dataclass(slots=True)
class Exchange:
    """One request; what is not known yet is None."""

    request: Request
    #: Identifies it in the audit log and in the header ``Audit-Id``.
    id: str
    #: When it came: Unix time, and the monotonic clock.
    received: float
    started: float
    info: RequestInfo | None = None
    #: Whether there is such a resource, with such a verb: names that clients make up are not counted one by one.
    known: bool = False
    #: Who asked, and whom that one wanted to be, if anybody.
    user: User | None = None
    impersonated: User | None = None
    warnings: list[str] = field(default_factory=list[str])
    #: For the audit log.
    annotations: dict[str, str] = field(default_factory=dict[str, str])
