"""What the kit found, for people and for machines."""

from __future__ import annotations

from typing import Literal

import msgspec

#: `failed`: a rule is broken. `warning`: allowed, and somebody will be sorry. `not run`: nothing to try it on.
Status = Literal["ok", "failed", "warning", "not run"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check; `message` says what is wrong, or why it was not run, `cure` what helps."""

    check: str
    status: Status
    rule: str
    message: str = ""
    cure: str = ""
    seconds: float = 0.0

    def text(self) -> str:
        """A line, and details below where there are some."""
        lines = [f"{self.status:8} {self.check:28} {self.rule}"]
        lines += [f"{'':8} {line}" for line in self.message.splitlines()]
        if self.cure:
            lines.append(f"{'':8} cure: {self.cure}")
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
        shown: tuple[Status, ...] = ("ok", "failed", "warning", "not run")
        count = {status: sum(f.status == status for f in self.findings) for status in shown}
        parts = [f"{number} {status}" for status, number in count.items() if number or status != "warning"]
        return f"{self.driver}: {', '.join(parts)}"

    def text(self) -> str:
        """A line per check, details below those that failed, a total last."""
        return "\n".join([*(finding.text() for finding in self.findings), self.total()])
