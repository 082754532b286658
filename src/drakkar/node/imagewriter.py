"""Writes OCI images without any engine: a base, and folders laid over it, each as one layer.

The same input gives the same bytes: entries are sorted, belong to root, and carry one given time. What varies with the
machine is left out (owners, names, access times, extended attributes). The compressed bytes follow from the zlib that
Python was built with; digests of uncompressed layers (``diff_ids``) do not.
Structures: OCI image-spec 1.1. Reading is `drakkar.node.agent.layout`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from drakkar.api.errors import UsageError
from drakkar.node.agent.layout import REF_NAME, Layout, blob_name, open_layout
from drakkar.node.agent.machine import architecture

_OCI = "application/vnd.oci.image"
_CHUNK = 1 << 20
#: The variable that says which time reproducible artefacts carry, in Unix seconds (reproducible-builds.org).
EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder whose content becomes a layer, at ``prefix`` of the image. ``plain``: modes 0755 and 0644 only."""

    folder: Path
    prefix: str = ""
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Command:
    """What a container of the image runs, and how. ``env`` is laid over that of the base."""

    entrypoint: Sequence[str]
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    folder: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Base:
    """What an image begins with: descriptors of layers, and its configuration."""

    layers: list[dict[str, Any]]
    config: dict[str, Any]


def epoch_of(environment: Mapping[str, str]) -> int:
    """The time that everything gets: SOURCE_DATE_EPOCH, else 0. Raises UsageError when it is no number of seconds."""
    text = environment.get(EPOCH_VARIABLE, "0")
    if not text.isascii() or not text.isdecimal() or int(text) >= 1 << 33:
        raise UsageError(f"{EPOCH_VARIABLE}={text!r}: must be a time in whole seconds since 1970")
    return int(text)


def write_image(
    out: Path, base: Path, trees: Sequence[Tree], command: Command, *, name: str, epoch: int, base_ref: str = ""
) -> str:
    """Write the layout ``out`` with one image, named ``name``; returns the digest of its manifest.

    ``base`` is an OCI layout (folder or tar), or the folder of a root file system; ``base_ref`` chooses among the
    images of a layout. Raises UsageError for an ``out`` that exists or lies in what is read, and for a base that is
    neither; what is half written is removed.
    """
    if out.exists():
        raise UsageError(f"{out} exists already; remove it, or name another folder")
    if not base.exists():
        raise UsageError(f"base {base}: no such file or folder")
    for source in (base, *(tree.folder for tree in trees)):
        if out.resolve().is_relative_to(source.resolve()):
            raise UsageError(f"{out} lies in {source}, which is read; name a folder elsewhere")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        (fresh / "blobs" / "sha256").mkdir(parents=True)
        digest = _write(fresh, base, trees, command, name, epoch, base_ref)
        fresh.chmod(0o755)
        fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return digest


def _write(
    folder: Path, base: Path, trees: Sequence[Tree], command: Command, name: str, epoch: int, base_ref: str
) -> str:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    begun = _take_over(folder, base, epoch, base_ref)
    layers, config = begun.layers, begun.config
    for tree in trees:
        layer, diff_id = _add_layer(folder, tree, epoch)
        layers.append(layer)
        config["rootfs"]["diff_ids"].append(diff_id)
        config["history"].append({"created": created, "created_by": f"drakkar: /{tree.prefix.strip('/')}"})
    config["created"] = created
    config["config"] = _configured(config.get("config") or {}, command)
    about = _put(folder, _json(config), f"{_OCI}.config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": about,
        "layers": layers,
    }
    entry = _put(folder, _json(manifest), f"{_OCI}.manifest.v1+json")
    entry["platform"] = {key: config[key] for key in ("os", "architecture", "variant") if key in config}
    entry["annotations"] = {REF_NAME: name}
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry]}
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return cast("str", entry["digest"])


def _take_over(folder: Path, base: Path, epoch: int, ref: str) -> _Base:
    if base.is_dir() and not (base / "index.json").exists():
        layer, diff_id = _add_layer(folder, Tree(base, plain=False), epoch)
        rootfs = {"type": "layers", "diff_ids": [diff_id]}
        config = {"os": "linux", "architecture": architecture(), "rootfs": rootfs, "history": [{"created_by": "base"}]}
        return _Base([layer], config)
    try:
        with open_layout(base) as layout:
            _, manifest = layout.manifest(ref)
            config = json.loads(layout.blob(manifest["config"]["digest"]))
            for layer in manifest["layers"]:
                _copy(layout, layer, folder)
            told = len(config["rootfs"]["diff_ids"]) == len(manifest["layers"])
    except (OSError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        raise UsageError(f"base {base} is no OCI layout that can be used: {error}") from error
    if not told:
        raise UsageError(f"base {base}: its configuration does not tell of all its layers")
    config.setdefault("history", [])
    return _Base(list(manifest["layers"]), config)


def _copy(layout: Layout, layer: Mapping[str, Any], folder: Path) -> None:
    """A blob of the base, on the condition that it is what its digest says."""
    place = folder / blob_name(layer["digest"])
    found = hashlib.sha256()
    with layout.open(blob_name(layer["digest"])) as source, place.open("wb") as target:
        while chunk := source.read(_CHUNK):
            found.update(chunk)
            target.write(chunk)
    if f"sha256:{found.hexdigest()}" != layer["digest"]:
        raise ValueError(f"blob {layer['digest']} is damaged")


def _configured(before: Mapping[str, Any], command: Command) -> dict[str, Any]:
    env = dict(entry.partition("=")[::2] for entry in before.get("Env") or ())
    env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    env.update(command.env)
    config = {
        **before,
        "Env": [f"{key}={value}" for key, value in env.items()],
        "Entrypoint": [*command.entrypoint],
        "Cmd": [*command.arguments],
        "WorkingDir": command.folder,
        "Labels": {**(before.get("Labels") or {}), **command.labels},
    }
    if command.user:
        config["User"] = command.user
    return config


# layers


class _Hashing:
    """Passes on what is written, and takes its digest."""

    def __init__(self, target: IO[bytes]):
        self._target = target
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


@contextmanager
def _new_blob(folder: Path) -> Iterator[_Hashing]:
    place = folder / "blobs" / "new"
    with place.open("wb") as file:
        hashing = _Hashing(file)
        yield hashing
    place.rename(folder / blob_name(hashing.digest))


def _add_layer(folder: Path, tree: Tree, epoch: int) -> tuple[dict[str, Any], str]:
    """Descriptor of the layer, and the digest of its uncompressed tar."""
    with (
        _new_blob(folder) as packed,
        # No name and no time in gzip's header.
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=cast("IO[bytes]", packed), mtime=0) as zipped,
    ):
        plain = _Hashing(cast("IO[bytes]", zipped))
        with tarfile.open(fileobj=cast("IO[bytes]", plain), mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for info, path in _entries(tree):
                info.mtime = epoch
                if info.isreg():
                    with path.open("rb") as content:
                        archive.addfile(info, content)
                else:
                    archive.addfile(info)
    descriptor = {"mediaType": f"{_OCI}.layer.v1.tar+gzip", "digest": packed.digest, "size": packed.size}
    return descriptor, plain.digest


def _entries(tree: Tree) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    """Folders before what is in them, all in the order of their names; sockets, pipes and device nodes are left out."""
    prefix = PurePosixPath(tree.prefix.strip("/"))
    if ".." in prefix.parts:
        raise UsageError(f"prefix {tree.prefix!r} leads out of the image")
    if prefix.parts:
        yield _info(prefix, tree.folder.stat(), tree), tree.folder
    yield from _within(tree.folder, prefix, tree)


def _within(folder: Path, prefix: PurePosixPath, tree: Tree) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name)):
        path, name = Path(entry.path), prefix / entry.name
        about = entry.stat(follow_symlinks=False)
        if not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
            continue
        yield _info(name, about, tree, os.readlink(path) if entry.is_symlink() else ""), path
        if stat.S_ISDIR(about.st_mode):
            yield from _within(path, name, tree)


def _info(name: PurePosixPath, about: os.stat_result, tree: Tree, link: str = "") -> tarfile.TarInfo:
    """A header with owner root; TarInfo's defaults are no owner's name and time 0."""
    info = tarfile.TarInfo(str(name))
    mode = stat.S_IMODE(about.st_mode)
    if link:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, link, 0o777
        return info
    if stat.S_ISDIR(about.st_mode):
        info.type = tarfile.DIRTYPE
    else:
        info.size = about.st_size
    executable = info.isdir() or mode & 0o100
    info.mode = (0o755 if executable else 0o644) if tree.plain else mode
    return info


# blobs


def _put(folder: Path, content: bytes, media_type: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    (folder / blob_name(digest)).write_bytes(content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
