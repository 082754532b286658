"""Spec folders: which device an id means, when several files speak of it.

Folders are given from the least to the most important; a later one wins. Within one folder nobody can say who is
right, so a device that two of its files define is not resolvable at all. A broken file only disables itself.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from drakkar.plugin.cdi.spec import CdiDevice, CdiError, ContainerEdits, Spec, decode, encode, parse_device_id
from drakkar.plugin.files import Lasts, remove, write_atomically

DEFAULT_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))

_Signature = tuple[int, int, int]


def file_name(kind: str, name: str = "") -> str:
    """The customary name of the file for a kind, and within it for something that comes and goes (a claim)."""
    vendor_and_class = kind.replace("/", "-")
    return f"{vendor_and_class}_{name}.json" if name else f"{vendor_and_class}.json"


def write_spec(folder: Path, name: str, spec: Spec) -> Path:
    """Write a spec as `folder/name` (made when absent), for this boot: after it everything is prepared anew.

    Raises OSError.
    """
    if Path(name).name != name or not name.endswith(".json") or name.startswith("."):
        raise CdiError(f"{name!r} is no name for a spec file, it must be NAME.json without a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    write_atomically(path, encode(spec), lasts=Lasts.THIS_BOOT)
    return path


def remove_spec(folder: Path, name: str) -> bool:
    """Remove a spec file; False when it was not there."""
    return remove(folder / name)


def read_spec(path: Path) -> Spec:
    """Read one file, JSON or YAML by its ending. Raises CdiError that names the file."""
    try:
        content = path.read_bytes()
        if path.suffix == ".json":
            data: object = json.loads(content)
        else:
            import yaml  # Drivers of ours write JSON; most processes never meet YAML.

            try:
                data = yaml.safe_load(content)
            except yaml.YAMLError as error:
                raise CdiError(str(error)) from None
        return decode(data)
    except (OSError, ValueError, RecursionError) as error:
        raise CdiError(f"{path}: {error}") from None


class SpecFolders:
    """The devices of some spec folders. What changed on disk is read again whenever something is resolved."""

    def __init__(self, folders: Sequence[Path] = DEFAULT_FOLDERS) -> None:
        self._folders = list(folders)
        self._files: dict[Path, tuple[_Signature, Spec | CdiError]] = {}
        self._devices: dict[str, tuple[Path, Spec, CdiDevice]] = {}
        self._conflicts: dict[str, str] = {}

    def refresh(self) -> None:
        """Look at the folders again; unchanged files are not read again."""
        files: dict[Path, tuple[_Signature, Spec | CdiError]] = {}
        for folder in self._folders:
            for path, signature in _spec_files(folder):
                known = self._files.get(path)
                files[path] = known if known is not None and known[0] == signature else (signature, _attempt(path))
        if files != self._files:
            self._files = files
            self._index()

    @property
    def errors(self) -> dict[Path, str]:
        """Files that cannot be used, and why."""
        return {path: str(content) for path, (_, content) in self._files.items() if isinstance(content, CdiError)}

    @property
    def conflicts(self) -> dict[str, str]:
        """Device ids that several files of one folder define, and which."""
        return dict(self._conflicts)

    def devices(self) -> list[str]:
        """Ids of everything that can be resolved."""
        return sorted(self._devices)

    def resolve(self, identifiers: Iterable[str]) -> list[ContainerEdits]:
        """The edits for these devices, in order. Raises one CdiError that lists every id that has none."""
        self.refresh()
        edits: list[ContainerEdits] = []
        problems: list[str] = []
        begun: set[Path] = set()
        for identifier in identifiers:
            try:
                parse_device_id(identifier)
            except CdiError as error:
                problems.append(str(error))
                continue
            found = self._devices.get(identifier)
            if found is None:
                problems.append(f"{identifier}: {self._conflicts.get(identifier, 'no spec file defines it')}")
                continue
            path, spec, device = found
            if path not in begun:
                begun.add(path)
                edits.append(spec.containerEdits)
            edits.append(device.containerEdits)
        if problems:
            broken = "".join(f"; unreadable file {path}" for path in self.errors)
            folders = ", ".join(str(folder) for folder in self._folders)
            raise CdiError(f"CDI devices cannot be resolved in {folders}: {'; '.join(problems)}{broken}")
        return edits

    def _index(self) -> None:
        self._devices, self._conflicts = {}, {}
        for folder in self._folders:
            here: dict[str, list[tuple[Path, Spec, CdiDevice]]] = {}
            for path, (_, content) in self._files.items():
                if path.parent != folder or isinstance(content, CdiError):
                    continue
                for device in content.devices:
                    here.setdefault(f"{content.kind}={device.name}", []).append((path, content, device))
            for identifier, definitions in here.items():
                if len(definitions) == 1:
                    self._devices[identifier] = definitions[0]
                    self._conflicts.pop(identifier, None)
                else:
                    self._devices.pop(identifier, None)
                    names = ", ".join(sorted(str(path) for path, _, _ in definitions))
                    self._conflicts[identifier] = f"defined in several files of one folder ({names}), keep one"


def _spec_files(folder: Path) -> list[tuple[Path, _Signature]]:
    found: list[tuple[Path, _Signature]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.endswith((".json", ".yaml")):
                    continue
                try:
                    if not entry.is_file():
                        continue
                    stat = entry.stat()
                except FileNotFoundError:  # Removed since the folder was listed.
                    continue
                found.append((folder / entry.name, (stat.st_ino, stat.st_mtime_ns, stat.st_size)))
    except FileNotFoundError:
        return []
    return sorted(found)


def _attempt(path: Path) -> Spec | CdiError:
    try:
        return read_spec(path)
    except CdiError as error:
        return error
