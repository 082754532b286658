"""Volumes of a pod as folders of the node: emptyDir, hostPath, configMap, secret, projected, downwardAPI.

Content that comes from the API is replaced as a whole: files are links into ``..data``, itself a link to a folder with
a version of everything, so that a program sees the old or the new state and never both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from drakkar.api.errors import ApiError
from drakkar.api.kinds import SERVICEACCOUNT
from drakkar.api.meta import Object
from drakkar.api.objects import namespace_of, uid_of
from drakkar.api.tree import at, child, children, text
from drakkar.client.client import Client
from drakkar.client.clock import parse_timestamp
from drakkar.node.agent.env import Configs, NodeFacts, field_value, resource_value
from drakkar.node.agent.runtime import BindMount, ContainerProblem
from drakkar.node.agent.subpaths import SubPath, open_sub_path

#: Where the token and the certificate of a service account stand in a container.
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_ACCESS = "drakkar-api-access"
_TOKEN_SECONDS = 3607
#: A token is replaced when this part of its life has passed.
_RENEW = 0.8


class VolumeProblem(Exception):
    """A volume cannot be made; the message goes into an event `FailedMount`."""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    mode: int


class Volumes:
    """The volumes of one pod in ``folder``. ``tmpfs`` mounts memory where that is possible, None where it is not.

    ``isolates``: containers see their volumes only, and must not come out of them.
    """

    def __init__(
        self,
        client: Client,
        folder: Path,
        facts: NodeFacts,
        tmpfs: Callable[[Path, str], None] | None,
        *,
        isolates: bool = False,
    ):
        self._client = client
        self._folder = folder
        self._facts = facts
        self._tmpfs = tmpfs
        self._isolates = isolates
        self._sub_paths: dict[str, list[SubPath]] = {}
        self._places: dict[str, Path] = {}
        self._tokens: dict[tuple[str, str], tuple[str, float, float]] = {}
        #: The volume with the account's token that the pod gets from us; None: not found out yet.
        self._given: list[Object] | None = None

    async def make(self, pod: Object) -> None:
        """Make all volumes, or bring those from the API up to date. Raises VolumeProblem."""
        configs = Configs(self._client, namespace_of(pod))
        if self._given is None:
            self._given = await self._access(pod)
        for volume in [*children(pod, "spec", "volumes"), *self._given]:
            try:
                self._places[volume["name"]] = await self._make(pod, volume, configs)
            except (ContainerProblem, VolumeProblem) as problem:
                raise VolumeProblem(f'volume "{volume["name"]}": {problem}') from None
            except OSError as error:
                words = f"{error.strerror or error}: {error.filename}"
                raise VolumeProblem(f'volume "{volume["name"]}": {words}') from None

    def mounts(self, pod: Object, container: Object) -> list[BindMount]:
        """The mounts of a container, after `make`; good until `mounted` is called. Raises ContainerProblem."""
        wanted = [*children(container, "volumeMounts")]
        given = self._given or []
        if given and not any(mount["mountPath"].rstrip("/") == SERVICE_ACCOUNT for mount in wanted):
            wanted.append({"name": _ACCESS, "mountPath": SERVICE_ACCOUNT, "readOnly": True})
        self.mounted(container)
        written = {volume["name"] for volume in [*children(pod, "spec", "volumes"), *given] if _written(volume)}
        return [self._mount(container["name"], mount, read_only=mount["name"] in written) for mount in wanted]

    def mounted(self, container: Object) -> None:
        """The container has its mounts, or will never have them."""
        for sub_path in self._sub_paths.pop(container["name"], ()):
            sub_path.close()

    def _mount(self, container: str, mount: Object, *, read_only: bool) -> BindMount:
        source = self._places.get(mount["name"])
        if source is None:
            raise ContainerProblem("CreateContainerConfigError", f'volume "{mount["name"]}" does not exist')
        inner = mount.get("subPath") or ""
        if mount.get("subPathExpr"):
            raise ContainerProblem(
                "CreateContainerConfigError", "volumeMounts.subPathExpr is not supported; use subPath"
            )
        if inner:
            found = open_sub_path(source, inner)
            opened = self._sub_paths.setdefault(container, [])
            opened.append(found)
            source = found.real
            if self._isolates:
                source = self._pinned(found, f"{container}-{len(opened)}", inner)
        propagation = {"HostToContainer": "rslave", "Bidirectional": "rshared"}.get(
            mount.get("mountPropagation") or "", "rprivate"
        )
        return BindMount(source, mount["mountPath"], read_only or bool(mount.get("readOnly")), propagation)

    def _pinned(self, found: SubPath, name: str, inner: str) -> Path:
        try:
            return found.pin(self._folder.parent / "subpaths" / name)
        except OSError as error:
            words = f"subPath {inner!r} cannot be mounted: {error.strerror or error}"
            raise ContainerProblem("CreateContainerError", words) from None

    async def _make(self, pod: Object, volume: Object, configs: Configs) -> Path:
        place = self._folder / volume["name"]
        if "emptyDir" in volume:
            await asyncio.to_thread(self._empty, place, volume["emptyDir"] or {})
        elif "hostPath" in volume:
            return _host_path(volume["hostPath"])
        elif "configMap" in volume or "secret" in volume:
            source = volume.get("configMap") or volume.get("secret") or {}
            default = source.get("defaultMode")
            kind = "ConfigMap" if "configMap" in volume else "Secret"
            files = await _config_files(configs, kind, source, source.get("name") or source.get("secretName"), default)
            await asyncio.to_thread(write_versioned, place, files)
        elif "downwardAPI" in volume:
            source = volume["downwardAPI"]
            files = self._downward(pod, children(source, "items"), source.get("defaultMode"))
            await asyncio.to_thread(write_versioned, place, files)
        elif "projected" in volume:
            files = await self._projected(pod, volume["projected"], configs)
            await asyncio.to_thread(write_versioned, place, files)
        else:
            kind = next((key for key in volume if key != "name"), "no source")
            raise VolumeProblem(
                f"{kind} is not supported; there are emptyDir, hostPath, configMap, secret, projected and downwardAPI"
            )
        return place

    def _empty(self, place: Path, source: Object) -> None:
        if place.exists():
            return
        place.mkdir(parents=True)
        place.chmod(0o777)
        if source.get("medium") == "Memory" and self._tmpfs is not None:
            self._tmpfs(place, str(source.get("sizeLimit") or ""))

    async def _projected(self, pod: Object, projected: Object, configs: Configs) -> dict[str, _File]:
        default = projected.get("defaultMode")
        files: dict[str, _File] = {}
        for source in children(projected, "sources"):
            if "configMap" in source:
                given = source["configMap"]
                files |= await _config_files(configs, "ConfigMap", given, given.get("name"), default)
            elif "secret" in source:
                given = source["secret"]
                files |= await _config_files(configs, "Secret", given, given.get("name"), default)
            elif "downwardAPI" in source:
                files |= self._downward(pod, children(source, "downwardAPI", "items"), default)
            elif "serviceAccountToken" in source:
                given = source["serviceAccountToken"]
                token = await self._token(pod, given.get("audience") or "", given.get("expirationSeconds") or 3600)
                files[given["path"]] = _File(token.encode(), 0o600 if default is None else default)
            else:
                raise VolumeProblem(f"a projected volume from {', '.join(source)} is not supported")
        return files

    async def _access(self, pod: Object) -> list[Object]:
        """The volume of `_access_of`, unless the pod's account is not to be mounted. Raises VolumeProblem."""
        given = _access_of(pod)
        if not given or at(pod, "spec", "automountServiceAccountToken") is True:
            return given
        account = text(pod, "spec", "serviceAccountName") or "default"
        try:
            found = await self._client.get(SERVICEACCOUNT, account, namespace_of(pod))
        except ApiError as error:
            if error.code == 403:
                return []  # A server that keeps accounts from nodes has put the volume where there was to be one.
            raise VolumeProblem(f"service account {namespace_of(pod)}/{account}: {error}") from None
        return [] if found.get("automountServiceAccountToken") is False else given

    async def _token(self, pod: Object, audience: str, seconds: int) -> str:
        account = text(pod, "spec", "serviceAccountName") or "default"
        known = self._tokens.get((account, audience))
        now = time.time()
        if known is not None and now < known[1] + (known[2] - known[1]) * _RENEW:
            return known[0]
        meta = child(pod, "metadata")
        spec: Object = {
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": uid_of(pod)},
        }
        if audience:
            spec["audiences"] = [audience]
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": account, "namespace": namespace_of(pod)},
            "spec": spec,
        }
        try:
            answer = await self._client.create(SERVICEACCOUNT, body, subresource="token")
        except ApiError as error:
            raise VolumeProblem(f"token of service account {namespace_of(pod)}/{account}: {error}") from None
        token = text(answer, "status", "token")
        self._tokens[(account, audience)] = (token, now, parse_timestamp(text(answer, "status", "expirationTimestamp")))
        return token

    def _downward(self, pod: Object, items: list[Object], default: int | None) -> dict[str, _File]:
        files: dict[str, _File] = {}
        for item in items:
            mode = item.get("mode")
            if item.get("fieldRef"):
                value = field_value(pod, item["fieldRef"]["fieldPath"])
            else:
                value = resource_value(pod, {}, item["resourceFieldRef"], self._facts)
            files[item["path"]] = _File(value.encode(), _mode(mode, default))
        return files


def _access_of(pod: Object) -> list[Object]:
    """A projected volume with the account's token, for pods whose server gave them none (upstream's admission does)."""
    if at(pod, "spec", "automountServiceAccountToken") is False:
        return []
    for volume in children(pod, "spec", "volumes"):
        if any("serviceAccountToken" in source for source in children(volume, "projected", "sources")):
            return []
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "optional": True, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return [{"name": _ACCESS, "projected": {"defaultMode": 0o644, "sources": sources}}]


def _written(volume: Object) -> bool:
    """Whether the agent writes the volume's content. Containers must not: they could lead the agent's writes astray.

    Kubelets mount these volumes read-only for the same reason, whatever the pod says (CVE-2017-1002102).
    """
    return any(kind in volume for kind in ("configMap", "secret", "downwardAPI", "projected"))


async def _config_files(
    configs: Configs, kind: str, source: Object, name: str | None, default: int | None
) -> dict[str, _File]:
    data = await configs.data(kind, name or "")
    if data is None:
        if source.get("optional"):
            return {}
        raise VolumeProblem(f'{kind.lower()} "{name}" not found')
    items = children(source, "items")
    if not items:
        return {key: _File(value, _mode(None, default)) for key, value in data.items()}
    files: dict[str, _File] = {}
    for item in items:
        if item["key"] in data:
            files[item["path"]] = _File(data[item["key"]], _mode(item.get("mode"), default))
        elif not source.get("optional"):
            raise VolumeProblem(f"{kind.lower()} references non-existent key: {item['key']}")
    return files


def _mode(mode: int | None, default: int | None) -> int:
    return mode if mode is not None else default if default is not None else 0o644


def write_versioned(folder: Path, files: Mapping[str, _File]) -> None:
    """Make the folder hold exactly these files, in one step for whoever reads it. Raises OSError, VolumeProblem."""
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise VolumeProblem(f"path {name!r} leads out of the volume")
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / "..data"
    if current.exists() and _same(current, files):
        return
    old = os.readlink(current) if current.is_symlink() else ""
    fresh = folder / f"..{time.time_ns()}"
    fresh.mkdir()
    for name, file in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    pointer = folder / "..data.new"
    pointer.unlink(missing_ok=True)
    pointer.symlink_to(fresh.name)
    os.replace(pointer, current)
    tops = {name.split("/")[0] for name in files}
    for top in tops:
        link = folder / top
        if not link.is_symlink():
            link.symlink_to(Path("..data", top))
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    # Only ever a version beside it: what else the link may say was not written here.
    if old.startswith("..") and "/" not in old and old != "..":
        shutil.rmtree(folder / old, ignore_errors=True)


def _same(current: Path, files: Mapping[str, _File]) -> bool:
    there = {str(path.relative_to(current)) for path in current.rglob("*") if path.is_file()}
    return there == set(files) and all(
        (current / name).read_bytes() == file.content and (current / name).stat().st_mode & 0o777 == file.mode
        for name, file in files.items()
    )


def _host_path(source: Object) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    if not path.is_absolute() or ".." in path.parts:
        raise VolumeProblem(f"hostPath {source['path']!r} must be an absolute path without '..'")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
    elif kind == "FileOrCreate":
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o644)
    tests: dict[str, Callable[[], bool]] = {
        "": lambda: True,
        "Directory": path.is_dir,
        "DirectoryOrCreate": path.is_dir,
        "File": path.is_file,
        "FileOrCreate": path.is_file,
        "Socket": path.is_socket,
        "CharDevice": path.is_char_device,
        "BlockDevice": path.is_block_device,
    }
    if kind not in tests or not tests[kind]():
        raise VolumeProblem(f"hostPath type check failed: {path} is not a {kind}")
    if not path.exists():
        # As runtimes do for a path of no type.
        path.mkdir(parents=True)
    return path
