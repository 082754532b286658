"""Images from OCI layouts: layers over each other, whiteouts, folders and tars, hostile entries, names."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.node.agent.images import Images, ImageSource, NodeConfig, read_config, unpack
from drakkar.node.agent.machine import architecture
from drakkar.node.agent.runtime import ContainerProblem


def _tar(*entries: tuple[str, str | None, dict[str, Any]]) -> bytes:
    """Entries: name, content (None: no file) and further fields of the header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, fields in entries:
            info = tarfile.TarInfo(name)
            info.mode, info.uid, info.gid = 0o755, os.geteuid(), os.getegid()
            for field, value in fields.items():
                setattr(info, field, value)
            data = (content or "").encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _file(name: str, content: str = "") -> tuple[str, str | None, dict[str, Any]]:
    return name, content, {}


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[str, str | None, dict[str, Any]]:
    return name, None, {"type": kind, "linkname": target}


def layout(folder: Path, *layers: bytes, config: dict[str, Any] | None = None) -> Path:
    """An OCI layout with these layers (tars), the second one and every other compressed."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    packed = [
        put(gzip.compress(layer) if number % 2 else layer, "layer.v1.tar" + ("+gzip" if number % 2 else ""))
        for number, layer in enumerate(layers)
    ]
    about = put(json.dumps({"config": config or {}}).encode(), "config.v1+json")
    manifest = put(json.dumps({"schemaVersion": 2, "config": about, "layers": packed}).encode(), "manifest.v1+json")
    fitting = manifest | {"platform": {"os": "linux", "architecture": architecture()}}
    other = manifest | {"platform": {"os": "linux", "architecture": "s390x"}, "digest": "sha256:" + "0" * 64}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [other, fitting]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return folder


def images(folder: Path, **sources: ImageSource) -> Images:
    config = NodeConfig(apiVersion="drakkar.dev/v1alpha1", kind="NodeConfig", images=dict(sources))
    return Images(folder / "images", config)


def test_layers_lie_over_each_other(tmp_path: Path) -> None:
    first = _tar(
        ("app", None, {"type": tarfile.DIRTYPE}),
        _file("app/stays", "1"),
        _file("app/goes", "1"),
        _file("old/a", "1"),
        _file("old/b", "1"),
        _link("app/link", "stays"),
        _link("app/hard", "app/stays", tarfile.LNKTYPE),
    )
    second = _tar(_file("app/.wh.goes"), _file("old/.wh..wh..opq"), _file("old/c", "2"), _file("app/stays", "2"))
    config = {"Entrypoint": ["/app/run"], "Cmd": ["--x"], "Env": ["A=1"], "WorkingDir": "/app", "User": "1000"}
    place = layout(tmp_path / "layout", first, second, config=config)
    image = images(tmp_path, app=ImageSource(layout=str(place))).get("app:1.0")
    assert image.root is not None
    found = {str(path.relative_to(image.root)) for path in image.root.rglob("*")}
    assert found == {"app", "app/stays", "app/link", "app/hard", "old", "old/c"}
    assert (image.root / "app/stays").read_text() == "2"
    assert (image.root / "app/hard").read_text() == "1"
    assert (image.entrypoint, image.command, image.env) == (("/app/run",), ("--x",), ("A=1",))
    assert (image.cwd, image.user) == ("/app", "1000")


def test_a_tar_is_as_good_as_a_folder(tmp_path: Path) -> None:
    place = layout(tmp_path / "layout", _tar(_file("a", "1")))
    archive = tmp_path / "layout.tar"
    with tarfile.open(archive, "w") as file:
        file.add(place, arcname=".")
    image = images(tmp_path, app=ImageSource(layout=str(archive))).get("app")
    assert image.root is not None
    assert (image.root / "a").read_text() == "1"


@pytest.mark.parametrize(
    "entries",
    [
        [_file("../outside", "x")],
        [_link("a", "b"), _link("b", "a"), _file("a/outside", "x")],
        [_link("a", ".."), _link("b", "a/beside", tarfile.LNKTYPE)],
        [_link("b", "..", tarfile.LNKTYPE)],
        [_link("out", "/etc/passwd", tarfile.LNKTYPE)],
        [_link("a", "/etc"), _link("b", "a/passwd", tarfile.LNKTYPE)],
        [_file(".wh...")],
        [_file(".wh..")],
        [_file("a/.wh.")],
    ],
)
def test_hostile_layers_are_refused(tmp_path: Path, entries: list[tuple[str, str | None, dict[str, Any]]]) -> None:
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    (tmp_path / "deep" / "beside").touch()
    with (
        tarfile.open(fileobj=io.BytesIO(_tar(*entries))) as layer,
        pytest.raises((ValueError, FileNotFoundError)),
    ):
        unpack(layer, root)
    assert (tmp_path / "deep" / "beside").exists()
    assert root.is_dir()
    assert not list(tmp_path.glob("outside"))
    assert not list((tmp_path / "deep").glob("outside"))


def test_links_lead_where_they_do_in_a_container(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    entries = (
        _link("var/run", "/run"),
        _file("var/run/lock/a", "1"),
        _link("opt/up", "../../../../etc"),
        _file("opt/up/inside", "2"),
        _link("all", "/"),
        _file("all/tmp/x", "3"),
        _link("hard", "/var/run/lock/a", tarfile.LNKTYPE),
        _link("chain", "opt/up"),
        _file("chain/.wh.inside"),
        _file("chain/later", "4"),
    )
    with tarfile.open(fileobj=io.BytesIO(_tar(*entries))) as layer:
        unpack(layer, root)
    assert os.readlink(root / "var/run") == "/run"
    found = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}
    assert found == {"run/lock/a": "1", "hard": "1", "tmp/x": "3", "etc/later": "4"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["root"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_that_is_another_is_refused(tmp_path: Path, number: int) -> None:
    layers = _tar(_file("a", "1")), _tar(_file("b", "1"))
    place = layout(tmp_path / "layout", *layers)
    (manifest,) = [
        entry
        for entry in json.loads((place / "index.json").read_text())["manifests"]
        if "0" * 64 not in entry["digest"]
    ]
    blobs = place / "blobs" / "sha256"
    about = json.loads((blobs / manifest["digest"].partition(":")[2]).read_text())
    blob = blobs / about["layers"][number]["digest"].partition(":")[2]
    other = _tar(_file("a", "2"))
    blob.write_bytes(gzip.compress(other) if number else other)
    known = images(tmp_path, app=ImageSource(layout=str(place)))
    for _ in range(2):
        with pytest.raises(ContainerProblem, match=f"layer sha256:{blob.name} is damaged"):
            known.get("app")


def test_a_layer_with_more_behind_its_end_is_refused(tmp_path: Path) -> None:
    layer = _tar(_file("a", "1"))
    place = layout(tmp_path / "layout", layer)
    blob = place / "blobs" / "sha256" / hashlib.sha256(layer).hexdigest()
    blob.write_bytes(layer + b"more" * 100_000)
    with pytest.raises(ContainerProblem, match="is damaged"):
        images(tmp_path, app=ImageSource(layout=str(place))).get("app")


def test_a_damaged_layout_is_said(tmp_path: Path) -> None:
    place = layout(tmp_path / "layout", _tar(_file("a", "1")))
    for blob in (place / "blobs" / "sha256").iterdir():
        blob.write_bytes(blob.read_bytes() + b"x")
    with pytest.raises(ContainerProblem, match="is damaged") as caught:
        images(tmp_path, app=ImageSource(layout=str(place))).get("app")
    assert caught.value.reason == "ErrImagePull"


def test_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    known = images(
        tmp_path,
        **{
            "reg.example.com:5000/a": ImageSource(root=str(root)),
            "b:1": ImageSource(image="reg.example.com:5000/a"),
            "gone": ImageSource(root=str(tmp_path / "nowhere")),
        },
    )
    for name in ("reg.example.com:5000/a", "reg.example.com:5000/a:2", "reg.example.com:5000/a@sha256:0", "b:1"):
        assert known.get(name).root == root
    assert known.get("registry.k8s.io/pause:3.10").pause
    for name, words in (("b:2", "--config"), ("gone", "no such folder"), ("", "--config")):
        with pytest.raises(ContainerProblem, match=words):
            known.get(name)


def test_the_machines_own_image_can_be_taken_away(tmp_path: Path) -> None:
    assert images(tmp_path).get("host").host
    found = images(tmp_path, host=ImageSource(image="pause")).get("host")
    assert (found.host, found.pause) == (False, True)


def test_names_that_lead_in_a_circle_are_said(tmp_path: Path) -> None:
    sources = {"a": ImageSource(image="b:1"), "b": ImageSource(image="a"), "c": ImageSource(image="a")}
    for name in ("a:2", "b", "c"):
        with pytest.raises(ContainerProblem, match="lead in a circle: "):
            images(tmp_path, **sources).get(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: NodeConfig", "apiVersion"),
        ("{apiVersion: v1, kind: Pod}", "must be kind NodeConfig"),
        ("{apiVersion: drakkar.dev/v1alpha1, kind: NodeConfig, images: {a: {}}}", "exactly one of"),
        ("{apiVersion: drakkar.dev/v1alpha1, kind: NodeConfig, imges: {}}", "imges"),
        ("{", "config.yaml"),
    ],
)
def test_a_wrong_config_names_the_fault(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_config(tmp_path / "config.yaml")
