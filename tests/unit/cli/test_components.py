"""Single components: what they refuse to do on a cluster that has its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.kinds import LEASE, NAMESPACE
from drakkar.cli.components import _alone
from drakkar.client import Client, timestamp
from tests.support.eventually import memory_plane


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"holderIdentity": "cp-1_abc", "leaseDurationSeconds": 15, "age": 2.0}, True),
        ({"holderIdentity": "cp-1_abc", "leaseDurationSeconds": 15, "age": 600.0}, False),
        ({"holderIdentity": "", "leaseDurationSeconds": 1, "age": 0.0}, False),
        (None, False),
    ],
)
def test_all_controllers_are_not_for_a_cluster_that_has_them(spec: dict[str, Any] | None, refused: bool) -> None:
    async def begin(client: Client) -> None:
        if spec is not None:
            body = {**spec, "renewTime": timestamp(client.clock.time() - spec["age"], micro=True)}
            del body["age"]
            if not any(each["metadata"]["name"] == "kube-system" for each in (await client.list(NAMESPACE)).items):
                await client.create(NAMESPACE, {"metadata": {"name": "kube-system"}})
            metadata = {"name": "kube-controller-manager", "namespace": "kube-system"}
            await client.create(LEASE, {"metadata": metadata, "spec": body})
        await _alone(client)

    async def main() -> None:
        async with memory_plane() as client:
            if refused:
                with pytest.raises(UsageError, match=r"at work here \(cp-1_abc\).*--only eviction,node-loss"):
                    await begin(client)
            else:
                await begin(client)

    asyncio.run(main())
