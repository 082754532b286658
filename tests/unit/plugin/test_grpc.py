"""Client and server over real unix sockets."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.plugin import wire  # noqa: E402
from drakkar.plugin.grpc_client import PluginError, SocketClient, choose_dra, choose_health  # noqa: E402
from drakkar.plugin.grpc_server import (  # noqa: E402
    SocketServer,
    dra_services,
    health_services,
    registration_service,
)
from drakkar.plugin.grpc_services import DRA  # noqa: E402
from drakkar.plugin.sockets import LONGEST_PATH  # noqa: E402

CLAIMS = [wire.Claim("ns", "u1", "c1"), wire.Claim("ns", "u2", "c2")]
DEVICE = wire.Device(["r"], "pool", "dev", ["v.io/c=u1"], "share")


def prepare(claims: list[wire.Claim]) -> wire.NodePrepareResourcesResponse:
    if any(claim.name == "raise" for claim in claims):
        raise RuntimeError("claim is gone")
    answers = {
        claim.uid: wire.NodePrepareResourceResponse([DEVICE] if claim.uid == "u1" else [], "")
        for claim in claims
        if claim.name != "skip"
    }
    return wire.NodePrepareResourcesResponse(answers)


def unprepare(claims: list[wire.Claim]) -> wire.NodeUnprepareResourcesResponse:
    return wire.NodeUnprepareResourcesResponse(
        {claim.uid: wire.NodeUnprepareResourceResponse("busy") for claim in [*claims, wire.Claim(uid="x")]}
        if claims[0].name == "more"
        else {claim.uid: wire.NodeUnprepareResourceResponse("busy") for claim in claims}
    )


def watch(active: Callable[[], bool]) -> Iterator[wire.NodeWatchResourcesResponse]:
    for status in (wire.HealthStatus.HEALTHY, wire.HealthStatus.UNHEALTHY):
        assert active()
        yield wire.NodeWatchResourcesResponse([wire.DeviceHealth(wire.DeviceIdentifier("p", "d"), status, 5, 30, "m")])


def run(server: SocketServer, work: Callable[[SocketClient], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with SocketClient(server.socket) as client:
            await work(client)

    server.start()
    try:
        asyncio.run(main())
    finally:
        server.stop()
    assert not server.socket.exists()


def test_registration(tmp_path: Path) -> None:
    info = wire.PluginInfo(wire.DRA_PLUGIN, "d.example", "/x/dra.sock", [wire.DRA_V1])
    heard: list[wire.RegistrationStatus] = []
    socket = tmp_path / "d-reg.sock"
    socket.write_text("stale")

    async def work(client: SocketClient) -> None:
        assert await client.get_info() == info
        assert client.connected()
        await client.notify(wire.RegistrationStatus(False, "no"))

    run(SocketServer(socket, [registration_service(lambda: info, heard.append)]), work)
    assert heard == [wire.RegistrationStatus(False, "no")]


@pytest.mark.parametrize("version", [wire.DRA_V1, wire.DRA_V1BETA1])
def test_dra(tmp_path: Path, version: str) -> None:
    async def work(client: SocketClient) -> None:
        answers = await client.prepare(version, CLAIMS)
        assert answers.keys() == {"u1", "u2"}
        assert answers["u1"].devices[0].share_id == ("share" if version == wire.DRA_V1 else None)
        assert (await client.unprepare(version, CLAIMS))["u2"].error == "busy"
        with pytest.raises(PluginError, match="skipped 1 ResourceClaims: u3"):
            await client.prepare(version, [*CLAIMS, wire.Claim("ns", "u3", "skip")])
        with pytest.raises(PluginError, match="not asked for: x"):
            await client.unprepare(version, [wire.Claim("ns", "u3", "more")])
        with pytest.raises(PluginError, match=r"UNKNOWN: .*claim is gone") as caught:
            await client.prepare(version, [wire.Claim("ns", "u4", "raise")])
        assert not caught.value.unreachable
        many = await asyncio.gather(*(client.prepare(version, CLAIMS) for _ in range(50)))
        assert all(answer == answers for answer in many)

    run(SocketServer(tmp_path / "dra.sock", dra_services(prepare, unprepare)), work)


@pytest.mark.parametrize("version", [wire.HEALTH_V1, wire.HEALTH_V1ALPHA1])
def test_health(tmp_path: Path, version: str) -> None:
    async def work(client: SocketClient) -> None:
        seen = [answer.devices[0].health async for answer in client.watch_health(version)]
        assert seen == [wire.HealthStatus.HEALTHY, wire.HealthStatus.UNHEALTHY]

    run(SocketServer(tmp_path / "dra.sock", health_services(watch)), work)


def test_nobody_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with SocketClient(tmp_path / "absent.sock") as client:
            assert not client.connected()
            with pytest.raises(PluginError, match="UNAVAILABLE") as caught:
                await client.prepare(wire.DRA_V1, CLAIMS)
            assert caught.value.unreachable

    asyncio.run(main())
    with pytest.raises(ValueError, match="longer than 105 bytes"):
        SocketServer(tmp_path / ("x" * 108), [])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        SocketServer(tmp_path / "no" / "x.sock", []).start()


def test_who_takes_a_socket_over_keeps_it(tmp_path: Path) -> None:
    socket = tmp_path / "dra.sock"
    first = SocketServer(socket, dra_services(prepare, unprepare))
    second = SocketServer(socket, dra_services(prepare, unprepare))
    first.start()

    async def work(client: SocketClient) -> None:
        await asyncio.to_thread(first.stop)
        assert (await client.prepare(wire.DRA_V1, CLAIMS)).keys() == {"u1", "u2"}

    run(second, work)
    assert list(tmp_path.iterdir()) == []


def test_choice() -> None:
    assert choose_dra([wire.DRA_V1BETA1, wire.DRA_V1]) == wire.DRA_V1
    assert choose_dra([wire.DRA_V1BETA1]) == wire.DRA_V1BETA1
    with pytest.raises(PluginError, match=r"1\.0\.0"):
        choose_dra(["1.0.0"])
    assert choose_health([wire.HEALTH_V1ALPHA1, wire.DRA_V1]) == wire.HEALTH_V1ALPHA1
    assert choose_health([wire.DRA_V1]) is None


def test_the_longest_path_can_be_listened_at(tmp_path: Path) -> None:
    folder = Path("/tmp") if len(str(tmp_path)) > LONGEST_PATH - 10 else tmp_path
    socket = folder / ("s" * (LONGEST_PATH - len(str(folder)) - 1))
    server = SocketServer(socket, dra_services(prepare, unprepare))
    server.start()
    server.stop()


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE])
def test_a_server_that_ends_with_a_call_in_flight_is_unreachable(tmp_path: Path, code: Any) -> None:
    """It cuts the connection, or it gets to cancel the call before; what the client hears then is told here."""

    def end(_: bytes, context: Any) -> bytes:
        return context.abort(code, code.name)

    async def work(client: SocketClient) -> None:
        with pytest.raises(PluginError, match=code.name) as caught:
            await client.prepare(wire.DRA_V1, CLAIMS)
        assert caught.value.unreachable

    method = {"NodePrepareResources": grpc.unary_unary_rpc_method_handler(end)}
    service = grpc.method_handlers_generic_handler(DRA[wire.DRA_V1], method)
    run(SocketServer(tmp_path / "dra.sock", [service]), work)
