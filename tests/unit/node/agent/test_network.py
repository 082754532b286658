"""Networks of several agents on one machine: subnets of their own, or those that they are told."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.node.agent.agent import Settings
from drakkar.node.agent.choice import choose_network
from drakkar.node.agent.network import BridgeNetwork
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.node.agent.runtime import Runtime

SUBNET = "10.89.7.0/28"


class Isolating(ProcessRuntime):
    """What stands in for runc where only networks are chosen."""

    isolates = True


def choose(root: Path, cidr: str | None, name: str | None = None, runtime: Runtime | None = None) -> object:
    settings = Settings(node="n", root=root, address="127.0.0.1", api=("127.0.0.1", 1), cdi_folders=[])
    return choose_network(name, runtime or Isolating(), settings, cidr)


@pytest.mark.parametrize(
    ("cidr", "words"),
    [
        ("10.88.0.7/24", "has host bits set"),
        ("nonsense", "write it like 10.88.1.0/24"),
        ("10.88.0.0/31", "/30 is the smallest"),
        ("fd00::/64", "write it like 10.88.1.0/24"),
    ],
)
def test_a_subnet_that_cannot_be_is_refused(tmp_path: Path, cidr: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--pod-cidr {cidr}: .*{words}"):
        choose(tmp_path, cidr)


def test_a_subnet_needs_networks_of_pods(tmp_path: Path) -> None:
    for name, runtime in (("host", None), (None, ProcessRuntime())):
        with pytest.raises(UsageError, match="pods have the addresses of the host"):
            choose(tmp_path, SUBNET, name, runtime)
    assert isinstance(choose(tmp_path, SUBNET), BridgeNetwork)


@pytest.fixture
def networks(root: Path) -> Iterator[list[BridgeNetwork]]:
    made = [BridgeNetwork(root / str(i), "", ("127.0.0.1", 1)) for i in range(4)]
    made.append(BridgeNetwork(root / "told", "", ("127.0.0.1", 1), subnet=ipaddress.IPv4Network(SUBNET)))
    try:
        yield made
    finally:
        for network in made:
            subprocess.run(["ip", "link", "delete", network.bridge], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
def test_agents_that_start_together_have_subnets_of_their_own(root: Path, networks: list[BridgeNetwork]) -> None:
    async def run() -> None:
        await asyncio.gather(*(network.open() for network in networks))
        try:
            pods = [await network.attach({"metadata": {"uid": f"pod-{i}"}}) for i, network in enumerate(networks)]
            subnets = {ipaddress.IPv4Network(f"{pod.address}/24", strict=False) for pod in pods}
            assert len(subnets) == 5
            assert pods[-1].address == "10.89.7.2"
        finally:
            for i, network in enumerate(networks):
                await network.detach(f"pod-{i}")
                await network.close()
        again = BridgeNetwork(root / "told", "", ("", 0))
        await again.open()
        await again.close()
        assert (await again.attach({"metadata": {"uid": "u"}})).address == "10.89.7.2"
        await again.detach("u")
        other = BridgeNetwork(root / "told", "", ("", 0), subnet=ipaddress.IPv4Network("10.89.8.0/24"))
        with pytest.raises(EnvironmentProblem, match=r"from before; end them .* ip link delete dk"):
            await other.open()
        same = BridgeNetwork(root / "same", "", ("", 0), subnet=ipaddress.IPv4Network("10.89.0.0/16"))
        with pytest.raises(EnvironmentProblem, match=r"is in 10.89.0.0/16 already"):
            await same.open()

    asyncio.run(run())
