"""Containers by runc: own file system (an overlay over the image), namespaces, cgroups, a filter for devices.

Needs root. What a crash leaves is found by name: runc's own state, and mounts in the folders of attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.api.tree import at, children, text
from drakkar.node.agent import mounts, ocispec
from drakkar.node.agent.images import HOST_FOLDERS, Images, read_config
from drakkar.node.agent.processes import LocalProcess
from drakkar.node.agent.runtime import BindMount, ContainerProblem, Image, Made, Plan
from drakkar.node.agent.streams import Session, Wanted
from drakkar.plugin import cdi

logger = logging.getLogger(__name__)

#: Attempts to delete a container, and seconds between them.
_DELETES, _PAUSE = 5, 0.2
#: Size of ``/dev/shm``, which the containers of a pod share.
_SHM = "64Mi"


class OciRuntime:
    """Implements `drakkar.node.agent.runtime.Runtime`; :meth:`open` makes one."""

    name = "runc"
    isolates = True

    def __init__(self, binary: str, version: str, root: Path, images: Images):
        self.version = version
        self._runc = [binary, "--root", str(root / "runc")]
        self._images = images
        self._root = root
        self._unpacking = asyncio.Lock()

    @staticmethod
    def open(root: Path, config: str | None) -> OciRuntime:
        """Raises UsageError when runc is not there or the config is wrong."""
        binary = shutil.which("runc")
        if binary is None:
            raise UsageError("--runtime oci: needs runc on the PATH; on Debian: apt-get install runc")
        words = subprocess.run([binary, "--version"], check=False, capture_output=True, text=True).stdout.split()
        version = words[2] if len(words) > 2 else "unknown"
        images = Images(root / "images", read_config(Path(config).expanduser()) if config else None)
        return OciRuntime(binary, version, root, images)

    @property
    def tmpfs(self) -> Callable[[Path, str], None]:
        return mounts.tmpfs

    async def image(self, name: str) -> Image:
        async with self._unpacking:
            return await asyncio.to_thread(self._images.get, name)

    async def make(self, plan: Plan) -> Made:
        return await asyncio.to_thread(self._make, plan)

    def _make(self, plan: Plan) -> Made:
        try:
            self._lay_root(plan)
            spec = ocispec.build(plan, ocispec.user_of(plan), self._files(plan), pause=[_PAUSE_PLACE])
            if plan.image.host:
                spec["mounts"] = [*_host_mounts(plan), *spec["mounts"]]
            spec = cdi.apply_edits(plan.edits, spec)
        except (cdi.CdiError, mounts.MountProblem, OSError) as error:
            raise ContainerProblem("CreateContainerError", str(error)) from None
        (plan.folder / "config.json").write_text(json.dumps(spec))
        create = [
            *self._runc,
            "--log",
            str(plan.folder / "runtime.log"),
            "--log-format",
            "json",
            "create",
            "--bundle",
            str(plan.folder),
            "--pid-file",
            str(plan.folder / "pid"),
            plan.identity,
        ]
        return Made(create=create)

    def _lay_root(self, plan: Plan) -> None:
        """An overlay, so that containers change neither the image nor each other's files."""
        assert plan.image.root is not None
        _overlay(plan.image.root, plan.folder, "rootfs")
        if plan.image.host:
            for name in HOST_FOLDERS:
                if Path("/", name).is_dir():
                    _overlay(Path("/", name), plan.folder, name)

    def _files(self, plan: Plan) -> list[BindMount]:
        """Files and folders that every container gets. What it may write belongs to its pod alone."""
        hosts = plan.pod_folder / "hosts"
        if not hosts.exists():
            hosts.write_text(_hosts(plan))
        shared = plan.pod_folder / "volumes" / ".shm"
        if not shared.exists():
            shared.mkdir(parents=True)
            mounts.tmpfs(shared, _SHM)
        message = plan.folder / "termination-log"
        message.touch()
        message.chmod(0o666)
        files = {"/etc/hosts": hosts, "/dev/shm": shared}
        files[plan.container.get("terminationMessagePath") or "/dev/termination-log"] = message
        if Path("/etc/resolv.conf").exists() and not plan.image.host:
            resolver = plan.pod_folder / "resolv.conf"
            if not resolver.exists():
                shutil.copyfile("/etc/resolv.conf", resolver)
            files["/etc/resolv.conf"] = resolver
        taken = {mount.destination.rstrip("/") for mount in plan.mounts}
        found = [BindMount(path, place) for place, path in files.items()]
        if plan.image.pause:
            found.append(BindMount(self._pause_program(), _PAUSE_PLACE, read_only=True))
        return [mount for mount in found if mount.destination not in taken]

    def _pause_program(self) -> Path:
        """A program without libraries that only waits."""
        program = self._root / "images" / "pause"
        if not program.exists():
            from drakkar.node.agent.pause import program_bytes

            program.parent.mkdir(parents=True, exist_ok=True)
            fresh = program.with_suffix(".new")
            fresh.write_bytes(program_bytes())
            fresh.chmod(0o755)
            fresh.rename(program)
        return program

    async def started(self, identity: str, folder: Path) -> None:
        done = await self._run("start", identity)
        if done.returncode != 0 and not await self._has_begun(identity):
            await self.remove(identity, folder)
            raise ContainerProblem("RunContainerError", done.stderr.strip() or "runc start failed")

    async def _has_begun(self, identity: str) -> bool:
        """Whether somebody has started it before."""
        state = await self._run("state", identity)
        return state.returncode == 0 and json.loads(state.stdout).get("status") in ("running", "stopped")

    async def signal(self, identity: str, pid: int, number: int) -> None:
        # The first process of its PID namespace takes the others with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number == signal.SIGKILL:
            await self._run("kill", "--all", identity, "KILL")

    async def exec(self, identity: str, folder: Path, command: Sequence[str], wanted: Wanted) -> Session:
        terminal = ["--tty"] if wanted.tty else []
        return await LocalProcess.start([*self._runc, "exec", *terminal, identity, *command], wanted)

    def out_of_memory(self, identity: str) -> bool:
        inner = ocispec.control_group(identity)
        # Version 1 of control groups, then version 2.
        for file in (_CONTROL / "memory" / inner / "memory.oom_control", _CONTROL / inner / "memory.events"):
            with contextlib.suppress(OSError, ValueError):
                entries = dict(line.split() for line in file.read_text().splitlines())
                return int(entries.get("oom_kill", 0)) > 0
        return False

    async def remove(self, identity: str, folder: Path) -> None:
        for attempt in range(_DELETES):
            done = await self._run("delete", "--force", identity)
            if done.returncode == 0 or "does not exist" in done.stderr:
                break
            if attempt == _DELETES - 1:
                logger.warning("container %s: runc delete: %s", identity, done.stderr.strip())
            await asyncio.sleep(_PAUSE)
        for _ in range(_DELETES):
            if await asyncio.to_thread(_remove_groups, identity):
                break
            # A process that was killed belongs to its groups until its parent, the monitor, has heard of its end.
            await asyncio.sleep(_PAUSE)
        await asyncio.to_thread(mounts.unmount_below, folder)

    async def leftovers(self) -> list[str]:
        done = await self._run("list", "--quiet")
        return done.stdout.split()

    async def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._runc, *words]
        return await asyncio.to_thread(
            subprocess.run, command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )


_PAUSE_PLACE = "/pause"
_CONTROL = Path("/sys/fs/cgroup")


def _remove_groups(identity: str) -> bool:
    """The container's control groups, and the pod's when they were the last: runc leaves the latter. False: in use."""
    gone = True
    tops = [_CONTROL, *(path for path in _CONTROL.iterdir() if path.is_dir())] if _CONTROL.is_dir() else []
    for top in tops:
        group = top / ocispec.control_group(identity)
        for each in (group, group.parent):
            # One that is not empty belongs to another container of the pod.
            with contextlib.suppress(OSError):
                each.rmdir()
        gone = gone and not group.exists()
    return gone


def _overlay(lower: Path, folder: Path, name: str) -> None:
    """A writable view of ``lower`` at ``folder``/``name``. Raises MountProblem, OSError."""
    place, upper, work = folder / name, folder / f".{name}.upper", folder / f".{name}.work"
    for each in (place, upper, work):
        each.mkdir(exist_ok=True)
    mounts.mount("overlay", "overlay", place, f"lowerdir={lower},upperdir={upper},workdir={work}")


def _host_mounts(plan: Plan) -> list[ocispec.OciSpec]:
    found: list[ocispec.OciSpec] = []
    for name in HOST_FOLDERS:
        if (plan.folder / name).is_dir():
            options = ["rbind", "rprivate", "rw"]
            source = str(plan.folder / name)
            found.append({"destination": f"/{name}", "type": "bind", "source": source, "options": options})
    return found


def _hosts(plan: Plan) -> str:
    if at(plan.pod, "spec", "hostNetwork"):
        lines = Path("/etc/hosts").read_text().splitlines() if Path("/etc/hosts").exists() else []
    else:
        address = text(plan.pod, "status", "podIP")
        lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"{address}\t{plan.hostname}"]
    lines += plan.hosts
    for alias in children(plan.pod, "spec", "hostAliases"):
        lines.append("\t".join([alias["ip"], *alias.get("hostnames", [])]))
    return "\n".join(lines) + "\n"
