"""Gate mode on upstream's kube-apiserver: what pods lose between the lift of their gate and their Binding.

kube-scheduler is away meanwhile, and our own scheduler is killed once. Then kube-scheduler comes and binds every pod
where its devices are. What has to last for some time before it counts as lost is tested in ``tests/unit/scheduler``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakkar.api.errors import ApiError
from drakkar.api.kinds import (
    DEVICECLASS,
    DEVICETAINTRULE,
    JOB,
    NODE,
    POD,
    RESOURCECLAIM,
    RESOURCECLAIMTEMPLATE,
    RESOURCESLICE,
)
from drakkar.api.names import ALLOCATED_NODE, ALLOCATION_LOST, SCHEDULING_GATE
from drakkar.api.objects import annotations_of, condition_is, name_of, pod_node, uid_of
from drakkar.api.resource.v1 import DeviceRequestAllocationResult, ResourceClaim
from drakkar.cli.target import connect
from drakkar.client import Client
from drakkar.insight.dump import collect
from drakkar.insight.verify import verify
from tests.e2e.test_both_schedulers import OUR_USER, RBAC, kube_scheduler, make, namespace_for
from tests.support.eventually import eventually
from tests.support.kubecluster import KubeCluster, kube_cluster
from tests.support.plane import Part
from tests.unit.deploy.test_manifests import objects
from tests.unit.scheduler.build import node

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(240)]

SPACE = "losses"
#: Longest wait in seconds.
PATIENCE = 60.0


class Case:
    """Two nodes with two devices each, and pods that can run there only."""

    def __init__(self, admin: Client, name: str):
        self._admin = admin
        self.name = name

    async def furnish(self) -> None:
        driver = f"{self.name}.example.com"
        for number in (1, 2):
            host = node(f"{self.name}-{number}", cpu="4", memory="8Gi", pods="20")
            del host["metadata"]["uid"]
            host["metadata"]["labels"]["case"] = self.name
            await self._admin.create(NODE, host)
            status = {**host["status"], "capacity": host["status"]["allocatable"]}
            await self._admin.patch(NODE, name_of(host), None, {"status": status}, subresource="status")
            pool = {"name": name_of(host), "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": "d0"}, {"name": "d1"}]
            spec = {"driver": driver, "nodeName": name_of(host), "pool": pool, "devices": devices}
            await make(self._admin, (RESOURCESLICE, {"metadata": {"name": name_of(host)}, "spec": spec}))
        selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
        wish = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": self.name}}]}}
        await make(
            self._admin,
            (DEVICECLASS, {"metadata": {"name": self.name}, "spec": {"selectors": [selector]}}),
            (RESOURCECLAIMTEMPLATE, {"metadata": {"name": self.name, "namespace": SPACE}, "spec": {"spec": wish}}),
        )

    def _spec(self) -> dict[str, Any]:
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"case": self.name},
            "schedulingGates": [{"name": SCHEDULING_GATE}],
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}],
            "resourceClaims": [{"name": "d", "resourceClaimTemplateName": self.name}],
        }

    async def job(self, pods: int = 1) -> None:
        """A Job that counts no disruption as a failure of its own."""
        disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        template = {"metadata": {"labels": {"case": self.name}}, "spec": self._spec()}
        spec = {
            "backoffLimit": 0,
            "parallelism": pods,
            "completions": pods,
            "podFailurePolicy": {"rules": [disrupted]},
            "template": template,
        }
        await make(self._admin, (JOB, {"metadata": {"name": self.name, "namespace": SPACE}, "spec": spec}))

    async def pod(self) -> None:
        metadata = {"name": self.name, "namespace": SPACE, "labels": {"case": self.name}}
        await make(self._admin, (POD, {"metadata": metadata, "spec": self._spec()}))

    async def pods(self) -> list[dict[str, Any]]:
        return (await self._admin.list(POD, SPACE, label_selector=f"case={self.name}")).items

    async def lifted(self, pods: int = 1, besides: set[str] | frozenset[str] = frozenset()) -> list[dict[str, Any]]:
        """Waits for so many pods whose gate is lifted, none of them of these uids."""

        async def read() -> list[dict[str, Any]]:
            found = [pod for pod in await self.pods() if uid_of(pod) not in besides]
            return [pod for pod in found if place(pod) and not pod["spec"].get("schedulingGates")]

        return await eventually(read, lambda found: len(found) == pods, timeout=PATIENCE, pause=0.2)

    async def claim(self) -> ResourceClaim:
        """The claim of the only pod."""
        claims = (await self._admin.list(RESOURCECLAIM, SPACE)).items
        (found,) = [item for item in claims if item.spec.devices.requests[0].exactly.deviceClassName == self.name]
        return found


def place(pod: dict[str, Any]) -> str:
    """The node for which its gate was lifted."""
    return annotations_of(pod).get(ALLOCATED_NODE, "")


def device(claim: ResourceClaim) -> DeviceRequestAllocationResult:
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results or []
    return result


async def node_gone(admin: Client, case: Case) -> None:
    await case.job(pods=2)
    first = await case.lifted(pods=2)
    gone = place(first[0])
    await admin.delete(NODE, gone)
    again = await case.lifted(pods=2, besides={uid_of(pod) for pod in first if place(pod) == gone})
    assert gone not in {place(pod) for pod in again}


async def given_back(admin: Client, case: Case) -> None:
    await case.job()
    (first,) = await case.lifted()
    body = {"status": {"allocation": None, "reservedFor": None}}
    await admin.patch(RESOURCECLAIM, name_of(await case.claim()), SPACE, body, subresource="status")
    await case.lifted(besides={uid_of(first)})


async def device_tainted(admin: Client, case: Case) -> None:
    await case.job()
    (first,) = await case.lifted()
    lost = device(await case.claim())
    selector = {"driver": lost.driver, "pool": lost.pool, "device": lost.device}
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": "NoExecute"}}
    await make(admin, (DEVICETAINTRULE, {"metadata": {"name": case.name}, "spec": spec}))
    await case.lifted(besides={uid_of(first)})


async def made_anew(admin: Client, case: Case) -> None:
    """Under the same name, as a StatefulSet does."""
    await case.pod()
    (first,) = await case.lifted()
    await admin.delete(POD, name_of(first), SPACE, grace=0)
    await case.pod()
    await case.lifted(besides={uid_of(first)})


async def without_owner(admin: Client, case: Case) -> None:
    await case.pod()
    (first,) = await case.lifted()
    await admin.delete(NODE, place(first))
    told = await eventually(case.pods, lambda pods: condition_is(pods[0], ALLOCATION_LOST), timeout=PATIENCE, pause=0.2)
    assert [uid_of(pod) for pod in told] == [uid_of(first)]


async def by_hand(admin: Client, case: Case) -> None:
    """Somebody else removes the gate, before or after we do."""
    await case.job()
    (pod,) = await eventually(case.pods, bool, timeout=PATIENCE)
    await admin.patch(POD, name_of(pod), SPACE, {"spec": {"schedulingGates": None}})


async def nothing(admin: Client, case: Case) -> None:
    """kube-scheduler is away, and nothing else is wrong."""
    await case.job(pods=2)
    await case.lifted(pods=2)


CASES: dict[str, Callable[[Client, Case], Awaitable[None]]] = {
    "node-gone": node_gone,
    "given-back": given_back,
    "device-tainted": device_tainted,
    "made-anew": made_anew,
    "without-owner": without_owner,
    "by-hand": by_hand,
    "nothing": nothing,
}


@contextlib.asynccontextmanager
async def killed_once(cluster: KubeCluster, admin: Client) -> AsyncIterator[None]:
    """``drakkar scheduler``, killed as soon as it has lifted something, and started again."""
    user = str(cluster.kubeconfig(OUR_USER, "system:serviceaccounts"))
    lease = ("--leader-elect-resource-namespace", "drakkar-system", "--leader-elect-lease-duration", "3")
    command = ("scheduler", "--kubeconfig", user, *lease)

    async def some() -> list[str]:
        return [place(pod) for pod in (await admin.list(POD, SPACE)).items if place(pod)]

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Part(*command))

        async def kill() -> None:
            await eventually(some, bool, timeout=PATIENCE)
            first.process.kill()
            await asyncio.to_thread(first.process.wait)
            stack.enter_context(Part(*command))

        killing = asyncio.create_task(kill())
        try:
            yield
            await killing
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)


def test_what_is_lost_before_the_binding_is_repaired(tmp_path: Path) -> None:
    async def run(cluster: KubeCluster) -> None:
        async with connect(cluster.kubeconfig()) as admin:
            await namespace_for(admin, SPACE)
            cases = {name: Case(admin, name) for name in CASES}
            for case in cases.values():
                await case.furnish()
            async with killed_once(cluster, admin):
                await asyncio.gather(*(lose(admin, cases[name]) for name, lose in CASES.items()))
                with kube_scheduler(cluster):
                    for name, case in cases.items():
                        if name != "without-owner":
                            await bound(admin, case)
            with contextlib.suppress(ApiError):
                await admin.delete(POD, "without-owner", SPACE, grace=0)
            await eventually(lambda: audited(admin), lambda found: not found, timeout=PATIENCE, pause=0.5)

    with kube_cluster(tmp_path) as cluster, cluster.controller_manager():
        rights = [obj for obj in objects("scheduler") if obj["kind"] in RBAC or obj["kind"] == "Namespace"]
        cluster.kubectl().run("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
        asyncio.run(run(cluster))


async def bound(admin: Client, case: Case) -> None:
    """All its pods are bound, each to the node of its device."""

    def everywhere(pods: list[dict[str, Any]]) -> bool:
        return bool(pods) and all(pod_node(pod) for pod in pods)

    pods = {uid_of(pod): pod_node(pod) for pod in await eventually(case.pods, everywhere, timeout=PATIENCE, pause=0.2)}
    held = {
        reference.uid: device(claim).pool
        for claim in (await admin.list(RESOURCECLAIM, SPACE)).items
        if claim.status.allocation is not None
        for reference in claim.status.reservedFor or ()
        if reference.uid in pods
    }
    assert held == pods, case.name


async def audited(admin: Client) -> list[str]:
    return [f"{found.rule}: {found.object}: {found.message}" for found in verify(await collect(admin))]
