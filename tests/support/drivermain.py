"""A driver of ours as a process of its own, for tests that kill it: ``drivermain KIND FOLDER HOOK FLAGS…``.

KIND is `example` or `gpu` (fake GPUs whose partitions are cut on demand). FOLDER stands for the hardware: it outlives
the driver, and a device that is given to two claims at once is written down there. HOOK is a program that the
container runtime is to run at its steps, or empty. FLAGS are those of every driver program.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Hook, Prepared
from drakkar.driver.command import main
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice

#: Steps of a container runtime at which a hook is run, and in which command (runc 1.1 runs the second by create).
HOOKS = {"createRuntime": "create", "poststart": "late-create", "poststop": "delete"}


class Ledger:
    """Who has which device: a file per device in `folder`, and a file with what must never have happened."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def held(self) -> dict[str, str]:
        """Device → UID of its claim."""
        found: dict[str, str] = {}
        for path in self._folder.glob("*.held"):
            try:
                found[path.stem] = path.read_text()
            except FileNotFoundError:  # Given back since.
                continue
        return found

    def faults(self) -> str:
        """What went wrong, a line each."""
        path = self._folder / "faults"
        return path.read_text() if path.exists() else ""

    def take(self, device: str, uid: str) -> None:
        """The claim has the device now; nobody else may have it."""
        owner = self.held().get(device)
        if owner not in (None, "", uid):
            with (self._folder / "faults").open("a") as file:
                file.write(f"{device} is held by {owner} and given to {uid}\n")
        (self._folder / f"{device}.held").write_text(uid)

    def give_back(self, uid: str) -> None:
        """Whatever the claim has is free."""
        for device, owner in self.held().items():
            if owner == uid:
                (self._folder / f"{device}.held").unlink(missing_ok=True)


def kept(driver: Driver, ledger: Ledger, hook: str) -> Driver:
    """`driver`, which notes in `ledger` what it gives away, and says something in the status of every claim.

    Its device nodes are left out: there are none on this machine.
    """
    inner_prepare, inner_unprepare = driver.prepare, driver.unprepare
    hooks = [Hook(hookName=name, path=hook, args=[hook, verb]) for name, verb in HOOKS.items()] if hook else []

    def prepare(claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[ContainerEdits | Prepared]:
        for found in devices:
            ledger.take(found.name, claim.metadata.uid)
        outcomes = [
            Prepared(edits=answer) if isinstance(answer, ContainerEdits) else answer
            for answer in inner_prepare(claim, devices)
        ]
        return [
            msgspec.structs.replace(
                outcome,
                edits=msgspec.structs.replace(outcome.edits, deviceNodes=[], hooks=hooks),
                data={"claim": claim.metadata.uid},
            )
            for outcome in outcomes
        ]

    def unprepare(claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:
        inner_unprepare(claim, devices)
        ledger.give_back(claim.uid)

    driver.prepare, driver.unprepare = prepare, unprepare  # type: ignore[method-assign]
    return driver


def make(kind: str, folder: Path) -> Driver:
    if kind == "example":
        from drakkar.drivers.example import ExampleDriver

        return ExampleDriver()
    from drakkar.drivers.gpu.driver import GpuDriver
    from drakkar.drivers.gpu.fake import FakeHardware

    return GpuDriver(FakeHardware(folder / "gpus", count=2), mig="dynamic")


if __name__ == "__main__":
    kind, where, hook = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    sys.exit(main(kept(make(kind, where), Ledger(where), hook), sys.argv[4:]))
