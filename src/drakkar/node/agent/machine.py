"""What this machine is: capacity, addresses and names for the Node object. Linux only."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from drakkar.plugin.checkpoint import boot_id
from drakkar.version import NODE_VERSION

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def capacity(pods: int = 110) -> dict[str, str]:
    """cpu, memory, ephemeral storage and pods."""
    kib = next(
        (
            int(line.split()[1])
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemTotal")
        ),
        0,
    )
    disk = os.statvfs("/")
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{kib}Ki",
        "ephemeral-storage": f"{disk.f_blocks * disk.f_frsize // 1024}Ki",
        "pods": str(pods),
    }


def architecture() -> str:
    """In Go's words, as labels have it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def info(runtime: str, runtime_version: str) -> dict[str, Any]:
    """``status.nodeInfo``."""
    identity = Path("/etc/machine-id")
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    machine = identity.read_text().strip() if identity.exists() else socket.gethostname()
    return {
        "machineID": machine,
        "systemUUID": machine,
        "bootID": boot_id(),
        "kernelVersion": platform.release(),
        "osImage": release.get("PRETTY_NAME", platform.system()),
        "containerRuntimeVersion": f"{runtime}://{runtime_version}",
        "kubeletVersion": NODE_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture(),
    }


def address_towards(server: str) -> str:
    """The address of this machine that the API server at this URL sees. Raises OSError.

    On the server's own machine that is the loopback address: no node gets a certificate for the server's others.
    """
    parts = urlsplit(server)
    host, port = parts.hostname or "127.0.0.1", parts.port or 443
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: connecting only chooses the way.
        probe.connect(where)
        address = probe.getsockname()[0]
    if address != where[0]:
        return address
    return "127.0.0.1" if family == socket.AF_INET else "::1"
