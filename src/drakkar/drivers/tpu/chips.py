"""The chips of one host, as its kernel shows them.

Real: :class:`LinuxChips`, not tried on hardware yet. Fake: :class:`FakeChips`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from drakkar.driver import DeviceNode

#: Character devices "for local/experimental use" (Linux, devices.txt): no driver is behind a fake chip.
FAKE_MAJOR = 122


class Chips(Protocol):
    """The narrow interface between the driver and the machine."""

    def nodes(self) -> Sequence[DeviceNode]:
        """One device node per chip that works, by number."""
        ...

    def common(self) -> Sequence[DeviceNode]:
        """What every container with chips needs besides."""
        ...


class LinuxChips(Chips):
    """``/dev/accelN``, or where the chips belong to vfio-pci ``/dev/vfio/N`` with ``/dev/vfio/vfio``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._dev = root / "dev"

    def nodes(self) -> Sequence[DeviceNode]:
        return [DeviceNode(path=path) for path in self._numbered("accel") or self._numbered("vfio/")]

    def common(self) -> Sequence[DeviceNode]:
        return [DeviceNode(path="/dev/vfio/vfio")] if not self._numbered("accel") else []

    def _numbered(self, prefix: str) -> list[str]:
        folder, _, start = prefix.rpartition("/")
        found = [re.fullmatch(rf"{start}([0-9]+)", path.name) for path in (self._dev / folder).glob("*")]
        return [f"/dev/{prefix}{number}" for number in sorted(int(match[1]) for match in found if match)]


class FakeChips(Chips):
    """`count` chips without hardware; a file `gone-N` in the folder takes chip N away."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        folder.mkdir(parents=True, exist_ok=True)

    def nodes(self) -> Sequence[DeviceNode]:
        return [
            DeviceNode(path=f"/dev/accel{number}", type="c", major=FAKE_MAJOR, minor=number, permissions="rw")
            for number in range(self._count)
            if not (self._folder / f"gone-{number}").exists()
        ]

    def common(self) -> Sequence[DeviceNode]:
        return ()
