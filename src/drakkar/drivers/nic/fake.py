"""Ports and functions that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from drakkar.drivers.nic.hardware import Function, Interface, Network, NetworkError, Port


class FakeNetwork(Network):
    """`ports` ports of `speed` Mbit/s with `functions` functions each, on one NUMA node and PCIe root per port."""

    def __init__(self, ports: int = 2, functions: int = 8, speed: int = 100_000, *, can_limit: bool = True) -> None:
        self._ports = [
            Port(
                link=f"eth{p}",
                speed=speed,
                pci_bus_id=f"0000:{16 * (p + 1) + 2:02x}:00.0",
                pcie_root=f"pci0000:{16 * (p + 1):02x}",
                numa_node=p * 2 // ports,
                functions=tuple(
                    Function(index=f, link=f"eth{p}v{f}", pci_bus_id=f"0000:{16 * p + 18:02x}:{f // 8 + 1:02x}.{f % 8}")
                    for f in range(functions)
                ),
            )
            for p in range(ports)
        ]
        self._can_limit = can_limit
        #: Function (link) → where it is and how; rates set at the port.
        self.attached: dict[str, tuple[Path, Interface]] = {}
        self.rates: dict[str, int] = {}
        self.down: set[str] = set()

    def ports(self) -> Sequence[Port]:
        return [msgspec.structs.replace(port, up=port.link not in self.down) for port in self._ports]

    def attach(self, port: Port, function: Function, namespace: Path, interface: Interface) -> tuple[str, list[str]]:
        where, _ = self.attached.get(function.link, (namespace, interface))
        if where != namespace:
            raise NetworkError(f"{function.link} is not on the host: it is gone, or in another pod")
        self.attached[function.link] = (namespace, interface)
        return f"02:00:00:00:{port.numa_node or 0:02x}:{function.index:02x}", sorted(interface.addresses)

    def limit(self, port: Port, function: Function, rate: int) -> bool:
        if self._can_limit:
            self.rates[function.link] = rate
        return self._can_limit

    def release(self, port: Port, function: Function) -> None:
        self.attached.pop(function.link, None)
