"""The driver `nic.drakkar.dev`.

A virtual function belongs to one claim and takes a share of its port's bandwidth (docs/reference/shares.md). Where
another scheduler did not count the shares, prepare refuses. Functions move into the pod's network namespace when its
first container is made.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

import msgspec

from drakkar.api.resource import v1
from drakkar.api.resource.drawn import Use, function_of, overdrawn, port_counters, uses_of, whole_port
from drakkar.driver import AllocatedDevice, Driver, Health, Prepared, PrepareError, device
from drakkar.drivers.nic.hardware import Function, Interface, Network, NetworkError, Port, Route
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice

NAME = "nic.drakkar.dev"
API_VERSION = f"{NAME}/v1"
_MEGABIT = 1_000_000
#: Longest name of a link.
_LONGEST_LINK = 15


class NicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the interface shall be in the pod; names are net1, net2 … unless given."""

    interface: str = ""
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    mtu: int = 0

    def __post_init__(self) -> None:
        if self.interface and (len(self.interface) > _LONGEST_LINK or re.search(r"[\s/:]", self.interface)):
            raise ValueError(f"interface {self.interface!r}: at most {_LONGEST_LINK} characters, no space, / or :")
        for address in self.addresses:
            ipaddress.ip_interface(address)
        for route in self.routes:
            if route.to != "default":
                ipaddress.ip_network(route.to)
            if route.via:
                ipaddress.ip_address(route.via)
        if self.mtu and not 68 <= self.mtu <= 65535:
            raise ValueError(f"mtu {self.mtu}: between 68 and 65535")


class NicDriver(Driver):
    """Ports of one node and their virtual functions; whole ports are offered with `whole_ports`."""

    name = NAME
    configs = {(API_VERSION, "NicConfig"): NicConfig}
    unhealthy = "NoSchedule"

    def __init__(self, network: Network, *, whole_ports: bool = False) -> None:
        self._network = network
        self._whole_ports = whole_ports
        self._counters: list[v1.CounterSet] = []
        self._devices: dict[str, v1.Device] = {}
        self._things: dict[str, tuple[Port, Function | None]] = {}
        # Claims of which the record may not say yet what they were granted.
        self._granted: dict[str, list[Use]] = {}
        self._lock = Lock()

    def discover(self) -> Sequence[v1.Device | v1.CounterSet]:
        """A counter set per port, its functions, and the port itself where asked for."""
        counters: list[v1.CounterSet] = []
        devices: dict[str, v1.Device] = {}
        things: dict[str, tuple[Port, Function | None]] = {}
        for port in self._network.ports():
            label = _label(port.link)
            bandwidth = f"{port.speed}M"
            own = port_counters(label, bandwidth, functions=max(1, len(port.functions)))
            counters.append(own)
            span = v1.CapacityRequestPolicyRange(min="1M", max=bandwidth, step="1M")
            share = v1.DeviceCapacity(
                value=bandwidth, requestPolicy=v1.CapacityRequestPolicy(default="1M", validRange=span)
            )
            for function in port.functions:
                name = f"{label}-vf{function.index}"
                devices[name] = function_of(own, name, share, _attributes(port, function))
                things[name] = (port, function)
            if self._whole_ports:
                devices[label] = whole_port(own, label, _attributes(port, None))
                things[label] = (port, None)
        self._counters, self._things = counters, things
        self._devices = self._devices | devices
        return [*counters, *devices.values()]

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[Prepared]:
        """Check that the shares fit, limit rates, keep what the interface shall be for :meth:`attach`."""
        with self._lock:
            uses = uses_of(found.result for found in devices)
            reason = overdrawn(self._counters, self._devices, self._held(claim.metadata.uid), uses)
            if reason is not None:
                raise PrepareError(reason)
            prepared = [self._prepare(number, found) for number, found in enumerate(devices)]
            self._granted[claim.metadata.uid] = uses
            return prepared

    def attach(
        self, claim: wire.Claim, devices: Sequence[PreparedDevice], namespace: Path
    ) -> Sequence[v1.NetworkDeviceData | None]:
        """Move the functions into the pod."""
        try:
            return [self._attach(found, namespace) for found in devices]
        except NetworkError as error:
            raise PrepareError(str(error)) from error

    def unprepare(self, claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:
        """Lift limits; the functions have come back when the pod's namespace ended."""
        try:
            for found in devices:
                port, function = self._things.get(found.deviceName, (None, None))
                if port is not None and function is not None and not found.admin:
                    self._network.limit(port, function, 0)
                    self._network.release(port, function)
            self._granted.pop(claim.uid, None)
        except NetworkError as error:
            raise PrepareError(str(error)) from error

    def health(self) -> Mapping[str, Health]:
        """A port without a carrier is unhealthy, and so are its functions."""
        down = {port.link for port in self._network.ports() if not port.up}
        return {
            name: Health("Unhealthy", f"port {port.link} has no carrier")
            for name, (port, _) in self._things.items()
            if port.link in down
        }

    def _held(self, uid: str) -> list[Use]:
        """What other claims have: as their records say, or as they were granted a moment ago."""
        held: list[Use] = []
        records = self.records()
        for other in (records.keys() | self._granted.keys()) - {uid}:
            recorded = [
                Use(found.deviceName, found.state["consumed"])
                for found in records.get(other, ())
                if "consumed" in found.state and not found.admin and found.deviceName in self._devices
            ]
            held += recorded or self._granted.get(other, [])
        return held

    def _prepare(self, number: int, found: AllocatedDevice) -> Prepared:
        port, function = self._thing(found.name)
        config = found.configs[-1] if found.configs else NicConfig()
        assert isinstance(config, NicConfig)
        consumed = dict(found.result.consumedCapacity or {})
        rate = 0
        if function is not None:
            rate = (found.consumed("bandwidth") or 0) // _MEGABIT
        try:
            at_port = function is not None and rate > 0 and self._network.limit(port, function, rate)
        except NetworkError as error:
            raise PrepareError(str(error)) from error
        interface = Interface(
            name=config.interface or f"net{number + 1}",
            addresses=config.addresses,
            routes=config.routes,
            mtu=config.mtu,
            # Where the port cannot limit its functions, the pod's own side does.
            rate=0 if at_port else rate,
        )
        return Prepared(state={"consumed": consumed, "interface": msgspec.to_builtins(interface)})

    def _attach(self, found: PreparedDevice, namespace: Path) -> v1.NetworkDeviceData | None:
        if found.admin:
            return None
        port, function = self._thing(found.deviceName)
        interface = msgspec.convert(found.state["interface"], Interface)
        target = function or Function(index=-1, link=port.link, pci_bus_id=port.pci_bus_id)
        mac, addresses = self._network.attach(port, target, namespace, interface)
        return v1.NetworkDeviceData(interfaceName=interface.name, hardwareAddress=mac or None, ips=addresses or None)

    def _thing(self, name: str) -> tuple[Port, Function | None]:
        thing = self._things.get(name)
        if thing is None:
            raise PrepareError(f"device {name} does not exist (any more) on this node")
        return thing


def _label(link: str) -> str:
    """A link's name as part of a device's: `enp8s0f0np0`, dots and underscores replaced."""
    return re.sub(r"[^a-z0-9]+", "-", link.lower()).strip("-")


def _attributes(port: Port, function: Function | None) -> dict[str, v1.DeviceAttribute]:
    described = device(
        "x",
        {
            "type": "port" if function is None else "function",
            "port": port.link,
            "speed": port.speed,
            "rdma": port.rdma,
            **({"index": function.index, "link": function.link} if function is not None else {}),
        },
        pcie_root=port.pcie_root,
        pci_bus_id=port.pci_bus_id if function is None else function.pci_bus_id,
        numa_node=port.numa_node,
    )
    return dict(described.attributes or {})
