"""The machines that the mesh demo pretends: a network namespace for each node, joined by a switch with slow links.

Made by `ip` and `tc`. All of it but one link of the real machine lies in namespaces, which end with the demo.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drakkar.api.errors import EnvironmentProblem
from drakkar.node.agent.network import free_subnets
from drakkar.node.agent.runtime import ContainerProblem

#: Where a free /24 for this machine and the nodes is looked for. Pods have networks that this machine never sees.
_SPACE = ipaddress.IPv4Network("10.89.0.0/16")
_NAMESPACES = "/run/netns"
_SWITCH = "switch"
#: Speed of a node's link, each way; tbf's burst and queue as the prototype had them (spec/node.md 4).
RATE = "1gbit"
_BURST, _LATENCY = "256kb", "20ms"
_FIRST = 10


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's place in the network."""

    name: str
    address: str
    pods: str

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command in this machine's network. Not by ``ip netns exec``, which would hide control groups."""
        return ["nsenter", f"--net={_NAMESPACES}/{self.name}", "--", *command]


@dataclass(frozen=True, slots=True)
class MeshNetwork:
    """Where things are: this machine's address and link, and the nodes."""

    host: str
    link: str
    machines: tuple[Machine, ...]

    def remove(self) -> None:
        """Take the link away; namespaces go with the demo's mounts."""
        subprocess.run(["ip", "link", "delete", self.link], check=False, capture_output=True)


def build(names: Sequence[str]) -> MeshNetwork:
    """Make the network. Raises EnvironmentProblem with the words of the program that failed."""
    # Names of namespaces are mounts: on a file system of ours they are seen here only, and leave no files.
    Path(_NAMESPACES).mkdir(parents=True, exist_ok=True)
    _do("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", _NAMESPACES)
    _do("ip", "netns", "add", _SWITCH)
    _do("ip", "-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
    _do("ip", "-n", _SWITCH, "link", "set", "bridge", "up")
    try:
        with free_subnets(_SPACE, 24) as free:
            subnet = next(free, None)
            if subnet is None:
                raise EnvironmentProblem(f"demo mesh: this machine uses all of {_SPACE}")
            link = f"dkmesh{subnet.network_address.packed[2]}"
            _do("ip", "link", "add", link, "type", "veth", "peer", "name", "host", "netns", _SWITCH)
            _do("ip", "address", "add", f"{subnet[1]}/24", "dev", link)
    except (ContainerProblem, OSError) as error:
        raise EnvironmentProblem(f"demo mesh: {error}") from None
    machines = tuple(
        Machine(name, str(subnet[_FIRST + number]), f"10.88.{number + 1}.0/24") for number, name in enumerate(names)
    )
    network = MeshNetwork(str(subnet[1]), link, machines)
    try:
        _do("ip", "link", "set", link, "up")
        _do("ip", "-n", _SWITCH, "link", "set", "host", "master", "bridge", "up")
        for number, machine in enumerate(machines):
            _connect(machine, f"node{number}", [other for other in machines if other is not machine])
    except EnvironmentProblem:
        network.remove()
        raise
    return network


def _connect(machine: Machine, port: str, others: Sequence[Machine]) -> None:
    name = machine.name
    _do("ip", "netns", "add", name)
    _do("ip", "-n", name, "link", "add", "uplink", "type", "veth", "peer", "name", port, "netns", _SWITCH)
    _do("ip", "-n", name, "address", "add", f"{machine.address}/24", "dev", "uplink")
    for link in ("lo", "uplink"):
        _do("ip", "-n", name, "link", "set", link, "up")
    _do("ip", "-n", _SWITCH, "link", "set", port, "master", "bridge", "up")
    for namespace, link in ((name, "uplink"), (_SWITCH, port)):
        shape = ["root", "tbf", "rate", RATE, "burst", _BURST, "latency", _LATENCY]
        _do("tc", "-n", namespace, "qdisc", "add", "dev", link, *shape)
    # Pods of other nodes are behind their nodes.
    _do(*machine.enter(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))
    for other in others:
        _do("ip", "-n", name, "route", "add", other.pods, "via", other.address)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return
    cure = ""
    if command[0] == "tc":
        cure = "; the kernel must have sch_tbf (modprobe sch_tbf)"
    elif "link" in command and "add" in command:
        cure = "; the kernel must have veth and bridge (modprobe veth bridge)"
    raise EnvironmentProblem(f"demo mesh: {' '.join(command)}: {done.stderr.strip()}{cure}")
