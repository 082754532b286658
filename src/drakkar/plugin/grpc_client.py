"""The kubelet's side: calls to one socket of a driver, within an event loop.

Needs grpcio (the extra `node`).
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio

from drakkar.plugin import protobuf, wire
from drakkar.plugin.grpc_services import DRA, HEALTH, REGISTRATION

#: Seconds for the first call to a socket that has just appeared, and for a call of the DRA service.
REGISTRATION_TIMEOUT, CALL_TIMEOUT = 10.0, 45.0

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not how long to wait between two attempts, but how long one may take: a busy machine answers late.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


T = TypeVar("T")


class PluginError(Exception):
    """A driver cannot be called, or did not answer as it must.

    `unreachable`: nobody listens at its socket, or who did has ended without an answer; `late`: it did not answer in
    time; `unknown`: it has no such service.
    """

    def __init__(self, message: str, *, unreachable: bool = False, late: bool = False, unknown: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        self.late = late
        self.unknown = unknown


def choose_dra(offered: Sequence[str]) -> str:
    """The DRA service to call among those that a driver offers: v1 before v1beta1. Raises PluginError."""
    for version in DRA:
        if version in offered:
            return version
    raise PluginError(f"driver offers no DRA service known here: offered {list(offered)}, known {list(DRA)}")


def choose_health(offered: Sequence[str]) -> str | None:
    """The health service to watch: v1 before v1alpha1; None when the driver has none."""
    return next((version for version in HEALTH if version in offered), None)


class SocketClient:
    """The channel to one socket; close it (or use `async with`)."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix://{socket.absolute()}", options=_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Calls in flight get `grace` seconds to end."""
        await self._channel.close(grace)

    def connected(self) -> bool:
        """Whether the connection stands; if not, it is tried, so that asking again later tells more."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def get_info(self, timeout: float = REGISTRATION_TIMEOUT) -> wire.PluginInfo:
        """Who the driver is. Waits for the server: a socket appears before it answers. Raises PluginError."""
        return await self._call(REGISTRATION, "GetInfo", wire.InfoRequest(), wire.PluginInfo, timeout, wait=True)

    async def notify(self, status: wire.RegistrationStatus, timeout: float = REGISTRATION_TIMEOUT) -> None:
        """Tell the driver whether it is registered. Raises PluginError."""
        await self._call(
            REGISTRATION, "NotifyRegistrationStatus", status, wire.RegistrationStatusResponse, timeout, wait=False
        )

    async def prepare(
        self, version: str, claims: Sequence[wire.Claim], timeout: float = CALL_TIMEOUT
    ) -> dict[str, wire.NodePrepareResourceResponse]:
        """Answers by claim UID, one for each claim. Raises PluginError; then no claim is known to be prepared."""
        answer = await self._call(
            DRA[version],
            "NodePrepareResources",
            wire.NodePrepareResourcesRequest(claims=list(claims)),
            wire.NodePrepareResourcesResponse,
            timeout,
            wait=False,
        )
        _check_claims("NodePrepareResources", claims, answer.claims)
        return (wire.without_share_ids(answer) if version == wire.DRA_V1BETA1 else answer).claims

    async def unprepare(
        self, version: str, claims: Sequence[wire.Claim], timeout: float = CALL_TIMEOUT
    ) -> dict[str, wire.NodeUnprepareResourceResponse]:
        """Answers by claim UID, one for each claim. Raises PluginError."""
        answer = await self._call(
            DRA[version],
            "NodeUnprepareResources",
            wire.NodeUnprepareResourcesRequest(claims=list(claims)),
            wire.NodeUnprepareResourcesResponse,
            timeout,
            wait=False,
        )
        _check_claims("NodeUnprepareResources", claims, answer.claims)
        return answer.claims

    async def watch_health(self, version: str) -> AsyncGenerator[wire.NodeWatchResourcesResponse, None]:
        """Full lists of device health until the driver ends the stream. Raises PluginError."""
        call = self._channel.unary_stream(
            f"/{HEALTH[version]}/NodeWatchResources",
            request_serializer=protobuf.encode,
            response_deserializer=partial(protobuf.decode, wire.NodeWatchResourcesResponse),
        )(wire.NodeWatchResourcesRequest())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise self._problem("NodeWatchResources", error) from None
        finally:
            call.cancel()

    async def _call(
        self, service: str, method: str, request: object, response: type[T], timeout: float, *, wait: bool
    ) -> T:
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=protobuf.encode,
            response_deserializer=partial(protobuf.decode, response),
        )
        try:
            return await call(request, timeout=timeout, wait_for_ready=wait)
        except grpc.aio.AioRpcError as error:
            raise self._problem(method, error) from None

    def _problem(self, method: str, error: grpc.aio.AioRpcError) -> PluginError:
        code = error.code()
        return PluginError(
            f"{method} at {self.socket}: {code.name}: {error.details()}",
            # A server that ends cuts the connection or, before that, cancels the calls; nobody here cancels any.
            unreachable=code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED),
            late=code is grpc.StatusCode.DEADLINE_EXCEEDED,
            unknown=code is grpc.StatusCode.UNIMPLEMENTED,
        )


def _check_claims(method: str, claims: Sequence[wire.Claim], answered: Iterable[str]) -> None:
    asked, got = {claim.uid for claim in claims}, set(answered)
    if missing := asked - got:
        raise PluginError(f"{method} skipped {len(missing)} ResourceClaims: {', '.join(sorted(missing))}")
    if unknown := got - asked:
        raise PluginError(f"{method} answered for ResourceClaims that were not asked for: {', '.join(sorted(unknown))}")
