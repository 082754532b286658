"""Containers as plain processes of the agent's user: no root, no images, no isolation.

Volumes cannot be mounted. Their files stand under ``$DRAKKAR_ROOT`` instead, each as a link at the place where the pod
wants it: a volume mounted at ``/etc/app`` is found at ``$DRAKKAR_ROOT/etc/app``. The same goes for mounts that devices
bring; device nodes are those of the host. Hooks of devices are refused, since there is no container to run them for.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drakkar.api.tree import texts
from drakkar.node.agent.env import expand, split
from drakkar.node.agent.images import is_pause
from drakkar.node.agent.processes import LocalProcess
from drakkar.node.agent.runtime import USUAL_PATH, ContainerProblem, Image, Made, Plan
from drakkar.node.agent.streams import Session, StreamProblem, Wanted
from drakkar.plugin import cdi
from drakkar.version import __version__

ROOT = "DRAKKAR_ROOT"
#: Waits for SIGTERM or SIGINT and ends well, as the program of image `pause` does elsewhere; called so once it waits.
_PAUSE = """
import signal
ends = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, ends)
open("/proc/self/comm", "w").write("pause")
signal.sigwait(ends)
"""


class ProcessRuntime:
    """Implements `drakkar.node.agent.runtime.Runtime`."""

    name = "process"
    version = __version__
    isolates = False
    tmpfs = None

    async def image(self, name: str) -> Image:
        """Images mean nothing here."""
        return Image(name, pause=is_pause(name))

    async def make(self, plan: Plan) -> Made:
        command = texts(plan.container, "command")
        arguments = texts(plan.container, "args")
        env = {"PATH": USUAL_PATH, "HOME": pwd.getpwuid(os.getuid()).pw_dir, **plan.env}
        if plan.image.pause and not command:
            command = [sys.executable, "-I", "-S", "-c", _PAUSE]
        if not command:
            raise ContainerProblem(
                "CreateContainerConfigError",
                f"container {plan.container['name']} names no command, and runtime process has no images that could; "
                "set command, or run the agent with --runtime oci",
            )
        root = plan.folder / "root"
        root.mkdir(exist_ok=True)
        for mount in plan.mounts:
            _link(root, mount.destination, mount.source)
        oci = self._edited(plan, env)
        for mount in oci.get("mounts", ()):
            _link(root, mount["destination"], Path(mount["source"]))
        env = split(oci["process"]["env"])
        env[ROOT] = str(root)
        (plan.folder / "env").write_text("\0".join(f"{key}={value}" for key, value in env.items()))
        cwd = plan.container.get("workingDir") or str(plan.folder)
        return Made([*expand(command, plan.env), *expand(arguments, plan.env)], env, cwd)

    def _edited(self, plan: Plan, env: dict[str, str]) -> dict[str, Any]:
        hooks = [hook.hookName for edit in plan.edits for hook in edit.hooks]
        if hooks:
            raise ContainerProblem(
                "CreateContainerError",
                f"a device wants hooks ({', '.join(hooks)}), which runtime process cannot run; use --runtime oci",
            )
        try:
            return cdi.apply_edits(plan.edits, {"process": {"env": [f"{key}={value}" for key, value in env.items()]}})
        except cdi.CdiError as error:
            raise ContainerProblem("CreateContainerError", str(error)) from None

    async def started(self, identity: str, folder: Path) -> None:
        """It runs already."""

    async def signal(self, identity: str, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    async def exec(self, identity: str, folder: Path, command: Sequence[str], wanted: Wanted) -> Session:
        env = split((folder / "env").read_text().split("\0"))
        try:
            return await LocalProcess.start(command, wanted, env=env, cwd=folder)
        except OSError as error:
            raise StreamProblem(500, f"cannot execute {command[0]!r}: {error.strerror}") from None

    def out_of_memory(self, identity: str) -> bool:
        """There are no limits."""
        return False

    async def remove(self, identity: str, folder: Path) -> None:
        shutil.rmtree(folder / "root", ignore_errors=True)

    async def leftovers(self) -> list[str]:
        """Processes are found by the folders of their attempts only."""
        return []


def _link(root: Path, destination: str, source: Path) -> None:
    """A link to ``source`` at ``destination`` under ``root``; a parent that is a link itself is followed nowhere."""
    place = root
    parts = [part for part in destination.split("/") if part not in ("", ".", "..")]
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            # A volume within a volume: the outer one is somebody's real folder, which stays as it is.
            return
        place.mkdir(exist_ok=True)
    place = place / parts[-1] if parts else place
    if place.is_symlink():
        place.unlink()
    if not place.exists():
        place.symlink_to(source)
