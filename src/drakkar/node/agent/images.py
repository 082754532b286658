"""Images of a node: names that the agent's config maps to OCI layouts or folders, and two that are built in.

``pause`` waits, ``host`` has the machine's own programs read-only. Nothing is downloaded; a name that nobody mapped is
`ErrImagePull` with the cure. Layers are unpacked once, under the digest of their manifest.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from drakkar.api.errors import UsageError
from drakkar.node.agent.layout import open_layout
from drakkar.node.agent.runtime import ContainerProblem, Image

PAUSE, HOST = "pause", "host"
#: Folders of the machine that containers of image ``host`` see, and links that stand beside them.
HOST_FOLDERS = ("usr", "etc", "opt")
_HOST_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_EMPTY = ("proc", "sys", "dev", "tmp", "var", "run", "root", "home", "mnt", "srv")
#: As many links as Linux follows on one way (path_resolution(7)).
_LINKS = 40
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


class ImageSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an image is: ``layout`` (OCI layout, folder or tar), ``root`` (file system) or ``image`` (another name)."""

    layout: str = ""
    root: str = ""
    image: str = ""
    #: Which image of a layout that has several: its annotation ``org.opencontainers.image.ref.name``.
    ref: str = ""
    entrypoint: list[str] = []
    command: list[str] = []
    env: list[str] = []


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's config file."""

    apiVersion: str
    kind: str
    images: dict[str, ImageSource] = {}


def read_config(path: Path) -> NodeConfig:
    """Raises UsageError that names file and field."""
    import yaml

    try:
        config = msgspec.convert(yaml.safe_load(path.read_text()), NodeConfig)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"--config {path}: {error}") from None
    if (config.apiVersion, config.kind) != ("drakkar.dev/v1alpha1", "NodeConfig"):
        raise UsageError(f"--config {path}: must be kind NodeConfig of drakkar.dev/v1alpha1")
    for name, source in config.images.items():
        if sum(map(bool, (source.layout, source.root, source.image))) != 1:
            raise UsageError(f"--config {path}: images[{name}] needs exactly one of layout, root and image")
    return config


def is_pause(name: str) -> bool:
    """Whether a name, unless it is mapped to something, is that of the built-in program that only waits."""
    return _repository(name).rpartition("/")[2] == PAUSE


class Images:
    """The images of a node; what is unpacked lies in ``folder``."""

    def __init__(self, folder: Path, config: NodeConfig | None):
        self._folder = folder
        self._sources = config.images if config is not None else {}

    def get(self, name: str, through: tuple[str, ...] = ()) -> Image:
        """Blocks while layers are unpacked; ``through`` are names that led to this one. Raises ContainerProblem."""
        source = self._source(name)
        if source is None:
            if is_pause(name):
                return Image(name, root=self._empty(), pause=True)
            if name == HOST:
                return Image(name, root=self._host(), host=True, env=(f"PATH={os.defpath}:/usr/sbin:/sbin",))
            raise ContainerProblem(
                "ErrImagePull",
                f'image "{name}" is not on this node, and nothing is downloaded; map it to an OCI layout or a root '
                "folder under images: in the file that the agent is given by --config",
            )
        if source.image:
            names = (*through, name)
            if source.image in names:
                way = " -> ".join((*names, source.image))
                raise ContainerProblem("ErrImagePull", f"the names under images: lead in a circle: {way}")
            return self.get(source.image, names)
        try:
            if source.root:
                return self._from_root(name, source)
            return self._from_layout(name, source)
        except (OSError, ValueError, KeyError, tarfile.TarError) as error:
            raise ContainerProblem("ErrImagePull", f'image "{name}": {source.layout or source.root}: {error}') from None

    def _source(self, name: str) -> ImageSource | None:
        """Mapped as written, or without its tag and digest."""
        return self._sources.get(name) or self._sources.get(_repository(name))

    def _from_root(self, name: str, source: ImageSource) -> Image:
        root = Path(source.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError("no such folder")
        return Image(
            name,
            digest=f"root:{root}",
            root=root,
            entrypoint=tuple(source.entrypoint),
            command=tuple(source.command),
            env=tuple(source.env),
        )

    def _from_layout(self, name: str, source: ImageSource) -> Image:
        with open_layout(Path(source.layout).expanduser()) as layout:
            digest, manifest = layout.manifest(source.ref)
            config = json.loads(layout.blob(manifest["config"]["digest"])).get("config") or {}
            root = self._folder / digest.replace(":", "-")
            if not root.is_dir():
                fresh = self._folder / f".{root.name}.new"
                shutil.rmtree(fresh, ignore_errors=True)
                fresh.mkdir(parents=True)
                for layer in manifest["layers"]:
                    with layout.layer(layer) as stream:
                        unpack(stream, fresh)
                fresh.rename(root)
        return Image(
            name,
            digest=digest,
            root=root,
            entrypoint=tuple(source.entrypoint or config.get("Entrypoint") or ()),
            command=tuple(source.command or config.get("Cmd") or ()),
            env=(*(config.get("Env") or ()), *source.env),
            cwd=config.get("WorkingDir") or "",
            user=config.get("User") or "",
        )

    def _empty(self) -> Path:
        root = self._folder / "empty"
        for name in _EMPTY:
            (root / name).mkdir(parents=True, exist_ok=True)
        return root

    def _host(self) -> Path:
        root = self._folder / "host"
        for name in (*_EMPTY, *HOST_FOLDERS):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in _HOST_LINKS:
            link = Path("/", name)
            if link.is_symlink() and not (root / name).is_symlink():
                (root / name).symlink_to(os.readlink(link))
        return root


def _repository(name: str) -> str:
    """The name without digest and tag; a port of a registry is no tag."""
    plain = name.partition("@")[0]
    head, separator, tail = plain.rpartition(":")
    return head if separator and "/" not in tail else plain


def unpack(layer: tarfile.TarFile, root: Path) -> None:
    """Lay a layer over what is in ``root``; links lead where they will lead in a container, so never out of it.

    Raises ValueError for an entry whose name leads outside.
    """
    for member in layer:
        name = PurePosixPath(member.name)
        parts = [part for part in name.parts if part not in ("/", ".")]
        if ".." in parts:
            raise ValueError(f"entry {member.name!r} leads out of the image")
        if not parts:
            continue
        # A layer may bring a link (/var/run -> /run) and then files beyond it.
        parent = _resolved(root, parts[:-1])
        parent.mkdir(parents=True, exist_ok=True)
        if parts[-1] == _OPAQUE:
            for entry in parent.iterdir():
                _remove(entry)
            continue
        if parts[-1].startswith(_WHITEOUT):
            hidden = parts[-1].removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise ValueError(f"entry {member.name!r} hides no file beside it")
            _remove(parent / hidden)
            continue
        _place(layer, member, parent / parts[-1], root)


def _place(layer: tarfile.TarFile, member: tarfile.TarInfo, path: Path, root: Path) -> None:
    if member.isdir():
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            _remove(path)
        path.mkdir(exist_ok=True)
    elif member.issym():
        _remove(path)
        path.symlink_to(member.linkname)
    elif member.islnk():
        *folders, name = member.linkname.split("/")
        if name in ("", ".", ".."):
            raise ValueError(f"link {member.name!r} names no file")
        target = _resolved(root, folders) / name
        if target == path:
            return
        _remove(path)
        os.link(target, path, follow_symlinks=False)
        return
    elif member.isfile():
        _remove(path)
        source = layer.extractfile(member)
        assert source is not None
        with path.open("wb") as file:
            shutil.copyfileobj(source, file)
    else:
        return  # Device nodes come from CDI only.
    if os.geteuid() == 0:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        path.chmod(member.mode & 0o7777)


def _resolved(root: Path, parts: Sequence[str]) -> Path:
    """Where these folders are once all links are followed, as for a process whose root folder is ``root``.

    Raises ValueError when links lead in a circle.
    """
    left, done, links = [*reversed(parts)], list[str](), 0
    while left:
        part = left.pop()
        if part == "..":
            del done[-1:]  # Above the root there is only the root.
        elif part not in ("", "."):
            path = root.joinpath(*done, part)
            if not path.is_symlink():
                done.append(part)
                continue
            links += 1
            if links > _LINKS:
                raise ValueError(f"too many links on the way to {'/'.join(parts)!r}")
            target = os.readlink(path)
            if target.startswith("/"):
                done.clear()
            left.extend(reversed(target.split("/")))
    return root.joinpath(*done)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
