"""Lost hosts at the real API server in memory: what it takes as a rule, and how it says that it has none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.api.features import Features
from drakkar.api.kinds import DEVICETAINTRULE, NODE, POD, RESOURCECLAIM
from drakkar.api.objects import is_deleting, name_of, uid_of
from drakkar.client import Client, SystemClock
from drakkar.controllers import Controllers, ControllerSettings, hostloss
from tests.support.eventually import eventually, memory_plane
from tests.unit.controllers.objects import claim, node, pod

#: Longer than the value of a taint may be.
GONE = f"host-{'x' * 60}.example.com"
SETTINGS = ControllerSettings(node_grace=0.1, lease_period=0.1, loss_by_silence=True)


async def stuck(client: Client) -> None:
    """A claim over three hosts: two pods run, the third host is gone, and a pod waits."""
    uses = [{"name": "x", "resourceClaimName": "c"}]
    await client.create(RESOURCECLAIM, claim())
    holders: list[tuple[str, str]] = []
    for host in ("a", "b"):
        await client.create(NODE, node(host))
        made = await client.create(POD, pod(f"on-{host}", node=host, claims=uses))
        holders.append((name_of(made), uid_of(made)))
    await client.create(POD, pod("waits", claims=uses))
    status = claim(allocated=True, reserved=holders)["status"]
    terms = [{"key": "metadata.name", "operator": "In", "values": [host]} for host in ("a", "b", GONE)]
    status["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [term]} for term in terms]}
    await client.patch(RESOURCECLAIM, "c", "default", {"status": status}, "merge", "status")


async def leaving(client: Client) -> list[str]:
    return sorted(name_of(found) for found in (await client.list(POD)).items if is_deleting(found))


@pytest.mark.parametrize("rules", [True, False])
def test_all_holders_go_with_rules_and_without(rules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostloss, "PATIENCE", 0.1)

    async def story() -> None:
        gates = Features.drakkar().with_({"DRADeviceTaintRules": rules})
        async with memory_plane(gates) as client:
            await stuck(client)
            only = {"node-loss", "tainteviction"}
            controllers = Controllers(client, SystemClock(), only=only, settings=SETTINGS)
            task = asyncio.create_task(controllers.run())
            try:
                await eventually(lambda: leaving(client), lambda names: names == ["on-a", "on-b"])
                if rules:
                    (rule,) = (await client.list(DEVICETAINTRULE)).items
                    assert rule.metadata.annotations == {"drakkar.dev/lost-host": GONE}
                    assert (rule.spec.taint.key, rule.spec.taint.value) == ("drakkar.dev/host-lost", None)
                    await client.create(NODE, node(GONE))
                    await eventually(lambda: listed(client), lambda found: not found)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


async def listed(client: Client) -> list[Any]:
    return (await client.list(DEVICETAINTRULE)).items
