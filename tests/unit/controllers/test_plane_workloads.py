"""Workloads against the real API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from drakkar.api.kinds import DEPLOYMENT, NODE, POD, REPLICASET
from drakkar.client import Client
from tests.support.eventually import eventually
from tests.unit.controllers.objects import node, workload
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
                    counts = [found["status"].get(f) for f in ("replicas", "updatedReplicas", "availableReplicas")]
                    return found["metadata"].get("annotations", {}).get(REVISION) == revision and counts == [3] * 3

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
