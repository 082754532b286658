"""The chart with helm 4: it lints, says what is wrong with values, gives what ``deploy/`` has, and installs.

The plain manifests with kubectl: processes with the flags and tokens of their accounts do the work.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from drakkar.api.kinds import DEVICETAINTRULE, POD, RESOURCECLAIM, RESOURCEPOOLSTATUSREQUEST
from drakkar.api.meta import Object
from drakkar.api.objects import condition_is, uid_of
from drakkar.client import SystemClock
from drakkar.controllers import Controllers, ControllerSettings
from drakkar.drivers.tpu import TpuDriver
from drakkar.drivers.tpu.fabric import FakeFabric
from drakkar.scheduler import Scheduler
from drakkar.scheduler.fence import fence_rule
from tests.e2e.test_helm import Helm
from tests.support import chart
from tests.support.eventually import eventually, until
from tests.support.guard import guarded
from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up
from tests.unit.deploy.test_manifests import TEMPLATE, at_work, container, node, pod, replica, site, workloads
from tests.unit.scheduler.test_webhook import documented

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

#: What the Prometheus operator brings.
SERVICE_MONITOR = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"plural": "servicemonitors", "singular": "servicemonitor", "kind": "ServiceMonitor"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": chart.NAMESPACE}}


def with_kinds_first(rendered: list[Object]) -> list[Object]:
    kinds = [obj for obj in rendered if obj["kind"] == "CustomResourceDefinition"]
    return [NAMESPACE, SERVICE_MONITOR, *kinds, *(obj for obj in rendered if obj not in kinds)]


def test_it_lints() -> None:
    for settings in ([], chart.all_on()):
        sets = [word for setting in settings for word in ("--set", setting)]
        done = chart.helm("lint", "--strict", str(chart.CHART), *sets)
        assert done.returncode == 0, done.stdout + done.stderr


def test_manifests_are_in_step() -> None:
    for name, text in chart.manifests().items():
        assert (chart.MANIFESTS / name).read_text() == text, f"deploy/{name} is old: ./do manifests"
    names = {file.name for file in chart.MANIFESTS.glob("*.yaml")}
    assert names == {*chart.manifests(), "namespace.yaml"}


def test_the_kind_is_that_of_the_example() -> None:
    (mine,) = chart.objects((chart.CHART / "crds" / "computedomains.yaml").read_text())
    example = chart.objects((chart.ROOT / "examples" / "computedomain" / "crd.yaml").read_text())
    assert mine == example[0]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("scheduler.mode=both", "/scheduler/mode"),
        ("scheduler.schedulerName=default-scheduler", "that is kube-scheduler's name"),
        ("scheduler.schedulerName=Drakkar", "/scheduler/schedulerName"),
        ("controllers.only={garbage}", "/controllers/only/0"),
        ("controllers.only={}", "/controllers/only"),
        ("controllers.only={eviction,tainteviction}", "eviction and tainteviction do the same"),
        ("scheduler.mode=own,scheduler.webhook.enabled=true", "scheduler.mode=own leaves gated pods alone"),
        ("scheduler.webhook.enabled=true", "scheduler.webhook.caBundle is empty"),
        ("scheduler.guard.enabled=true", "scheduler.webhook.caBundle is empty"),
        ("scheduler.guard.enabled=true,scheduler.webhook.caBundle=YQ==,scheduler.webhook.port=10259", "are both 10259"),
        ("scheduler.guard.enabled=true,scheduler.webhook.caBundle=YQ==,scheduler.leaseDuration=3", "4 seconds or more"),
        ("image.repository=registry.example/drakkar:0.1.0", "/image/repository"),
        ("image.tag=with space", "/image/tag"),
        ("drivers.gpu.mig=some", "/drivers/gpu/mig"),
        ("kubeletRoot=var/lib", "/kubeletRoot"),
        ("image.digest=sha256:1", "/image/digest"),
        ("drivers.gqu.enabled=true", "gqu"),
        ("fence.drivers={Not A Driver}", "/fence/drivers/0"),
        ("scheduler.guard.failurePolicy=Maybe", "/scheduler/guard/failurePolicy"),
    ],
)
def test_wrong_values_are_named(setting: str, said: str) -> None:
    done = chart.helm("template", "drakkar", str(chart.CHART), "--set", setting)
    assert done.returncode != 0
    assert said in done.stderr


def test_own_mode_has_fewer_rights() -> None:
    verbs: dict[str, set[str]] = {}
    for mode in ("own", "gate"):
        (role,) = [
            obj
            for obj in chart.objects(chart.template(f"scheduler.mode={mode}"))
            if obj["kind"] == "ClusterRole" and obj["metadata"]["name"] == "drakkar-scheduler"
        ]
        verbs[mode] = {verb for rule in role["rules"] if "pods" in rule["resources"] for verb in rule["verbs"]}
    assert verbs["own"] == {"get", "list", "watch"}
    assert verbs["gate"] - verbs["own"] == {"patch", "delete"}


def test_everything_on_is_taken_and_the_rights_of_all_controllers_suffice() -> None:
    """Claims made and freed, a question about pools answered, pods of a lost node let go."""
    rendered = with_kinds_first(chart.objects(chart.template(*chart.all_on(), crds=True)))

    async def run() -> None:
        async with asyncio.timeout(110), site(rendered) as made:
            admin, clock = made.admin, SystemClock()
            await made.create(node("a", 0))
            await made.create(TEMPLATE)
            only = {"tainteviction", "node-loss", "claims", "poolstatus"}
            settings = ControllerSettings(loss_by_silence=True, node_grace=0.2)
            controllers = replica(
                made, "controllers", lambda c: Controllers(c, clock, only=only, settings=settings), rendered
            )
            async with at_work(controllers.run()):
                await made.create(pod("job", "tpu"))
                await eventually(lambda: count(admin, RESOURCECLAIM), lambda n: n == 1)
                await admin.delete(POD, "job", "default", grace=0)
                await admin.delete(RESOURCECLAIM, (await admin.list(RESOURCECLAIM)).items[0].metadata.name, "default")
                await eventually(lambda: count(admin, RESOURCECLAIM), lambda n: n == 0)
                question = {
                    "apiVersion": RESOURCEPOOLSTATUSREQUEST.api_version,
                    "kind": "ResourcePoolStatusRequest",
                    "metadata": {"name": "q"},
                    "spec": {"driver": "tpu.drakkar.dev"},
                }
                await made.create(question)

                async def answered() -> Any:
                    return (await admin.get(RESOURCEPOOLSTATUSREQUEST, "q")).get("status")

                await eventually(answered, bool)
                spec = {"deviceSelector": {"driver": "none"}, "taint": {"key": "k", "effect": "NoExecute"}}
                rule = {"kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}
                await made.create({"apiVersion": "resource.k8s.io/v1", **rule})

                async def ruled() -> Any:
                    return (await admin.get(DEVICETAINTRULE, "r")).status

                await eventually(ruled, lambda status: "EvictionInProgress" in str(status))
                stray = pod("stray", "tpu")
                stray["spec"] = {"nodeName": "gone", "containers": [{"name": "c", "image": "i"}]}
                await made.create(stray)
                await eventually(lambda: count(admin, POD), lambda n: n == 0)
            assert made.refused == []

    asyncio.run(run())


def test_the_rights_of_node_loss_suffice_for_a_device_that_has_lost_a_host() -> None:
    """Its other host's Node is gone and a pod waits for it: a rule comes, and goes when there is such a Node again."""
    rendered = [NAMESPACE, *chart.objects(chart.template("controllers.only={node-loss}"))]

    async def run() -> None:
        async with asyncio.timeout(60), site(rendered) as made:
            admin, clock = made.admin, SystemClock()
            await made.create(node("a", 0))
            devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}
            kind = {"apiVersion": RESOURCECLAIM.api_version, "kind": RESOURCECLAIM.kind}
            await made.create({**kind, "metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": devices}})
            for name, where in (("first", {"nodeName": "a"}), ("second", {})):
                obj = pod(name, "none")
                obj["spec"] |= {"resourceClaims": [{"name": "d", "resourceClaimName": "c"}], **where}
                await made.create(obj)
            wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]}
            allocation = {
                "devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]},
            }
            holder = {"resource": "pods", "name": "first", "uid": uid_of(await admin.get(POD, "first", "default"))}
            status = {"allocation": allocation, "reservedFor": [holder]}
            await admin.patch(RESOURCECLAIM, "c", "default", {"status": status}, "merge", "status")
            settings = ControllerSettings(loss_by_silence=True, node_grace=0.2)
            controllers = replica(
                made, "controllers", lambda c: Controllers(c, clock, only={"node-loss"}, settings=settings), rendered
            )
            async with at_work(controllers.run()):
                await eventually(lambda: count(admin, DEVICETAINTRULE), lambda n: n == 1)
                await made.create(node("b", 1))
                await eventually(lambda: count(admin, DEVICETAINTRULE), lambda n: n == 0)
            assert made.refused == []

    asyncio.run(run())


def test_the_rights_of_a_tpu_driver_with_a_fabric_suffice(tmp_path: Path) -> None:
    """They are given only where a program is named; it links the host before the pod is bound."""
    assert "arbitrary-node" not in json.dumps(chart.objects(chart.template("drivers.tpu.enabled=true")))
    rendered = [
        NAMESPACE,
        *chart.objects(chart.template("drivers.tpu.enabled=true", "drivers.tpu.fabricProgram=/fabric")),
    ]

    async def run() -> None:
        async with asyncio.timeout(110), site(rendered) as made:
            admin, clock = made.admin, SystemClock()
            await made.create(node("a", 0))
            await made.create(TEMPLATE)
            driver = TpuDriver(made.part("driver-tpu"), clock, FakeFabric(tmp_path))
            parts = (driver.run(), Scheduler(admin, clock).run(), Controllers(admin, clock, only={"claims"}).run())
            async with at_work(*parts):
                await made.create(pod("job", "tpu"))

                async def bound() -> bool:
                    return condition_is(await admin.get(POD, "job", "default"), "PodScheduled")

                await eventually(bound, bool)
            assert [wiring.hosts for wiring in FakeFabric(tmp_path).connected().values()] == [["a"]]
            assert made.refused == []

    asyncio.run(run())


async def count(client: Any, kind: Any) -> int:
    return len((await client.list(kind)).items)


def test_install_upgrade_and_uninstall(tmp_path: Path) -> None:
    """Against the embedded plane, whose hollow nodes run the pods; the kind survives, as helm leaves it."""
    with Up(tmp_path / "data", "--fleet", "tpu-16", "--sync", "normal", *FAST) as up:
        helm, kubectl = Helm(up.kubeconfig, tmp_path / "home"), Kubectl(up.kubeconfig, tmp_path / "home")
        words = ("drakkar", str(chart.CHART), "--namespace", chart.NAMESPACE, "--wait", "--timeout", "150s")
        notes = helm.run("install", *words, "--create-namespace", "--set", "drivers.tpu.enabled=true")
        # Gate mode is the default, and nothing happens to a pod before somebody knows of the gate.
        assert "spec.schedulingGates: [{name: drakkar.dev/allocation}]" in notes
        ask = ("-n", chart.NAMESPACE, "get", "deployments", "-o", "jsonpath={.items[*].status.readyReplicas}")
        assert kubectl.run(*ask) == "2 2 2"
        helm.run("upgrade", *words, "--set", "drivers.tpu.enabled=true", "--set", "image.tag=next")
        images = kubectl.run(
            "-n", chart.NAMESPACE, "get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}"
        )
        assert "drakkar:next" in images
        helm.run("uninstall", "drakkar", "--namespace", chart.NAMESPACE, "--wait", "--timeout", "150s")
        assert "computedomains" in kubectl.run("get", "crd", "-o", "name")
        gone = "clusterroles,clusterrolebindings,validatingadmissionpolicies,deviceclasses"
        assert "drakkar" not in kubectl.run("get", gone, "-o", "name")
        kinds = "deployments,daemonsets,services,endpointslices,networkpolicies,pdb,sa,roles,rolebindings"
        left = kubectl.run("-n", chart.NAMESPACE, "get", kinds, "-o", "name")
        assert "drakkar" not in left


def test_plain_manifests_with_the_accounts_tokens(tmp_path: Path) -> None:
    """Two scheduler processes over TLS; the one that works is stopped, the other goes on."""
    flags = ("--fleet", "tpu-16", "--sync", "normal", "--no-scheduler", *FAST)
    with Up(tmp_path / "data", *flags) as up:
        kubectl = Kubectl(up.kubeconfig, tmp_path / "home")
        for name in ("namespace", "scheduler", "controllers"):
            kubectl.run("apply", "--server-side", "-f", str(chart.MANIFESTS / f"{name}.yaml"))
        account = f"system:serviceaccount:{chart.NAMESPACE}:drakkar-scheduler"
        for question, answer in (
            ("create pods --subresource=binding", "yes"),
            ("get secrets", "no"),
            ("create pods", "no"),
            ("patch nodes", "no"),
        ):
            said = kubectl.ask("auth", "can-i", *question.split(), "--as", account, "-n", "default").stdout.strip()
            assert said == answer, question
        mine = tmp_path / "kubeconfig"
        config = yaml.safe_load(up.kubeconfig.read_text())
        token = kubectl.run("-n", chart.NAMESPACE, "create", "token", "drakkar-scheduler").strip()
        for user in config["users"]:
            user["user"] = {"token": token}
        mine.write_text(yaml.safe_dump(config))

        def holder() -> str:
            lease = ("lease", "drakkar-scheduler-drakkar", "-o", "jsonpath={.spec.holderIdentity}")
            return kubectl.ask("-n", chart.NAMESPACE, "get", *lease).stdout

        def bound(name: str) -> str:
            return kubectl.run("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")

        kubectl.run("apply", "-f", str(chart.ROOT / "examples" / "tpu" / "deviceclass.yaml"))
        kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(TEMPLATE))
        with scheduler(mine) as first:
            until(holder)
            with scheduler(mine):
                kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(pod("one", "tpu")))
                until(lambda: bound("one"))
                before = holder()
                first.terminate()
                assert first.wait(60) == 0
                until(lambda: holder() not in ("", before))
                kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(pod("two", "tpu")))
                until(lambda: bound("two"))


@contextmanager
def scheduler(kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the flags of ``deploy/``, but for the port."""
    (workload,) = workloads("scheduler")
    flags = [*container(workload)["args"], "--metrics-bind-address=127.0.0.1:0"]
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    process = subprocess.Popen([sys.executable, "-m", "drakkar.cli", *flags], env=env)
    guarded(process.pid)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def test_the_fence_refuses_claims_that_tolerate_everything() -> None:
    everything_on = chart.objects(chart.template(*chart.all_on()))
    rendered = [obj for obj in everything_on if "drakkar-fence" in obj["metadata"]["name"]]
    assert [obj["kind"] for obj in rendered] == [
        "DeviceTaintRule",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    (rule, *_) = rendered
    ours = msgspec.to_builtins(fence_rule("gpu.example.com"))
    assert (rule["metadata"]["name"], rule["spec"]) == (ours["metadata"]["name"], ours["spec"])

    def claims(number: int, device_class: str, *tolerations: Object, **more: Any) -> Iterator[Object]:
        """The same wish as a claim, as a template, and as the second choice of a claim."""
        wish = {"deviceClassName": device_class, "tolerations": [*tolerations], **more}
        first = {"name": "a", "deviceClassName": "other"}
        sub = {key: value for key, value in wish.items() if key != "adminAccess"}
        exactly = {"devices": {"requests": [{"name": "r", "exactly": wish}]}}
        choice = {"devices": {"requests": [{"name": "r", "firstAvailable": [first, {"name": "b", **sub}]}]}}
        for kind, spec in (("Claim", exactly), ("ClaimTemplate", {"spec": exactly}), ("Claim", choice)):
            name = {"name": f"{number}-{kind.lower()}-{len(str(spec))}", "namespace": "team"}
            yield {"apiVersion": "resource.k8s.io/v1", "kind": f"Resource{kind}", "metadata": name, "spec": spec}

    everything, named = {"operator": "Exists"}, {"operator": "Exists", "key": "example.com/broken"}
    managed = {"operator": "Exists", "key": "drakkar.dev/managed"}
    refused = [
        *claims(1, "gpu", everything),
        *claims(2, "mig", named, managed),
        *claims(3, "gpu", {**everything, "effect": "NoSchedule"}),
    ]
    taken = [
        *claims(4, "gpu", named),
        *claims(5, "gpu"),
        *claims(6, "other", everything),
        *claims(7, "gpu", {**everything, "effect": "NoExecute"}),
        next(claims(8, "gpu", everything, adminAccess=True)),
    ]
    labels = {"resource.kubernetes.io/admin-access": "true"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}}

    async def run() -> None:
        async with asyncio.timeout(110), site([namespace, *rendered]) as made:
            for obj in taken:
                await made.create(obj)
            for obj in refused:
                with pytest.raises(AssertionError, match="request r tolerates every taint"):
                    await made.create(obj)

    asyncio.run(run())


def test_the_guard_needs_one_right_more_and_a_way_in() -> None:
    settings = ("scheduler.mode=own", "scheduler.guard.enabled=true", "scheduler.webhook.caBundle=YQ==")
    more = {(obj["kind"], obj["metadata"]["name"]) for obj in chart.objects(chart.template(*settings))}
    less = {(obj["kind"], obj["metadata"]["name"]) for obj in chart.objects(chart.template("scheduler.mode=own"))}
    assert {kind for kind, _ in more - less} == {"Role", "RoleBinding", "Service", "ValidatingWebhookConfiguration"}
    rendered = chart.objects(chart.template(*settings))
    (role,) = [obj for obj in rendered if obj["kind"] == "Role" and obj["metadata"]["name"] == "drakkar-guard"]
    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "resourceNames": ["drakkar-guard"],
            "verbs": ["create", "patch"],
        },
        {"apiGroups": [""], "resources": ["services"], "resourceNames": ["drakkar-guard"], "verbs": ["get"]},
    ]
    (policy,) = [
        obj for obj in rendered if obj["kind"] == "NetworkPolicy" and obj["metadata"]["name"] == "drakkar-scheduler"
    ]
    assert {"ports": [{"protocol": "TCP", "port": 9443}]} in policy["spec"]["ingress"]
    # What the how-to gives is what the chart gives.
    (hook,) = [obj for obj in rendered if obj["kind"] == "ValidatingWebhookConfiguration"]
    mine, told = hook["webhooks"][0], documented("ValidatingWebhookConfiguration")["webhooks"][0]
    assert [c["name"] for c in told["matchConditions"]] == ["allocates", "drivers"]
    assert mine["matchConditions"] == told["matchConditions"][:1]
    for field in ("failurePolicy", "timeoutSeconds", "sideEffects", "rules"):
        assert mine[field] == told[field], field
