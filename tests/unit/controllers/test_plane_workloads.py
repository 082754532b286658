"""Workloads against the real API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from drakkar.api.kinds import (
    CONTROLLERREVISION,
    DAEMONSET,
    DEPLOYMENT,
    NODE,
    PERSISTENTVOLUMECLAIM,
    POD,
    PODDISRUPTIONBUDGET,
    REPLICASET,
    RESOURCEPOOLSTATUSREQUEST,
    RESOURCEQUOTA,
    RESOURCESLICE,
    STATEFULSET,
)
from drakkar.client import Client
from tests.support.eventually import eventually
from tests.unit.controllers.objects import node, slice_, workload
from tests.unit.controllers.test_plane import gone, items, run

REVISION = "deployment.kubernetes.io/revision"


@asynccontextmanager
async def agent(client: Client) -> AsyncIterator[None]:
    """Binds every pod to node n, makes it ready, and ends what is asked to go."""

    async def work() -> None:
        while True:
            for pod in await items(client, POD):
                name = pod["metadata"]["name"]
                if pod["metadata"].get("deletionTimestamp"):
                    await client.delete(POD, name, "default", grace=0)
                elif pod["status"].get("phase") != "Running":
                    if not pod["spec"].get("nodeName"):
                        body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
                        await client.create(POD, body, "default", "binding")
                    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                    status = {"phase": "Running", "conditions": [ready]}
                    await client.patch(POD, name, "default", {"status": status}, "strategic", "status")
            await asyncio.sleep(0.02)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def body(name: str = "w", **spec: Any) -> dict[str, Any]:
    made = workload(name, **spec)
    made["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    return made


def image(name: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": name}]}}}}


def test_deployment_rolls_out_and_back_and_goes() -> None:
    async def story(client: Client) -> None:
        await client.create(NODE, node())
        async with agent(client):
            await client.create(DEPLOYMENT, body(replicas=3))

            async def settled(revision: str) -> Any:
                def holds(found: Any) -> bool:
                    # The revision is written before the status, which may still be that of the revision before.
                    seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
                    counts = [found["status"].get(f) for f in ("replicas", "updatedReplicas", "availableReplicas")]
                    at = found["metadata"].get("annotations", {}).get(REVISION)
                    return seen and at == revision and counts == [3] * 3

                return await eventually(lambda: client.get(DEPLOYMENT, "w", "default"), holds)

            first = await settled("1")
            await client.patch(DEPLOYMENT, "w", "default", image("new"), "strategic")
            await settled("2")
            await client.patch(DEPLOYMENT, "w", "default", {"spec": {"template": first["spec"]["template"]}})
            last = await settled("3")
            reasons = {entry["type"]: entry["reason"] for entry in last["status"]["conditions"]}
            assert reasons == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}
            assert last["status"]["observedGeneration"] == last["metadata"]["generation"] == 3
            found = await items(client, REPLICASET)
            assert sorted(entry["spec"]["replicas"] for entry in found) == [0, 3]
            await client.delete(DEPLOYMENT, "w", "default", propagation="Foreground")
            await gone(client, DEPLOYMENT, "w")
            assert await items(client, REPLICASET) == []
            assert await items(client, POD) == []

    run(story)


def test_daemons_run_on_the_node_and_follow_their_template() -> None:
    async def story(client: Client) -> None:
        await client.create(NODE, node())
        async with agent(client):
            await client.create(DAEMONSET, body("d"))

            async def settled(name: str) -> Any:
                def holds(found: Any) -> bool:
                    status = found["status"]
                    seen = status.get("observedGeneration") == found["metadata"]["generation"]
                    counts = [
                        status.get(f) for f in ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")
                    ]
                    return seen and counts == [1, 1, 1]

                await eventually(lambda: client.get(DAEMONSET, "d", "default"), holds)
                (found,) = await items(client, POD)
                assert found["spec"]["containers"][0]["image"] == name

            await settled("i")
            await client.patch(DAEMONSET, "d", "default", image("new"), "strategic")
            await settled("new")
            first = min(await items(client, CONTROLLERREVISION), key=lambda entry: entry["revision"])
            await client.patch(DAEMONSET, "d", "default", first["data"], "strategic")
            await settled("i")
            await client.delete(DAEMONSET, "d", "default", propagation="Foreground")
            await gone(client, DAEMONSET, "d")
            assert await items(client, CONTROLLERREVISION) == []

    run(story)


def test_stateful_pods_keep_names_and_claims() -> None:
    async def story(client: Client) -> None:
        await client.create(NODE, node())
        async with agent(client):
            size = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
            templates = [{"metadata": {"name": "data"}, "spec": size}]
            await client.create(STATEFULSET, body("s", replicas=2, serviceName="s", volumeClaimTemplates=templates))

            async def settled(name: str) -> None:
                def holds(found: Any) -> bool:
                    status = found["status"]
                    counts = [status.get(f) for f in ("replicas", "updatedReplicas", "readyReplicas")]
                    same = status.get("currentRevision") == status.get("updateRevision")
                    seen = status.get("observedGeneration") == found["metadata"]["generation"]
                    return seen and same and counts == [2] * 3

                await eventually(lambda: client.get(STATEFULSET, "s", "default"), holds)
                found = await items(client, POD)
                assert {p["metadata"]["name"]: p["spec"]["containers"][0]["image"] for p in found} == {
                    "s-0": name,
                    "s-1": name,
                }

            await settled("i")
            await client.patch(STATEFULSET, "s", "default", image("new"), "strategic")
            await settled("new")
            claims = await items(client, PERSISTENTVOLUMECLAIM)
            assert sorted(c["metadata"]["name"] for c in claims) == ["data-s-0", "data-s-1"]
            await client.delete(STATEFULSET, "s", "default", propagation="Foreground")
            await gone(client, STATEFULSET, "s")
            assert len(await items(client, PERSISTENTVOLUMECLAIM)) == 2

    run(story)


def test_budget_and_quota_count() -> None:
    async def story(client: Client) -> None:
        hard = {"pods": "9", "count/deployments.apps": "3", "count/leases.coordination.k8s.io": "3", "services": "1"}
        await client.create(RESOURCEQUOTA, {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}})
        spec = {"selector": {"matchLabels": {"app": "w"}}, "maxUnavailable": 1}
        await client.create(PODDISRUPTIONBUDGET, {"metadata": {"name": "b", "namespace": "default"}, "spec": spec})
        await client.create(NODE, node())
        async with agent(client):
            await client.create(DEPLOYMENT, body(replicas=3))
            budget = await eventually(
                lambda: client.get(PODDISRUPTIONBUDGET, "b", "default"),
                lambda found: found["status"].get("disruptionsAllowed") == 1,
            )
            assert budget["status"]["conditions"][0]["reason"] == "SufficientPods"
            assert (budget["status"]["expectedPods"], budget["status"]["desiredHealthy"]) == (3, 2)
            wanted = {
                "pods": "3",
                "count/deployments.apps": "1",
                "count/leases.coordination.k8s.io": "0",
                "services": "0",
            }
            await eventually(
                lambda: client.get(RESOURCEQUOTA, "q", "default"), lambda found: found["status"].get("used") == wanted
            )
            await client.delete(DEPLOYMENT, "w", "default")
            await eventually(
                lambda: client.get(RESOURCEQUOTA, "q", "default"),
                lambda found: found["status"]["used"]["pods"] == "0",
            )

    run(story)


def test_a_question_about_pools_is_answered() -> None:
    async def story(client: Client) -> None:
        await client.create(RESOURCESLICE, slice_())
        await client.create(RESOURCEPOOLSTATUSREQUEST, {"metadata": {"name": "r"}, "spec": {"driver": "drv"}})
        found = await eventually(
            lambda: client.get(RESOURCEPOOLSTATUSREQUEST, "r"), lambda request: request.get("status")
        )
        (pool,) = found["status"]["pools"]
        assert (pool["totalDevices"], pool["availableDevices"], pool["allocatedDevices"]) == (1, 1, 0)
        assert found["status"]["conditions"][0]["type"] == "Complete"

    run(story)


def test_a_refused_pod_is_a_condition() -> None:
    async def story(client: Client) -> None:
        none = {"metadata": {"name": "none", "namespace": "default"}, "spec": {"hard": {"pods": "0"}}}
        await client.create(RESOURCEQUOTA, none)
        await client.create(DEPLOYMENT, body(replicas=1))

        def failure(found: Any) -> Any:
            return [c for c in found["status"].get("conditions") or () if c["type"] == "ReplicaFailure"]

        found = await eventually(lambda: client.get(DEPLOYMENT, "w", "default"), failure)
        assert failure(found)[0]["reason"] == "FailedCreate"
        assert "exceeded quota: none" in failure(found)[0]["message"]
        await client.delete(RESOURCEQUOTA, "none", "default")
        async with agent(client):
            await client.create(NODE, node())
            await eventually(lambda: client.get(DEPLOYMENT, "w", "default"), lambda found: not failure(found))

    run(story)
