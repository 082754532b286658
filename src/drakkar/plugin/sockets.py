"""Names of a driver's sockets, such that two instances of an upgrade can listen side by side."""

import hashlib
import os
from base64 import urlsafe_b64encode
from pathlib import Path

#: Longest path of a unix socket in bytes that grpcio takes; the kernel would take two more.
LONGEST_PATH = 105


def registration_socket(registry: Path, driver: str, instance_uid: str = "") -> Path:
    """The registration socket in the kubelet's folder; shorter forms of the instance's UID where the path is long.

    `instance_uid` is the UID of the driver's pod, empty without rolling upgrades. Raises ValueError when nothing fits.
    """
    if not instance_uid:
        names = [f"{driver}-reg.sock"]
    else:
        both = f"{driver}\0{instance_uid}"
        names = [
            f"{driver}-{instance_uid}-reg.sock",
            f"{driver}-{_digest(instance_uid, 8)}-reg.sock",
            f"dra-{_digest(both, 16)}-reg.sock",
        ]
    for name in names:
        path = registry / name
        if len(os.fsencode(path)) <= LONGEST_PATH:
            return path
    raise ValueError(f"no socket in {registry} can have a path of {LONGEST_PATH} bytes or less, use a shorter folder")


def dra_socket(plugin_folder: Path, instance_uid: str = "") -> Path:
    """The socket of the DRA service in the driver's own folder."""
    return plugin_folder / (f"dra-{instance_uid}.sock" if instance_uid else "dra.sock")


def _digest(value: str, length: int) -> str:
    return urlsafe_b64encode(hashlib.sha256(value.encode()).digest()[:length]).decode().rstrip("=")
