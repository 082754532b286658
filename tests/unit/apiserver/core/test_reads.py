"""Lists, watches and their options."""

from __future__ import annotations

import asyncio

import pytest

from drakkar.apiserver import cache
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import CONFIGMAPS, PODS, SLICES, play, pod, refused


async def fill(api: Api, count: int) -> None:
    for n in range(count):
        await api.post(CONFIGMAPS, {"metadata": {"name": f"c{n:03d}", "labels": {"odd": str(n % 2)}}})


def names(answer: Object) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


def test_lists_are_sorted_and_paged_at_one_revision() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 10)
        await api.post("/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "a"}})
        everywhere = await api.get("/api/v1/configmaps")
        assert names(everywhere) == [f"c{n:03d}" for n in range(10)] + ["a"]
        assert "kind" not in everywhere["items"][0]
        page = await api.get(f"{CONFIGMAPS}?limit=4")
        assert page["metadata"]["remainingItemCount"] == 6
        await api.delete(f"{CONFIGMAPS}/c005")
        await api.post(CONFIGMAPS, {"metadata": {"name": "c0045"}})
        second = await api.get(f"{CONFIGMAPS}?limit=4&continue={page['metadata']['continue']}")
        assert names(second) == ["c004", "c005", "c006", "c007"]
        assert second["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
        last = await api.get(f"{CONFIGMAPS}?limit=4&continue={second['metadata']['continue']}")
        assert names(last) == ["c008", "c009"]
        assert "continue" not in last["metadata"]
        past = await api.get(
            f"{CONFIGMAPS}?resourceVersionMatch=Exact&resourceVersion={page['metadata']['resourceVersion']}"
        )
        assert names(past) == [f"c{n:03d}" for n in range(10)]
        labelled = await api.get(f"{CONFIGMAPS}?labelSelector=odd=1&limit=2")
        assert names(labelled) == ["c001", "c003"]
        assert "remainingItemCount" not in labelled["metadata"]

    play(scene)


def test_an_expired_token_comes_back_with_a_fresh_one() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 4)
        page = await api.get(f"{CONFIGMAPS}?limit=2")
        await api.post(CONFIGMAPS, {"metadata": {"name": "z"}})
        table = api.server.state.tables["/core/configmaps/"]
        table.compact(api.server.state.revision)
        error = await refused(api.get(f"{CONFIGMAPS}?limit=2&continue={page['metadata']['continue']}"))
        assert (error.code, error.reason) == (410, "Expired")
        fresh = error.status["metadata"]["continue"]
        assert names(await api.get(f"{CONFIGMAPS}?continue={fresh}")) == ["c002", "c003", "z"]
        old = await refused(api.get(f"{CONFIGMAPS}?resourceVersionMatch=Exact&resourceVersion=1"))
        assert old.code == 410

    play(scene)


def test_field_selectors_use_indexes_and_scans_alike() -> None:
    async def scene(api: Api) -> None:
        for n in range(6):
            await api.post(PODS, pod(f"p{n}"))
            if n % 2:
                target = {"kind": "Node", "name": f"n{n % 3}"}
                await api.post(f"{PODS}/p{n}/binding", {"target": target})
        assert names(await api.get("/api/v1/pods?fieldSelector=spec.nodeName=n1")) == ["p1"]
        assert names(await api.get("/api/v1/pods?fieldSelector=spec.nodeName=n0,metadata.name=p3")) == ["p3"]
        assert names(await api.get("/api/v1/pods?fieldSelector=spec.nodeName=")) == ["p0", "p2", "p4"]
        assert names(await api.get("/api/v1/pods?fieldSelector=status.phase!=Pending")) == []
        assert len(names(await api.get("/api/v1/pods?fieldSelector=spec.hostNetwork=false"))) == 6
        await api.delete(f"{PODS}/p1", {"gracePeriodSeconds": 0})
        assert names(await api.get("/api/v1/pods?fieldSelector=spec.nodeName=n1")) == []
        error = await refused(api.get(f"{SLICES}?fieldSelector=spec.bogus=1"))
        assert str(error) == "field label not supported: spec.bogus"

    play(scene)


def test_a_watch_goes_on_where_a_list_ended() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 2)
        listed = await api.get(CONFIGMAPS)
        watch = await api.watch(f"{CONFIGMAPS}?resourceVersion={listed['metadata']['resourceVersion']}")
        assert await watch.quiet()
        await api.patch(f"{CONFIGMAPS}/c000", {"data": {"k": "v"}})
        await api.delete(f"{CONFIGMAPS}/c001")
        frame = await watch.next()
        assert frame is not None
        assert frame["type"] == "MODIFIED"
        assert frame["object"] == await api.get(f"{CONFIGMAPS}/c000")
        gone = await watch.next()
        assert gone is not None
        assert gone["type"] == "DELETED"
        assert int(gone["object"]["metadata"]["resourceVersion"]) == api.server.state.revision

    play(scene)


def test_initial_events_end_with_a_bookmark() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 3)
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        watch = await api.watch(f"{CONFIGMAPS}?{query}")
        assert await watch.take(3) == [("ADDED", "c000"), ("ADDED", "c001"), ("ADDED", "c002")]
        frame = await watch.next()
        assert frame is not None
        assert frame["type"] == "BOOKMARK"
        assert frame["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert frame["object"]["kind"] == "ConfigMap"
        await fill_one(api, "d")
        assert await watch.take(1) == [("ADDED", "d")]

    play(scene)


async def fill_one(api: Api, name: str) -> None:
    await api.post(CONFIGMAPS, {"metadata": {"name": name}})


def test_objects_move_in_and_out_of_a_selection() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 1)
        watch = await api.watch(f"{CONFIGMAPS}?labelSelector=odd=1&resourceVersion={api.server.state.revision}")
        await api.patch(f"{CONFIGMAPS}/c000", {"metadata": {"labels": {"odd": "1"}}})
        await api.patch(f"{CONFIGMAPS}/c000", {"data": {"k": "v"}})
        await api.patch(f"{CONFIGMAPS}/c000", {"metadata": {"labels": {"odd": "2"}}})
        await api.delete(f"{CONFIGMAPS}/c000")
        assert await watch.take(3) == [("ADDED", "c000"), ("MODIFIED", "c000"), ("DELETED", "c000")]
        assert await watch.quiet()

    play(scene)


def test_bookmarks_and_the_timeout() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 1)
        start = api.server.state.revision
        watch = await api.watch(f"{CONFIGMAPS}?resourceVersion={start}&allowWatchBookmarks=true&timeoutSeconds=100")
        assert await watch.quiet()
        await api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
        await api.clock.pass_(61)
        frame = await watch.next()
        assert frame is not None
        assert frame["type"] == "BOOKMARK"
        assert int(frame["object"]["metadata"]["resourceVersion"]) == api.server.state.revision
        await api.clock.pass_(45)
        last = await watch.next()
        assert last is not None
        assert last["type"] == "BOOKMARK"
        assert await watch.next() is None

    play(scene)


def test_history_that_is_gone_is_said_in_the_stream() -> None:
    async def scene(api: Api) -> None:
        await fill(api, 3)
        api.server.state.tables["/core/configmaps/"].compact(api.server.state.revision)
        watch = await api.watch(f"{CONFIGMAPS}?resourceVersion=2")
        frame = await watch.next()
        assert frame is not None
        assert frame["type"] == "ERROR"
        assert (frame["object"]["code"], frame["object"]["reason"]) == (410, "Expired")
        assert await watch.next() is None

    play(scene)


def test_a_reader_that_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LOG_BYTES", 4000)

    async def scene(api: Api) -> None:
        await fill(api, 1)
        watch = await api.watch(f"{CONFIGMAPS}?resourceVersion={api.server.state.revision}")
        assert await watch.quiet()
        for n in range(50):
            await api.patch(f"{CONFIGMAPS}/c000", {"data": {"k": str(n)}})
        frames = 0
        while await watch.next() is not None:
            frames += 1
        assert frames < 50

    play(scene)


def test_watchers_of_one_form_share_frames() -> None:
    async def scene(api: Api) -> None:
        watches = [await api.watch(f"{CONFIGMAPS}?resourceVersion={api.server.state.revision}") for _ in range(5)]
        partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
        other = await api.watch(f"{CONFIGMAPS}?resourceVersion={api.server.state.revision}", partial)
        for watch in (*watches, other):
            assert await watch.quiet()
        await api.post(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
        for watch in watches:
            assert await watch.take(1) == [("ADDED", "a")]
        frame = await other.next()
        assert frame is not None
        assert frame["object"]["kind"] == "PartialObjectMetadata"
        assert "data" not in frame["object"]
        change = api.server.state.tables["/core/configmaps/"].log[-1]
        assert len(change.frames) == 2

    play(scene)


def test_owners_are_indexed() -> None:
    async def scene(api: Api) -> None:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "uid-1"}
        await api.post(CONFIGMAPS, {"metadata": {"name": "a", "ownerReferences": [owner]}})
        assert api.server.state.owned["uid-1"] == {("/core/configmaps/", "default/a")}
        await api.patch(f"{CONFIGMAPS}/a", {"metadata": {"ownerReferences": None}})
        assert "uid-1" not in api.server.state.owned

    play(scene)


def test_the_server_ends_watches_when_it_closes() -> None:
    async def run() -> None:
        api = await Api.start()
        watch = await api.watch(f"{CONFIGMAPS}?resourceVersion={api.server.state.revision}")
        assert await watch.quiet()
        await api.close()
        assert await watch.next() is None

    asyncio.run(run())


def test_discovery_names_what_is_served() -> None:
    async def scene(api: Api) -> None:
        for resource in (await api.get("/api/v1"))["resources"]:
            if "/" not in resource["name"] and "list" in resource["verbs"] and resource["name"] != "componentstatuses":
                await api.get(f"/api/v1/{resource['name']}")
        served = 0
        for group in (await api.get("/apis"))["groups"]:
            for version in group["versions"]:
                for resource in (await api.get(f"/apis/{version['groupVersion']}"))["resources"]:
                    if "/" not in resource["name"] and "list" in resource["verbs"]:
                        answer = await api.get(f"/apis/{version['groupVersion']}/{resource['name']}")
                        assert answer["kind"] == f"{resource['kind']}List"
                        assert answer["items"] is not None
                        served += 1
        assert served > 60

    play(scene)
