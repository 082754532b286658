"""The controllers against the real API server in memory: what a fake could get wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import (
    CONFIGMAP,
    DEVICETAINTRULE,
    EVENT,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    RESOURCECLAIM,
    RESOURCECLAIMTEMPLATE,
    RESOURCESLICE,
    SERVICEACCOUNT,
    Kind,
)
from drakkar.client import Client, SystemClock
from drakkar.controllers import Controllers, ControllerSettings
from tests.support.eventually import eventually, memory_plane
from tests.unit.controllers.objects import claim, job, lease, node, pod, slice_, template

FINALIZER = "resource.kubernetes.io/delete-protection"
#: Nodes of these tests have no heartbeats, so their silence means nothing; those about it say `settings=QUICK`.
SETTINGS = ControllerSettings(node_grace=600, lease_period=0.1, root_ca="PEM", loss_by_silence=True)
QUICK = replace(SETTINGS, node_grace=0.6)


@asynccontextmanager
async def plane(settings: ControllerSettings = SETTINGS) -> AsyncIterator[Client]:
    async with memory_plane() as client:
        controllers = Controllers(client, SystemClock(), settings=settings)
        task = asyncio.create_task(controllers.run())
        await asyncio.wait_for(controllers.ready.wait(), 60)
        try:
            yield client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Any:
    """A controller may be refused what a test refuses; anything else that it warns about fails the test."""
    yield
    said = [r.getMessage() for r in caplog.get_records("call") if r.name.startswith("drakkar.client.runner")]
    refused = ("because it is being terminated", "admin-access")
    assert [message for message in said if not any(words in message for words in refused)] == []


def run(story: Callable[[Client], Coroutine[Any, Any, None]], settings: ControllerSettings = SETTINGS) -> None:
    logging.getLogger("drakkar.client.runner").setLevel(logging.INFO)

    async def main() -> None:
        async with plane(settings) as client:
            await story(client)

    asyncio.run(main())


async def absent(client: Client, kind: Kind, name: str, namespace: str | None = "default") -> bool:
    try:
        await client.get(kind, name, namespace)
    except ApiError as error:
        return error.code == 404
    return False


def gone(client: Client, kind: Kind, name: str, namespace: str | None = "default") -> Any:
    return eventually(lambda: absent(client, kind, name, namespace), lambda yes: yes)


async def items(client: Client, kind: Kind, namespace: str | None = "default") -> list[Any]:
    return (await client.list(kind, namespace)).items


async def run_pods(client: Client) -> None:
    """What an agent would report for every pod."""
    for found in await items(client, POD):
        name = found["metadata"]["name"]
        if not found["spec"].get("nodeName"):
            body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
            await client.create(POD, body, "default", "binding")
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await client.patch(POD, name, "default", {"status": status}, "strategic", "status")


def with_node(name: str = "n") -> tuple[dict[str, Any], dict[str, Any]]:
    return node(name), lease(name)


def test_job_from_start_to_finish_and_its_collection() -> None:
    async def story(client: Client) -> None:
        await client.create(NODE, node())
        await client.create(JOB, job(completionMode="Indexed", parallelism=2, completions=2))
        pods = await eventually(lambda: items(client, POD), lambda found: len(found) == 2)
        await run_pods(client)
        await eventually(lambda: client.get(JOB, "j", "default"), lambda j: j["status"].get("ready") == 2)
        for found in pods:
            body = {"status": {"phase": "Succeeded"}}
            await client.patch(POD, found["metadata"]["name"], "default", body, "strategic", "status")
        done = await eventually(
            lambda: client.get(JOB, "j", "default"),
            lambda j: any(c["type"] == "Complete" for c in j["status"].get("conditions") or ()),
        )
        assert done["status"]["succeeded"] == 2
        assert done["status"]["completedIndexes"] == "0,1"
        assert done["status"]["completionTime"]
        events = await eventually(
            lambda: items(client, EVENT), lambda found: "Completed" in {event["reason"] for event in found}
        )
        assert {"SuccessfulCreate", "Completed"} <= {event["reason"] for event in events}
        await client.delete(JOB, "j", "default", propagation="Foreground")
        await gone(client, JOB, "j")
        assert await items(client, POD) == []

    run(story)


def test_claim_from_template_lives_and_dies_with_its_pod() -> None:
    async def story(client: Client) -> None:
        await client.create(NODE, node())
        await client.create(LEASE, lease())
        await client.create(RESOURCECLAIMTEMPLATE, template())
        await client.create(POD, pod(claims=[{"name": "dev", "resourceClaimTemplateName": "t"}]))
        (made,) = await eventually(lambda: items(client, RESOURCECLAIM), lambda found: len(found) == 1)
        owner = await eventually(
            lambda: client.get(POD, "p", "default"), lambda p: p["status"].get("resourceClaimStatuses")
        )
        assert owner["status"]["resourceClaimStatuses"][0]["resourceClaimName"] == made.metadata.name
        await client.patch(RESOURCECLAIM, made.metadata.name, "default", {"metadata": {"finalizers": [FINALIZER]}})
        status = claim(allocated=True)["status"]
        await client.patch(RESOURCECLAIM, made.metadata.name, "default", {"status": status}, "merge", "status")
        await run_pods(client)
        await eventually(
            lambda: client.get(RESOURCECLAIM, made.metadata.name, "default"), lambda c: c.status.reservedFor
        )
        await client.patch(POD, "p", "default", {"status": {"phase": "Succeeded"}}, "strategic", "status")
        await gone(client, RESOURCECLAIM, made.metadata.name)

    run(story, ControllerSettings(root_ca="PEM"))


def test_refused_claim_leaves_an_event() -> None:
    async def story(client: Client) -> None:
        label = "resource.kubernetes.io/admin-access"
        await client.patch(NAMESPACE, "default", None, {"metadata": {"labels": {label: "true"}}})
        await client.create(RESOURCECLAIMTEMPLATE, template(adminAccess=True))
        await client.patch(NAMESPACE, "default", None, {"metadata": {"labels": {label: None}}})
        await client.create(POD, pod(claims=[{"name": "dev", "resourceClaimTemplateName": "t"}]))
        events = await eventually(
            lambda: items(client, EVENT),
            lambda found: any(event["reason"] == "FailedResourceClaimCreation" for event in found),
        )
        (event,) = [event for event in events if event["reason"] == "FailedResourceClaimCreation"]
        assert event["involvedObject"]["name"] == "p"
        assert event["message"].startswith("PodResourceClaim dev: ")
        assert label in event["message"]
        # The template stays useful: with the label back, the next attempt succeeds.
        await client.patch(NAMESPACE, "default", None, {"metadata": {"labels": {label: "true"}}})
        await eventually(lambda: items(client, RESOURCECLAIM), lambda found: len(found) == 1)

    run(story, ControllerSettings())


def test_rule_evicts_and_reports() -> None:
    async def story(client: Client) -> None:
        await client.create(NODE, node())
        await client.create(LEASE, lease())
        await client.create(RESOURCESLICE, slice_())
        made = await client.create(POD, pod(claims=[{"name": "x", "resourceClaimName": "c"}]))
        await client.create(RESOURCECLAIM, claim(finalizers=[FINALIZER]))
        await run_pods(client)
        status = claim(allocated=True, reserved=[("p", made["metadata"]["uid"])])["status"]
        await client.patch(RESOURCECLAIM, "c", "default", {"status": status}, "merge", "status")
        spec = {"deviceSelector": {"driver": "drv"}, "taint": {"key": "bad", "effect": "NoExecute"}}
        await client.create(DEVICETAINTRULE, {"metadata": {"name": "rule"}, "spec": spec})
        leaving = await eventually(
            lambda: client.get(POD, "p", "default"), lambda p: p["metadata"].get("deletionTimestamp")
        )
        target = next(c for c in leaving["status"]["conditions"] if c["type"] == "DisruptionTarget")
        assert target["reason"] == "DeletionByDeviceTaintManager"
        ready = next(c for c in leaving["status"]["conditions"] if c["type"] == "Ready")
        assert ready["status"] == "True"
        rule = await client.get(DEVICETAINTRULE, "rule")
        assert rule.status.conditions[0].reason == "PodsPendingEviction"
        await client.delete(POD, "p", "default", grace=0)
        freed = await eventually(lambda: client.get(RESOURCECLAIM, "c", "default"), lambda c: not c.metadata.finalizers)
        assert freed.status.allocation is None

    run(story, ControllerSettings())


def test_lost_node_releases_everything_within_moments() -> None:
    async def story(client: Client) -> None:
        loop = asyncio.get_running_loop()
        await client.create(NODE, node())
        await client.create(LEASE, lease())
        policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
        await client.create(RESOURCESLICE, slice_())
        body = job(podFailurePolicy=policy, backoffLimit=0)
        body["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "c"}]
        await client.create(RESOURCECLAIM, claim(finalizers=[FINALIZER]))
        await client.create(JOB, body)
        (first,) = await eventually(lambda: items(client, POD), lambda found: len(found) == 1)
        await run_pods(client)
        meta = first["metadata"]
        status = claim(allocated=True, reserved=[(meta["name"], meta["uid"])])["status"]
        await client.patch(RESOURCECLAIM, "c", "default", {"status": status}, "merge", "status")
        await eventually(
            lambda: client.get(NODE, "n"),
            lambda n: n["status"]["conditions"][0]["status"] == "Unknown" and n["spec"].get("taints"),
        )
        lost = loop.time()
        entry = {"name": "d", "taints": [{"key": "host", "effect": "NoExecute"}]}
        await client.patch(RESOURCESLICE, "s", None, {"spec": {"devices": [entry]}})
        await eventually(lambda: client.get(RESOURCECLAIM, "c", "default"), lambda c: c.status.allocation is None)
        (second,) = await eventually(
            lambda: items(client, POD),
            lambda found: len(found) == 1 and found[0]["metadata"]["uid"] != meta["uid"],
        )
        assert loop.time() - lost < 2.0
        assert second["metadata"]["name"] != meta["name"]
        state = (await client.get(JOB, "j", "default"))["status"]
        assert state.get("failed", 0) == 0

    run(story, QUICK)


def test_namespace_with_everything_in_it_ends() -> None:
    async def story(client: Client) -> None:
        await client.create(NAMESPACE, {"metadata": {"name": "space"}})
        await eventually(lambda: items(client, SERVICEACCOUNT, "space"), lambda found: len(found) == 1)
        maps = await eventually(lambda: items(client, CONFIGMAP, "space"), lambda found: len(found) == 1)
        assert maps[0]["data"] == {"ca.crt": "PEM"}
        for body, kind in ((pod(), POD), (claim(), RESOURCECLAIM), (template(), RESOURCECLAIMTEMPLATE), (job(), JOB)):
            body["metadata"]["namespace"] = "space"
            body.pop("status", None)
            await client.create(kind, body)
        await eventually(lambda: items(client, POD, "space"), lambda found: len(found) == 2)
        await client.delete(NAMESPACE, "space")
        await gone(client, NAMESPACE, "space", None)
        assert await items(client, POD, "space") == []

    run(story)


@pytest.mark.parametrize(
    ("only", "asked", "by_silence"),
    [(None, None, False), (None, True, True), ({"node-loss"}, None, True), ({"node-loss"}, False, False)],
)
def test_silence_is_loss_only_by_choice(only: set[str] | None, asked: bool | None, by_silence: bool) -> None:
    async def main() -> None:
        async with memory_plane() as client:
            settings = ControllerSettings(loss_by_silence=asked)
            controllers = Controllers(client, SystemClock(), only=only, settings=settings)
            loss: Any = controllers.runners["node-loss"]
            assert loss._controller._by_silence is by_silence

    asyncio.run(main())


def test_names_that_make_no_sense_are_refused() -> None:
    async def main() -> None:
        async with memory_plane() as client:
            with pytest.raises(UsageError, match="unknown controller nonsense"):
                Controllers(client, SystemClock(), only={"nonsense"})
            with pytest.raises(UsageError, match="eviction beside a cluster's own controller"):
                Controllers(client, SystemClock(), only={"eviction", "tainteviction"})
            assert "eviction" not in Controllers(client, SystemClock()).runners
            assert {*Controllers(client, SystemClock(), only={"eviction"}).runners} == {"eviction"}

    asyncio.run(main())
