"""Which runtime an agent uses, and why it may not."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.node.agent.agent import Settings
from drakkar.node.agent.network import BridgeNetwork, HostNetwork, Network
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.node.agent.runtime import Runtime

#: Longest prefix of a subnet that holds the bridge's address and one of a pod.
_SMALLEST = 30


def choose_runtime(name: str | None, root: Path, config: str | None, user: int) -> Runtime:
    """The runtime of this name, None for the usual one; ``user`` is the id of the agent's user. Raises UsageError."""
    if name == "process":
        if user == 0:
            raise UsageError(
                "--runtime process: refused as root, since pods' commands would run as root without any isolation; "
                "start the agent as another user, or use --runtime oci"
            )
        if config:
            raise UsageError("--config: runtime process has no images; leave it out, or use --runtime oci")
        return ProcessRuntime()
    if user != 0:
        raise UsageError(
            "--runtime oci: needs root; use sudo, or --runtime process, which runs pods' commands as your own user"
        )
    from drakkar.node.agent.oci_runtime import OciRuntime

    return OciRuntime.open(root, config)


def choose_network(name: str | None, runtime: Runtime, settings: Settings, pod_cidr: str | None = None) -> Network:
    """The network of this name, None for the usual one of the runtime. Raises UsageError."""
    if name == "bridge" and not runtime.isolates:
        raise UsageError("--network bridge: plain processes share the network of the host; use --runtime oci")
    subnet = _subnet(pod_cidr) if pod_cidr else None
    if name == "host" or not runtime.isolates:
        if subnet is not None:
            raise UsageError(f"--pod-cidr {pod_cidr}: pods have the addresses of the host; use --network bridge")
        return HostNetwork(settings.address, settings.api)
    return BridgeNetwork(settings.root / "network", settings.address, settings.api, subnet=subnet)


def _subnet(text: str) -> ipaddress.IPv4Network:
    try:
        found = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"--pod-cidr {text}: {error}; write it like 10.88.1.0/24") from None
    if found.prefixlen > _SMALLEST:
        raise UsageError(f"--pod-cidr {text}: has no room for the node and a pod; /{_SMALLEST} is the smallest")
    return found
