"""Gate mode on an API server, with our own scheduler under the name default-scheduler playing kube-scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drakkar.api.errors import ApiError
from drakkar.api.kinds import EVENT, JOB, NODE, POD, PODGROUP, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE
from drakkar.api.names import ALLOCATED_NODE, ALLOCATION_LOST, SCHEDULING_GATE
from drakkar.api.objects import annotations_of, condition, pod_is_done, pod_node, uid_of
from drakkar.api.wire import Request, Response
from drakkar.apiserver import ApiServer, open_server
from drakkar.cli.plane import IDENTITIES
from drakkar.client import Client, MemoryTransport, SystemClock
from drakkar.controllers import Controllers
from drakkar.insight.dump import collect
from drakkar.insight.verify import verify
from drakkar.scheduler import GateScheduler, Scheduler, gating
from drakkar.scheduler.gates import lifted_node
from tests.unit.scheduler.build import claim, device_class, node, node_slice, pod, requesting
from tests.unit.scheduler.test_plane import create, until

GATE = {"schedulingGates": [{"name": SCHEDULING_GATE}]}
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "6f6b3f4e-0000-4000-8000-000000000001"}


class Cluster:
    """A server, and the parts that run on it for as long as somebody wants them to."""

    def __init__(self, server: ApiServer):
        self.server = server
        self.client = self.part("admin")
        self._tasks: list[asyncio.Task[None]] = []

    def part(self, part: str, handler: Any = None) -> Client:
        user, groups = IDENTITIES[part]
        return Client(MemoryTransport(handler or self.server.handle, self.server.token(user, *groups)))

    async def start(self, part: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(part.run())
        self._tasks.append(task)
        await asyncio.wait_for(part.ready.wait(), 5)
        return task

    async def kube_scheduler(self) -> asyncio.Task[None]:
        """Binds what is not gated."""
        made = Scheduler(self.part("scheduler"), SystemClock(), scheduler_names={"default-scheduler"})
        return await self.start(made)

    async def drakkar(self, handler: Any = None, patience: float = 0.0) -> GateScheduler:
        made = GateScheduler(self.part("admin", handler), SystemClock(), scheduler_names={"drakkar"}, patience=patience)
        self.task = await self.start(made)
        return made

    async def claim_controller(self) -> None:
        await self.start(Controllers(self.part("controllers"), SystemClock(), only={"claims"}))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.close()

    # what there is to see

    async def pod(self, name: str) -> dict[str, Any]:
        return await self.client.get(POD, name, "default")

    async def lifted(self, name: str) -> str:
        found = await self.pod(name)
        return "" if found["spec"].get("schedulingGates") else annotations_of(found).get(ALLOCATED_NODE, "")

    async def bound(self, name: str) -> str:
        return pod_node(await self.pod(name))

    async def gone(self, name: str) -> bool:
        try:
            await self.pod(name)
        except ApiError as error:
            return error.code == 404
        return False

    async def lost(self, name: str) -> dict[str, Any]:
        found = condition(await self.pod(name), ALLOCATION_LOST) or {}
        return found if found.get("status") == "True" else {}

    async def devices(self, name: str) -> list[str]:
        found = await self.client.get(RESOURCECLAIM, name, "default")
        return [r.device for r in found.status.allocation.devices.results] if found.status.allocation else []


@asynccontextmanager
async def cluster(*nodes: str, devices: int = 1) -> AsyncIterator[Cluster]:
    made = Cluster(await open_server(None, clock=SystemClock()))
    try:
        await create(made.client, device_class(), *(node(n, cpu="4", memory="8Gi", pods="10") for n in nodes))
        await create(made.client, *(node_slice(n, devices) for n in nodes))
        yield made
    finally:
        await made.close()


async def counted(scheduler: GateScheduler, **expected: int) -> None:
    """The scheduler counts what it did once the answer of the server has come, after others may have seen it."""

    async def so() -> bool:
        return all(scheduler.metrics[key] == number for key, number in expected.items())

    await until(so)


def owned(made: dict[str, Any]) -> dict[str, Any]:
    """The pod as one of a Job's."""
    made["metadata"]["ownerReferences"] = [{**OWNER, "controller": True}]
    return made


def gated(name: str, *claims: str, **spec: Any) -> dict[str, Any]:
    return pod(name, *claims, **{**GATE, **spec})


def test_a_gated_pod_is_allocated_narrowed_and_bound_by_the_other_scheduler() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as made:
            await made.kube_scheduler()
            ours = await made.drakkar()
            zone = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
            affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
            await create(made.client, claim("c"), gated("p", "c", affinity=affinity))
            assert await until(lambda: made.bound("p")) == "b"
            found = await made.pod("p")
            [term] = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                "nodeSelectorTerms"
            ]
            assert term["matchExpressions"] == [zone]
            assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["b"]}]
            stored = await made.client.get(RESOURCECLAIM, "c", "default")
            assert [entry.uid for entry in stored.status.reservedFor] == [uid_of(found)]
            await counted(ours, lifted=1, scheduled=0)
            assert verify(await collect(made.client)) == []

    asyncio.run(scenario())


def test_what_is_not_gated_is_left_to_whom_it_belongs() -> None:
    async def scenario() -> None:
        async with cluster("a", devices=3) as made:
            ours = await made.drakkar()
            two = [{"name": "example.com/quota"}, {"name": SCHEDULING_GATE}]
            await create(made.client, claim("x"), claim("y"), claim("z"))
            await create(made.client, pod("foreign", "x"), pod("two", "y", schedulingGates=two))
            await create(made.client, pod("named", "z", schedulerName="drakkar"))
            # As before there was a gate mode, pods that name us are bound here.
            assert await until(lambda: made.bound("named")) == "a"
            assert await made.bound("foreign") == ""
            assert await made.devices("x") == []
            assert await made.devices("y") == []
            await made.client.patch(POD, "two", "default", {"spec": {"schedulingGates": [two[1]]}})
            assert await until(lambda: made.lifted("two")) == "a"
            await counted(ours, lifted=1, scheduled=1)

    asyncio.run(scenario())


def test_a_gated_pod_that_finds_no_devices_stays_gated_and_says_why() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.kube_scheduler()
            await made.drakkar()
            await create(made.client, claim("c", 2), gated("p", "c"))

            async def told() -> dict[str, Any]:
                found = condition(await made.pod("p"), "PodScheduled") or {}
                return found if "cannot allocate all claims" in found.get("message", "") else {}

            assert (await until(told))["reason"] == "SchedulingGated"
            await made.client.delete(RESOURCESLICE, "a-gpus")
            await create(made.client, node_slice("a", 2))
            assert await until(lambda: made.bound("p")) == "a"
            # The reason went with the gate.
            assert (condition(await made.pod("p"), "PodScheduled") or {})["status"] == "True"

    asyncio.run(scenario())


def test_pods_of_a_shared_claim_go_where_its_limit_lets_them() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as made:
            await made.kube_scheduler()
            await made.drakkar()
            shared = claim("c", annotations={"drakkar.dev/pods-per-node": "1"})
            hosts = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]}]}
            wide = node_slice("a", 1)
            wide["metadata"]["name"] = "wide"
            del wide["spec"]["nodeName"]
            wide["spec"] |= {
                "nodeSelector": {"nodeSelectorTerms": [hosts]},
                "pool": {"name": "wide", "generation": 1, "resourceSliceCount": 1},
            }
            for name in "ab":
                await made.client.delete(RESOURCESLICE, f"{name}-gpus")
            await create(made.client, wide, shared, gated("p", "c"), gated("q", "c"))
            assert {await until(lambda: made.bound("p")), await until(lambda: made.bound("q"))} == {"a", "b"}
            assert verify(await collect(made.client)) == []

    asyncio.run(scenario())


# what is lost after the lift


async def _lift(made: Cluster, *pods: dict[str, Any]) -> None:
    """Gated pods with the claim c whose gate is lifted; nobody binds them yet."""
    await create(made.client, claim("c"), *pods)
    for each in pods:
        await until(lambda name=each["metadata"]["name"]: made.lifted(name))


async def _replaced_and_told(made: Cluster, reason: str) -> str:
    """Both pods of a claim are repaired: the owned one is deleted, the other one told; its message."""
    await until(lambda: made.gone("owned"))
    found = await until(lambda: made.lost("alone"))
    assert found["reason"] == reason
    assert "delete the pod and create it anew with the scheduling gate drakkar.dev/allocation" in found["message"]

    async def both() -> bool:
        events = (await made.client.list(EVENT, "default")).items
        told = [e for e in events if e["reason"] == "AllocationLost"]
        # Beside kube-scheduler events tell who of the two speaks.
        assert {e["reportingComponent"] for e in told} <= {"drakkar"}
        return {e["involvedObject"]["name"] for e in told} == {"owned", "alone"}

    await until(both)
    return found["message"]


def test_the_node_is_gone() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            await _lift(made, owned(gated("owned", "c")), gated("alone", "c"))
            await made.client.delete(NODE, "a")
            assert "node a, for which its devices were allocated, is gone" in await _replaced_and_told(made, "NodeGone")

    asyncio.run(scenario())


def test_the_node_is_cordoned_and_comes_back() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            await _lift(made, owned(gated("owned", "c")), gated("alone", "c"))
            await made.client.patch(NODE, "a", None, {"spec": {"unschedulable": True}})
            assert "node(s) were unschedulable" in await _replaced_and_told(made, "NodeUnfit")
            await made.client.patch(NODE, "a", None, {"spec": {"unschedulable": None, "taints": None}})

            async def over() -> bool:
                return (condition(await made.pod("alone"), ALLOCATION_LOST) or {}).get("status") == "False"

            await until(over)

    asyncio.run(scenario())


def test_a_taint_that_passes_is_waited_for() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            ours = await made.drakkar(patience=60)
            await _lift(made, owned(gated("p", "c")))
            taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
            await made.client.patch(NODE, "a", None, {"spec": {"taints": [taint]}})

            async def noticed() -> bool:
                return any(ours._lifted.values())

            await until(noticed)
            await made.client.patch(NODE, "a", None, {"spec": {"taints": []}})

            async def over() -> bool:
                return not any(ours._lifted.values())

            await until(over)
            await made.kube_scheduler()
            assert await until(lambda: made.bound("p")) == "a"
            assert ours.metrics["repaired"] == 0

    asyncio.run(scenario())


def test_another_pod_took_the_room() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            big = requesting("owned", "c", cpu="3")
            big["spec"] |= GATE
            alone = requesting("alone", "c", cpu="1")
            alone["spec"] |= GATE
            await _lift(made, owned(big), alone)
            thief = requesting("thief", cpu="4")
            thief["spec"]["nodeName"] = "a"
            await create(made.client, thief)
            assert "Insufficient cpu" in await _replaced_and_told(made, "NodeUnfit")

    asyncio.run(scenario())


def test_the_other_scheduler_finds_no_way() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            await _lift(made, owned(gated("owned", "c")), gated("alone", "c"))
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1: no luck"}
            for name in ("owned", "alone"):
                body = {"status": {"conditions": [said]}}
                await made.client.patch(POD, name, "default", body, "strategic", "status")
            assert "0/1: no luck" in await _replaced_and_told(made, "Unschedulable")

    asyncio.run(scenario())


def test_somebody_gave_the_devices_back() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            await _lift(made, owned(gated("owned", "c")), gated("alone", "c"))
            nothing = {"status": {"allocation": None, "reservedFor": None}}
            await made.client.patch(RESOURCECLAIM, "c", "default", nothing, subresource="status")
            text = await _replaced_and_told(made, "ClaimDeallocated")
            assert "the devices of resourceclaim c were given back" in text

    asyncio.run(scenario())


def test_the_device_is_tainted() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            await _lift(made, owned(gated("owned", "c")), gated("alone", "c"))
            slice_ = await made.client.get(RESOURCESLICE, "a-gpus")
            devices = [{"name": "gpu-0", "taints": [{"key": "example.com/broken", "effect": "NoSchedule"}]}]
            metadata = {"resourceVersion": slice_.metadata.resourceVersion}
            await made.client.patch(RESOURCESLICE, "a-gpus", None, {"metadata": metadata, "spec": {"devices": devices}})
            assert "example.com/broken:NoSchedule" in await _replaced_and_told(made, "DeviceTainted")

    asyncio.run(scenario())


def test_the_successor_of_a_lost_pod_gets_devices_elsewhere() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as made:
            await made.claim_controller()
            ours = await made.drakkar()
            await _lift(made, owned(gated("p", "c")))
            first = await made.lifted("p")
            await made.client.delete(NODE, first)
            await until(lambda: made.gone("p"))
            # What the owner does.
            await create(made.client, owned(gated("p-2", "c")))
            second = await until(lambda: made.lifted("p-2"))
            assert {first, second} == {"a", "b"}
            await made.kube_scheduler()
            assert await until(lambda: made.bound("p-2")) == second
            await counted(ours, repaired=1)

    asyncio.run(scenario())


def test_a_pod_deleted_after_the_lift_gives_room_and_devices_back() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.claim_controller()
            await made.drakkar()
            big = requesting("p", "c", cpu="3")
            big["spec"] |= GATE
            await _lift(made, big)
            await made.client.delete(POD, "p", "default")
            again = requesting("q", "d", cpu="3")
            again["spec"] |= GATE
            await create(made.client, claim("d"), again)
            assert await until(lambda: made.lifted("q")) == "a"
            assert await made.devices("c") == []
            assert await made.devices("d") == ["gpu-0"]

    asyncio.run(scenario())


def test_a_pod_deleted_between_the_allocation_and_the_lift_gives_its_devices_back() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.claim_controller()

            async def in_between(request: Request) -> Response:
                if _lifts(request):
                    with contextlib.suppress(ApiError):
                        await made.client.delete(POD, "p", "default")
                return await made.server.handle(request)

            ours = await made.drakkar(in_between)
            await create(made.client, claim("c"), gated("p", "c"))
            await until(lambda: made.gone("p"))

            async def free() -> bool:
                return await made.devices("c") == []

            await until(free)
            assert ours.metrics["lifted"] == 0

    asyncio.run(scenario())


def test_the_gate_is_removed_by_the_user() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:

            async def in_between(request: Request) -> Response:
                if _lifts(request):
                    await made.client.patch(POD, "p", "default", {"spec": {"schedulingGates": None}})
                return await made.server.handle(request)

            ours = await made.drakkar(in_between)
            await create(made.client, claim("c"), gated("p", "c"))

            async def ungated() -> bool:
                return not (await made.pod("p"))["spec"].get("schedulingGates")

            await until(ungated)
            # The allocation stands, and the pod is the other scheduler's.
            await made.kube_scheduler()
            assert await until(lambda: made.bound("p")) == "a"
            assert ours.metrics["lifted"] == 0
            assert ours.metrics["repaired"] == 0
            assert verify(await collect(made.client)) == []

    asyncio.run(scenario())


def _lifts(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/pods/p") and b"schedulingGates" in request.body


def _allocates(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/c/status") and b'"allocation"' in request.body


def test_killed_after_every_write_and_started_anew() -> None:
    async def killed_after(number: int) -> bool:
        async with cluster("a", "b") as made:
            await made.claim_controller()
            writes = 0
            reached = asyncio.Event()

            async def counting(request: Request) -> Response:
                nonlocal writes
                response = await made.server.handle(request)
                if request.method != "GET" and "/events" not in request.path:
                    writes += 1
                    if writes == number:
                        # Whoever is killed here never learns of the answer.
                        reached.set()
                        await asyncio.Event().wait()
                return response

            await made.drakkar(counting)
            await create(made.client, claim("c"), owned(gated("p", "c")))
            ended = asyncio.create_task(reached.wait())
            done = asyncio.create_task(until(lambda: made.lifted("p")))
            await asyncio.wait((ended, done), return_when=asyncio.FIRST_COMPLETED)
            was_reached = reached.is_set()
            made.task.cancel()
            ended.cancel()
            done.cancel()
            await asyncio.gather(made.task, ended, done, return_exceptions=True)
            ours = await made.drakkar()
            chosen = await until(lambda: made.lifted("p"))
            # Also who did not lift the gate himself keeps the room and looks after the pod.
            assert ours.cluster.node_of(uid_of(await made.pod("p"))) == chosen
            await made.kube_scheduler()
            assert await until(lambda: made.bound("p")) == chosen
            assert verify(await collect(made.client)) == []
            return was_reached

    async def scenario() -> list[bool]:
        return [await killed_after(number) for number in range(1, 6)]

    # Finalizer, allocation with reservation, nomination, lift; there is no fifth write.
    assert asyncio.run(scenario()) == [True, True, True, True, False]


def test_a_loss_while_nobody_ran_is_repaired_by_the_next() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            await _lift(made, owned(gated("owned", "c")), gated("alone", "c"))
            made.task.cancel()
            await asyncio.gather(made.task, return_exceptions=True)
            await made.client.delete(NODE, "a")
            await made.drakkar()
            await _replaced_and_told(made, "NodeGone")

    asyncio.run(scenario())


def test_killed_between_the_two_writes_of_a_repair() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            reached = asyncio.Event()

            async def no_further(request: Request) -> Response:
                if request.method == "DELETE":
                    reached.set()
                    await asyncio.Event().wait()
                return await made.server.handle(request)

            await made.drakkar(no_further)
            await _lift(made, owned(gated("p", "c")))
            await made.client.delete(NODE, "a")
            await asyncio.wait_for(reached.wait(), 10)
            made.task.cancel()
            await asyncio.gather(made.task, return_exceptions=True)
            assert pod_is_done(await made.pod("p"))
            ours = await made.drakkar()
            await until(lambda: made.gone("p"))
            # Who deleted it is not counted as having repaired it twice.
            assert ours.metrics["repaired"] == 0

    asyncio.run(scenario())


def test_a_repair_that_fails_is_tried_again_after_ever_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gating, "AGAIN", 0.001)

    async def scenario() -> None:
        async with cluster("a") as made:
            few = made.server.token("system:serviceaccount:drakkar-system:scheduler")
            refused = {"p": 0, "q": 0}

            async def without(request: Request) -> Response:
                # The one may not be told of its loss, the other may not be deleted.
                for name, missing in (("p", request.path.endswith("/p/status")), ("q", request.method == "DELETE")):
                    if missing and f"/pods/{name}" in request.path and b"nominated" not in request.body:
                        refused[name] += 1
                        headers = {**request.headers, "authorization": f"Bearer {few}"}
                        request = dataclasses.replace(request, headers=headers)
                return await made.server.handle(request)

            ours = await made.drakkar(without)
            await create(made.client, node_slice("b", 1), node("b", cpu="4", memory="8Gi", pods="10"))
            await create(made.client, claim("d"))
            await _lift(made, owned(gated("p", "c")), owned(gated("q", "d")))
            uids = {name: uid_of(await made.pod(name)) for name in "pq"}
            refused.update(p=0, q=0)
            for name in "ab":
                await made.client.delete(NODE, name)

            async def often() -> bool:
                return all(ours._failed.get(uids[name], (0, 0.0))[0] >= 3 for name in "pq")

            await until(often)
            # Every failure is counted, by which the pause before the next attempt grows.
            assert all(abs(refused[name] - ours._failed[uids[name]][0]) <= 1 for name in "pq")
            assert pod_is_done(await made.pod("q"))

    asyncio.run(scenario())


def test_a_pod_bound_just_before_its_repair_is_left_alone() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:

            async def in_between(request: Request) -> Response:
                if request.path.endswith("/pods/p/status") and b"DisruptionTarget" in request.body:
                    target = {"apiVersion": "v1", "kind": "Node", "name": "a"}
                    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "namespace": "default"}}
                    with contextlib.suppress(ApiError):
                        await made.client.create(POD, {**body, "target": target}, subresource="binding")
                return await made.server.handle(request)

            ours = await made.drakkar(in_between)
            await _lift(made, owned(gated("p", "c")))
            await made.client.patch(NODE, "a", None, {"spec": {"unschedulable": True}})
            assert await until(lambda: made.bound("p")) == "a"

            async def seen() -> bool:
                return not ours._lifted

            await until(seen)
            assert condition(await made.pod("p"), "DisruptionTarget") is None
            assert (await made.pod("p"))["status"]["phase"] == "Pending"
            assert ours.metrics["repaired"] == 0

    asyncio.run(scenario())


def test_extended_resources_of_devices_are_left_to_the_other_scheduler() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            await made.drakkar()
            asking = requesting("p")
            asking["spec"] |= GATE
            asking["spec"]["containers"][0]["resources"] = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
            await create(made.client, asking)

            async def told() -> str:
                found = (condition(await made.pod("p"), "PodScheduled") or {}).get("message", "")
                return found if "deviceclass.resource.kubernetes.io/gpu" in found else ""

            assert "remove the scheduling gate drakkar.dev/allocation" in await until(told)
            assert (await made.client.list(RESOURCECLAIM, "default")).items == []

    asyncio.run(scenario())


def test_pods_of_a_gang_are_lifted_together() -> None:
    async def scenario() -> None:
        async with cluster("a", devices=3) as made:
            ours = await made.drakkar()
            policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
            group = {"metadata": {"name": "g", "namespace": "default"}, "spec": policy}
            await made.client.create(PODGROUP, group, "default")
            member = {"schedulingGroup": {"podGroupName": "g"}}
            await create(made.client, claim("x"), claim("y"), gated("p", "x", **member))

            async def told() -> str:
                return (condition(await made.pod("p"), "PodScheduled") or {}).get("message", "")

            await until(told)
            assert (await made.lifted("p"), await made.devices("x")) == ("", [])
            await create(made.client, gated("q", "y", **member))
            assert {await until(lambda: made.lifted("p")), await until(lambda: made.lifted("q"))} == {"a"}
            await counted(ours, lifted=2)
            # Whether the group runs is for the scheduler that binds its pods to say.
            assert condition(await made.client.get(PODGROUP, "g", "default"), "PodGroupInitiallyScheduled") is None

    asyncio.run(scenario())


def test_a_job_goes_on_elsewhere_when_the_node_of_a_lifted_pod_goes() -> None:
    async def scenario() -> None:
        async with cluster("a", "b") as made:
            only = {"claims", "jobs", "garbage"}
            await made.start(Controllers(made.part("controllers"), SystemClock(), only=only))
            await made.drakkar()
            template = {"metadata": {"name": "t"}, "spec": {"spec": claim("x")["spec"]}}
            await made.client.create(RESOURCECLAIMTEMPLATE, template, "default")
            entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
            container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
            spec = {"restartPolicy": "Never", "containers": [container], "resourceClaims": [entry], **GATE}
            on_disruption = [{"type": "DisruptionTarget", "status": "True"}]
            job = {
                "metadata": {"name": "j"},
                "spec": {
                    "backoffLimit": 0,
                    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": on_disruption}]},
                    "template": {"spec": spec},
                },
            }
            await made.client.create(JOB, job, "default")

            async def lifted() -> dict[str, Any] | None:
                pods = (await made.client.list(POD, "default")).items
                return next((p for p in pods if lifted_node(p)), None)

            first = await until(lifted)
            await made.client.delete(NODE, lifted_node(first))

            async def successor() -> dict[str, Any] | None:
                found = await lifted()
                return found if found is not None and uid_of(found) != uid_of(first) else None

            second = await until(successor, 20)
            assert {lifted_node(first), lifted_node(second)} == {"a", "b"}
            await made.kube_scheduler()
            assert await until(lambda: made.bound(second["metadata"]["name"])) == lifted_node(second)
            # The claim of the first pod went with it.
            assert len((await made.client.list(RESOURCECLAIM, "default")).items) == 1
            assert verify(await collect(made.client)) == []

    asyncio.run(scenario())


def test_a_gated_pod_that_names_our_scheduler_is_bound_here() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            ours = await made.drakkar()
            await create(made.client, claim("c"), gated("p", "c", schedulerName="drakkar"))
            assert await until(lambda: made.bound("p")) == "a"
            await counted(ours, lifted=0, scheduled=1)

    asyncio.run(scenario())


def test_missing_rights_are_named() -> None:
    async def scenario() -> None:
        async with cluster("a") as made:
            few = made.server.token("system:serviceaccount:drakkar-system:scheduler")

            async def without(request: Request) -> Response:
                if _lifts(request):
                    headers = {**request.headers, "authorization": f"Bearer {few}"}
                    request = dataclasses.replace(request, headers=headers)
                return await made.server.handle(request)

            await made.drakkar(without)
            await create(made.client, claim("c"), gated("p", "c"))

            async def told() -> str:
                events = (await made.client.list(EVENT, "default")).items
                return next((e["message"] for e in events if "is forbidden" in e["message"]), "")

            text = await until(told)
            assert 'cannot patch resource "pods"' in text
            assert "Gate mode needs the verbs patch and delete for pods" in text
            assert "or run with --mode own" in text

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_all_pods_run_in_the_end(seed: int) -> None:
    """Nodes are cordoned, pods deleted and our scheduler is killed at random while two Jobs start."""

    async def scenario() -> None:
        chance = random.Random(seed)
        names = [f"n{number}" for number in range(6)]
        async with cluster(*names, devices=2) as made:
            await made.start(Controllers(made.part("controllers"), SystemClock(), only={"claims", "jobs", "garbage"}))
            await made.kube_scheduler()
            await made.drakkar()
            template = {"metadata": {"name": "t"}, "spec": {"spec": claim("x")["spec"]}}
            await made.client.create(RESOURCECLAIMTEMPLATE, template, "default")
            entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
            await made.client.create(JOB, _job("gated", 10, "1", resourceClaims=[entry], **GATE), "default")
            await made.client.create(JOB, _job("plain", 4, "2"), "default")
            for _ in range(12):
                await asyncio.sleep(chance.random() * 0.08)
                match chance.choice(("kill", "cordon", "cordon", "delete")):
                    case "kill":
                        made.task.cancel()
                        await asyncio.gather(made.task, return_exceptions=True)
                        await made.drakkar()
                    case "cordon":
                        await made.client.patch(NODE, chance.choice(names), None, {"spec": {"unschedulable": True}})
                    case _:
                        waiting = [p for p in (await made.client.list(POD, "default")).items if not pod_node(p)]
                        if waiting:
                            with contextlib.suppress(ApiError):
                                name = chance.choice(waiting)["metadata"]["name"]
                                await made.client.delete(POD, name, "default")
            for name in names:
                await made.client.patch(NODE, name, None, {"spec": {"unschedulable": None, "taints": None}})

            async def all_bound() -> bool:
                pods = (await made.client.list(POD, "default")).items
                alive = [p for p in pods if not p["metadata"].get("deletionTimestamp") and not pod_is_done(p)]
                return len(alive) == 14 and all(map(pod_node, alive))

            await until(all_bound, 40)
            assert verify(await collect(made.client)) == []

    asyncio.run(scenario())


def _job(name: str, pods: int, cpu: str, **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu}, "claims": [{"name": e["name"]} for e in spec.get("resourceClaims", ())]}
    container = {"name": "main", "image": "x", "resources": resources}
    template = {"spec": {"restartPolicy": "Never", "containers": [container], **spec}}
    body = {"parallelism": pods, "completions": pods, "backoffLimit": 100, "template": template}
    return {"metadata": {"name": name}, "spec": body}
