"""Images without an engine: the same bytes every time, and what the node agent makes of them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.node.agent.images import Images, ImageSource, NodeConfig
from drakkar.node.agent.layout import open_layout
from drakkar.node.agent.runtime import Image
from drakkar.node.imagewriter import Command, Tree, epoch_of, write_image

COMMAND = Command(entrypoint=("python3", "-m", "app"), env={"B": "2"}, user="65532:65532", labels={"l": "v"})


def tree(folder: Path, *, order: int = 1) -> Path:
    """Files that were made in this or the other order, just now."""
    names = ["lib/a.py", "lib/b.py", "lib.py", "run", "ünïcode", "deep/" + "x" * 150 + "/file"][::order]
    for name in names:
        file = folder / "app" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (folder / "app" / "run").chmod(0o700)
    (folder / "app" / "link").symlink_to("lib/a.py")
    return folder / "app"


def root(folder: Path) -> Path:
    made = folder / "root"
    (made / "usr" / "bin").mkdir(parents=True)
    (made / "usr" / "bin" / "python3").write_text("#!")
    (made / "usr" / "bin" / "python3").chmod(0o4755)
    (made / "bin").symlink_to("usr/bin")
    os.mkfifo(made / "pipe")
    return made


def everything(layout: Path) -> dict[str, str]:
    return {
        str(file.relative_to(layout)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(layout.rglob("*"))
        if file.is_file()
    }


def build(out: Path, base: Path, app: Path, *, epoch: int = 1_700_000_000) -> str:
    return write_image(out, base, [Tree(app, "opt/app")], COMMAND, name="app:1", epoch=epoch)


def unpacked(folder: Path, layout: Path, ref: str = "app:1") -> Image:
    source = ImageSource(layout=str(layout), ref=ref)
    config = NodeConfig(apiVersion="drakkar.dev/v1alpha1", kind="NodeConfig", images={"app": source})
    return Images(folder / "images", config).get("app")


def test_two_builds_are_equal(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    first = build(tmp_path / "a", root(tmp_path / "1"), tree(tmp_path / "1"))
    before = os.umask(0o077)
    try:
        app = tree(tmp_path / "2", order=-1)
    finally:
        os.umask(before)
    for file in app.rglob("*"):
        os.utime(file, (time.time() + 1000, time.time() + 1000), follow_symlinks=False)
    second = build(tmp_path / "b", root(tmp_path / "2"), app)
    assert first == second
    assert everything(tmp_path / "a") == everything(tmp_path / "b")
    # The time is part of it, and so is what is in a file.
    third = build(tmp_path / "c", tmp_path / "2" / "root", app, epoch=1_700_000_001)
    (app / "run").write_text("other")
    assert len({first, third, build(tmp_path / "d", tmp_path / "2" / "root", app)}) == 3


def test_the_node_agent_reads_it(tmp_path: Path) -> None:
    build(tmp_path / "out", root(tmp_path), tree(tmp_path))
    image = unpacked(tmp_path, tmp_path / "out")
    assert image.entrypoint == ("python3", "-m", "app")
    assert {"B=2"} < {*image.env}
    assert (image.user, image.cwd) == ("65532:65532", "/")
    assert image.root is not None
    assert (image.root / "opt" / "app" / "lib" / "a.py").read_text() == "lib/a.py"
    assert (image.root / "opt" / "app" / "link").readlink() == Path("lib/a.py")
    assert (image.root / "opt" / "app" / "run").stat().st_mode & 0o7777 == 0o755
    assert (image.root / "usr" / "bin" / "python3").stat().st_mode & 0o7777 == 0o4755
    assert not (image.root / "pipe").exists()


def test_what_a_layer_says_of_its_files(tmp_path: Path) -> None:
    build(tmp_path / "out", root(tmp_path), tree(tmp_path), epoch=42)
    with open_layout(tmp_path / "out") as layout:
        _, manifest = layout.manifest("")
        config = json.loads(layout.blob(manifest["config"]["digest"]))
        assert config["created"] == "1970-01-01T00:00:42Z"
        for descriptor, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            content = layout.blob(descriptor["digest"])
            assert len(content) == descriptor["size"]

            assert f"sha256:{hashlib.sha256(gzip.decompress(content)).hexdigest()}" == diff_id
            with layout.layer(descriptor) as archive:
                members = archive.getmembers()
            assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 42)}
            names = [m.name for m in members]
            assert len(names) == len({*names})
            seen = {""}
            for member in members:
                # "opt" is left to the base, or made by whoever unpacks.
                assert os.path.dirname(member.name) in seen | {"opt"}
                seen.add(member.name)


def test_a_layout_is_a_base_too(tmp_path: Path) -> None:
    """Its layers come first, its environment stays where nothing is laid over it; folder and tar give the same."""
    base = tmp_path / "base"
    first = Command(entrypoint=("sh",), env={"A": "1", "B": "1"}, labels={"k": "v"})
    write_image(base, root(tmp_path), [], first, name="base", epoch=7)
    with tarfile.open(tmp_path / "base.tar", "w") as archive:
        archive.add(base, arcname=".")
    app = tree(tmp_path)
    assert build(tmp_path / "out", base, app) == build(tmp_path / "again", tmp_path / "base.tar", app)
    with open_layout(tmp_path / "out") as layout:
        _, manifest = layout.manifest("app:1")
        config = json.loads(layout.blob(manifest["config"]["digest"]))
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 2
    assert config["config"]["Labels"] == {"k": "v", "l": "v"}
    image = unpacked(tmp_path, tmp_path / "out")
    assert {"A=1", "B=2"} < {*image.env}
    assert "B=1" not in image.env
    assert image.root is not None
    assert (image.root / "usr" / "bin" / "python3").exists()
    assert (image.root / "opt" / "app" / "run").exists()


def test_what_cannot_be_a_base(tmp_path: Path) -> None:
    app = tree(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        build(tmp_path / "out", tmp_path / "none", app)
    (tmp_path / "file").write_text("no tar")
    with pytest.raises(UsageError, match="no OCI layout"):
        build(tmp_path / "out", tmp_path / "file", app)
    base = tmp_path / "base"
    write_image(base, root(tmp_path), [], COMMAND, name="base", epoch=7)
    largest = max((base / "blobs" / "sha256").iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes() + b"!")
    with pytest.raises(UsageError, match="is damaged"):
        build(tmp_path / "out", base, app)
    (base / "index.json").write_text('{"manifests": 3}')
    with pytest.raises(UsageError, match="no OCI layout"):
        build(tmp_path / "out", base, app)
    with pytest.raises(UsageError, match="lies in"):
        build(app / "out", tmp_path / "root", app)
    # Nothing half written is left.
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        build(tmp_path / "out", tmp_path / "root", app)


def test_prefixes_stay_in_the_image(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leads out"):
        write_image(tmp_path / "out", root(tmp_path), [Tree(tree(tmp_path), "../x")], COMMAND, name="n", epoch=0)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "now", "²", "99999999999"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        epoch_of({"SOURCE_DATE_EPOCH": text})


def test_the_time() -> None:
    assert epoch_of({}) == 0
    assert epoch_of({"SOURCE_DATE_EPOCH": "1700000000"}) == 1_700_000_000
