"""Checkpoints: what a restarted driver knows, whatever happened before."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drakkar.plugin import files
from drakkar.plugin.checkpoint import CheckpointError, Checkpoints, PreparedDevice, Record, Torn, boot_id

STARTED = Record(claimUID="u1", claimNamespace="ns", claimName="c", state="prepare-started", bootID="")
DEVICE = PreparedDevice(requestNames=["r"], poolName="p", deviceName="d", cdiDeviceIDs=["v.io/c=u1-d"], shareID="s")


def test_states_survive_a_restart(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path / "cp", boot="b1")
    assert first.load("u1") is None
    saved = first.save(STARTED)
    assert saved.bootID == "b1"
    assert Checkpoints(tmp_path / "cp", boot="b1").load("u1") == saved
    done = first.save(msgspec.structs.replace(saved, state="prepared", devices=[DEVICE], driver={"slot": 3}))
    again = Checkpoints(tmp_path / "cp", boot="b2")
    assert again.all() == {"u1": done}
    assert not again.of_this_boot(done)
    assert first.of_this_boot(done)
    assert again.remove("u1")
    assert not again.remove("u1")
    assert again.all() == {}


def test_every_torn_file_is_recognised(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, boot="b")
    store.save(msgspec.structs.replace(STARTED, devices=[DEVICE]))
    path = tmp_path / "u1.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert isinstance(store.load("u1"), Torn), length
    path.write_bytes(whole.replace(b"ns", b"nt"))
    assert store.all() == {"u1": Torn("u1", f"{path}: the checksum does not match")}
    path.write_bytes(whole)
    path.rename(tmp_path / "u2.json")
    assert isinstance(store.load("u2"), Torn)
    assert store.save(msgspec.structs.replace(STARTED, claimUID="u2")) == store.load("u2")


def test_a_crash_while_writing_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(tmp_path, boot="b")
    saved = store.save(STARTED)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        store.save(msgspec.structs.replace(STARTED, state="prepared"))
    assert len(list(tmp_path.iterdir())) == 2
    again = Checkpoints(tmp_path, boot="b")
    assert again.all() == {"u1": saved}
    assert again.remove("u1")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(tmp_path, boot="b")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        store.save(STARTED)
    assert list(tmp_path.iterdir()) == []


def test_older_is_migrated_newer_is_refused_untouched(tmp_path: Path) -> None:
    Checkpoints(tmp_path, boot="b").save(msgspec.structs.replace(STARTED, driver={"gpu": 1}))

    def rename(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "driver": {"device": data["driver"]["gpu"]}}

    newer = Checkpoints(tmp_path, boot="b", schema_version=2, migrations={1: rename})
    record = newer.load("u1")
    assert isinstance(record, Record)
    assert record.driver == {"device": 1}
    newer.save(record)
    content = (tmp_path / "u1.json").read_bytes()
    assert json.loads(content)["schemaVersion"] == 2
    older = Checkpoints(tmp_path, boot="b")
    for act in (lambda: older.load("u1"), older.all, lambda: older.save(STARTED), lambda: older.remove("u1")):
        with pytest.raises(CheckpointError, match="newer than 1"):
            act()
    assert (tmp_path / "u1.json").read_bytes() == content
    with pytest.raises(CheckpointError, match="older than 3"):
        Checkpoints(tmp_path, boot="b", schema_version=3).load("u1")


def test_a_newer_form_is_refused_too(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, boot="b")
    (tmp_path / "u1.json").write_text('{"schemaVersion": 9, "shape": []}')
    with pytest.raises(CheckpointError, match="schemaVersion 9"):
        store.load("u1")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a gap"):
        Checkpoints(tmp_path, boot="b", schema_version=3, migrations={1: dict})
    for uid in ("", "../x", ".x"):
        with pytest.raises(CheckpointError, match="name of a file"):
            Checkpoints(tmp_path, boot="b").load(uid)


def test_the_boot_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("abc\n")
    assert boot_id(tmp_path / "boot_id") == "abc"
