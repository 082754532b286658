"""A driver that stands for others by their recorded slices: what it reads, refuses, publishes and tells containers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import UsageError
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.api.resource.conversion import convert
from drakkar.driver import AllocatedDevice, PrepareError
from drakkar.driver.webhook import review
from drakkar.drivers.replay import command
from drakkar.drivers.replay.driver import ReplayDriver, variable
from drakkar.drivers.replay.recorded import pools_of, read_slices, slices_of
from tests.support.drivers import driver_cluster

GPU, NIC = "gpu.example.com", "nic.example.com"


def recorded(driver: str = GPU, node: str | None = "n1", *, name: str = "", count: int = 1, **spec: Any) -> Object:
    pool = {"name": node or "fabric", "generation": 3, "resourceSliceCount": count}
    where = {"nodeName": node} if node else {"allNodes": True}
    content = {"devices": [{"name": "d0"}, {"name": "d1"}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{driver}"},
        "spec": {"driver": driver, "pool": pool, **where, **content, **spec},
    }


def result(device: str, **fields: Any) -> v1.DeviceRequestAllocationResult:
    return v1.DeviceRequestAllocationResult(request="r", driver=GPU, pool="n1", device=device, **fields)


def write(path: Path, *objects: Object) -> Path:
    path.write_text(yaml.safe_dump_all(objects))
    return path


@pytest.mark.parametrize("form", ["documents", "list", "json", "v1beta1"])
def test_files_in_every_form(tmp_path: Path, form: str) -> None:
    slices = [recorded(), recorded(NIC)]
    path = tmp_path / "slices"
    if form == "documents":
        write(path, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}, *slices)
    elif form == "list":
        write(path, {"apiVersion": "v1", "kind": "List", "items": slices})
    elif form == "json":
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": slices}))
    else:
        write(path, *(convert(each, "ResourceSlice", "v1", "v1beta1") for each in slices))
    found = read_slices(path)
    assert [each.spec.driver for each in found] == [GPU, NIC]
    assert [device.name for device in found[0].spec.devices or ()] == ["d0", "d1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("kind: [", "not valid YAML"),
        ("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", "no ResourceSlice in it; write one with kubectl"),
        ("apiVersion: resource.k8s.io/v2\nkind: ResourceSlice\nmetadata: {name: s}\n", "'s' cannot be read"),
        ("apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: s}\nspec: {devices: 3}\n", "'s'"),
        ("apiVersion: resource.k8s.io/v1beta1\nkind: ResourceSlice\nmetadata: {name: s}\nspec: [1]\n", "'s'"),
        ("apiVersion: resource.k8s.io/v1beta1\nkind: ResourceSlice\nmetadata: x\nspec: {devices: [1]}\n", "cannot be"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "slices.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_slices(path)


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ([recorded(count=2)], "pool n1 of driver gpu.example.com: 1 slices of generation 3 are there, they say 2"),
        (
            [recorded(count=2), recorded(count=2, nodeName="n3", devices=[])],
            "its slices are for different nodes",
        ),
        ([recorded(devices=[{"name": "d0"}, {"name": "d0"}])], "device 'd0' exists twice"),
    ],
)
def test_pools_that_no_driver_would_publish(slices: list[Object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ReplayDriver(GPU, slices_of(slices), "n1")
    # Another node's business.
    assert ReplayDriver(GPU, slices_of(slices), "n2").pools("n2") == []


def test_old_generations_are_left_out() -> None:
    old = recorded(pool={"name": "n1", "generation": 2, "resourceSliceCount": 1}, devices=[{"name": "old"}])
    (pool,) = pools_of(GPU, slices_of([old, recorded()]), "n1")
    assert [device.name for device in pool.devices] == ["d0", "d1"]
    assert pool.generation == 3


def test_which_driver_and_which_node(tmp_path: Path) -> None:
    path = write(tmp_path / "slices.yaml", recorded(), recorded(node="n2"), recorded(NIC, None))
    slices = read_slices(path)

    def driver(name: str = "", node: str = "", cluster: bool = False) -> ReplayDriver:
        return command._driver(path, slices, name, node, cluster)

    assert [pool.name for pool in driver(GPU, "n2").pools("n2")] == ["n2"]
    # Every node can reach the fabric, so that its driver is wanted on every node.
    assert driver(NIC, "n2").pools("n2") == []
    assert [pool.name for pool in driver(NIC, cluster=True).cluster_pools()] == ["fabric"]
    for arguments, words in [
        (("", "n1"), "no --driver: .* has slices of gpu.example.com, nic.example.com; choose one"),
        (("fpga.example.com", "n1"), "--driver fpga.example.com: "),
        ((GPU, "n3"), "--node-name n3: .* no slices of gpu.example.com for this node, but for n1, n2"),
        ((GPU, "", True), "--cluster: all slices of gpu.example.com in .* belong to nodes"),
    ]:
        with pytest.raises(UsageError, match=words):
            driver(*arguments)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pki = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    (tmp_path / "config").write_text(
        f"{pki}clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    )
    words = ["--slices", str(tmp_path / "absent"), "--node-name", "n1", "--kubeconfig", str(tmp_path / "config")]
    assert command.main(words) == 2
    assert "absent: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (result("d-0"), "DEVICE_GPU_EXAMPLE_COM_N1_D_0=gpu.example.com/n1/d-0"),
        (
            result("d0", shareID="1a-2b", consumedCapacity={"memory": "4Gi", "cores": "30"}),
            "DEVICE_GPU_EXAMPLE_COM_N1_D0_1A_2B=gpu.example.com/n1/d0 cores=30 memory=4Gi",
        ),
        (result("d0", adminAccess=True), "DEVICE_GPU_EXAMPLE_COM_N1_D0_ADMIN=gpu.example.com/n1/d0 admin"),
    ],
)
def test_what_a_container_is_told(given: v1.DeviceRequestAllocationResult, expected: str) -> None:
    assert variable(given) == expected
    driver = ReplayDriver(GPU, slices_of([recorded(devices=[{"name": given.device}])]), "n1")
    (prepared,) = driver.prepare(v1.ResourceClaim(), [AllocatedDevice(result=given)])
    assert prepared.edits.env == [expected]


def test_a_device_that_was_not_recorded_is_refused() -> None:
    driver = ReplayDriver(GPU, slices_of([recorded()]), "n1")
    with pytest.raises(PrepareError, match="device n1/d7 is not among the recorded ones"):
        driver.prepare(v1.ResourceClaim(), [AllocatedDevice(result=result("d7"))])


def test_a_webhook_for_it_has_no_objections() -> None:
    opaque = {"driver": GPU, "parameters": {"apiVersion": "x/v1", "kind": "Unheard", "of": True}}
    claim = {"kind": "ResourceClaim", "spec": {"devices": {"config": [{"opaque": opaque}]}}}
    answer = review(GPU, ReplayDriver.configs, {"request": {"uid": "u", "object": claim}})
    assert answer["response"] == {"uid": "u", "allowed": True}


def test_slices_come_back_as_they_were_and_parameters_of_any_kind_are_taken(root: Path) -> None:
    value = {"value": "0"}
    policy = {"default": "100", "validRange": {"min": "0", "max": "100", "step": "1"}}
    device = {
        "name": "d0",
        "attributes": {"model": {"string": "x"}, "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"}},
        "capacity": {"cores": {"value": "100", "requestPolicy": policy}},
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "s", "counters": {"c": value}}],
        "taints": [{"key": "example.com/t", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
    }
    counters = recorded(name="a", count=2, sharedCounters=[{"name": "s", "counters": {"c": value}}])
    del counters["spec"]["devices"]
    given = [counters, recorded(name="b", count=2, devices=[device, {"name": "d1"}])]
    parameters = {"apiVersion": "x/v1", "kind": "Unheard", "of": True}
    selector = {"cel": {"expression": f'device.driver == "{GPU}"'}}
    request = {"name": "r", "exactly": {"deviceClassName": GPU, "selectors": [{"cel": {"expression": "true"}}]}}
    config = [{"opaque": {"driver": GPU, "parameters": parameters}}]
    objects = [
        {"kind": "DeviceClass", "metadata": {"name": GPU}, "spec": {"selectors": [selector]}},
        {
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [request], "config": config}},
        },
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "main", "image": "pause", "resources": {"claims": [{"name": "c"}]}}],
            "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
        },
    }
    manifest = write(root / "m.yaml", *({"apiVersion": "resource.k8s.io/v1", **each} for each in objects), pod)

    async def story() -> None:
        made = ReplayDriver(GPU, slices_of(given), "n1")
        async with driver_cluster(root, {"n1": {"replay": lambda _node, _folder: made}}) as cluster:
            stored = (await cluster.client.list(RESOURCESLICE)).items
            wanted = [each.spec for each in slices_of(given)]
            assert [each.spec for each in sorted(stored, key=lambda each: each.metadata.name)] == wanted
            response = await cluster.client.send("GET", RESOURCESLICE.path())
            assert msgspec.json.decode(response.body)["items"][1]["spec"]["devices"][0] == device
            await cluster.apply(manifest)
            await cluster.bound(1)
            (claim,) = await cluster.claims()
            edits = await cluster.prepare("n1", "replay", claim)
            assert [env for edit in edits for env in edit.env] == [f"DEVICE_GPU_EXAMPLE_COM_N1_D1={GPU}/n1/d1"]

    asyncio.run(story())
