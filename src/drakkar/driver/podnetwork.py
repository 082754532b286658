"""Network devices in the pod's namespace: what the NRI does for runtimes that have it, by a CDI hook for all.

A driver that defines :meth:`Driver.attach` gets a hook into the CDI file of each of its devices. When the runtime has
made the first container of a pod, the hook (`drakkar.driver.podhook`) names its process here, the driver moves its
devices into that process's network namespace, and what it says about them goes into the claim's status and the metadata
files. Further containers of the pod find it done.
"""

from __future__ import annotations

import json
import logging
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from drakkar.api.resource import v1
from drakkar.driver.driver import Driver, PrepareError
from drakkar.plugin import wire
from drakkar.plugin.cdi import ContainerEdits, Hook
from drakkar.plugin.checkpoint import PreparedDevice, Record

logger = logging.getLogger(__name__)

#: Finds the record of a claim by UID.
Find = Callable[[str], Record | None]
#: Told what came of it: the claim, and per device the data of its interface.
Attached = Callable[[wire.Claim, Sequence[tuple[PreparedDevice, v1.NetworkDeviceData]]], None]

_LONGEST_LINE = 4096


def attaches(driver: Driver) -> bool:
    """Whether the driver has network devices."""
    return type(driver).attach is not Driver.attach


def hook_edits(socket: Path, claim_uid: str) -> ContainerEdits:
    """Edits that make the runtime call back."""
    args = [sys.executable, "-m", "drakkar.driver.podhook", f"--socket={socket}", f"--claim={claim_uid}"]
    return ContainerEdits(hooks=[Hook(hookName="createRuntime", path=sys.executable, args=args)])


class PodNetwork:
    """Listens for hooks. Calls for one claim come one at a time."""

    def __init__(
        self, driver: Driver, socket: Path, find: Find, attached: Attached, *, proc: Path = Path("/proc")
    ) -> None:
        self.socket = socket
        self._driver = driver
        self._find = find
        self._attached = attached
        self._proc = proc
        self._lock = threading.Lock()
        # Claim → inode of the network namespace that has its devices.
        self._done: dict[str, int] = {}
        self._inode = 0
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def start(self) -> None:
        """Listen. Raises OSError."""
        with suppress(FileNotFoundError):
            self.socket.unlink()
        answer = self._answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(json.dumps(answer(self.rfile.readline(_LONGEST_LINE))).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(self.socket), Handler)
        self._server.daemon_threads = True
        os.chmod(self.socket, 0o600)
        self._inode = self.socket.stat().st_ino
        threading.Thread(target=self._server.serve_forever, name=f"{self._driver.name}-pods", daemon=True).start()

    def stop(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            # A newer instance may have taken the name over.
            with suppress(FileNotFoundError):
                if self.socket.stat().st_ino == self._inode:
                    self.socket.unlink()

    def forget(self, claim_uid: str) -> None:
        """The claim is unprepared; the next namespace is a new one."""
        self._done.pop(claim_uid, None)

    def _answer(self, line: bytes) -> dict[str, str]:
        try:
            asked = json.loads(line)
            self._attach(str(asked["claim"]), int(asked["pid"]))
        except PrepareError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError):
            return {"error": "the question is not understood"}
        except Exception as error:
            logger.exception("driver %s cannot attach", self._driver.name)
            return {"error": str(error) or type(error).__name__}
        return {}

    def _attach(self, uid: str, pid: int) -> None:
        record = self._find(uid)
        if record is None or record.state != "prepared":
            raise PrepareError("the claim is not prepared on this node")
        namespace = self._proc / str(pid) / "ns" / "net"
        inode = namespace.stat().st_ino
        if inode == (self._proc / "self" / "ns" / "net").stat().st_ino:
            raise PrepareError("the pod uses the network of the host, a network device cannot be moved there")
        claim = wire.Claim(record.claimNamespace, uid, record.claimName)
        with self._lock:
            if self._done.get(uid) == inode:
                return
            data = self._driver.attach(claim, record.devices, namespace)
            if len(data) != len(record.devices):
                raise PrepareError(f"driver answered for {len(data)} of {len(record.devices)} devices")
            self._done[uid] = inode
        self._attached(claim, [(d, found) for d, found in zip(record.devices, data, strict=True) if found is not None])
