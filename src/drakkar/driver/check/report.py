"""What the kit found, for people and machines."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "failed", "not run"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check; `message` says what is wrong, or why it was not run."""

    check: str
    status: Status
    rule: str
    message: str = ""
    seconds: float = 0.0

    def text(self) -> str:
        """A line, and details below where there are some."""
        lines = [f"{self.status:8} {self.check:28} {self.rule}"]
        lines += [f"{'':8} {line}" for line in self.message.splitlines()]
        return "\n".join(lines)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All outcomes for one driver."""

    driver: str
    findings: list[Finding]

    @property
    def failed(self) -> list[Finding]:
        """The rules that the driver breaks."""
        return [finding for finding in self.findings if finding.status == "failed"]

    def total(self) -> str:
        """How many rules hold."""
        count = {status: sum(f.status == status for f in self.findings) for status in ("ok", "failed", "not run")}
        return f"{self.driver}: {count['ok']} ok, {count['failed']} failed, {count['not run']} not run"

    def text(self) -> str:
        """A line per check, details below those that failed, a total last."""
        return "\n".join([*(finding.text() for finding in self.findings), self.total()])
