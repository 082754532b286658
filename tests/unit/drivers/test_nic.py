"""The NIC driver: shares of a port, interfaces in pods; on fake ports, and on real veth pairs where root."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.resource import v1
from drakkar.driver import PrepareError, podhook
from drakkar.driver.podnetwork import PodNetwork
from drakkar.drivers.gpu.driver import GpuDriver
from drakkar.drivers.gpu.fake import FakeHardware
from drakkar.drivers.nic.driver import NicConfig, NicDriver
from drakkar.drivers.nic.fake import FakeNetwork
from drakkar.drivers.nic.hardware import Interface, Port, Route
from drakkar.plugin.checkpoint import PreparedDevice, Record
from tests.support.drivers import DriverCluster, driver_cluster

EXAMPLES = Path(__file__).parents[3] / "examples"


def start_container(root: Path, cluster: DriverCluster, uid: str, pid: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the runtime does: run the hook of the claim's CDI file with the container's state."""
    settings = cluster.services["n1", "nic"].settings
    spec = json.loads((settings.cdi_folder / f"nic.drakkar.dev-device_{uid}.json").read_text())
    (hook,) = spec["devices"][0]["containerEdits"]["hooks"]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"pid": pid})))
    return podhook.main(hook["args"][3:])


def fake_pod(root: Path, pid: int, inode_of: Path) -> None:
    """A process whose network namespace is the file `inode_of`."""
    folder = root / "proc" / str(pid) / "ns"
    folder.mkdir(parents=True)
    os.link(inode_of, folder / "net")


def test_shares_of_a_port_and_interfaces_in_pods(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = FakeNetwork()
    for number, name in enumerate(("self", "77", "78", "79")):
        (root / f"ns{number}").touch()
        (root / "proc" / name / "ns").mkdir(parents=True)
        os.link(root / f"ns{number}", root / "proc" / name / "ns" / "net")
    monkeypatch.setattr("drakkar.driver.service.PodNetwork", lambda *given: PodNetwork(*given, proc=root / "proc"))

    async def story() -> None:
        async with driver_cluster(root, {"n1": {"nic": lambda _n, _f: NicDriver(network)}}) as cluster:
            await cluster.apply(EXAMPLES / "nic" / "class.yaml")
            await cluster.apply(EXAMPLES / "nic" / "shares.yaml")
            await cluster.bound(2)
            claims = {c.metadata.name.split("-net-")[0]: c for c in await cluster.claims()}
            for claim in claims.values():
                await cluster.prepare("n1", "nic", claim)
            assert sorted(network.rates.values()) == [40_000, 60_000]
            first, second = claims["shares-1"], claims["shares-2"]

            def start(claim: v1.ResourceClaim, pid: int) -> int:
                return start_container(root, cluster, claim.metadata.uid, pid, monkeypatch)

            assert [await asyncio.to_thread(start, first, 77) for _ in range(2)] == [0, 0]
            (where, interface), *_ = network.attached.values()
            assert where == root / "proc" / "77" / "ns" / "net"
            assert interface == Interface(name="fast0", addresses=("10.9.0.1/24",), mtu=9000)
            assert await asyncio.to_thread(start, second, 78) == 0
            claim = await cluster.client.get(RESOURCECLAIM, first.metadata.name, "default")
            (entry,) = claim.status.devices
            assert (entry.networkData.interfaceName, entry.networkData.ips) == ("fast0", ["10.9.0.1/24"])
            folder = cluster.services["n1", "nic"].settings.plugin_folder("nic.drakkar.dev")
            metadata = folder / f"dra-device-metadata/default_{first.metadata.name}/net/metadata.json"
            content = json.loads(metadata.read_text())
            assert content["metadata"]["generation"] == 2
            assert content["requests"][0]["devices"][0]["networkData"]["interfaceName"] == "fast0"

            assert await asyncio.to_thread(start, first, 79) == 1
            assert "is gone, or in another pod" in capsys.readouterr().err
            (root / "proc" / "80" / "ns").mkdir(parents=True)
            os.link(root / "ns0", root / "proc" / "80" / "ns" / "net")
            assert await asyncio.to_thread(start, first, 80) == 1
            assert "network of the host" in capsys.readouterr().err
            await cluster.unprepare("n1", "nic", first)
            assert [interface.name for _, interface in network.attached.values()] == ["net1"]

    asyncio.run(story())


def test_gpu_with_the_nic_on_its_root(root: Path) -> None:
    async def story() -> None:
        drivers = {
            "gpu": lambda node, folder: GpuDriver(FakeHardware(folder, "a100", 4, node=node), mig="off"),
            "nic": lambda _node, _folder: NicDriver(FakeNetwork(ports=2)),
        }
        async with driver_cluster(root, {"n1": drivers}) as cluster:
            await cluster.apply(EXAMPLES / "gpu" / "classes.yaml")
            await cluster.apply(EXAMPLES / "nic" / "class.yaml")
            await cluster.apply(EXAMPLES / "gpu" / "11-gpu-with-nic.yaml")
            await cluster.bound(1)
            (claim,) = await cluster.claims()
            assert claim.status.allocation is not None
            chosen = {r.request: r.device for r in claim.status.allocation.devices.results or ()}
            assert chosen == {"gpu": "gpu-0", "net": "eth0-vf0"}
            for driver in drivers:
                assert await cluster.prepare("n1", driver, claim)

    asyncio.run(story())


def test_a_share_that_another_scheduler_did_not_count_is_refused(tmp_path: Path) -> None:
    driver = NicDriver(FakeNetwork(ports=1))
    driver.discover()
    held = PreparedDevice(
        requestNames=["r"], poolName="n", deviceName="eth0-vf0", shareID="s", state={"consumed": {"bandwidth": "60G"}}
    )
    driver.records = lambda: {"u1": [held]}

    def ask(device: str, bandwidth: str) -> Any:
        from drakkar.driver import AllocatedDevice

        result = v1.DeviceRequestAllocationResult(
            request="r", driver=driver.name, pool="n", device=device, consumedCapacity={"bandwidth": bandwidth}
        )
        return driver.prepare(v1.ResourceClaim(), [AllocatedDevice(result=result)])

    assert ask("eth0-vf1", "40G")
    with pytest.raises(PrepareError, match="bandwidth of eth0 is 100G; 60G is in use and the claim takes 41G"):
        ask("eth0-vf1", "41G")


def test_whole_ports_and_carriers(tmp_path: Path) -> None:
    network = FakeNetwork(ports=2, functions=2)
    driver = NicDriver(network, whole_ports=True)
    names = [item.name for item in driver.discover() if isinstance(item, v1.Device)]
    assert names == ["eth0-vf0", "eth0-vf1", "eth0", "eth1-vf0", "eth1-vf1", "eth1"]
    network.down.add("eth1")
    assert {name: h.message for name, h in driver.health().items()} == dict.fromkeys(
        names[3:], "port eth1 has no carrier"
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"interface": "a b"},
        {"interface": "x" * 16},
        {"addresses": ["10.0.0.300/8"]},
        {"mtu": 12},
        {"routes": [{"to": "x"}]},
    ],
)
def test_parameters_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, NicConfig)


def test_ports_are_read_from_sysfs(tmp_path: Path) -> None:
    pytest.importorskip("pyroute2", reason="needs the extra nic")
    from drakkar.drivers.nic.linux import LinuxNetwork

    device = tmp_path / "devices" / "pci0000:10" / "0000:12:00.0"
    net = tmp_path / "net"
    for number, link in enumerate(("ens1v0", "ens1v1")):
        function = tmp_path / "devices" / "pci0000:10" / f"0000:12:01.{number}"
        (function / "net" / link).mkdir(parents=True)
        (function / "net" / link / "address").write_text(f"02:00:00:00:00:0{number}\n")
        device.mkdir(exist_ok=True)
        (device / f"virtfn{number}").symlink_to(function)
    (device / "numa_node").write_text("1\n")
    for link, text in (("ens1", "25000\n"), ("lo", "")):
        (net / link).mkdir(parents=True)
        (net / link / "speed").write_text(text)
    (net / "ens1" / "device").symlink_to(device)
    network = LinuxNetwork(tmp_path / "state", system=net)
    (port,) = network.ports()
    assert (port.link, port.speed, port.numa_node, port.pcie_root) == ("ens1", 25000, 1, "pci0000:10")
    assert [(f.index, f.link, f.mac) for f in port.functions] == [
        (0, "ens1v0", "02:00:00:00:00:00"),
        (1, "ens1v1", "02:00:00:00:00:01"),
    ]
    # A function in a pod is not seen any more, and still known.
    shutil.rmtree(tmp_path / "devices" / "pci0000:10" / "0000:12:01.1" / "net")
    assert LinuxNetwork(tmp_path / "state", system=net).ports()[0].functions == port.functions


@pytest.mark.slow
def test_links_move_into_a_pod_and_come_back(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("moving links between namespaces needs root")
        pytest.skip("moving links between namespaces needs root")
    from drakkar.drivers.nic.linux import LinuxNetwork

    def ip(*words: str) -> str:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

    port, link = f"dp{os.getpid() % 100000}", f"df{os.getpid() % 100000}"
    pod = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    try:
        ip("link", "add", port, "type", "veth", "peer", "name", link)
        ip("link", "set", port, "up")
        ip("addr", "add", "10.77.0.1/24", "dev", port)
        network = LinuxNetwork(tmp_path, lab={port: [link]}, speed=1000)
        (found,) = network.ports()
        (function,) = found.functions
        namespace = Path(f"/proc/{pod.pid}/ns/net")
        while namespace.stat().st_ino == Path("/proc/self/ns/net").stat().st_ino:
            pass
        wanted = Interface(
            name="net1", addresses=("10.77.0.2/24",), routes=(Route("10.78.0.0/16", "10.77.0.1"),), mtu=1400, rate=100
        )
        for _ in range(2):
            mac, addresses = network.attach(found, function, namespace, wanted)
            assert addresses == ["10.77.0.2/24"]
            assert len(mac) == 17

        def inside(*words: str) -> str:
            return subprocess.run(
                ["nsenter", f"--net={namespace}", *words], check=True, capture_output=True, text=True
            ).stdout

        assert "mtu 1400" in inside("ip", "link", "show", "net1")
        assert "10.78.0.0/16 via 10.77.0.1" in inside("ip", "route")
        assert "rate 100Mbit" in inside("tc", "qdisc", "show", "dev", "net1")
        assert link not in ip("link")
        inside("ping", "-c1", "-W2", "10.77.0.1") if shutil.which("ping") else None
        assert network.limit(found, function, 100) is False  # A veth pair has no rates of its own.
        network.release(found, function)  # Still in the pod: nothing happens.
        subprocess.run(["nsenter", f"--net={namespace}", "ip", "link", "set", "net1", "netns", "1"], check=True)
        network.release(found, function)
        assert link in ip("link")
        assert "10.77.0.2" not in ip("addr", "show", link)
    finally:
        pod.kill()
        pod.wait()
        subprocess.run(["ip", "link", "del", port], check=False, capture_output=True)


def test_the_hook_says_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def call(path: Path) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"pid": 1})))
        return podhook.main([f"--socket={path}", "--claim=u1"])

    assert call(tmp_path / "nobody.sock") == 1
    assert "No such file" in capsys.readouterr().err
    with tempfile.TemporaryDirectory(prefix="drakkar-") as folder:
        records: dict[str, Record] = {}
        server = PodNetwork(NicDriver(FakeNetwork()), Path(folder) / "p.sock", records.get, lambda *_: None)
        server.start()
        try:
            assert call(server.socket) == 1
            assert "not prepared on this node" in capsys.readouterr().err
        finally:
            server.stop()
        assert not server.socket.exists()


def test_ports_without_functions_still_have_a_counter() -> None:
    network = FakeNetwork(ports=1, functions=0)
    assert isinstance(network.ports()[0], Port)
    assert len(NicDriver(network).discover()) == 1
