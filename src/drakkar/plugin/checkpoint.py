"""What a driver has prepared, on disk, so that a crash at any point can be told from what was there before.

One small file per claim, because one growing file is rewritten for every claim. A record is written before the
driver does anything (`prepare-started`) and again when it is done (`prepared`); it goes away after unprepare. So
after a crash: no file, nothing was done; `prepare-started`, anything between nothing and all was done; `prepared`,
all of it.

During a rolling upgrade two instances share the folder; whoever calls `save` or `remove` holds the driver's lock.

A file carries the version of its content outside the checksummed text. A newer one is refused and left alone: the
older program that meets it after a downgrade cannot know what it would destroy. An older one is brought forward by
the functions that the driver gives, and is rewritten when it is next saved.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from drakkar.api.errors import DrakkarError
from drakkar.plugin.files import Lasts, remove, sync_folder, write_atomically

State = Literal["prepare-started", "prepared"]
#: Brings the content of a record from one version to the next.
Migration = Callable[[dict[str, Any]], dict[str, Any]]

_SUFFIX = ".json"


class CheckpointError(DrakkarError):
    """A checkpoint that this program must not touch; the message names the file and the cure."""


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device as a kubelet gets to know it."""

    requestNames: list[str]
    poolName: str
    deviceName: str
    cdiDeviceIDs: list[str] = []
    shareID: str | None = None
    #: Allocated for admin access: others may have it too.
    admin: bool = False
    #: The driver's own business.
    state: dict[str, Any] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim. `bootID` is that of the boot in which it was written; `driver` is the driver's own business."""

    claimUID: str
    claimNamespace: str
    claimName: str
    state: State
    bootID: str
    devices: list[PreparedDevice] = []
    driver: dict[str, Any] = {}


class Torn(msgspec.Struct, frozen=True):
    """The file of a claim that cannot be read: anything between nothing and all was done for it."""

    claimUID: str
    reason: str


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schemaVersion: int
    checksum: int
    data: str


class _VersionOnly(msgspec.Struct, frozen=True):
    schemaVersion: int


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The kernel's name for this boot. Raises OSError."""
    return path.read_text().strip()


class Checkpoints:
    """The records of one driver in a folder of its own (made when absent).

    `migrations[n]` brings the content from version n to n + 1; every version from the oldest that is still read up to
    `schema_version` - 1 must be there. Raises ValueError for a gap.
    """

    def __init__(
        self,
        folder: Path,
        *,
        boot: str,
        schema_version: int = 1,
        migrations: Mapping[int, Migration] | None = None,
    ) -> None:
        self._migrations = dict(migrations or {})
        oldest = min(self._migrations, default=schema_version)
        if schema_version < 1 or sorted(self._migrations) != list(range(oldest, schema_version)):
            raise ValueError(f"migrations must lead from version {oldest} to {schema_version} without a gap")
        self._folder = folder
        self._boot = boot
        self._version = schema_version
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder)

    def save(self, record: Record, *, lasts: Lasts = Lasts.ALWAYS) -> Record:
        """Write a record as one of this boot; returns it when it is as durable as `lasts` says, never THIS_BOOT.

        Raises OSError, and CheckpointError when a newer program's record of the claim lies there.
        """
        path = self._path(record.claimUID)
        self._refuse_newer(path)
        record = msgspec.structs.replace(record, bootID=self._boot)
        data = msgspec.json.encode(record).decode()
        envelope = _Envelope(schemaVersion=self._version, checksum=_checksum(self._version, data), data=data)
        write_atomically(path, msgspec.json.encode(envelope), mode=0o600, lasts=lasts)
        return record

    def load(self, claim_uid: str) -> Record | Torn | None:
        """The record of a claim. Raises CheckpointError when it is of a version that cannot be read."""
        path = self._path(claim_uid)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        version = _version(content)
        if version is None:
            return Torn(claim_uid, f"{path}: no checkpoint")
        self._refuse_version(path, version)
        try:
            envelope = msgspec.json.decode(content, type=_Envelope)
        except msgspec.DecodeError as error:
            return Torn(claim_uid, f"{path}: {error}")
        if envelope.checksum != _checksum(version, envelope.data):
            return Torn(claim_uid, f"{path}: the checksum does not match")
        data = json.loads(envelope.data)
        for step in range(version, self._version):
            data = self._migrations[step](data)
        try:
            record = msgspec.convert(data, Record)
        except msgspec.ValidationError as error:
            raise CheckpointError(f"{path}: version {version} does not lead to a record: {error}") from None
        if record.claimUID != claim_uid:
            return Torn(claim_uid, f"{path}: is the record of claim {record.claimUID}")
        return record

    def remove(self, claim_uid: str) -> bool:
        """Forget a claim; False when nothing was known. Raises CheckpointError for a newer program's record."""
        path = self._path(claim_uid)
        self._refuse_newer(path)
        return remove(path)

    def all(self) -> dict[str, Record | Torn]:
        """Every claim by UID. Raises CheckpointError when one is of a version that cannot be read."""
        found: dict[str, Record | Torn] = {}
        for uid in sorted(self.claims()):
            record = self.load(uid)
            if record is not None:
                found[uid] = record
        return found

    def claims(self) -> set[str]:
        """UIDs of the claims that have a record; cheap."""
        names = os.listdir(self._folder)
        return {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")}

    def of_this_boot(self, record: Record) -> bool:
        """Whether the machine has not been started again since; after that, what was set up in the kernel is gone."""
        return record.bootID == self._boot

    def _path(self, claim_uid: str) -> Path:
        if not claim_uid or claim_uid.startswith(".") or os.sep in claim_uid or "\0" in claim_uid:
            raise CheckpointError(f"claim UID {claim_uid!r} cannot be the name of a file")
        return self._folder / f"{claim_uid}{_SUFFIX}"

    def _refuse_newer(self, path: Path) -> None:
        try:
            version = _version(path.read_bytes())
        except FileNotFoundError:
            return
        if version is not None and version > self._version:
            self._refuse_version(path, version)

    def _refuse_version(self, path: Path, version: int) -> None:
        if version > self._version:
            raise CheckpointError(
                f"{path}: schemaVersion {version} is newer than {self._version}, which this driver writes; "
                "run the newer driver, or drain the node and remove the file"
            )
        oldest = min(self._migrations, default=self._version)
        if version < oldest:
            raise CheckpointError(
                f"{path}: schemaVersion {version} is older than {oldest}, the oldest that this driver reads; "
                "upgrade by way of a version between, or drain the node and remove the file"
            )


def _version(content: bytes) -> int | None:
    # Only the version is looked at here, so that it is recognised in whatever form a newer program writes the rest.
    try:
        return msgspec.json.decode(content, type=_VersionOnly).schemaVersion
    except msgspec.DecodeError:
        return None


def _checksum(version: int, data: str) -> int:
    return zlib.crc32(f"{version}\n{data}".encode())
