"""OCI image layouts (image-spec 1.1, image-layout.md), read from a folder or a tar.

`drakkar.node.imagewriter` writes them.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from drakkar.node.agent.machine import architecture

#: Annotation of an index by which one of several images is chosen.
REF_NAME = "org.opencontainers.image.ref.name"

_CHUNK = 1 << 20


class Layout:
    """An OCI layout; reads files by their names in it."""

    def read(self, name: str) -> bytes:
        """A whole file."""
        with self.open(name) as file:
            return file.read()

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file, to be read in pieces."""
        raise NotImplementedError
        yield

    def blob(self, digest: str) -> bytes:
        """The content with this digest. Raises ValueError when it is another."""
        content = self.read(blob_name(digest))
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise ValueError(f"blob {digest} is damaged")
        return content

    def manifest(self, ref: str) -> tuple[str, dict[str, Any]]:
        """Digest and content of the manifest for this machine."""
        found = json.loads(self.read("index.json"))
        entries: list[dict[str, Any]] = found["manifests"]
        if ref:
            entries = [entry for entry in entries if (entry.get("annotations") or {}).get(REF_NAME) == ref]
        for _ in range(3):
            entry = self._fitting(entries, ref)
            content = json.loads(self.blob(entry["digest"]))
            if "manifests" not in content:
                return entry["digest"], content
            entries = content["manifests"]
        raise ValueError("indexes within indexes")

    @staticmethod
    def _fitting(entries: list[dict[str, Any]], ref: str) -> dict[str, Any]:
        fitting = [
            entry
            for entry in entries
            if (entry.get("platform") or {}).get("architecture", architecture()) == architecture()
            and (entry.get("platform") or {}).get("os", "linux") == "linux"
        ]
        if not fitting:
            raise ValueError(
                f"no image for linux/{architecture()} ({platform.machine()}){f' named {ref}' if ref else ''}"
            )
        if len({entry["digest"] for entry in fitting}) > 1:
            raise ValueError("several images; choose one by ref:")
        return fitting[0]

    @contextmanager
    def layer(self, about: dict[str, Any]) -> Iterator[tarfile.TarFile]:
        """The files of a layer, by its descriptor. Raises ValueError at the end when the layer's digest is another."""
        kind = about.get("mediaType", "")
        if kind.endswith("zstd"):
            raise ValueError("layers compressed with zstd cannot be read; use gzip")
        digest: str = about["digest"]
        with self.open(blob_name(digest)) as file:
            hashed = _Hashed(file)
            with tarfile.open(fileobj=hashed, mode="r|*") as stream:
                yield stream
            while hashed.read(_CHUNK):
                pass  # What follows the archive belongs to the blob.
        if f"sha256:{hashed.digest.hexdigest()}" != digest:
            raise ValueError(f"layer {digest} is damaged")


class _Hashed(io.RawIOBase):
    """Reads a file and takes the sha256 of what was read."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """Reads on."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


class _Folder(Layout):
    def __init__(self, path: Path):
        self._path = path

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with (self._path / name).open("rb") as file:
            yield file


class _Tar(Layout):
    def __init__(self, archive: tarfile.TarFile):
        self._archive = archive
        self._names = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        member = self._names.get(name)
        file = self._archive.extractfile(member) if member is not None else None
        if file is None:
            raise FileNotFoundError(f"{name} is not in the archive")
        with file:
            yield file


@contextmanager
def open_layout(path: Path) -> Iterator[Layout]:
    """The layout in a folder or a tar."""
    if path.is_dir():
        yield _Folder(path)
    else:
        with tarfile.open(path) as archive:
            yield _Tar(archive)


def blob_name(digest: str) -> str:
    """Where a layout keeps the content with this digest. Raises ValueError for what is no sha256 digest."""
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or not value.isalnum():
        raise ValueError(f"digest {digest!r} is not of sha256")
    return f"blobs/sha256/{value}"
