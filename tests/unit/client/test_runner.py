from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.api.kinds import CONFIGMAP, EVENT, POD
from drakkar.client import After, Caches, Client, Create, Delete, MemoryTransport, Patch, Record, Runner, SystemClock
from drakkar.client.events import EventRecorder
from drakkar.client.queue import KeyQueue
from tests.unit.client.fakeserver import FakeServer, failure
from tests.unit.client.test_cache import pod, until


class Labeller:
    """Gives every pod a config map of the same name and counts in a label how often it was looked at."""

    name = "labeller"

    def __init__(self) -> None:
        self.looked: list[str] = []

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        self.pods = caches.of(POD)
        self.maps = caches.of(CONFIGMAP)
        self.pods.subscribe(lambda event, old, new: queue.add(new["metadata"]["name"]))

    def reconcile(self, key: str) -> list[Any]:
        self.looked.append(key)
        found = self.pods.get("default", key)
        if found is None:
            return [Delete(CONFIGMAP, "default", key)]
        if self.maps.get("default", key):
            return []
        version = found["metadata"]["resourceVersion"]
        return [
            Create(CONFIGMAP, {"metadata": {"name": key, "namespace": "default"}}),
            Patch(POD, "default", key, {"metadata": {"resourceVersion": version, "labels": {"seen": "yes"}}}),
            Record(POD, found, "Normal", "Labelled", "done"),
        ]


def running(server: FakeServer, controller: Any) -> tuple[Runner, Caches]:
    client = Client(MemoryTransport(server.handle))
    caches = Caches(client)
    return Runner(client, caches, controller, SystemClock()), caches


async def played(server: FakeServer, controller: Any, play: Any) -> Runner:
    runner, caches = running(server, controller)
    task = asyncio.create_task(runner.run())
    try:
        await asyncio.wait_for(runner.ready.wait(), 60)
        await play(runner)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.stop()
    return runner


def test_writes_in_order_and_sees_them_before_it_looks_again() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        controller = Labeller()

        async def play(runner: Runner) -> None:
            await until(lambda: len(controller.looked) == 2)
            await asyncio.sleep(0.02)
            server.remove(POD, "a")
            await until(lambda: (CONFIGMAP.path(), "default", "a") not in server.objects)

        await played(server, controller, play)
        # Created once: a second Create would have been refused and retried.
        posts = [request for request in server.requests if request.method == "POST"]
        assert [request.path.rsplit("/", 1)[1] for request in posts] == ["configmaps", "events"]
        assert controller.looked == ["a", "a", "a"]

    asyncio.run(scenario())


def test_a_conflict_is_tried_again_on_newer_state() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        controller = Labeller()

        async def play(runner: Runner) -> None:
            await until(lambda: server.get(POD, "a")["metadata"].get("labels"))
            assert runner.metrics["conflicts"] == 1
            assert runner.metrics["failures"] == 0

        runner, _ = running(server, controller)
        original = server.handle
        refused = False

        async def handle(request: Any) -> Any:
            nonlocal refused
            if request.method == "PATCH" and not refused:
                refused = True
                server.remove(CONFIGMAP, "a")
                return failure(409, "Conflict")
            return await original(request)

        server.handle = handle  # type: ignore[method-assign]
        await played(server, controller, play)
        del runner

    asyncio.run(scenario())


def test_failures_back_off_and_after_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    class Moody:
        name = "moody"
        calls = 0

        def setup(self, caches: Caches, queue: KeyQueue) -> None:
            queue.add("k")

        async def reconcile(self, key: str) -> list[Any]:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("bug")
            return [After(0.01)] if self.calls < 4 else []

    async def scenario() -> None:
        controller = Moody()

        async def play(runner: Runner) -> None:
            await until(lambda: controller.calls == 4)
            assert runner.metrics["failures"] == 1

        await played(FakeServer(), controller, play)

    asyncio.run(scenario())
    assert "bug" in caplog.text


@pytest.mark.parametrize("where_served", [True, False])
def test_a_subresource_that_an_older_server_does_not_have(where_served: bool) -> None:
    class Teller:
        name = "teller"
        calls = 0

        def setup(self, caches: Caches, queue: KeyQueue) -> None:
            queue.add("k")

        def reconcile(self, key: str) -> list[Any]:
            self.calls += 1
            told = Patch(POD, "default", "a", {"status": {}}, subresource="status", where_served=where_served)
            return [told, Create(CONFIGMAP, {"metadata": {"name": "after", "namespace": "default"}})]

    async def scenario() -> None:
        server, controller = FakeServer(), Teller()
        original = server.handle

        async def handle(request: Any) -> Any:
            return failure(404, "NotFound") if request.path.endswith("/status") else await original(request)

        server.handle = handle  # type: ignore[method-assign]

        async def play(runner: Runner) -> None:
            if where_served:
                await until(lambda: runner.metrics["reconciled"])
                assert (controller.calls, runner.metrics["failures"], runner.metrics["conflicts"]) == (1, 0, 0)
                assert server.get(CONFIGMAP, "after")
            else:
                await until(lambda: runner.metrics["conflicts"])
                with pytest.raises(KeyError):
                    server.get(CONFIGMAP, "after")

        await played(server, controller, play)

    asyncio.run(scenario())


def test_queue_hands_a_key_out_once() -> None:
    async def scenario() -> None:
        queue = KeyQueue(SystemClock())
        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert await queue.take() == "a"
        queue.add("a")
        assert await queue.take() == "b"
        assert len(queue) == 2
        queue.done("a")
        assert await queue.take() == "a"
        pauses = [queue.fail("a") for _ in range(12)]
        assert pauses[0] < 0.2 < pauses[3] < 2
        assert pauses[-1] <= 30 * 1.25

    asyncio.run(scenario())


def test_a_key_has_one_timer_however_often_it_failed() -> None:
    async def scenario() -> None:
        queue = KeyQueue(SystemClock())
        timers = asyncio.create_task(queue.run_timers())
        for _ in range(50):
            queue.add_after("a", 0.05)
        queue.add_after("b", 60)
        queue.add_after("b", 0.01)
        queue.add_after("b", 60)
        assert len(queue) == 2
        async with asyncio.timeout(60):
            assert await queue.take() == "b"
            assert await queue.take() == "a"
        queue.done("a")
        queue.done("b")
        # Nothing is left that would bring them back.
        assert len(queue) == 0
        timers.cancel()
        await asyncio.gather(timers, return_exceptions=True)

    asyncio.run(scenario())


def test_events_said_again_are_counted() -> None:
    async def scenario() -> None:
        server = FakeServer()
        recorder = EventRecorder(Client(MemoryTransport(server.handle)), SystemClock(), "tester")
        obj = server.put(POD, pod("a"))
        for _ in range(3):
            await recorder.record(POD, obj, "Warning", "Failed", "no room")
        await recorder.record(POD, obj, "Warning", "Failed", "no air")
        events = [obj for key, obj in server.objects.items() if key[0] == EVENT.path()]
        assert [(event["message"], event["count"]) for event in events] == [("no room", 3), ("no air", 1)]
        assert events[0]["involvedObject"]["uid"] == obj["metadata"]["uid"]
        server.remove(EVENT, events[1]["metadata"]["name"])
        await recorder.record(POD, obj, "Warning", "Failed", "no air")
        assert len([key for key in server.objects if key[0] == EVENT.path()]) == 2

    asyncio.run(scenario())


class Ender:
    """Marks pods as ended, then deletes them; a finalizer keeps them. Counts its deletions."""

    name = "ender"

    def __init__(self) -> None:
        self.deletions = 0

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        self.pods = caches.of(POD)
        self.pods.subscribe(lambda event, old, new: queue.add(new["metadata"]["name"]))

    def reconcile(self, key: str) -> list[Any]:
        found = self.pods.get("default", key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return []
        self.deletions += 1
        return [Patch(POD, "default", key, {"metadata": {"labels": {"ended": "yes"}}}), Delete(POD, "default", key)]


def test_a_deletion_is_seen_before_the_next_look_and_not_only_the_write_before_it() -> None:
    async def scenario() -> None:
        server = FakeServer()
        controller = Ender()

        async def play(runner: Runner) -> None:
            # The creation and the patch come back, the deletion not yet.
            server.shown = 2
            server.put(POD, pod("a", finalizers=["keep"]))
            await until(lambda: server.revision == 3)
            await asyncio.sleep(0.05)
            assert controller.deletions == 1
            server.show_all()
            await asyncio.sleep(0.05)
            assert controller.deletions == 1

        await played(server, controller, play)

    asyncio.run(scenario())
