"""An agent as a process of its own, for tests that kill it: ``agentmain SERVER FOLDER ROOT RUNTIME``.

FOLDER holds the certificates of the plane; the agent is given a node's certificate out of it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from urllib.parse import urlsplit

from drakkar.apiserver import open_pki
from drakkar.client import Client
from drakkar.client.clock import SystemClock
from drakkar.client.kubeconfig import Config
from drakkar.node.agent.agent import Agent, Settings
from drakkar.node.agent.oci_runtime import OciRuntime
from drakkar.node.agent.process_runtime import ProcessRuntime

#: As in tests.support.agents, which would load a whole cluster.
NODE = "n1"


async def main(server: str, folder: Path, root: Path, runtime: str) -> None:
    pki = open_pki(folder)
    user = f"system:node:{NODE}"
    certificate, key = pki.client(user, ("system:nodes",))
    client = Client(Config(server, ca=pki.ca_certificate, certificate=certificate, key=key).transport())
    where = urlsplit(server)
    settings = Settings(
        node=NODE,
        root=root,
        address="127.0.0.1",
        api=(where.hostname or "", where.port or 443),
        cdi_folders=[root / "cdi"],
    )
    made = OciRuntime.open(root, None) if runtime == "oci" else ProcessRuntime()
    await Agent(client, SystemClock(), settings, made, pki.agent_context(user, ["127.0.0.1"])).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
