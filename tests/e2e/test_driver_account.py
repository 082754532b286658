"""A driver with the account that ``deploy/`` gives it, bound to its node, does its work at our API server."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import ApiError
from drakkar.api.kinds import NODE as NODE_KIND
from drakkar.api.kinds import POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.cli.manifests import apply, read_objects
from drakkar.client import Client, kubeconfig
from tests.support.agents import NODE, Cluster, cluster
from tests.support.eventually import eventually
from tests.support.shared import ROOT
from tests.unit.node.agent.test_thin_path import pod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

EXAMPLE = "example.drakkar.dev"
OFFER = f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: example}}
spec: {{selectors: [{{cel: {{expression: 'device.driver == "{EXAMPLE}"'}}}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: hello, namespace: default}}
spec: {{spec: {{devices: {{requests: [{{name: r, exactly: {{deviceClassName: example}}}}]}}}}}}
"""


async def forge(account: Path) -> list[int]:
    """What the account may not do: publish for another node, or unpublish for it."""
    client = Client(kubeconfig.load(account).transport())
    codes: list[int] = []
    pool = {"name": "n2", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": EXAMPLE, "nodeName": "n2", "pool": pool, "devices": [{"name": "d"}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "forged"}, "spec": spec}
    try:
        for work in (client.create(RESOURCESLICE, body), client.delete(RESOURCESLICE, "of-n2")):
            try:
                await work
            except ApiError as error:
                codes.append(error.code)
    finally:
        await client.close()
    return codes


def test_a_driver_works_with_its_own_account(tmp_path: Path, root: Path) -> None:
    (tmp_path / "offer.yaml").write_text(OFFER)

    async def published(site: Cluster) -> list[str]:
        return [found.spec.nodeName for found in (await site.client.list(RESOURCESLICE)).items]

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await site.start_agent()
            for obj in read_objects(tmp_path / "offer.yaml"):
                await apply(site.client, obj)
            account = await site.driver_account("example")
            flags = ["--kubeconfig", str(account), "--node-name", NODE, "--kubelet-root", str(root), "--withdraw"]
            flags += ["--cdi-dir", str(root / "cdi")]
            # It says something in the status of every claim that it prepares.
            program = (sys.executable, "-m", "tests.support.drivermain", "example", str(tmp_path / "ledger"), "")
            env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
            driver = await asyncio.create_subprocess_exec(*program, *flags, env=env)
            try:
                await eventually(lambda: published(site), lambda nodes: nodes == [NODE], timeout=60)
                await site.client.create(POD, pod("p", "sleep 100"))
                await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running", timeout=60)
                (claim,) = await site.claims()
                (told,) = claim.status.devices
                assert (told.driver, told.data) == (EXAMPLE, {"claim": claim.metadata.uid})
                await site.client.create(NODE_KIND, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}})
                pool = {"name": "n2", "generation": 1, "resourceSliceCount": 1}
                spec = {"driver": EXAMPLE, "nodeName": "n2", "pool": pool, "devices": [{"name": "d"}]}
                head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "of-n2"}}
                await site.client.create(RESOURCESLICE, {**head, "spec": spec})
                assert await forge(account) == [422, 422]
                # Its word counts for what its node's pods have, and nothing else.
                node = site.as_user(f"system:node:{NODE}", "system:nodes")
                body = {"status": {"devices": []}}
                with pytest.raises(ApiError, match="resourceclaims/status") as refused:
                    await node.patch(RESOURCECLAIM, claim.metadata.name, "default", body, subresource="status")
                assert refused.value.code == 403
            finally:
                driver.terminate()
                ended = await driver.wait()
            assert ended == 0
            assert await published(site) == ["n2"]

    asyncio.run(run())
