"""Parts without any right at upstream's kube-apiserver: each names what it lacks, and goes on when it has it.

The rights are given one by one, exactly as they are named, until the part does its work. So each is missing at a moment
when nothing else is, and nothing may be retried silently or wildly meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from drakkar.api import kinds
from drakkar.api.errors import ApiError
from drakkar.api.objects import condition_is, pod_node
from drakkar.cli.target import connect
from drakkar.client import Client, Unreachable
from drakkar.client.kubeconfig import in_cluster
from tests.support.eventually import eventually
from tests.support.kubecluster import KubeCluster, kube_cluster
from tests.support.plane import Part
from tests.support.proxy import Door, proxy
from tests.support.shared import ROOT
from tests.support.weather import PLURALS, account, create
from tests.unit.scheduler.build import claim, device_class, node, node_slice

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(600)]

NAMED = re.compile(
    r"not allowed to [^\n]*?: (?:the|a) (?P<kind>ClusterRole|Role)(?: (?P<name>\S+?))?(?: in namespace (?P<where>\S+))?"
    r" needs the rule (?P<rule>\{.*?\}) for (?:user|the user)"
)
Rule = tuple[str, str, str]


def rights_of(role: dict[str, Any]) -> set[Rule]:
    """Group, resource and verb of all that a role allows."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Giver:
    """Gives what a part names, and nothing else."""

    def __init__(self, admin: Client, shipped: dict[tuple[str, str], set[Rule]], own: str = ""):
        self._admin = admin
        #: Kind and name of each role as it is in ``deploy/``, with what it allows there.
        self._shipped = shipped
        #: The role to fill for a user that has none in ``deploy/``.
        self._own = own
        self.given: list[Rule] = []

    async def empty(self, path: str) -> None:
        """Takes all rights out of the roles of a file in ``deploy/``, which is applied."""
        for obj in yaml.safe_load_all((ROOT / "deploy" / path).read_text()):
            if obj and obj["kind"] in PLURALS:
                if obj["kind"] in ("Role", "ClusterRole"):
                    self._shipped[obj["kind"], obj["metadata"]["name"]] = rights_of(obj)
                    obj = {**obj, "rules": []}
                await create(self._admin, obj)

    async def give(self, said: str) -> int:
        """Gives what ``said`` names and has not been given yet; how many rights that is."""
        count = 0
        for found in NAMED.finditer(said):
            rule = yaml.safe_load(found["rule"])
            (right,) = rights_of({"rules": [rule]})
            if right in self.given:
                continue
            kind, name = found["kind"], found["name"] or self._own
            if found["name"]:
                assert right in self._shipped[kind, name], f"{right} is not in {kind} {name} of deploy/"
            where = f"namespaces/{found['where']}/" if kind == "Role" else ""
            path = f"/apis/rbac.authorization.k8s.io/v1/{where}{kind.lower()}s/{name}"
            role = json.loads((await self._admin.send("GET", path)).body)
            body = {"rules": [*(role.get("rules") or []), rule]}
            await self._admin.send("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE)
            self.given.append(right)
            count += 1
        return count


MERGE = "application/merge-patch+json"
#: A resource of containers with devices behind it.
EXTENDED = "example.com/gpu"


async def until_done(part: Part, giver: Giver, done: Callable[[], Awaitable[object]], timeout: float = 120) -> None:
    """Gives rights as they are named until the work is done."""

    async def step() -> bool:
        assert part.process.poll() is None, f"ended:\n{part.output}"
        await giver.give(part.output)
        return bool(await done())

    try:
        await eventually(step, bool, timeout=timeout, pause=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}\ngiven: {giver.given}\n{part.output[-6000:]}") from None


def bare(obj: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in obj["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**obj, "metadata": kept}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    tolerations = [{"operator": "Exists", "key": f"node.kubernetes.io/{why}"} for why in ("not-ready", "unreachable")]
    body = {
        "schedulerName": "drakkar",
        "containers": [{"name": "main", "image": "x"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "tolerations": tolerations,
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": body | spec}


async def furnish(admin: Client) -> None:
    host = bare(node("a", cpu="4", memory="8Gi", pods="40"))
    status = host.pop("status")
    await admin.create(kinds.NODE, host)
    await admin.patch(
        kinds.NODE, "a", None, {"status": {**status, "capacity": status["allocatable"]}}, "merge", "status"
    )
    behind = bare(device_class())
    behind["spec"]["extendedResourceName"] = EXTENDED
    await admin.create(kinds.DEVICECLASS, behind)
    await admin.create(kinds.RESOURCESLICE, bare(node_slice("a", 4)))


async def bound(admin: Client, name: str) -> str:
    return pod_node(await admin.get(kinds.POD, name, "default"))


async def scheduler(cluster: KubeCluster, admin: Client, door: Door) -> list[Rule]:
    giver = Giver(admin, {})
    await giver.empty("scheduler.yaml")
    gates = [{"name": "drakkar.dev/allocation"}]
    for name, more in (("own", {}), ("gated", {"schedulingGates": gates}), ("big", {})):
        await admin.create(kinds.RESOURCECLAIM, bare(claim(name, 9 if name == "big" else 1)), "default")
        await admin.create(kinds.POD, pod(name, **more))
    # A claim that its pod owns, which makes a right of the pod's necessary.
    extended = {"name": "main", "image": "x", "resources": {"limits": {EXTENDED: "1"}, "requests": {EXTENDED: "1"}}}
    await admin.create(kinds.POD, pod("extended", resourceClaims=[], containers=[extended]))
    lease = ("--leader-elect-lease-duration", "3", "--leader-elect-resource-namespace", "drakkar-system")
    with Part("scheduler", "--kubeconfig", str(door.kubeconfig), *lease) as part:

        async def done() -> bool:
            told = condition_is(await admin.get(kinds.POD, "big", "default"), "PodScheduled", "False")
            events = [e for e in (await admin.list(kinds.EVENT)).items if e["reason"] == "Scheduled"]
            return (
                told and len(events) == 3 and all([await bound(admin, name) for name in ("own", "gated", "extended")])
            )

        await until_done(part, giver, done)
        # What is taken away again is missed again, and tried within bounds.
        role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/drakkar-scheduler"
        rules = json.loads((await admin.send("GET", role)).body)["rules"]
        few = [rule for rule in rules if rule["resources"] != ["pods/binding"]]
        await admin.send("PATCH", role, body=json.dumps({"rules": few}).encode(), content_type=MERGE)
        before = door.count.requests["create", "pods/binding"]
        late = [f"late-{number}" for number in range(20)]
        for name in late:
            await admin.create(kinds.POD, pod(name, resourceClaims=[]))

        async def tried() -> int:
            return door.count.requests["create", "pods/binding"] - before

        start = time.monotonic()
        await asyncio.sleep(6)
        times, passed = await eventually(tried, lambda times: times >= 8), time.monotonic() - start
        assert times <= 45 * passed / 6, f"{times} times in {passed:.1f} s for 20 pods"
        await admin.send("PATCH", role, body=json.dumps({"rules": rules}).encode(), content_type=MERGE)

        async def all_late() -> list[str]:
            return [name for name in late if not await bound(admin, name)]

        await eventually(all_late, lambda left: not left, pause=0.2)
        assert "allowed now: create pods/binding" in part.output
    return giver.given


async def controllers(cluster: KubeCluster, admin: Client, door: Door) -> list[Rule]:
    giver = Giver(admin, {})
    await giver.empty("controllers.yaml")
    lease = ("--leader-elect-lease-duration", "3", "--leader-elect-resource-namespace", "drakkar-system")
    name = ("--leader-elect-resource-name", "drakkar-controllers")
    command = ("controllers", "--only", "eviction", *lease, *name)
    with Part(*command, "--kubeconfig", str(door.kubeconfig)) as part:
        held = (await admin.get(kinds.RESOURCECLAIM, "own", "default")).status.allocation.devices.results[0]
        selector = {"driver": held.driver, "pool": held.pool, "device": held.device}
        spec = {"deviceSelector": selector, "taint": {"key": "example.com/x", "effect": "NoExecute"}}
        await admin.create(kinds.DEVICETAINTRULE, {"metadata": {"name": "x"}, "spec": spec})

        async def evicted() -> bool:
            try:
                found = await admin.get(kinds.POD, "own", "default")
            except ApiError as error:
                return error.code == 404
            return bool(found["metadata"].get("deletionTimestamp"))

        await until_done(part, giver, evicted)
    return giver.given


async def driver(cluster: KubeCluster, admin: Client, door: Door) -> list[Rule]:
    giver = Giver(admin, {})
    await giver.empty("driver-tpu.yaml")
    with Part("driver", "run", "tpu", "--kubeconfig", str(door.kubeconfig)) as part:
        labels = {"tpu.drakkar.dev/pod": "p", "tpu.drakkar.dev/x": "0", "tpu.drakkar.dev/y": "0"}
        name = {"kubernetes.io/hostname": "a"}
        await admin.patch(kinds.NODE, "a", None, {"metadata": {"labels": labels | name}})

        async def published() -> bool:
            slices = (await admin.list(kinds.RESOURCESLICE)).items
            return any(item.spec.driver == "tpu.drakkar.dev" for item in slices)

        await until_done(part, giver, published)
    return giver.given


async def hollow(cluster: KubeCluster, admin: Client, door: Door, fleet: Path) -> list[Rule]:
    """There is no role of theirs in ``deploy/``: what they name makes one."""
    giver = Giver(admin, {}, own="hollow")
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "hollow"}, "rules": []}
    subject = {"kind": "User", "apiGroup": group, "name": "drakkar:hollow-nodes"}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "hollow"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "hollow"},
        "subjects": [subject],
    }
    for obj in (role, binding):
        await create(admin, obj)
    with Part("node", "hollow", "--fleet", str(fleet), "--kubeconfig", str(door.kubeconfig)) as part:

        async def runs() -> bool:
            nodes = [n for n in (await admin.list(kinds.NODE)).items if n["metadata"]["name"] == "hollow-0"]
            if not nodes or not condition_is(nodes[0], "Ready"):
                return False
            try:
                found = await admin.get(kinds.POD, "guest", "default")
            except ApiError:
                await admin.create(kinds.POD, pod("guest", resourceClaims=[], nodeName="hollow-0"))
                return False
            return (found.get("status") or {}).get("phase") == "Running"

        await until_done(part, giver, runs)
    return giver.given


async def rotated(admin: Client, folder: Path) -> None:
    """A pod's token that the server takes no longer, and the one that follows it in its file."""

    async def token() -> str:
        made = {"metadata": {"name": "reader", "namespace": "default"}, "apiVersion": "v1", "kind": "ServiceAccount"}
        await create(admin, made)
        body = {"metadata": made["metadata"], "spec": {"expirationSeconds": 600}}
        path = "/api/v1/namespaces/default/serviceaccounts/reader/token"
        return json.loads((await admin.send("POST", path, body=json.dumps(body).encode())).body)["status"]["token"]

    async def ask() -> str:
        try:
            await client.get(kinds.POD, "own", "default")
        except ApiError as error:
            return f"{error.code} {error}"
        return "200"

    (folder / "token").write_text(await token())
    client = Client(in_cluster(folder).transport())
    assert (await ask()).startswith("403")
    assert "the ClusterRole reader needs the rule" in client.rights.text()
    await admin.send("DELETE", "/api/v1/namespaces/default/serviceaccounts/reader")
    said = await eventually(ask, lambda said: said.startswith("401"), pause=0.2)
    assert "does not accept the token of the service account of this pod" in said
    assert said.removeprefix("401 ") in client.rights.text()
    (folder / "token").write_text(await token())
    assert (await ask()).startswith("403"), "the file is read again when the server refuses its token"
    await client.close()


async def run_out(cluster: KubeCluster, folder: Path) -> None:
    """A kubeconfig whose certificate has run out."""
    now = datetime.datetime.now(datetime.UTC)
    authority = x509.load_pem_x509_certificate((cluster.pki / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((cluster.pki / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [
        x509.NameAttribute(NameOID.COMMON_NAME, "joe"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
    ]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = x509.CertificateBuilder(authority.subject, x509.Name(names), key.public_key(), 1)
    builder = builder.not_valid_before(now - datetime.timedelta(2)).not_valid_after(now - datetime.timedelta(1))
    made = builder.add_extension(usage, critical=False).sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    config = yaml.safe_load(cluster.kubeconfig().read_text())
    config["users"][0]["user"] = {
        "client-certificate-data": base64.b64encode(made.public_bytes(pem)).decode(),
        "client-key-data": base64.b64encode(key.private_bytes(pem, *plain)).decode(),
    }
    path = folder / "joe.kubeconfig"
    path.write_text(json.dumps(config))
    async with connect(path) as client:
        with pytest.raises((ApiError, Unreachable), match=r"client certificate of user .* expired at .*; renew it"):
            await client.list(kinds.POD)


def test_each_right_is_named_and_used_as_soon_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mounted = tmp_path / "serviceaccount"
    mounted.mkdir()
    fleet = tmp_path / "fleet.yaml"
    groups = [{"name": "hollow-{index}", "count": 1, "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"}}]
    spec = {"nodeGroups": groups}
    made = {"apiVersion": "drakkar.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "one"}, "spec": spec}
    fleet.write_text(json.dumps(made))

    async def run(cluster: KubeCluster) -> dict[str, list[Rule]]:
        async with proxy(1, tmp_path) as doors, connect(cluster.kubeconfig()) as admin:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "drakkar-system"}}
            await create(admin, namespace)
            account_of_pods = {"metadata": {"name": "default", "namespace": "default"}}
            await create(admin, {"apiVersion": "v1", "kind": "ServiceAccount", **account_of_pods})
            await furnish(admin)
            given = {}
            for name, work in (("scheduler", scheduler), ("controllers", controllers), ("driver-tpu", driver)):
                door = await doors.door(name, cluster.kubeconfig(*account(name)))
                given[name] = await work(cluster, admin, door)
                peak, kind = door.count.peak(3)
                assert peak <= 25, f"{name}: {peak:.0f} times a second {kind}"
            door = await doors.door("hollow", cluster.kubeconfig("drakkar:hollow-nodes"))
            given["hollow"] = await hollow(cluster, admin, door, fleet)
            await rotated(admin, mounted)
            await run_out(cluster, tmp_path)
            return given

    with kube_cluster(tmp_path, "--enable-admission-plugins=OwnerReferencesPermissionEnforcement") as cluster:
        (mounted / "ca.crt").write_bytes((cluster.pki / "ca.crt").read_bytes())
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", cluster.url.rpartition(":")[2])
        given = asyncio.run(run(cluster))
    for name, least in (
        (
            "scheduler",
            {
                ("", "pods/binding", "create"),
                ("", "pods/finalizers", "update"),
                ("resource.k8s.io", "resourceclaims/binding", "patch"),
            },
        ),
        ("controllers", {("", "pods", "delete"), ("coordination.k8s.io", "leases", "patch")}),
        ("driver-tpu", {("resource.k8s.io", "resourceslices", "create"), ("", "nodes", "list")}),
        ("hollow", {("", "nodes/status", "patch"), ("coordination.k8s.io", "leases", "patch")}),
    ):
        assert least <= {*given[name]}, name
    with capsys.disabled():
        print()
        for name, rights in given.items():
            words = ", ".join(f"{verb} {resource}" for _, resource, verb in rights)
            print(f"{name}: {len(rights)} rights named and given one by one: {words}")
