"""What containers are given: variables, files, statuses of devices; pure, or in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.api.errors import ApiError
from drakkar.api.kinds import POD as POD_KIND
from drakkar.api.kinds import SERVICEACCOUNT
from drakkar.api.meta import Object
from drakkar.apiserver import ApiServer
from drakkar.client import Client, MemoryTransport
from drakkar.client.clock import SystemClock
from drakkar.node.agent.claims import DeviceOnNode
from drakkar.node.agent.context import Facts
from drakkar.node.agent.env import Configs, environment, expand, field_value, resource_value
from drakkar.node.agent.health import DeviceHealths
from drakkar.node.agent.logs import Line, chosen, parse
from drakkar.node.agent.runtime import ContainerProblem
from drakkar.node.agent.streams import LogOptions
from drakkar.node.agent.subpaths import open_sub_path
from drakkar.node.agent.volumes import SERVICE_ACCOUNT, VolumeProblem, Volumes, _File, write_versioned
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice
from drakkar.store import MemoryBackend

FACTS = Facts({"cpu": "8", "memory": "16Gi"}, ("10.0.0.1", 6443))
POD: Object = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"b": "2", "a": 'say "1"'},
        "annotations": {"k": "v"},
    },
    "spec": {"nodeName": "n1", "serviceAccountName": "sa", "containers": []},
    "status": {"podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}, {"ip": "fd00::1"}], "hostIP": "10.0.0.9"},
}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$(NO)", "$(NO)"),
        ("a$(A)b$(B)", "a1b2"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$$$(A)", "$1"),
    ],
)
def test_expansion(word: str, expected: str) -> None:
    assert expand([word], {"A": "1", "B": "2"}) == [expected]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a']", 'say "1"'),
        ("metadata.labels['none']", ""),
        ("metadata.annotations", 'k="v"'),
        ("metadata.labels", 'a="say \\"1\\""\nb="2"'),
        ("spec.serviceAccountName", "sa"),
        ("status.podIPs", "10.1.1.1,fd00::1"),
        ("status.hostIP", "10.0.0.9"),
    ],
)
def test_fields_of_the_pod(path: str, expected: str) -> None:
    assert field_value(POD, path) == expected


def test_a_field_that_cannot_be_read_is_said() -> None:
    with pytest.raises(ContainerProblem, match=r"spec\.volumes"):
        field_value(POD, "spec.volumes")


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", "", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "1Mi", "100"),
        ("limits.memory", "1Gi", "16"),
        ("requests.cpu", "", "0"),
        # More than a double can tell.
        ("requests.ephemeral-storage", "", "9007199254740993"),
    ],
)
def test_resources_of_a_container(resource: str, divisor: str, expected: str) -> None:
    requests = {"memory": "100Mi", "ephemeral-storage": "9007199254740993"}
    container = {"name": "c", "resources": {"limits": {"cpu": "1500m"}, "requests": requests}}
    reference = {"resource": resource, "divisor": divisor}
    assert resource_value(POD, container, reference, FACTS) == expected


class _Api:
    """Answers for one ConfigMap and one Secret."""

    async def get(self, kind: Any, name: str, namespace: str) -> Object:
        if name == "conf":
            return {"data": {"a": "1", "b-c": "2"}, "binaryData": {"z": "AAE="}}
        if name == "sec":
            return {"data": {"p": "cGFzcw=="}}
        raise ApiError({"code": 404, "reason": "NotFound", "message": f"{name} not found"})


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "$(X)2"}]}, {"X": "1", "Y": "12"}),
        ({"envFrom": [{"configMapRef": {"name": "conf"}, "prefix": "P_"}]}, {"P_a": "1", "P_b-c": "2"}),
        ({"env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "p"}}}]}, {"S": "pass"}),
        (
            {"env": [{"name": "N", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k", "optional": True}}}]},
            {"N": None},
        ),
        ({"envFrom": [{"secretRef": {"name": "no", "optional": True}}]}, {}),
        ({"env": [{"name": "HOSTNAME", "value": "mine"}]}, {"HOSTNAME": "mine", "KUBERNETES_SERVICE_PORT": "6443"}),
    ],
)
def test_variables(container: Object, expected: dict[str, str | None]) -> None:
    import asyncio

    configs = Configs(_Api(), "ns")  # pyright: ignore[reportArgumentType]
    env = asyncio.run(environment(POD, container, configs, FACTS, ["PATH=/bin"]))
    assert {name: env.get(name) for name in expected} == expected
    assert env["PATH"] == "/bin"


def test_files_change_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    write_versioned(folder, {"a": _File(b"1", 0o644), "deep/b": _File(b"1", 0o400)})
    first = os.readlink(folder / "..data")
    with (folder / "a").open("rb") as held:
        write_versioned(folder, {"a": _File(b"2", 0o644), "c": _File(b"2", 0o600)})
        assert held.read() == b"1"
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("..")) == ["a", "c"]
    assert (folder / "a").read_bytes() == b"2"
    assert (folder / "c").stat().st_mode & 0o777 == 0o600
    assert not (folder / first).exists()
    now = os.readlink(folder / "..data")
    write_versioned(folder, {"a": _File(b"2", 0o644), "c": _File(b"2", 0o600)})
    assert os.readlink(folder / "..data") == now
    for name in ("../x", "/x", "a/../../x"):
        with pytest.raises(VolumeProblem, match="leads out"):
            write_versioned(folder, {name: _File(b"", 0o644)})


@pytest.mark.parametrize("where", ["../outside", "..", "{}"])
def test_a_link_that_was_put_in_place_of_the_versions_costs_nothing_outside(tmp_path: Path, where: str) -> None:
    folder, outside = tmp_path / "volume", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    write_versioned(folder, {"a": _File(b"1", 0o644)})
    (folder / "..data").unlink()
    (folder / "..data").symlink_to(where.format(outside))
    write_versioned(folder, {"a": _File(b"2", 0o644)})
    assert (outside / "kept").exists()
    assert (folder / "a").read_bytes() == b"2"


def test_a_sub_path_stays_within_its_volume(tmp_path: Path) -> None:
    import asyncio

    volumes = Volumes(_Api(), tmp_path, FACTS, None)  # pyright: ignore[reportArgumentType]
    spec = {"volumes": [{"name": "e", "emptyDir": {}}], "automountServiceAccountToken": False}
    pod = {**POD, "spec": spec}
    asyncio.run(volumes.make(pod))
    (tmp_path / "e" / "out").symlink_to("/etc")

    def mount(inner: str) -> Path:
        wanted = [{"name": "e", "mountPath": "/m", "subPath": inner}]
        return volumes.mounts(pod, {"name": "main", "volumeMounts": wanted})[0].source

    assert mount("a/b") == tmp_path / "e" / "a" / "b"
    # As in the volume itself, every user may write there.
    assert (tmp_path / "e" / "a" / "b").stat().st_mode & 0o777 == 0o777
    for inner in ("out", "out/passwd", "../x", "/etc"):
        with pytest.raises(ContainerProblem, match="leads out"):
            mount(inner)


def test_a_link_that_comes_after_the_look_leads_nowhere(tmp_path: Path) -> None:
    """Whoever writes to a volume may swap a folder for a link at any moment; what is mounted is what was checked."""
    volume, outside = tmp_path / "e", tmp_path / "outside"
    (volume / "a").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").touch()
    held = open_sub_path(volume, "a")
    (volume / "a").rename(volume / "old")
    (volume / "a").symlink_to(outside)
    (volume / "old" / "mine").touch()
    assert os.listdir(f"/proc/self/fd/{held.descriptor}") == ["mine"]
    held.close()


def test_a_link_that_comes_while_a_sub_path_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, outside = tmp_path / "e", tmp_path / "outside"
    (volume / "a").mkdir(parents=True)
    outside.mkdir()
    found = os.path.realpath(volume / "a" / "b")

    def late(path: str) -> str:
        if path == os.path.join(volume, "a", "b"):
            (volume / "a").rmdir()
            (volume / "a").symlink_to(outside)
            return found
        return path

    monkeypatch.setattr(os.path, "realpath", lambda path: late(str(path)))
    with pytest.raises(ContainerProblem, match="it was changed"):
        open_sub_path(volume, "a/b")
    assert not list(outside.iterdir())


def test_what_the_agent_writes_is_read_only(tmp_path: Path) -> None:
    import asyncio

    volumes = Volumes(_Api(), tmp_path, FACTS, None, isolates=True)  # pyright: ignore[reportArgumentType]
    sources = [
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "down", "downwardAPI": {"items": []}},
        {"name": "all", "projected": {"sources": []}},
        {"name": "free", "emptyDir": {}},
    ]
    pod = {**POD, "spec": {"volumes": sources, "automountServiceAccountToken": False}}
    asyncio.run(volumes.make(pod))
    wanted = [{"name": source["name"], "mountPath": f"/{source['name']}"} for source in sources]
    found = volumes.mounts(pod, {"name": "main", "volumeMounts": wanted})
    assert {mount.destination: mount.read_only for mount in found} == {
        "/conf": True,
        "/down": True,
        "/all": True,
        "/free": False,
    }


@pytest.mark.parametrize("path", ["relative", "", "/a/../b"])
def test_a_host_path_means_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    import asyncio

    monkeypatch.chdir(tmp_path)
    volumes = Volumes(_Api(), tmp_path / "volumes", FACTS, None)  # pyright: ignore[reportArgumentType]
    spec = {"volumes": [{"name": "h", "hostPath": {"path": path}}], "automountServiceAccountToken": False}
    with pytest.raises(VolumeProblem, match=r'volume "h": hostPath .* must be an absolute path'):
        asyncio.run(volumes.make({**POD, "spec": spec}))
    assert not list(tmp_path.iterdir())


def test_health_of_devices() -> None:
    now = [100.0]
    healths = DeviceHealths(lambda: now[0])

    def report(name: str, health: int, message: str = "", timeout: int = 0) -> wire.DeviceHealth:
        return wire.DeviceHealth(wire.DeviceIdentifier("pool", name), health, 0, timeout, message)

    def device(name: str, *ids: str) -> DeviceOnNode:
        prepared = PreparedDevice(requestNames=[], poolName="pool", deviceName=name, cdiDeviceIDs=[*ids])
        return DeviceOnNode("d.example.com", prepared)

    healths.heard(
        "d.example.com",
        wire.NodeWatchResourcesResponse([report("a", 1), report("b", 2, "é" * 600, 90), report("c", 9)]),
    )
    held = {"claim:x": [device("a", "v/c=1"), device("b"), device("c"), device("unknown")], "claim:empty": []}
    (entry,) = healths.status(held)
    assert entry["name"] == "claim:x"
    assert [resource["health"] for resource in entry["resources"]] == ["Healthy", "Unhealthy", "Unknown", "Unknown"]
    assert [resource["resourceID"] for resource in entry["resources"]][:2] == ["v/c=1", "d.example.com/pool/b"]
    message = entry["resources"][1]["message"]
    assert len(message.encode()) <= 1024
    assert message.endswith("...")
    assert healths.expiry() == 130.0
    now[0] = 131.0
    (entry,) = healths.status(held)
    assert [resource["health"] for resource in entry["resources"]] == ["Unknown", "Unhealthy", "Unknown", "Unknown"]
    healths.heard("d.example.com", None)
    (entry,) = healths.status(held)
    assert {resource["health"] for resource in entry["resources"]} == {"Unknown"}


@given(st.binary(max_size=80))
def test_any_bytes_are_an_entry_of_a_log_or_not(data: bytes) -> None:
    line = parse(data)
    assert line is None or line.stream in ("stdout", "stderr")


def test_which_lines_are_sent() -> None:
    lines = [
        Line("2026-01-01T00:00:01.5Z", "stdout", b"one\n"),
        Line("2026-01-01T00:00:02.123456789Z", "stderr", b"two\n"),
        Line("no time", "stdout", b"three"),
    ]
    assert b"".join(chosen(lines, LogOptions(tail=2))) == b"two\nthree"
    assert b"".join(chosen(lines, LogOptions(stream="stderr", timestamps=True))) == (
        b"2026-01-01T00:00:02.123456789Z two\n"
    )
    since = LogOptions(since=1767225602.0)
    assert b"".join(chosen(lines, since)) == b"two\nthree"


def test_an_account_that_is_not_to_be_mounted(tmp_path: Path) -> None:
    """What the account says counts where the pod says nothing; it is read as the node, at our API server."""
    import asyncio

    async def run() -> None:
        clock = SystemClock()
        server = ApiServer(MemoryBackend(), clock=clock)
        await server.start()
        admin = Client(MemoryTransport(server.handle, server.token("admin", "system:masters")), clock=clock)
        node = Client(MemoryTransport(server.handle, server.token("system:node:n1", "system:nodes")), clock=clock)
        container = {"name": "main", "image": "i"}

        async def mounted(name: str, account: str, **spec: Any) -> list[str]:
            spec = {"containers": [container], "nodeName": "n1", "serviceAccountName": account, **spec}
            meta = {"name": name, "namespace": "default"}
            made = await admin.create(POD_KIND, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
            # As a pod is whose account came later than the pod: no volume of the server's.
            made["spec"] |= {"volumes": []}
            made["spec"]["containers"][0].pop("volumeMounts", None)
            volumes = Volumes(node, tmp_path / name, FACTS, None)
            await volumes.make(made)
            return [mount.destination for mount in volumes.mounts(made, container)]

        for name, more in (("open", {}), ("shut", {"automountServiceAccountToken": False})):
            meta = {"name": name, "namespace": "default"}
            await admin.create(SERVICEACCOUNT, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, **more})
        assert await mounted("a", "open") == [SERVICE_ACCOUNT]
        assert await mounted("b", "shut") == []
        assert await mounted("c", "shut", automountServiceAccountToken=True) == [SERVICE_ACCOUNT]
        with pytest.raises(VolumeProblem, match="default/none"):
            await mounted("d", "none")
        for client in (node, admin):
            await client.close()
        await server.close()

    asyncio.run(run())
