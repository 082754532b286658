"""The links between the hosts of TPU pods: those of a claim are linked with each other, and with no others.

Real: :class:`ProgramFabric`, which calls a program of the machine's operator; fabrics have no common interface. Fake:
:class:`FakeFabric`, a folder that remembers what is linked.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec

from drakkar.plugin.files import write_atomically

#: Seconds for one call of the program.
PATIENCE = 60.0


class FabricError(Exception):
    """The fabric cannot be switched so; the message says why."""


class Wiring(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What one device of one claim needs: its hosts and the links among them, nothing to any other host."""

    #: UID of the claim.
    claim: str
    #: TPU pod and device as in the claim's allocation.
    pod: str
    device: str
    hosts: list[str]
    #: Pairs of neighbours.
    links: list[tuple[str, str]]

    @property
    def key(self) -> str:
        """One per claim and device; good for a file's name."""
        return key_of(self.claim, self.pod, self.device)


def key_of(claim: str, pod: str, device: str) -> str:
    """Key of what one device of one claim (by UID) needs."""
    return f"{claim}.{pod}.{device}"


class Fabric(Protocol):
    """All calls block and may raise FabricError; each may be repeated."""

    def connected(self) -> Mapping[str, Wiring]:
        """What is linked, by :attr:`Wiring.key`."""
        ...

    def connect(self, wiring: Wiring) -> None:
        """Link these hosts with each other."""
        ...

    def disconnect(self, wiring: Wiring) -> None:
        """Undo it."""
        ...


class FakeFabric(Fabric):
    """A file per wiring in a folder; a file `fault-HOST` there makes the links of a host unusable, for tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def connected(self) -> Mapping[str, Wiring]:
        found = (_read(path.read_bytes(), str(path)) for path in sorted(self._folder.glob("*.json")))
        return {wiring.key: wiring for wiring in found}

    def connect(self, wiring: Wiring) -> None:
        for other in self.connected().values():
            shared = {*wiring.hosts} & {*other.hosts}
            if shared and other.key != wiring.key:
                raise FabricError(f"host {min(shared)} is linked for claim {other.claim}")
        for host in wiring.hosts:
            if (self._folder / f"fault-{host}").exists():
                raise FabricError(f"the links of host {host} do not come up")
        write_atomically(self._folder / f"{wiring.key}.json", msgspec.json.encode(wiring))

    def disconnect(self, wiring: Wiring) -> None:
        (self._folder / f"{wiring.key}.json").unlink(missing_ok=True)


class ProgramFabric(Fabric):
    """A program that is called as `PROGRAM connect`, `disconnect` (a wiring as JSON on its standard input) and `list`.

    `list` prints the wirings that are linked, one JSON object per line. Another exit status than 0 is a failure, and
    what the program wrote to its standard error says why.
    """

    def __init__(self, program: Path, patience: float = PATIENCE) -> None:
        self._program = program
        self._patience = patience

    def connected(self) -> Mapping[str, Wiring]:
        lines = self._call("list", b"").splitlines()
        found = [_read(line, f"{self._program} list") for line in lines if line.strip()]
        return {wiring.key: wiring for wiring in found}

    def connect(self, wiring: Wiring) -> None:
        self._call("connect", msgspec.json.encode(wiring))

    def disconnect(self, wiring: Wiring) -> None:
        self._call("disconnect", msgspec.json.encode(wiring))

    def _call(self, verb: str, text: bytes) -> bytes:
        try:
            done = subprocess.run(
                [self._program, verb], input=text, capture_output=True, timeout=self._patience, check=False
            )
        except OSError as error:
            raise FabricError(f"{self._program} cannot be run: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise FabricError(f"{self._program} {verb} did not end within {self._patience:g} s") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise FabricError(said[-1] if said else f"{self._program} {verb} ended with {done.returncode}")
        return done.stdout


def neighbours(grid: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Pairs of hosts beside and above each other, in a grid of rows."""
    beside = [(left, right) for row in grid for left, right in pairwise(row)]
    above = [pair for upper, lower in pairwise(grid) for pair in zip(upper, lower, strict=True)]
    return beside + above


def _read(text: bytes, source: str) -> Wiring:
    try:
        return msgspec.json.decode(text, type=Wiring)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise FabricError(f"{source}: {error}") from error
