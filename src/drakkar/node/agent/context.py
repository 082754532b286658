"""What all pods of an agent share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drakkar.api.clock import Clock
from drakkar.client.client import Client
from drakkar.client.events import EventRecorder
from drakkar.node.agent.claims import Claims
from drakkar.node.agent.health import DeviceHealths
from drakkar.node.agent.network import Network
from drakkar.node.agent.runtime import Runtime
from drakkar.plugin.cdi import SpecFolders


@dataclass(frozen=True, slots=True)
class Paths:
    """Where an agent keeps things, all under one root."""

    root: Path

    @property
    def registry(self) -> Path:
        """Where drivers put their registration sockets."""
        return self.root / "plugins_registry"

    @property
    def claims(self) -> Path:
        return self.root / "claims"

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    @property
    def sockets(self) -> Path:
        return self.root / "s"

    @property
    def network(self) -> Path:
        """Who has which address."""
        return self.root / "network"

    @property
    def images(self) -> Path:
        return self.root / "images"

    def pod(self, uid: str) -> Path:
        return self.pods / uid

    def logs(self, uid: str, container: str) -> Path:
        """The folder with a log per attempt."""
        return self.pods / uid / "logs" / container

    def make(self) -> None:
        """Make the folders. Raises OSError."""
        for folder in (self.registry, self.root / "plugins", self.claims, self.pods, self.sockets, self.images):
            folder.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        self.pods.chmod(0o700)


@dataclass(frozen=True, slots=True)
class Facts:
    """What containers are told about their node (implements `drakkar.node.agent.env.NodeFacts`)."""

    allocatable: Mapping[str, str]
    api_host: tuple[str, int]


@dataclass(slots=True, eq=False)
class Context:
    """The agent, as a pod sees it."""

    host_ip: str
    client: Client
    clock: Clock
    recorder: EventRecorder
    paths: Paths
    facts: Facts
    runtime: Runtime
    network: Network
    claims: Claims
    healths: DeviceHealths
    specs: SpecFolders
    longest_log: int = 10 << 20
    keep_logs: int = 5
    #: Containers that start at the same time.
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))
