from __future__ import annotations

import asyncio
import json

import pytest

from drakkar.api.errors import ApiError
from drakkar.api.kinds import DEVICECLASS, POD
from drakkar.api.resource import v1
from drakkar.client import Client, MemoryTransport, Unreachable
from tests.unit.client.fakeserver import FakeServer, answer, failure


class Instant:
    """A clock whose sleeps are noted and over at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def client_of(server: FakeServer, clock: Instant | None = None) -> Client:
    return Client(MemoryTransport(server.handle, "secret"), clock=clock)


def test_verbs_decode_structs_and_dicts(server: FakeServer) -> None:
    async def scenario() -> None:
        client = client_of(server)
        made = await client.create(DEVICECLASS, v1.DeviceClass(metadata=v1.ObjectMeta(name="gpu")))
        assert isinstance(made, v1.DeviceClass)
        assert made.metadata.uid
        pod = {"metadata": {"name": "a", "namespace": "default"}, "spec": {}}
        await client.create(POD, pod)
        listed = await client.list(POD)
        assert listed.items[0]["kind"] == "Pod"
        assert listed.resource_version == "2"
        patched = await client.patch(POD, "a", "default", {"metadata": {"labels": {"x": "y"}}})
        assert patched["metadata"]["labels"] == {"x": "y"}
        with pytest.raises(ApiError) as conflict:
            await client.patch(POD, "a", "default", {"metadata": {"resourceVersion": "1", "labels": {"x": "z"}}})
        assert (conflict.value.code, conflict.value.reason) == (409, "Conflict")
        await client.delete(POD, "a", "default", uid=patched["metadata"]["uid"])
        with pytest.raises(ApiError) as missing:
            await client.get(POD, "a", "default")
        assert missing.value.code == 404

    asyncio.run(scenario())
    assert all(request.headers["authorization"] == "Bearer secret" for request in server.requests)


def test_binding_goes_to_the_named_pod(server: FakeServer) -> None:
    async def scenario() -> None:
        client = client_of(server)
        pod = server.put(POD, {"metadata": {"name": "a", "namespace": "default"}, "spec": {}})
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "a", "namespace": "default", "uid": pod["metadata"]["uid"]},
            "target": {"kind": "Node", "name": "n1"},
        }
        await client.create(POD, binding, subresource="binding")
        assert server.requests[-1].path == "/api/v1/namespaces/default/pods/a/binding"
        assert server.get(POD, "a")["spec"]["nodeName"] == "n1"

    asyncio.run(scenario())


def test_waits_as_long_as_the_server_says(server: FakeServer) -> None:
    clock = Instant()
    server.refuse = [failure(429, "TooManyRequests", headers={"retry-after": "3"})]
    server.refuse.append(failure(503, "ServiceUnavailable", headers={"retry-after": "1"}))

    async def scenario() -> None:
        await client_of(server, clock).create(POD, {"metadata": {"name": "a", "namespace": "default"}})

    asyncio.run(scenario())
    # Rather later than told, so that not all come at the same moment.
    assert [int(pause) for pause in clock.slept] == [3, 1]


def test_a_write_without_retry_after_is_not_repeated(server: FakeServer) -> None:
    server.refuse = [failure(503, "ServiceUnavailable")]

    async def scenario() -> None:
        with pytest.raises(ApiError):
            await client_of(server, Instant()).create(POD, {"metadata": {"name": "a", "namespace": "default"}})

    asyncio.run(scenario())
    assert len(server.requests) == 1


def test_reads_are_repeated_when_the_connection_breaks() -> None:
    class Flaky:
        calls = 0

        async def request(self, request):
            self.calls += 1
            if self.calls < 3:
                raise Unreachable("no answer")
            return answer({"metadata": {"name": "a"}})

        async def close(self) -> None: ...

    async def scenario() -> None:
        client = Client(Flaky(), clock=Instant())
        assert (await client.get(POD, "a", "default"))["metadata"]["name"] == "a"
        with pytest.raises(Unreachable):
            transport = Flaky()
            await Client(transport, clock=Instant()).delete(POD, "a", "default")

    asyncio.run(scenario())


def test_an_error_that_is_no_status_is_told_as_it_is(server: FakeServer) -> None:
    broken = answer("gateway")
    broken.status, broken.body = 400, b"<html>bad gateway</html>"
    server.refuse = [broken]

    async def scenario() -> None:
        with pytest.raises(ApiError, match="bad gateway") as error:
            await client_of(server).get(POD, "a", "default")
        assert error.value.code == 400

    asyncio.run(scenario())


def test_watch_joins_frames_that_come_in_pieces() -> None:
    frames = b"".join(
        json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode() + b"\n" for name in "abc"
    )

    class Dribble:
        closed = False

        async def request(self, request):
            response = answer({})
            response.stream = self.chunks()
            return response

        async def chunks(self):
            try:
                for at in range(0, len(frames), 7):
                    yield frames[at : at + 7]
            finally:
                self.closed = True

        async def close(self) -> None: ...

    async def scenario() -> None:
        transport = Dribble()
        names = [event.object["metadata"]["name"] async for event in Client(transport).watch(POD)]
        assert names == ["a", "b", "c"]
        assert transport.closed

    asyncio.run(scenario())


def test_an_object_that_cannot_be_read_is_left_out(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server.put(DEVICECLASS, {"metadata": {"name": "good"}, "spec": {}})
    server.put(DEVICECLASS, {"metadata": {"name": "bad"}, "spec": {"selectors": "none"}})

    async def scenario() -> None:
        listed = await client_of(server).list(DEVICECLASS)
        assert [item.metadata.name for item in listed.items] == ["good"]

    asyncio.run(scenario())
    assert "DeviceClass bad cannot be read" in caplog.text
