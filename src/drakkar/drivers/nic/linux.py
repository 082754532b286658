"""Real interfaces: ports and functions from `/sys`, everything else by netlink (pyroute2, the extra `nic`).

A function that is in a pod is not in the host's `/sys`; which functions there are is remembered in a file. In the
pod it is found by its alias, which is its name on the host and comes back with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from drakkar.api.errors import EnvironmentProblem
from drakkar.driver.memory import Memory
from drakkar.drivers.nic.hardware import Function, Interface, Network, NetworkError, Port

#: Burst in bytes and latency of the limit inside a pod, as proved in spec/node.md section 4.
_BURST, _LATENCY = 256 * 1024, "20ms"
_ROOT_QDISC = 0x10000


class LinuxNetwork(Network):
    """The SR-IOV ports of this machine, or `lab`: links (such as veth pairs) that stand for ports and functions.

    `folder` is the plugin's own. Raises EnvironmentProblem without pyroute2.
    """

    def __init__(
        self, folder: Path, *, lab: Mapping[str, Sequence[str]] | None = None, speed: int = 10_000,
        system: Path = Path("/sys/class/net"),
    ) -> None:  # fmt: skip
        try:
            import pyroute2
        except ImportError as error:
            raise EnvironmentProblem("pyroute2 is not installed: pip install 'drakkar[node,nic]'") from error
        self._netlink: Any = pyroute2
        self._memory = Memory(folder / "functions.json", dict[str, dict[int, Function]], {})
        self._lab = dict(lab or {})
        self._speed = speed
        self._system = system

    def ports(self) -> Sequence[Port]:
        if self._lab:
            return [
                Port(
                    link=link,
                    speed=self._speed,
                    functions=tuple(Function(index=i, link=name) for i, name in enumerate(names)),
                )
                for link, names in self._lab.items()
            ]
        remembered = self._memory.read()
        found = [
            self._port(folder, remembered.get(folder.name, {}))
            for folder in sorted(self._system.iterdir())
            if list((folder / "device").glob("virtfn*"))
        ]
        self._memory.write({port.link: {f.index: f for f in port.functions} for port in found})
        return found

    def attach(self, port: Port, function: Function, namespace: Path, interface: Interface) -> tuple[str, list[str]]:
        with self._asking(f"{function.link} into the pod"), self._netlink.NetNS(str(namespace), flags=0) as inside:
            index = self._by_alias(inside, function.link)
            if index is None:
                self._move(function, namespace)
                index = self._by_alias(inside, function.link)
                if index is None:
                    raise NetworkError(f"{function.link} was moved and is not in the pod")
            inside.link("set", index=index, ifname=interface.name)
            if interface.mtu:
                inside.link("set", index=index, mtu=interface.mtu)
            inside.link("set", index=index, state="up")
            for address in interface.addresses:
                text, _, length = address.partition("/")
                with _if_new():
                    inside.addr("add", index=index, address=text, prefixlen=int(length or (128 if ":" in text else 32)))
            for route in interface.routes:
                with _if_new():
                    inside.route("add", dst=route.to, oif=index, **({"gateway": route.via} if route.via else {}))
            if interface.rate:
                with _if_new():
                    inside.tc(
                        "add", "tbf", index, _ROOT_QDISC, rate=f"{interface.rate}mbit", burst=_BURST, latency=_LATENCY
                    )
            (link,) = inside.get_links(index)
            addresses = [
                f"{found.get_attr('IFA_ADDRESS')}/{found['prefixlen']}"
                for found in inside.get_addr(index=index)
                # Addresses of the link alone say nothing to others.
                if found["scope"] == 0
            ]
            return str(link.get_attr("IFLA_ADDRESS") or ""), sorted(addresses)

    def limit(self, port: Port, function: Function, rate: int) -> bool:
        with self._asking(f"rate of {function.link}"), self._netlink.IPRoute() as host:
            index = _first(host.link_lookup(ifname=port.link))
            if index is None:
                return False
            try:
                limits = {"min_tx_rate": 0, "max_tx_rate": rate}
                host.link("set", index=index, vf={"vf": function.index, "rate": limits})
            except self._netlink.NetlinkError as error:
                # The device or its driver cannot, or it is no physical function at all.
                if error.code in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                    return False
                raise
            return True

    def release(self, port: Port, function: Function) -> None:
        with self._asking(f"{function.link} back on the host"), self._netlink.IPRoute() as host:
            index = self._by_alias(host, function.link)
            if index is None:
                return  # It is in a pod still, comes back when that ends, or went with it.
            host.link("set", index=index, state="down")
            with suppress(self._netlink.NetlinkError):
                host.tc("del", index=index, handle=_ROOT_QDISC)
            host.flush_addr(index=index)
            host.link("set", index=index, ifname=function.link)

    def _move(self, function: Function, namespace: Path) -> None:
        with self._netlink.IPRoute() as host:
            index = _first(host.link_lookup(ifname=function.link))
            if index is None:
                index = self._by_alias(host, function.link)  # It came back from a pod under the pod's name.
            if index is None:
                raise NetworkError(f"{function.link} is not on the host: it is gone, or in another pod")
            host.link("set", index=index, state="down")
            host.link("set", index=index, ifalias=function.link)
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                host.link("set", index=index, net_ns_fd=descriptor)
            finally:
                os.close(descriptor)

    @staticmethod
    def _by_alias(where: Any, alias: str) -> int | None:
        """Index of the link that has this alias there, in a pod or on the host."""
        for link in where.get_links():
            if link.get_attr("IFLA_IFALIAS") == alias:
                return int(link["index"])
        return None

    def _port(self, folder: Path, remembered: Mapping[int, Function]) -> Port:
        device = folder / "device"
        functions: list[Function] = []
        for entry in sorted(device.glob("virtfn*"), key=lambda path: int(path.name.removeprefix("virtfn"))):
            index = int(entry.name.removeprefix("virtfn"))
            links = sorted((entry / "net").iterdir()) if (entry / "net").is_dir() else []
            known = remembered.get(index)
            if links:
                mac = _text(links[0] / "address")
                known = Function(index=index, link=links[0].name, pci_bus_id=entry.resolve().name, mac=mac)
            if known is not None:
                functions.append(known)
        numa = _text(device / "numa_node")
        speed = _text(folder / "speed")
        path = str(device.resolve())
        root = next((part for part in path.split("/") if part.startswith("pci")), "")
        return Port(
            link=folder.name,
            speed=int(speed) if speed.isdecimal() and int(speed) > 0 else self._speed,
            functions=tuple(functions),
            pci_bus_id=device.resolve().name,
            pcie_root=root,
            numa_node=int(numa) if numa.isdecimal() else None,
            rdma=(device / "infiniband").is_dir(),
            up=_text(folder / "carrier") != "0",
        )

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except (self._netlink.NetlinkError, OSError) as error:
            raise NetworkError(f"{what}: {error}") from error


@contextmanager
def _if_new() -> Iterator[None]:
    """What exists already is fine: attach may be called again."""
    try:
        yield
    except Exception as error:
        if getattr(error, "code", None) != errno.EEXIST:
            raise


def _first(found: Sequence[int]) -> int | None:
    return found[0] if found else None


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
