"""Preparing claims on a node: everything between the kubelet's call and the code of a driver.

:class:`Preparer` reads and checks the claim, decodes configs strictly, sees to it that no other claim has the device,
keeps the record of what was done, writes CDI and metadata files and answers the same when asked again.
"""

import fcntl
import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.driver.config import ConfigProblem, decode_config
from drakkar.driver.driver import AllocatedDevice, Driver, Prepared, PrepareError
from drakkar.driver.holders import Holders
from drakkar.driver.metadata import MetadataDevice, MetadataFiles
from drakkar.plugin import cdi, wire
from drakkar.plugin.checkpoint import CheckpointError, Checkpoints, PreparedDevice, Record
from drakkar.plugin.failpoints import hit
from drakkar.plugin.files import Lasts

logger = logging.getLogger(__name__)

_STRIPES = 256
#: Longest wait in seconds for another call of the same claim, and pause between looks at the other instance's lock. A
#: kubelet gives a call up after 45 and asks again: calls that wait behind one that hangs must not take every thread.
_BUSY, _LOOK = 30.0, 0.01


#: Reads a claim by namespace and name, now and not from a cache; None when there is none.
ReadClaim = Callable[[str, str], v1.ResourceClaim | None]
#: The device of a pool as the driver described it last.
Describe = Callable[[str, str], v1.Device | None]
#: Writes what the driver says about the claim's devices into its status; raises when the API refuses.
Report = Callable[[v1.ResourceClaim, Sequence[v1.AllocatedDeviceStatus]], None]


class Preparer:
    """Answers the DRA service for one driver on one node; fits `plugin.grpc_server.dra_services`.

    `folder` is shared by the two instances of a rolling upgrade; a lock file in it keeps them apart claim by claim.
    """

    def __init__(
        self,
        driver: Driver,
        read_claim: ReadClaim,
        checkpoints: Checkpoints,
        *,
        folder: Path,
        cdi_folder: Path,
        describe: Describe = lambda _pool, _device: None,
        report: Report | None = None,
        also: Callable[[str], cdi.ContainerEdits] | None = None,
        unprepared: Callable[[str], None] | None = None,
    ) -> None:
        """`also` gives edits for every device of a claim (by UID); `unprepared` is told which claim is undone."""
        for key, struct in driver.configs.items():
            if not struct.__struct_config__.forbid_unknown_fields:
                raise ValueError(f"config {key}: {struct.__name__} must be declared with forbid_unknown_fields=True")
        self._driver = driver
        self._read = read_claim
        self._describe = describe
        self._report = report
        self._also = also
        self._unprepared = unprepared
        self._checkpoints = checkpoints
        self._cdi_folder = cdi_folder
        self._kind = f"{driver.name}/device"
        self._holders = Holders(checkpoints)
        self.metadata = MetadataFiles(driver.name, folder, cdi_folder)
        #: Claims prepared in this life whose status says nothing in the driver's name.
        self.untold: set[str] = set()
        #: (operation, "all" | "error") → claims, and operation → seconds they took together.
        self.calls: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {"prepare": 0.0, "unprepare": 0.0}
        self._locks = [Lock() for _ in range(_STRIPES)]
        self._lock_file = os.open(folder / "serialize.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Let the lock file go, after the last call."""
        os.close(self._lock_file)

    def prepare(self, claims: Sequence[wire.Claim]) -> wire.NodePrepareResourcesResponse:
        """An answer for every claim; what is wrong with one does not touch the others."""
        answers: dict[str, wire.NodePrepareResourceResponse] = {}
        for claim in claims:
            with self._counted("prepare"):
                try:
                    answers[claim.uid] = wire.NodePrepareResourceResponse(devices=self._prepare(claim))
                except Exception as error:
                    self.calls["prepare", "error"] += 1
                    answers[claim.uid] = wire.NodePrepareResourceResponse(error=_words("prepare", claim, error))
        return wire.NodePrepareResourcesResponse(answers)

    def unprepare(self, claims: Sequence[wire.Claim]) -> wire.NodeUnprepareResourcesResponse:
        """An answer for every claim; one that is not known is done."""
        answers: dict[str, wire.NodeUnprepareResourceResponse] = {}
        for claim in claims:
            with self._counted("unprepare"):
                try:
                    self._unprepare(claim)
                    answers[claim.uid] = wire.NodeUnprepareResourceResponse()
                except Exception as error:
                    self.calls["unprepare", "error"] += 1
                    answers[claim.uid] = wire.NodeUnprepareResourceResponse(error=_words("unprepare", claim, error))
        return wire.NodeUnprepareResourcesResponse(answers)

    def record(self, uid: str) -> Record | None:
        """The record of a claim; None when there is none that can be read."""
        found = self._checkpoints.load(uid)
        return found if isinstance(found, Record) else None

    def known(self) -> dict[str, Record]:
        """The claims that were begun on this node, by UID. Raises CheckpointError when a newer driver began one."""
        return {uid: record for uid, record in self._checkpoints.all().items() if isinstance(record, Record)}

    def prepared(self) -> dict[str, Record]:
        """The claims that are prepared on this node, by UID, without those of a newer driver: they are its business."""
        found: dict[str, Record] = {}
        for uid in sorted(self._checkpoints.claims()):
            try:
                record = self._checkpoints.load(uid)
            except CheckpointError:
                continue
            if isinstance(record, Record) and record.state == "prepared":
                found[uid] = record
        return found

    def _prepare(self, asked: wire.Claim) -> list[wire.Device]:
        with self._locked(asked.uid):
            known = self._checkpoints.load(asked.uid)
            if isinstance(known, Record) and self._stands(known):
                return [_to_wire(device) for device in known.devices]
            claim = self._claim(asked)
            hit("claim-read")
            devices = self._devices(claim)
            record = Record(
                claimUID=asked.uid,
                claimNamespace=asked.namespace,
                claimName=asked.name,
                state="prepare-started",
                bootID="",
                devices=[_planned(device.result) for device in devices],
            )
            with self._holders.taking(asked.uid, f"{asked.namespace}/{asked.name}", record.devices) as refusal:
                if refusal:
                    raise PrepareError(refusal)
                self._checkpoints.save(record)
            hit("prepare-recorded")
            if known is None and (refusal := self._holders.overtaken(asked.uid)) is not None:
                self._checkpoints.remove(asked.uid)
                raise PrepareError(refusal)
            answers = self._driver.prepare(claim, devices)
            hit("device-prepared")
            if len(answers) != len(devices):
                raise PrepareError(f"driver answered for {len(answers)} of {len(devices)} devices")
            outcomes = [Prepared(edits=a) if isinstance(a, cdi.ContainerEdits) else a for a in answers]
            if not any(entry.driver == self._driver.name for entry in claim.status.devices or ()):
                self.untold.add(asked.uid)
            self._write_status(claim, devices, outcomes)
            hit("status-reported")
            prepared = self._write_cdi(asked.uid, record.devices, [outcome.edits for outcome in outcomes])
            hit("cdi-written")
            prepared = [
                msgspec.structs.replace(device, state=outcome.state)
                for device, outcome in zip(prepared, outcomes, strict=True)
            ]
            if self._driver.metadata:
                prepared = self._write_metadata(claim, devices, outcomes, prepared)
                hit("metadata-written")
            # Without a state of the driver's own, the record before says as much after a power cut: prepare again.
            lasts = Lasts.ALWAYS if any(device.state for device in prepared) else Lasts.OLD_OR_NEW
            self._checkpoints.save(msgspec.structs.replace(record, state="prepared", devices=prepared), lasts=lasts)
            hit("prepare-finished")
            return [_to_wire(device) for device in prepared]

    def _stands(self, record: Record) -> bool:
        """Whether the claim is prepared still: a reboot undoes that, and so does an emptied CDI folder."""
        if record.state != "prepared" or not self._checkpoints.of_this_boot(record):
            return False
        kinds = {cdi.parse_device_id(name)[0] for device in record.devices for name in device.cdiDeviceIDs}
        return self._kind not in kinds or (self._cdi_folder / cdi.file_name(self._kind, record.claimUID)).exists()

    def _unprepare(self, asked: wire.Claim) -> None:
        with self._locked(asked.uid):
            known = self._checkpoints.load(asked.uid)
            if known is None:
                self._checkpoints.remove(asked.uid)  # What a crash has left of the first record.
                return
            devices = known.devices if isinstance(known, Record) else []
            self._driver.unprepare(asked, devices)
            hit("device-unprepared")
            cdi.remove_spec(self._cdi_folder, cdi.file_name(self._kind, asked.uid))
            hit("cdi-removed")
            self.metadata.remove(asked.namespace, asked.name, asked.uid)
            hit("metadata-removed")
            self._checkpoints.remove(asked.uid)
            self.untold.discard(asked.uid)
            hit("record-removed")
            if self._unprepared is not None:
                self._unprepared(asked.uid)

    def _write_status(
        self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice], outcomes: Sequence[Prepared]
    ) -> None:
        entries = [
            v1.AllocatedDeviceStatus(
                driver=device.result.driver,
                pool=device.result.pool,
                device=device.result.device,
                shareID=device.result.shareID,
                data=outcome.data,
                networkData=outcome.network,
                conditions=outcome.conditions or None,
            )
            for device, outcome in zip(devices, outcomes, strict=True)
            if outcome.data is not None or outcome.network is not None or outcome.conditions
        ]
        if entries and self._report is not None:
            self._report(claim, entries)

    def _write_metadata(
        self,
        claim: v1.ResourceClaim,
        devices: Sequence[AllocatedDevice],
        outcomes: Sequence[Prepared],
        prepared: Sequence[PreparedDevice],
    ) -> list[PreparedDevice]:
        described = [
            (
                device.result.request,
                MetadataDevice(
                    driver=device.result.driver,
                    pool=device.result.pool,
                    name=device.result.device,
                    attributes=_attributes(device, outcome),
                    networkData=outcome.network,
                ),
            )
            for device, outcome in zip(devices, outcomes, strict=True)
        ]
        ids = self.metadata.write(claim, described)
        result: list[PreparedDevice] = []
        for device in prepared:
            extra = [ids.pop(name) for name in device.requestNames if name in ids]
            result.append(msgspec.structs.replace(device, cdiDeviceIDs=[*device.cdiDeviceIDs, *extra]))
        return result

    def _claim(self, asked: wire.Claim) -> v1.ResourceClaim:
        claim = self._read(asked.namespace, asked.name)
        if claim is None:
            raise PrepareError("the claim does not exist")
        if claim.metadata.uid != asked.uid:
            raise PrepareError(f"the claim was replaced: its UID is {claim.metadata.uid}, not {asked.uid}")
        if claim.status.allocation is None:
            raise PrepareError("the claim is not allocated")
        return claim

    def _devices(self, claim: v1.ResourceClaim) -> list[AllocatedDevice]:
        allocated = claim.status.allocation.devices if claim.status.allocation else v1.DeviceAllocationResult()
        configs = [
            (config.source != "FromClass", config.requests or [], self._decode(index, config.opaque.parameters))
            for index, config in enumerate(allocated.config or ())
            if config.opaque is not None and config.opaque.driver == self._driver.name
        ]
        configs.sort(key=lambda config: config[0])  # The claim's own word counts more than its class's.
        return [
            AllocatedDevice(
                result=result,
                configs=[value for _, names, value in configs if _applies(names, result)],
                device=self._describe(result.pool, result.device),
            )
            for result in allocated.results or ()
            if result.driver == self._driver.name
        ]

    def _decode(self, index: int, parameters: Mapping[str, Any]) -> msgspec.Struct:
        try:
            return decode_config(self._driver.name, self._driver.configs, parameters)
        except ConfigProblem as problem:
            raise PrepareError(f"config[{index}].opaque.parameters: {problem}") from None

    def _write_cdi(
        self, uid: str, devices: Sequence[PreparedDevice], edits: Sequence[cdi.ContainerEdits]
    ) -> list[PreparedDevice]:
        prepared: list[PreparedDevice] = []
        named: list[cdi.CdiDevice] = []
        if self._also is not None:
            # Every container of the claim has one of its devices, and the runtime joins the edits of a container.
            edits = [_joined(edit, self._also(uid)) for edit in edits]
        for index, (device, edit) in enumerate(zip(devices, edits, strict=True)):
            ids: list[str] = []
            if edit:
                # The UID is part of the name: runtimes remember devices, so a name must never mean something else.
                name = f"{uid}-{index}"
                named.append(cdi.CdiDevice(name=name, containerEdits=edit))
                ids.append(cdi.device_id(self._kind, name))
            prepared.append(msgspec.structs.replace(device, cdiDeviceIDs=ids))
        if named:
            cdi.write_spec(self._cdi_folder, cdi.file_name(self._kind, uid), cdi.build(self._kind, named))
        return prepared

    @contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[operation] += time.monotonic() - begin
        self.calls[operation, "all"] += 1

    @contextmanager
    def _locked(self, uid: str) -> Iterator[None]:
        stripe = zlib.crc32(uid.encode()) % _STRIPES
        # Record locks keep processes apart, not threads.
        if not self._locks[stripe].acquire(timeout=_BUSY):
            raise PrepareError(f"another call for the claim is still at work after {_BUSY:.0f} s")
        try:
            self._lock_between_instances(stripe)
            try:
                yield
            finally:
                fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, stripe)
        finally:
            self._locks[stripe].release()

    def _lock_between_instances(self, stripe: int) -> None:
        deadline = time.monotonic() + _BUSY
        while True:
            try:
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, stripe)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    words = f"the other instance of the driver is still at work on the claim after {_BUSY:.0f} s"
                    raise PrepareError(words) from None
            time.sleep(_LOOK)


def _applies(names: Sequence[str], result: v1.DeviceRequestAllocationResult) -> bool:
    return not names or result.request in names or result.request.partition("/")[0] in names


def _planned(result: v1.DeviceRequestAllocationResult) -> PreparedDevice:
    return PreparedDevice(
        requestNames=[result.request.partition("/")[0]],
        poolName=result.pool,
        deviceName=result.device,
        shareID=result.shareID,
        admin=bool(result.adminAccess),
    )


def _joined(edits: cdi.ContainerEdits, more: cdi.ContainerEdits) -> cdi.ContainerEdits:
    return msgspec.structs.replace(edits, env=[*edits.env, *more.env], hooks=[*edits.hooks, *more.hooks])


def _attributes(device: AllocatedDevice, outcome: Prepared) -> dict[str, v1.DeviceAttribute]:
    if outcome.attributes is not None:
        return outcome.attributes
    return (device.device.attributes if device.device is not None else None) or {}


def _to_wire(device: PreparedDevice) -> wire.Device:
    return wire.Device(device.requestNames, device.poolName, device.deviceName, device.cdiDeviceIDs, device.shareID)


def _words(what: str, claim: wire.Claim, error: Exception) -> str:
    if not isinstance(error, PrepareError):
        logger.error("%s of claim %s/%s failed", what, claim.namespace, claim.name, exc_info=error)
    return f"{what} of claim {claim.namespace}/{claim.name}: {error or type(error).__name__}"
