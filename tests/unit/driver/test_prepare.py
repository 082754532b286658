"""A driver behind the framework, asked as a kubelet asks."""

import asyncio
import fcntl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from drakkar.api.errors import DrakkarError
from drakkar.api.resource import v1
from drakkar.client.clock import SystemClock
from drakkar.driver.claimstatus import ClaimStatus
from drakkar.driver.driver import AllocatedDevice, Driver, Health, PrepareError
from drakkar.driver.prepare import Preparer
from drakkar.plugin import cdi, wire
from drakkar.plugin.checkpoint import Checkpoints, PreparedDevice, Record


class Speed(msgspec.Struct, forbid_unknown_fields=True):
    level: int


class Hello(Driver):
    name = "hello.example.com"
    metadata = False
    configs = {("hello.example.com/v1", "Speed"): Speed}

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.crash: BaseException | None = None

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> list[cdi.ContainerEdits]:
        self.calls.append(f"prepare {claim.metadata.uid}")
        if self.crash:
            raise self.crash
        return [cdi.ContainerEdits(env=[f"HELLO={device.result.device} {device.configs}"]) for device in devices]

    def discover(self) -> list[v1.Device]:
        return [v1.Device(name="d")]

    def unprepare(self, claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:
        self.calls.append(f"unprepare {claim.uid} {[device.deviceName for device in devices]}")


def claim(uid: str = "u1", **config: Any) -> v1.ResourceClaim:
    entries = [
        {"source": source, "opaque": {"driver": Hello.name, "parameters": parameters}, "requests": ["r"]}
        for source, parameters in config.items()
    ]
    results = [{"request": "r/sub", "driver": Hello.name, "pool": "p", "device": "d"}]
    devices = {"results": [*results, {**results[0], "driver": "other"}], "config": entries}
    found = {"metadata": {"name": "c", "uid": uid}, "status": {"allocation": {"devices": devices}}}
    return msgspec.convert(found, v1.ResourceClaim)


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder, self.driver, self.claim = folder, Hello(), claim()
        self.start("b1")

    def start(self, boot: str) -> None:
        self.checkpoints = Checkpoints(self.folder / "claims", boot=boot)
        self.preparer = Preparer(
            self.driver,
            lambda namespace, name: self.claim if name == "c" else None,
            self.checkpoints,
            folder=self.folder,
            cdi_folder=self.folder / "cdi",
        )

    def ask(self, name: str = "c", uid: str = "u1") -> wire.NodePrepareResourceResponse:
        return self.preparer.prepare([wire.Claim("ns", uid, name)]).claims[uid]

    def leave(self) -> str:
        return self.preparer.unprepare([wire.Claim("ns", "u1", "c")]).claims["u1"].error


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_prepared_once_answered_always_undone(node: Node) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: node.ask(), range(16)))
    expected = wire.Device(["r"], "p", "d", ["hello.example.com/device=u1-0"])
    assert all(answer == wire.NodePrepareResourceResponse([expected]) for answer in answers)
    node.start("b1")
    assert node.ask() == answers[0]
    assert node.driver.calls == ["prepare u1"]
    edits = cdi.SpecFolders([node.folder / "cdi"]).resolve(expected.cdi_device_ids)
    assert edits[-1].env == ["HELLO=d []"]
    assert node.leave() == node.leave() == ""
    assert node.driver.calls[1:] == ["unprepare u1 ['d']"]
    assert list((node.folder / "cdi").iterdir()) == list((node.folder / "claims").iterdir()) == []


def test_two_instances_never_give_one_device_to_two_claims(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    new = Node(node.folder)
    new.claim = claim("u2")
    save = node.checkpoints.save

    def meanwhile(*args: Any, **options: Any) -> Record:
        monkeypatch.undo()
        # The old instance has looked and seen the device free when the new one gives it away.
        assert new.ask(uid="u2").error == ""
        return save(*args, **options)

    monkeypatch.setattr(node.checkpoints, "save", meanwhile)
    assert node.ask().error == "prepare of claim ns/c: device p/d is prepared for claim ns/c (UID u2)"
    assert node.driver.calls == []
    assert node.checkpoints.claims() == {"u2"}
    assert new.preparer.unprepare([wire.Claim("ns", "u2", "c")]).claims["u2"].error == ""
    assert node.ask().error == ""


def test_a_crash_between_is_taken_up_again(node: Node) -> None:
    node.driver.crash = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        node.ask()
    node.driver.crash = None
    node.start("b1")
    record = node.checkpoints.load("u1")
    assert isinstance(record, Record)
    assert record.state == "prepare-started"
    assert node.ask().error == ""
    node.start("b2")  # After a reboot what was set up is gone.
    assert node.ask().error == ""
    assert node.driver.calls == ["prepare u1"] * 3
    (node.folder / "claims" / "u1.json").write_text("{")
    assert node.leave() == ""
    assert node.driver.calls[-1] == "unprepare u1 []"


def test_behind_a_call_that_hangs_others_end_with_an_error(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drakkar.driver.prepare._BUSY", 0.01)
    begun, go_on = Event(), Event()

    def hang(claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> list[cdi.ContainerEdits]:
        begun.set()
        assert go_on.wait(10)
        return [cdi.ContainerEdits() for _ in devices]

    monkeypatch.setattr(node.driver, "prepare", hang)
    other = Node(node.folder)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(node.ask)
        try:
            assert begun.wait(10)
            assert "another call for the claim is still at work" in node.ask().error
        finally:
            go_on.set()
        assert first.result().error == ""
    # Another process: locks of one keep its own threads out by other means.
    monkeypatch.setattr("fcntl.lockf", _refused)
    assert "the other instance of the driver is still at work" in other.leave()


def _refused(_file: int, operation: int, *_place: int) -> None:
    if operation & fcntl.LOCK_NB:
        raise BlockingIOError


def test_records_of_a_newer_driver_are_left_to_it(node: Node) -> None:
    assert node.ask().error == ""
    newer = Checkpoints(node.folder / "claims", boot="b1", schema_version=2)
    theirs = Record(claimUID="u9", claimNamespace="ns", claimName="theirs", state="prepared", bootID="")
    newer.save(theirs)
    assert node.preparer.prepared().keys() == {"u1"}
    with pytest.raises(DrakkarError, match="run the newer driver"):
        node.preparer.known()
    # Which devices they hold is not known, so none is given away; what is ours can be undone.
    node.claim = claim("u2")
    assert "schemaVersion 2 is newer" in node.ask(uid="u2").error
    assert node.leave() == ""
    assert node.checkpoints.claims() == {"u9"}


def test_what_a_crash_leaves_under_a_name_of_its_own_goes_with_the_claim(node: Node, monkeypatch: Any) -> None:
    def dies_at(count: int) -> None:
        left = iter(range(count, 0, -1))

        def hit(point: str) -> None:
            if next(left, 0) == 1:
                raise KeyboardInterrupt  # As a kill: nothing is tidied up.

        monkeypatch.setattr("drakkar.plugin.files.hit", hit)

    node.driver.metadata = True
    # The first record, the file of the device, and the file that mounts its metadata.
    for count in (1, 2, 3):
        node.start("b1")
        dies_at(count)
        with pytest.raises(KeyboardInterrupt):
            node.ask()
        unfinished = [path for path in node.folder.glob("*/.*.new")]
        assert len(unfinished) == 1, count
        monkeypatch.undo()
        node.start("b1")
        assert node.leave() == ""
        assert [path for path in node.folder.glob("*/*") if path.is_file()] == []


def test_metadata_that_a_power_cut_has_spoilt_stops_nobody(node: Node) -> None:
    node.driver.metadata = True
    assert node.ask().error == ""
    (file,) = node.folder.glob("dra-device-metadata/*/*/metadata.json")
    files = node.preparer.metadata
    assert files.update("", "c", "p", "d", {"drakkar.dev/health": {"string": "Degraded"}})
    for spoilt in (b"", b"\xff\xfe", file.read_bytes()[:40]):
        file.write_bytes(spoilt)
        assert not files.update("", "c", "p", "d", {"drakkar.dev/health": None}), spoilt
        node.start(f"b{len(spoilt)}")
        assert node.ask().error == ""
        assert b"metadata.resource.k8s.io" in file.read_bytes()


def test_of_a_healthy_device_nobody_is_asked(node: Node) -> None:
    read: list[str] = []

    class Api:
        async def get(self, kind: Any, name: str, namespace: str) -> Any:
            read.append(name)
            return node.claim

    def tell(state: Any) -> None:
        asyncio.run(statuses.tell_holders(node.preparer, lambda _pool, _device: Health(state)))

    api: Any = Api()
    statuses = ClaimStatus(Hello.name, "n1", api, SystemClock())
    assert node.ask().error == ""
    tell("Healthy")
    assert read == []
    # Whoever finds the claim prepared cannot know what its status says.
    node.start("b1")
    statuses = ClaimStatus(Hello.name, "n1", api, SystemClock())
    tell("Healthy")
    tell("Healthy")
    assert read == ["c"]


def test_waits_for_the_disk_are_few(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr("drakkar.plugin.files.os.fsync", waits.append)
    node.driver.metadata = True
    assert node.ask().error == ""
    # The first record with its name; the second is no worse than the first after a power cut.
    assert len(waits) == 3


def test_what_is_wrong_is_said(node: Node) -> None:
    assert node.ask("gone").error == "prepare of claim ns/gone: the claim does not exist"
    assert "replaced" in node.ask(uid="u2").error
    node.claim = v1.ResourceClaim(metadata=node.claim.metadata)
    assert "not allocated" in node.ask().error
    node.claim = claim(FromClaim={"apiVersion": "x/v1", "kind": "Y"})
    assert "x/v1 Y is not known" in node.ask().error
    speed = {"apiVersion": "hello.example.com/v1", "kind": "Speed"}
    node.claim = claim(FromClaim={**speed, "level": 1, "lvl": 2})
    assert "config[0].opaque.parameters: Object contains unknown field `lvl`" in node.ask().error
    assert node.driver.calls == []
    node.driver.crash = PrepareError("no power")
    node.claim = claim(FromClaim={**speed, "level": 2}, FromClass={**speed, "level": 1})
    assert node.ask().error == "prepare of claim ns/c: no power"
    node.driver.crash = None
    assert node.ask().error == ""
    edits = cdi.SpecFolders([node.folder / "cdi"]).resolve(["hello.example.com/device=u1-0"])
    assert edits[-1].env == ["HELLO=d [Speed(level=1), Speed(level=2)]"]


def test_over_a_socket(node: Node) -> None:
    pytest.importorskip("grpc", reason="needs the extra node")
    from drakkar.plugin.grpc_client import SocketClient
    from drakkar.plugin.grpc_server import SocketServer, dra_services

    async def main() -> None:
        async with SocketClient(server.socket) as client:
            for version in (wire.DRA_V1, wire.DRA_V1BETA1):
                claims = [wire.Claim("ns", "u1", "c"), wire.Claim("ns", "u9", "gone")]
                answers = await client.prepare(version, claims)
                assert answers["u1"].devices[0].device_name == "d"
                assert "does not exist" in answers["u9"].error
            assert {answer.error for answer in (await client.unprepare(wire.DRA_V1, claims)).values()} == {""}

    server = SocketServer(node.folder / "dra.sock", dra_services(node.preparer.prepare, node.preparer.unprepare))
    server.start()
    try:
        asyncio.run(main())
    finally:
        server.stop()
