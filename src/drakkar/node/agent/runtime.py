"""What the agent asks of a container runtime, and what a container is made of before one makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from drakkar.api.meta import Object
from drakkar.node.agent.streams import Session, Wanted
from drakkar.plugin import cdi

#: Where programs are looked for unless image or container say otherwise.
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Length of a UID, with which identities begin.
_UID = 36


def identity_of(uid: str, container: str, number: int) -> str:
    """What an attempt of a container is called, on the whole machine; ``uid`` is that of its pod."""
    return f"{uid}-{container}-{number}"


def pod_of(identity: str) -> str:
    """UID of the pod to which an attempt belongs."""
    return identity[:_UID]


class ContainerProblem(Exception):
    """A container cannot be made or started; ``reason`` is that of the waiting state in the pod's status."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or folder of the host in the container."""

    source: Path
    destination: str
    read_only: bool = False
    #: ``rprivate``, ``rslave`` or ``rshared``.
    propagation: str = "rprivate"


@dataclass(frozen=True, slots=True)
class Image:
    """What an image says about its containers; ``root`` is its file system, None where there is none."""

    name: str
    digest: str = ""
    root: Path | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cwd: str = ""
    user: str = ""
    #: Built in: a process that only waits.
    pause: bool = False
    #: The machine's own programs, read-only.
    host: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt of a container: everything that a runtime needs to make it."""

    pod: Object
    container: Object
    identity: str
    folder: Path
    #: What the pod's containers share lies there.
    pod_folder: Path
    image: Image
    env: dict[str, str]
    mounts: tuple[BindMount, ...] = ()
    edits: tuple[cdi.ContainerEdits, ...] = ()
    #: Network namespace of the pod, None for that of the host.
    network: Path | None = None
    hostname: str = ""
    #: Lines for ``/etc/hosts``.
    hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class Made:
    """What a runtime has laid out: settings for the shim (`drakkar.node.agent.shims.Config`)."""

    argv: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    cwd: str = "/"
    #: A command that creates the container instead of ``argv``; its last word is the container's name.
    create: list[str] | None = None


class Runtime(Protocol):
    """A way of running containers. Methods raise ContainerProblem."""

    name: str
    version: str
    #: Whether containers have files of their own, so that volumes can stand where the pod wants them.
    isolates: bool

    @property
    def tmpfs(self) -> Callable[[Path, str], None] | None:
        """Mounts memory at a folder (size as a quantity, empty for any); None where that is not possible."""
        ...

    async def image(self, name: str) -> Image: ...

    async def make(self, plan: Plan) -> Made:
        """Lay out files for an attempt."""
        ...

    async def started(self, identity: str, folder: Path) -> None:
        """The shim has the container; let its program begin."""
        ...

    async def signal(self, identity: str, pid: int, number: int) -> None:
        """To all processes of the container for SIGKILL, to the first one otherwise. Ended ones are no problem."""
        ...

    async def exec(self, identity: str, folder: Path, command: Sequence[str], wanted: Wanted) -> Session: ...

    def out_of_memory(self, identity: str) -> bool:
        """Whether the kernel has ended a process of the container for want of memory; known until it is removed."""
        ...

    async def remove(self, identity: str, folder: Path) -> None:
        """Nothing of it is left; may be called again."""
        ...

    async def leftovers(self) -> list[str]:
        """Identities of containers that exist."""
        ...
