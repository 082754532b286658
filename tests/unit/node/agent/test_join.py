"""A node's certificates while its agent runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import POD
from drakkar.client import Caches, kubeconfig
from drakkar.client.clock import SystemClock
from drakkar.client.runner import Runner
from drakkar.controllers.certificates import CSR, Certificates
from drakkar.node.agent import join
from tests.support.agents import NODE, cluster
from tests.support.eventually import eventually


class Later(SystemClock):
    """A clock that can be put forward, and for which nobody waits."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.05))


def test_certificates_are_renewed_while_the_agent_runs(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            clock = Later()
            signing = site.as_user("system:kube-controller-manager")
            site.run("signing", Runner(signing, Caches(signing), Certificates(clock, site.pki.sign), clock).run())
            own = await join.identity(kubeconfig.load(site.kubeconfig), root, NODE, "127.0.0.1", clock)
            client = join.connect(own, clock)
            endpoint = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=own.tls)
            port = endpoint.sockets[0].getsockname()[1]

            async def shown() -> bytes:
                """The certificate that the endpoint shows to the API server."""
                tls = site.pki.agents_context()
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1")
                found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                writer.close()
                return found

            caches = Caches(client)
            pods = caches.of(POD, field_selector=f"spec.nodeName={NODE}")
            site.run("keep", join.keep(own, root, NODE, "127.0.0.1", clock, client))
            try:
                await caches.start()
                await caches.synced()
                first, transport = await shown(), client.transport
                assert len((await site.client.list(CSR)).items) == 2
                # Thirty days before the end of a year.
                clock.ahead = 330 * 86400
                await asyncio.sleep(0.3)
                assert client.transport is transport
                clock.ahead = 336 * 86400
                await eventually(lambda: asyncio.sleep(0, client.transport), lambda now: now is not transport)
                assert (root / "client.crt").read_bytes() != own.config.certificate
                await eventually(shown, lambda now: now != first)
                assert (await client.list(POD, field_selector=f"spec.nodeName={NODE}")).items == []
                # What was watched under the old certificate is watched still.
                metadata = {"name": "p", "namespace": "default"}
                spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}
                await site.client.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
                await eventually(lambda: asyncio.sleep(0, pods.get("default", "p")), bool, timeout=30)
                # Once is enough.
                await asyncio.sleep(0.3)
                assert len((await site.client.list(CSR)).items) == 6
            finally:
                await caches.stop()
                endpoint.close()
                await client.close()

    asyncio.run(run())
