"""Names of a driver's sockets, such that two instances of an upgrade can listen side by side."""

import contextlib
import hashlib
import os
import socket
import time
from base64 import urlsafe_b64encode
from pathlib import Path

#: Longest path of a unix socket in bytes that grpcio takes; the kernel would take two more.
LONGEST_PATH = 105
#: Age in seconds from which a socket that nobody serves is left over; a younger one may be about to be served.
SETTLED = 60.0


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


def remove_dead(registry: Path, plugin_folder: Path, driver: str) -> list[Path]:
    """Remove sockets that killed instances of a driver left behind; returns which.

    A kubelet tries to register such a socket again whenever it starts, and for as long as it is there. Names that say
    only a digest (see :func:`registration_socket`) may be another driver's and stay.
    """
    removed: list[Path] = []
    for path in sorted([*registry.glob(f"{driver}-*reg.sock"), *plugin_folder.glob("dra*.sock")]):
        with contextlib.suppress(OSError):  # Somebody else may be quicker.
            if path.is_socket() and time.time() - path.stat().st_mtime >= SETTLED and not _served(path):
                path.unlink()
                removed.append(path)
    return removed


def _served(path: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # More wait for it than it has room for.
            return True
    return True


def _digest(value: str, length: int) -> str:
    return urlsafe_b64encode(hashlib.sha256(value.encode()).digest()[:length]).decode().rstrip("=")
