"""The driver's side: services on unix sockets, served by threads, because code that drives devices blocks.

Needs grpcio (the extra `node`).
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from drakkar.plugin import protobuf, wire
from drakkar.plugin.grpc_services import DRA, HEALTH, REGISTRATION
from drakkar.plugin.sockets import LONGEST_PATH

Prepare = Callable[[list[wire.Claim]], wire.NodePrepareResourcesResponse]
Unprepare = Callable[[list[wire.Claim]], wire.NodeUnprepareResourcesResponse]
#: Seconds for calls in flight when a server stops: less than a pod usually has to end in.
GRACE = 25.0
#: Yields full lists of devices; ends when the function that it is given (is the kubelet still there?) says False.
WatchHealth = Callable[[Callable[[], bool]], Iterator[wire.NodeWatchResourcesResponse]]


def registration_service(
    info: Callable[[], wire.PluginInfo], notified: Callable[[wire.RegistrationStatus], None]
) -> grpc.GenericRpcHandler:
    """What a kubelet asks at the registration socket; `notified` hears whether it took the driver."""

    def status(request: wire.RegistrationStatus, _: Any) -> wire.RegistrationStatusResponse:
        notified(request)
        return wire.RegistrationStatusResponse()

    return grpc.method_handlers_generic_handler(
        REGISTRATION,
        {
            "GetInfo": _unary(lambda _request, _context: info(), wire.InfoRequest),
            "NotifyRegistrationStatus": _unary(status, wire.RegistrationStatus),
        },
    )


def dra_services(prepare: Prepare, unprepare: Unprepare) -> list[grpc.GenericRpcHandler]:
    """The DRA service in both versions. What these functions raise makes the whole call fail."""

    def prepare_beta(request: wire.NodePrepareResourcesRequest, _: Any) -> wire.NodePrepareResourcesResponse:
        return wire.without_share_ids(prepare(request.claims))

    undo = _unary(lambda request, _context: unprepare(request.claims), wire.NodeUnprepareResourcesRequest)
    do = {
        wire.DRA_V1: _unary(lambda request, _context: prepare(request.claims), wire.NodePrepareResourcesRequest),
        wire.DRA_V1BETA1: _unary(prepare_beta, wire.NodePrepareResourcesRequest),
    }
    return [
        grpc.method_handlers_generic_handler(
            path, {"NodePrepareResources": do[version], "NodeUnprepareResources": undo}
        )
        for version, path in DRA.items()
    ]


def health_services(watch: WatchHealth) -> list[grpc.GenericRpcHandler]:
    """Device health in both versions. Every stream takes a thread of the server as long as it lasts."""
    handler = grpc.unary_stream_rpc_method_handler(
        lambda _request, context: watch(context.is_active),
        request_deserializer=partial(protobuf.decode, wire.NodeWatchResourcesRequest),
        response_serializer=protobuf.encode,
    )
    return [grpc.method_handlers_generic_handler(path, {"NodeWatchResources": handler}) for path in HEALTH.values()]


class SocketServer:
    """A gRPC server on one unix socket; whatever is under that name before, it replaces.

    It listens under a hidden name (a kubelet looks away from those), which then becomes the right one. So the socket
    is there only when somebody listens, and gRPC, which removes a socket by the name that it was given, does not
    remove that of an instance which has taken the name over.
    """

    def __init__(self, socket: Path, services: Sequence[grpc.GenericRpcHandler], *, threads: int = 16) -> None:
        self._hidden = socket.with_name(f".{zlib.crc32(socket.name.encode()) & 0xFFFF:04x}")
        if max(len(os.fsencode(path)) for path in (socket, self._hidden)) > LONGEST_PATH:
            raise ValueError(f"socket {socket}: the path is longer than {LONGEST_PATH} bytes, use a shorter folder")
        self.socket = socket
        self._services = list(services)
        self._threads = threads
        self._server: grpc.Server | None = None
        self._inode = 0

    def start(self) -> None:
        """Listen. Raises OSError when the folder is missing, RuntimeError when it cannot listen."""
        if not self.socket.parent.is_dir():
            raise FileNotFoundError(f"folder {self.socket.parent} for the socket {self.socket.name} does not exist")
        self._hidden.unlink(missing_ok=True)  # A crash came before it had its right name.
        server = grpc.server(ThreadPoolExecutor(self._threads), handlers=self._services)
        server.add_insecure_port(f"unix://{self._hidden.absolute()}")
        server.start()
        self._server, self._inode = server, self._hidden.stat().st_ino
        self._hidden.replace(self.socket)

    def stop(self, grace: float = GRACE) -> None:
        """Take no more calls, let those in flight end within `grace` seconds, remove the socket."""
        if self._server is None:
            return
        # First the name, so that a kubelet forgets the endpoint before calls to it fail; and only ours.
        with contextlib.suppress(FileNotFoundError):
            if self.socket.stat().st_ino == self._inode:
                self.socket.unlink()
        self._server.stop(grace).wait()
        self._server = None


def _unary(function: Callable[[Any, Any], Any], request: type) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        function,
        request_deserializer=partial(protobuf.decode, request),
        response_serializer=protobuf.encode,
    )
