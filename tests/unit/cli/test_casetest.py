"""``drakkar test`` on a cluster: whoever ends it half-way finds nothing of it there."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
import yaml

from drakkar.api import kinds
from drakkar.apiserver import open_pki, open_server, serve, write_kubeconfig
from drakkar.client import Client, MemoryTransport
from drakkar.client.clock import SystemClock
from tests.support.eventually import eventually
from tests.unit.insight.test_cases import CLASS, NODE, SLICE


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_what_the_case_created_is_deleted_when_it_is_ended(tmp_path: Path, number: int, status: int) -> None:
    # Nobody schedules: the case waits for its pod.
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "cluster.yaml").write_text(yaml.safe_dump_all([NODE, CLASS, SLICE]))
    (folder / "workload.yaml").write_text(yaml.safe_dump(pod))
    (folder / "expect.yaml").write_text(yaml.safe_dump({"format": 1}))

    async def story() -> None:
        server = await open_server(None, clock=SystemClock())
        pki = open_pki(tmp_path / "pki")
        serving = await serve(server, pki=pki)
        write_kubeconfig(tmp_path / "kubeconfig", serving.url, pki)
        client = Client(MemoryTransport(server.handle, server.token("admin", "system:masters")))

        async def there() -> set[str]:
            listed = (kinds.POD, kinds.NODE, kinds.DEVICECLASS, kinds.RESOURCESLICE)
            return {kind.kind for kind in listed if (await client.list(kind)).items}

        command = ("-m", "drakkar.cli", "test", str(folder), "--kubeconfig", str(tmp_path / "kubeconfig"))
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        try:
            await eventually(there, lambda found: len(found) == 4)
            process.send_signal(number)
            assert await process.wait() == status
            assert await there() == set()
            (namespace,) = (await client.list(kinds.NAMESPACE, None, "drakkar.dev/case")).items
            assert namespace["metadata"]["deletionTimestamp"]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await serving.close()
            await server.close()

    asyncio.run(story())
