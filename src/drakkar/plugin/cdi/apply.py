"""Container edits made to an OCI runtime spec, for runtimes that do not read CDI themselves."""

import copy
import os
import posixpath
import stat
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from drakkar.plugin.cdi.spec import CdiError, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount

OciSpec = dict[str, Any]


class HostNode(NamedTuple):
    """A device node of the host."""

    type: str
    major: int
    minor: int
    mode: int


def host_node(path: str) -> HostNode:
    """The device node at a path of this host. Raises CdiError when there is none."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise CdiError(f"device node {path}: {error.strerror}") from None
    for test, letter in ((stat.S_ISBLK, "b"), (stat.S_ISCHR, "c"), (stat.S_ISFIFO, "p")):
        if test(found.st_mode):
            return HostNode(letter, os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode))
    raise CdiError(f"device node {path}: neither a block nor a character device nor a pipe")


def apply_edits(
    edits: Iterable[ContainerEdits], oci: OciSpec, *, host: Callable[[str], HostNode] = host_node
) -> OciSpec:
    """A copy of the OCI spec with the edits made, in order. Raises CdiError; then nothing is made."""
    result = copy.deepcopy(oci)
    mounted = False
    for edit in edits:
        _apply_env(edit.env, result)
        for node in edit.deviceNodes:
            _apply_node(node, result, host)
        for mount in edit.mounts:
            _apply_mount(mount, result)
            mounted = True
        for hook in edit.hooks:
            result.setdefault("hooks", {}).setdefault(hook.hookName, []).append(_hook(hook))
        if edit.intelRdt is not None:
            result.setdefault("linux", {})["intelRdt"] = _rdt(edit.intelRdt)
        for gid in edit.additionalGids:
            groups: list[int] = _at(result, "process", "user").setdefault("additionalGids", [])
            if gid != 0 and gid not in groups:  # 0 would give a container root's group.
                groups.append(gid)
    if mounted:
        # Parents first: a mount on /a would hide what was mounted on /a/b before.
        result["mounts"].sort(key=lambda mount: posixpath.normpath(mount["destination"]).count("/"))
    return result


def _apply_env(env: list[str], oci: OciSpec) -> None:
    if not env:
        return
    present: list[str] = _at(oci, "process").setdefault("env", [])
    for entry in env:
        name = entry.partition("=")[0]
        for index, old in enumerate(present):
            if old.partition("=")[0] == name:
                present[index] = entry
                break
        else:
            present.append(entry)


def _apply_node(node: DeviceNode, oci: OciSpec, host: Callable[[str], HostNode]) -> None:
    kind, major, minor, mode = node.type, node.major, node.minor, node.fileMode
    if not kind or (major == 0 and kind != "p"):
        found = host(node.hostPath or node.path)
        if kind and ("c" if kind == "u" else kind) != found.type:
            raise CdiError(f"device node {node.hostPath or node.path}: is of type {found.type}, the spec says {kind}")
        kind, major, minor = kind or found.type, found.major, found.minor
        mode = found.mode if mode is None else mode
    device: dict[str, Any] = {"path": node.path, "type": kind}
    if kind != "p":
        device |= {"major": major, "minor": minor}
    if mode is not None:
        device["fileMode"] = mode
    user = oci.get("process", {}).get("user", {})
    for field, value in (("uid", node.uid), ("gid", node.gid)):
        owner = value if value is not None else (user.get(field) or None)
        if owner is not None:
            device[field] = owner
    linux = _at(oci, "linux")
    devices = [old for old in linux.get("devices", []) if old.get("path") != node.path]
    linux["devices"] = [*devices, device]
    if kind in ("b", "c"):
        rule = {"allow": True, "type": kind, "major": major, "minor": minor, "access": node.permissions or "rwm"}
        _at(oci, "linux", "resources").setdefault("devices", []).append(rule)


def _apply_mount(mount: Mount, oci: OciSpec) -> None:
    made: dict[str, Any] = {"destination": mount.containerPath, "source": mount.hostPath}
    if mount.options:
        made["options"] = list(mount.options)
    if mount.type:
        made["type"] = mount.type
    oci["mounts"] = [old for old in oci.get("mounts", []) if old.get("destination") != mount.containerPath] + [made]


def _hook(hook: Hook) -> dict[str, Any]:
    made: dict[str, Any] = {"path": hook.path}
    if hook.args:
        made["args"] = list(hook.args)
    if hook.env:
        made["env"] = list(hook.env)
    if hook.timeout is not None:
        made["timeout"] = hook.timeout
    return made


def _rdt(rdt: IntelRdt) -> dict[str, Any]:
    values = {name: getattr(rdt, name) for name in rdt.__struct_fields__}
    return {name: value for name, value in values.items() if value}


def _at(oci: OciSpec, *path: str) -> dict[str, Any]:
    for name in path:
        oci = oci.setdefault(name, {})
    return oci
