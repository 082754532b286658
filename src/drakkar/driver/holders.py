"""Which claim has a device of this node, so that a driver never gives it to a second one.

The scheduler sees to that too; this is the last line, for a scheduler that is wrong or was overtaken
(spec/kubelet-protocol.md section 3). The claims' records are the truth: both instances of a rolling upgrade see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from drakkar.plugin.checkpoint import Checkpoints, PreparedDevice, Record

_Key = tuple[str, str]


class Holders:
    """Devices in use. Shares and admin access neither hold a device nor are refused one."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._lock = Lock()
        self._of_claim: dict[str, tuple[str, set[_Key]]] = {}
        # Claims that have taken devices and no record yet.
        self._pending: set[str] = set()

    @contextmanager
    def taking(self, uid: str, name: str, devices: Iterable[PreparedDevice]) -> Iterator[str | None]:
        """Within the block the claim's record is written. Yields what another claim holds, in words, or None."""
        wanted = _held(devices)
        with self._lock:
            self._refresh()
            refusal = self._refusal(uid, wanted)
            if refusal is None:
                self._of_claim[uid] = (name, wanted)
                self._pending.add(uid)
        try:
            yield refusal
        finally:
            self._pending.discard(uid)

    def overtaken(self, uid: str) -> str | None:
        """Whether the other instance of an upgrade gave one of the claim's devices away meanwhile, in words.

        Asked once the claim's record is written: of two instances that do so at the same time, one sees the other.
        """
        with self._lock:
            self._refresh()
            _, wanted = self._of_claim[uid]
            return self._refusal(uid, wanted)

    def _refusal(self, uid: str, wanted: set[_Key]) -> str | None:
        for holder, (name, keys) in self._of_claim.items():
            if holder != uid and (both := keys & wanted):
                pool, device = min(both)
                return f"device {pool}/{device} is prepared for claim {name} (UID {holder})"
        return None

    def _refresh(self) -> None:
        there = self._checkpoints.claims()
        for uid in self._of_claim.keys() - there - self._pending:
            del self._of_claim[uid]
        for uid in there - self._of_claim.keys():
            record = self._checkpoints.load(uid)
            if isinstance(record, Record):
                self._of_claim[uid] = (f"{record.claimNamespace}/{record.claimName}", _held(record.devices))


def _held(devices: Iterable[PreparedDevice]) -> set[_Key]:
    return {(device.poolName, device.deviceName) for device in devices if device.shareID is None and not device.admin}
