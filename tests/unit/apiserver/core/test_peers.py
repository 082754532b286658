"""Two servers on one etcd, without sockets: what one acknowledged, the other shows, in the same words and order."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from drakkar.api.wire import Request
from drakkar.apiserver import ApiServer, peers
from drakkar.apiserver.publishing import PERIOD
from drakkar.store.etcd import EtcdBackend
from tests.support.etcd import Etcd, running_etcd
from tests.unit.apiserver.core.serving import Api, Object, Refused, StoppedClock
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, claim, refused

pytestmark = pytest.mark.slow
THINGS = "/apis/example.com/v1/namespaces/default/things"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Scene = Callable[[Api, Api], Awaitable[None]]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@asynccontextmanager
async def server(url: str, clock: StoppedClock) -> AsyncIterator[Api]:
    made = ApiServer(EtcdBackend(url), clock=clock)
    await made.start()
    try:
        yield Api(made, clock, made.token("admin", "system:masters"))
    finally:
        await made.close()


def play(member: Etcd, scene: Scene) -> None:
    async def run() -> None:
        url, clock = f"{member.url}/{uuid.uuid4().hex}", StoppedClock()
        # Together: both make what every cluster has.
        async with asyncio.timeout(100), server(url, clock) as one, server(url, clock) as two:
            await scene(one, two)

    asyncio.run(run())


def named(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


async def outcome(work: Awaitable[Object]) -> str:
    """Why it was refused; empty when it was not."""
    try:
        await work
    except Refused as error:
        return error.reason
    return ""


async def stream(api: Api, path: str, count: int) -> list[tuple[str, Object]]:
    """The first events of a watch."""
    watcher = await api.watch(path)
    found: list[tuple[str, Object]] = []
    while len(found) < count:
        event = await watcher.next(5)
        assert event is not None
        found.append((event["type"], event["object"]))
    return found


def test_each_shows_what_the_other_did(member: Etcd) -> None:
    async def scene(one: Api, two: Api) -> None:
        for first, second in ((one, two), (two, one)) * 5:
            made = await first.post(CONFIGMAPS, named("a"))
            assert await second.get(f"{CONFIGMAPS}/a") == made
            changed = await second.patch(f"{CONFIGMAPS}/a", {"data": {"k": "v"}})
            assert await first.get(CONFIGMAPS) == await second.get(CONFIGMAPS)
            assert (await refused(first.put(f"{CONFIGMAPS}/a", made))).code == 409
            assert (await first.put(f"{CONFIGMAPS}/a", {**changed, "data": {"k": "w"}}))["data"] == {"k": "w"}
            # What changes nothing is judged on the newest state, too.
            assert (await second.patch(f"{CONFIGMAPS}/a", {"data": {"k": "v"}}))["data"] == {"k": "v"}
            assert (await refused(first.post(CONFIGMAPS, named("a")))).reason == "AlreadyExists"
            await first.delete(f"{CONFIGMAPS}/a")
            assert (await refused(second.get(f"{CONFIGMAPS}/a"))).code == 404
            assert (await refused(second.delete(f"{CONFIGMAPS}/a"))).code == 404

    play(member, scene)


def test_quarrels_about_one_object_have_one_winner_each(member: Etcd) -> None:
    async def scene(one: Api, two: Api) -> None:
        made = await asyncio.gather(*(outcome(api.post(CONFIGMAPS, named("same"))) for api in (one, two) * 5))
        assert sorted(made) == ["", *["AlreadyExists"] * 9]

        async def count(api: Api, key: str) -> None:
            for number in range(10):
                await api.patch(f"{CONFIGMAPS}/same", {"data": {f"{key}-{number}": ""}})

        await asyncio.gather(*(count(api, f"{at}") for at, api in enumerate((one, two))))
        assert len((await one.get(f"{CONFIGMAPS}/same"))["data"]) == 20
        generated = await asyncio.gather(
            *(api.post(CONFIGMAPS, {"metadata": {"generateName": "g-"}}) for api in (one, two) * 20)
        )
        assert len({obj["metadata"]["name"] for obj in generated}) == 40

        # A PUT that comes second finds the object, whichever server it asked: it is an update, as with one server.
        services = "/api/v1/namespaces/default/services"
        put = await asyncio.gather(
            *(
                api.put(f"{services}/{name}", {"metadata": {"name": name}, "spec": {"ports": [{"port": 80 + at}]}})
                for name in ("s", "t", "u")
                for at, api in enumerate((one, two) * 3)
            )
        )
        assert len({obj["metadata"]["uid"] for obj in put}) == 3

        gone = await asyncio.gather(*(outcome(api.delete(f"{CONFIGMAPS}/same")) for api in (one, two) * 5))
        assert sorted(gone) == ["", *["NotFound"] * 9]

    play(member, scene)


def test_both_are_endpoints_of_their_service(member: Etcd) -> None:
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"

    async def places(api: Api) -> list[str]:
        [found] = (await api.get(slices))["items"]
        return [one["addresses"][0] for one in found["endpoints"]]

    async def scene(one: Api, two: Api) -> None:
        servers = {"192.0.2.1": one, "192.0.2.2": two}
        # At the same time: one may have put in itself only, before it saw the other.
        await asyncio.gather(*(api.server.publish(address, 6443) for address, api in servers.items()))
        await one.clock.pass_(PERIOD)
        async with asyncio.timeout(60):
            while await places(one) != list(servers):
                await asyncio.sleep(0.02)
        assert await places(two) == list(servers)
        assert (await two.get("/api/v1/namespaces/default/services/kubernetes"))["spec"]["clusterIP"] == "10.96.0.1"
        publisher = one.server._publisher
        assert publisher is not None
        await publisher.close()
        assert await places(two) == ["192.0.2.2"]

    play(member, scene)


def test_watches_and_pages_go_on_at_the_other(member: Etcd) -> None:
    async def scene(one: Api, two: Api) -> None:
        start = (await one.get(CONFIGMAPS))["metadata"]["resourceVersion"]
        await asyncio.gather(*((one, two)[n % 2].post(CONFIGMAPS, named(f"c{n:02}")) for n in range(30)))
        await asyncio.gather(*((two, one)[n % 2].delete(f"{CONFIGMAPS}/c{n:02}") for n in range(0, 30, 3)))
        told = [await stream(api, f"{CONFIGMAPS}?watch=1&resourceVersion={start}", 40) for api in (one, two)]
        assert told[0] == told[1]
        middle = told[0][25][1]["metadata"]["resourceVersion"]
        rest = await stream(two, f"{CONFIGMAPS}?watch=1&resourceVersion={middle}", 14)
        assert rest == told[0][26:]
        # Every other page comes from the other server, while things change.
        names: list[str] = []
        token, at = "", ""
        for turn in range(20):
            api = (one, two)[turn % 2]
            page = await api.get(f"{CONFIGMAPS}?limit=3" + (f"&continue={token}" if token else ""))
            at = at or page["metadata"]["resourceVersion"]
            assert page["metadata"]["resourceVersion"] == at
            names += [obj["metadata"]["name"] for obj in page["items"]]
            token = page["metadata"].get("continue", "")
            if not token:
                break
            await (two, one)[turn % 2].post(CONFIGMAPS, named(f"c{turn:02}-new"))
        assert [name for name in names if name.startswith("c")] == [f"c{n:02}" for n in range(30) if n % 3]
        exact = f"{CONFIGMAPS}?resourceVersion={at}&resourceVersionMatch=Exact"
        assert await one.get(exact) == await two.get(exact)

    play(member, scene)


def test_finalizers_and_deletions_look_the_same(member: Etcd) -> None:
    async def scene(one: Api, two: Api) -> None:
        start = (await one.get(CLAIMS))["metadata"]["resourceVersion"]
        made = await one.post(CLAIMS, {**claim("c"), "metadata": {"name": "c", "finalizers": ["example.com/hold"]}})
        going = await two.delete(f"{CLAIMS}/c")
        assert going["metadata"]["deletionTimestamp"]
        going["metadata"]["finalizers"] = []
        gone = await one.put(f"{CLAIMS}/c", going)
        assert "finalizers" not in gone["metadata"]
        assert (await refused(two.get(f"{CLAIMS}/c"))).code == 404
        told = [await stream(api, f"{CLAIMS}?watch=1&resourceVersion={start}", 3) for api in (one, two)]
        assert told[0] == told[1]
        assert [type_ for type_, _ in told[0]] == ["ADDED", "MODIFIED", "DELETED"]
        assert told[0][2][1]["metadata"]["resourceVersion"] == gone["metadata"]["resourceVersion"]
        assert told[0][0][1] == made

    play(member, scene)


def test_definitions_are_served_by_both_at_once(member: Etcd) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }

    async def scene(one: Api, two: Api) -> None:
        for first, second in ((one, two), (two, one)):
            await first.post(DEFINITIONS, definition)
            made = await second.post(THINGS, {"metadata": {"name": "t"}, "spec": {"size": 3}})
            assert await first.get(f"{THINGS}/t") == made
            groups = json.loads((await second.ask(Request("GET", "/apis"))).body)["groups"]
            assert "example.com" in {group["name"] for group in groups}
            await second.delete(f"{DEFINITIONS}/things.example.com")
            assert (await first.ask(Request("GET", f"{THINGS}/t"))).status == 404
        await one.post(DEFINITIONS, definition)
        assert (await two.get(THINGS))["items"] == []

    play(member, scene)


def test_events_expire_whoever_wrote_them(member: Etcd) -> None:
    events = "/api/v1/namespaces/default/events"

    def event(name: str) -> Object:
        involved = {"kind": "Pod", "name": "p", "namespace": "default"}
        return {"metadata": {"name": name}, "involvedObject": involved, "reason": "R", "message": "m", "type": "Normal"}

    async def scene(one: Api, two: Api) -> None:
        for at, api in enumerate((one, two)):
            await api.post(events, event(f"e{at}"))
        assert len((await two.get(events))["items"]) == 2
        await one.clock.pass_(3700)
        for _ in range(2000):
            if not (await one.get(events))["items"]:
                break
            await one.clock.pass_(61)
            await asyncio.sleep(0.02)
        assert (await two.get(events))["items"] == []

    play(member, scene)


def test_a_later_server_shows_everything(member: Etcd) -> None:
    async def run() -> None:
        url, clock = f"{member.url}/{uuid.uuid4().hex}", StoppedClock()
        async with server(url, clock) as one:
            for begin in range(0, 700, 100):
                await asyncio.gather(*(one.post(CONFIGMAPS, named(f"c{begin + n}")) for n in range(100)))
            found = await one.get(CONFIGMAPS)
            async with server(url, clock) as two:
                assert await two.get(CONFIGMAPS) == await one.get(CONFIGMAPS)
                assert len(found["items"]) == 700
                # What is older than the second server's start it cannot tell; the first one can.
                old = f"{CONFIGMAPS}?watch=1&resourceVersion={found['items'][0]['metadata']['resourceVersion']}"
                ((type_, obj),) = await stream(two, old, 1)
                assert (type_, obj["code"]) == ("ERROR", 410)
                assert (await stream(one, old, 1))[0][0] == "ADDED"

    asyncio.run(run())


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_lost_answer_of_etcd_is_found_in_the_changes(member: Etcd, overtaken: bool) -> None:
    """The write is done, its repetition fails, another may have written since: the client is told the truth."""

    async def scene(one: Api, two: Api) -> None:
        backend = one.server.backend
        assert isinstance(backend, EtcdBackend)
        call, armed = backend._call, False

        async def lossy(at: int, method: str, request: bytes) -> bytes:
            nonlocal armed
            answer = await call(at, method, request)
            if armed and b"/configmaps/default/a" in request:
                armed = False
                if overtaken:
                    await outcome(two.patch(f"{CONFIGMAPS}/a", {"data": {"two": "2"}}))
                none = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "the answer was lost")
            return answer

        backend._call = lossy  # type: ignore[method-assign]
        armed = True
        made = await one.post(CONFIGMAPS, named("a"))
        armed = True
        changed = await one.put(f"{CONFIGMAPS}/a", {**await two.get(f"{CONFIGMAPS}/a"), "data": {"one": "1"}})
        assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        assert changed["data"] == {"one": "1"}
        assert (await two.get(f"{CONFIGMAPS}/a"))["data"] == {"one": "1", **({"two": "2"} if overtaken else {})}
        armed = True
        assert await outcome(one.delete(f"{CONFIGMAPS}/a")) == ""
        assert await outcome(two.get(f"{CONFIGMAPS}/a")) == "NotFound"
        events = await stream(two, f"{CONFIGMAPS}?watch=1&resourceVersion={made['metadata']['resourceVersion']}", 2)
        assert changed["metadata"] in [obj["metadata"] for _, obj in events]

    play(member, scene)


def test_while_etcd_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of anything newest wait and are put off, others are answered; afterwards all is as before."""
    monkeypatch.setattr(peers, "PATIENCE", 1.0)

    async def run(member: Etcd) -> None:
        clock = StoppedClock()
        async with asyncio.timeout(100), server(member.url, clock) as api:
            made = await api.post(CONFIGMAPS, named("a"))
            await asyncio.to_thread(member.kill)
            error = await refused(api.get(f"{CONFIGMAPS}/a"))
            assert (error.code, error.reason) == (503, "ServiceUnavailable")
            assert (await api.get(f"{CONFIGMAPS}?resourceVersion=0"))["items"][-1]["metadata"] == made["metadata"]
            ready = await api.ask(Request("GET", "/readyz", (("verbose", ""),), {}))
            assert b"[-]etcd failed" in ready.body
            assert (await api.ask(Request("GET", "/livez", (), {}))).status == 200
            writing = asyncio.create_task(api.post(CONFIGMAPS, named("b")))
            await asyncio.to_thread(member.start)
            # Done, or its fate unclear, or put off.
            assert await outcome(writing) in ("", "Timeout", "ServiceUnavailable")
            while await outcome(api.post(CONFIGMAPS, named("b"))) != "AlreadyExists":
                await asyncio.sleep(0.1)
            assert [obj["metadata"]["name"] for obj in (await api.get(CONFIGMAPS))["items"]][-2:] == ["a", "b"]
            ready = await api.ask(Request("GET", "/readyz", (), {}))
            assert (await api.ask(Request("GET", "/readyz", (), {}))).status == 200

    with running_etcd(tmp_path) as member:
        asyncio.run(run(member))


def test_a_full_etcd(tmp_path: Path) -> None:
    async def run(member: Etcd) -> None:
        async with asyncio.timeout(100), server(member.url, StoppedClock()) as api:
            made = 0
            with pytest.raises(Refused) as caught:
                while True:
                    await api.post(CONFIGMAPS, named(f"c{made}", k="x" * 500_000))
                    made += 1
            assert (caught.value.code, caught.value.reason) == (507, "InsufficientStorage")
            assert len((await api.get(f"{CONFIGMAPS}?fieldSelector=metadata.name!=kube-root-ca.crt"))["items"]) == made

    with running_etcd(tmp_path, "--quota-backend-bytes", "8000000") as member:
        asyncio.run(run(member))
