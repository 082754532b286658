"""What the NIC driver needs of the machine: one narrow interface.

Real: `drakkar.drivers.nic.linux` (sysfs and netlink). Fake: `drakkar.drivers.nic.fake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class NetworkError(Exception):
    """The kernel refused; the message says what was asked and what it answered."""


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual function of a port, or a link that stands for one; `link` is its name on the host."""

    index: int
    link: str
    pci_bus_id: str = ""
    mac: str = ""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A physical function with its virtual ones. `speed` in Mbit/s."""

    link: str
    speed: int
    functions: tuple[Function, ...] = ()
    pci_bus_id: str = ""
    pcie_root: str = ""
    numa_node: int | None = None
    rdma: bool = False
    up: bool = True


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A destination (`10.0.0.0/8`, `default`) and the next hop, if not on the link."""

    to: str
    via: str = ""


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """How a link shall be inside the pod. `rate` in Mbit/s, 0: no limit."""

    name: str
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    mtu: int = 0
    rate: int = 0


class Network(Protocol):
    """All calls block and may raise NetworkError."""

    def ports(self) -> Sequence[Port]:
        """As they are now, functions that are in pods included."""
        ...

    def attach(self, port: Port, function: Function, namespace: Path, interface: Interface) -> tuple[str, list[str]]:
        """Move the function into the namespace and set it up there, or only what is missing; its MAC and addresses."""
        ...

    def limit(self, port: Port, function: Function, rate: int) -> bool:
        """Limit what the function sends at the port, in Mbit/s (0: not any more); False where the port cannot."""
        ...

    def release(self, port: Port, function: Function) -> None:
        """Give a function that is back on the host its name and defaults again."""
        ...
