"""Which event wakes a waiting pod: for each kind of reason one that helps, and others that do not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from drakkar.api.kinds import (
    DEVICECLASS,
    DEVICETAINTRULE,
    NODE,
    PERSISTENTVOLUME,
    PERSISTENTVOLUMECLAIM,
    POD,
    RESOURCECLAIM,
    RESOURCESLICE,
    Kind,
)
from tests.unit.client.fakeserver import FakeServer
from tests.unit.scheduler.build import (
    allocated,
    claim,
    device_class,
    node,
    node_slice,
    pod,
    requesting,
)
from tests.unit.scheduler.test_scheduler import Running, message, node_of, until

Change = tuple[Kind, dict[str, Any]]
TAINT = {"key": "broken", "effect": "NoSchedule"}
HOST = "kubernetes.io/hostname"


def near(app: str, which: str = "podAffinity") -> dict[str, Any]:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {which: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def db(name: str, where: str) -> dict[str, Any]:
    made = pod(name, node=where)
    made["metadata"]["labels"] = {"app": "db"}
    return made


def ended(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "status": {"phase": "Succeeded"}}


def foreign_slice() -> dict[str, Any]:
    made = node_slice("a", 1)
    made["metadata"]["name"] = "foreign"
    made["spec"] |= {"driver": "other.example.com", "pool": {"name": "o", "generation": 1, "resourceSliceCount": 1}}
    return made


def on_port(name: str, where: str = "") -> dict[str, Any]:
    made = pod(name, node=where)
    made["spec"]["containers"][0]["ports"] = [{"hostPort": 80, "containerPort": 80}]
    return made


def volume_claim(phase: str) -> dict[str, Any]:
    metadata = {"name": "data", "namespace": "default"}
    return {"metadata": metadata, "spec": {"volumeName": "pv"}, "status": {"phase": phase}}


@dataclass
class Case:
    """``words`` are in the reason; ``idle`` changes must not wake the pod, ``help`` must, and places it."""

    name: str
    words: str
    waiting: dict[str, Any]
    world: list[Change]
    help: Change
    idle: list[Change] = field(default_factory=list[Change])


FREED = claim("other")
OTHER_NODE_ROOM: Change = (NODE, node("a", cpu="8"))
UNRELATED_CLAIM: Change = (RESOURCECLAIM, claim("unrelated"))
UNRELATED_POD: Change = (POD, {**pod("stranger", node="a"), "status": {"phase": "Succeeded"}})

CASES = [
    Case(
        "devices in use",
        "in-use",
        pod("p", "c"),
        [(NODE, node("a")), (DEVICECLASS, device_class()), (RESOURCESLICE, node_slice("a", 1)),
         (RESOURCECLAIM, claim("c")), (RESOURCECLAIM, allocated(FREED, "a", "gpu-0")), (POD, pod("x", node="a"))],
        help=(RESOURCECLAIM, FREED),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, (RESOURCESLICE, foreign_slice()), (POD, ended(pod("x", node="a")))],
    ),
    Case(
        "no such class",
        "class-missing",
        pod("p", "c"),
        [(NODE, node("a")), (RESOURCESLICE, node_slice("a", 1)), (RESOURCECLAIM, claim("c"))],
        help=(DEVICECLASS, device_class()),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, UNRELATED_POD],
    ),
    Case(
        "tainted device",
        "tainted",
        pod("p", "c"),
        [(NODE, node("a")), (DEVICECLASS, device_class()), (RESOURCECLAIM, claim("c")),
         (RESOURCESLICE, node_slice("a", 1, taints=(TAINT,)))],
        help=(RESOURCESLICE, node_slice("a", 1)),
        idle=[OTHER_NODE_ROOM, (RESOURCESLICE, foreign_slice()), UNRELATED_POD],
    ),
    Case(
        "claim missing",
        "resourceclaim c not found",
        pod("p", "c"),
        [(NODE, node("a")), (DEVICECLASS, device_class()), (RESOURCESLICE, node_slice("a", 1))],
        help=(RESOURCECLAIM, claim("c")),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, UNRELATED_POD, (RESOURCESLICE, foreign_slice())],
    ),
    Case(
        "claim on another node",
        "not available on the node",
        pod("p", "c", nodeSelector={HOST: "a"}),
        [(NODE, node("a")), (DEVICECLASS, device_class()), (POD, pod("x", "c", node="b")),
         (RESOURCECLAIM, allocated(claim("c"), "b", "gpu-0", reserved=("x",)))],
        help=(RESOURCECLAIM, allocated(claim("c"), "a", "gpu-0")),
        idle=[UNRELATED_CLAIM, UNRELATED_POD, OTHER_NODE_ROOM, (RESOURCESLICE, foreign_slice())],
    ),
    Case(
        "too little room",
        "Insufficient cpu",
        requesting("p", cpu="2"),
        [(NODE, node("a", cpu="2")), (POD, {**requesting("x", cpu="1"), "spec":
         {**requesting("x", cpu="1")["spec"], "nodeName": "a"}})],
        help=(POD, ended(requesting("x", cpu="1"))),
        idle=[UNRELATED_CLAIM, (DEVICECLASS, device_class()), (RESOURCESLICE, foreign_slice())],
    ),
    Case(
        "too small a node",
        "Insufficient cpu",
        requesting("p", cpu="2"),
        [(NODE, node("a", cpu="1"))],
        help=(NODE, node("a", cpu="3")),
        idle=[UNRELATED_CLAIM, (DEVICECLASS, device_class()), (NODE, node("a", cpu="1", taints=(TAINT,))),
              (NODE, node("a", cpu="1"))],
    ),
    Case(
        "tainted node",
        "untolerated taint",
        pod("p"),
        [(NODE, node("a", taints=(TAINT,))), (POD, pod("x", node="a"))],
        help=(NODE, node("a")),
        idle=[(NODE, node("a", taints=(TAINT,), cpu="9")), (POD, ended(pod("x", node="a"))), UNRELATED_CLAIM],
    ),
    Case(
        "wrong node",
        "node affinity/selector",
        pod("p", nodeSelector={HOST: "b"}),
        [(NODE, node("a")), (POD, pod("x", node="a"))],
        help=(NODE, node("b")),
        idle=[OTHER_NODE_ROOM, (POD, ended(pod("x", node="a"))), (NODE, node("a", taints=(TAINT,)))],
    ),
    Case(
        "port taken",
        "free ports",
        on_port("p"),
        [(NODE, node("a")), (POD, on_port("x", "a"))],
        help=(POD, ended(on_port("x", "a"))),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, (DEVICECLASS, device_class())],
    ),
    Case(
        "nobody to join",
        "pod affinity rules",
        pod("p", affinity=near("db")),
        [(NODE, node("a")), (POD, pod("x", node="a"))],
        help=(POD, db("db", "a")),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, (POD, ended(pod("x", node="a")))],
    ),
    Case(
        "somebody to avoid",
        "pod anti-affinity rules",
        pod("p", affinity=near("db", "podAntiAffinity")),
        [(NODE, node("a")), (POD, db("db", "a"))],
        help=(POD, ended(db("db", "a"))),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, (POD, pod("new", node="a"))],
    ),
    Case(
        "volume not bound",
        "is not bound",
        pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
        [(NODE, node("a")), (PERSISTENTVOLUMECLAIM, volume_claim("Pending")), (POD, pod("x", node="a")),
         (PERSISTENTVOLUME, {"metadata": {"name": "pv"}, "spec": {}})],
        help=(PERSISTENTVOLUMECLAIM, volume_claim("Bound")),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, (POD, ended(pod("x", node="a")))],
    ),
    Case(
        "tainted device that the claim holds",
        "with the untolerated taint",
        pod("p", "c"),
        [(NODE, node("a")), (DEVICECLASS, device_class()), (RESOURCESLICE, node_slice("a", 1, taints=(TAINT,))),
         (RESOURCECLAIM, allocated(claim("c"), "a", "gpu-0", reserved=("x",))), (POD, pod("x", "c", node="a"))],
        help=(RESOURCESLICE, node_slice("a", 1)),
        idle=[OTHER_NODE_ROOM, UNRELATED_CLAIM, UNRELATED_POD],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_only_what_can_help_wakes_a_pod(case: Case) -> None:
    async def scenario() -> None:
        server = FakeServer()
        for kind, obj in case.world:
            server.put(kind, obj)
        server.put(POD, case.waiting)
        async with Running(server) as scheduler:
            await until(lambda: message(server, "p"))
            assert case.words in message(server, "p")
            await until(lambda: scheduler.queue.sizes()["unschedulable"] == 1)
            seen = _watching(scheduler)
            for kind, obj in case.idle:
                before = len(seen)
                server.put(kind, obj)
                await until(lambda before=before: len(seen) > before)
                assert scheduler.queue.sizes()["unschedulable"] == 1, (
                    f"{kind.kind} {obj['metadata']['name']} woke the pod"
                )
            server.put(*case.help)
            await until(lambda: node_of(server, "p"))

    asyncio.run(scenario())


def _watching(scheduler: Any) -> list[str]:
    """What the scheduler's caches are told from now on, after it has acted on it."""
    seen: list[str] = []
    kinds = (NODE, POD, RESOURCECLAIM, RESOURCESLICE, DEVICECLASS, DEVICETAINTRULE, PERSISTENTVOLUMECLAIM)
    for kind in kinds:
        scheduler._caches.of(kind).subscribe(lambda event, old, new: seen.append(event))
    seen.clear()
    return seen


def test_one_refusal_answers_equal_pods() -> None:
    async def scenario() -> None:
        server = FakeServer()
        for kind, obj in (
            (NODE, node("a")),
            (DEVICECLASS, device_class()),
            (RESOURCESLICE, node_slice("a", 1)),
            (RESOURCECLAIM, allocated(FREED, "a", "gpu-0")),
        ):
            server.put(kind, obj)
        for number in range(20):
            server.put(RESOURCECLAIM, claim(f"c-{number}"))
            server.put(POD, pod(f"p-{number}", f"c-{number}"))
        async with Running(server) as scheduler:
            await until(lambda: all(message(server, f"p-{n}") for n in range(20)))
            assert scheduler.metrics["answered_alike"] == 19
            assert scheduler.metrics["decisions"] == 1
            for number in (0, 1, 10, 19):
                assert f"claim default/c-{number}, request gpus" in message(server, f"p-{number}")
            # One device becomes free: one pod gets it, the others are told in one go.
            server.put(RESOURCECLAIM, FREED)
            await until(lambda: any(node_of(server, f"p-{n}") for n in range(20)))
            await until(lambda: scheduler.queue.sizes()["unschedulable"] == 19)
            assert scheduler.metrics["decisions"] <= 4

    asyncio.run(scenario())


def test_pods_that_differ_are_decided_one_by_one() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(NODE, node("a", cpu="1"))
        for name, cpu in (("p", "2"), ("q", "3"), ("r", "1")):
            server.put(POD, requesting(name, cpu=cpu))
        async with Running(server) as scheduler:
            await until(lambda: node_of(server, "r") and message(server, "p") and message(server, "q"))
            assert scheduler.metrics["answered_alike"] == 0

    asyncio.run(scenario())
