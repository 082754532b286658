"""The chart with helm 4: it lints, says what is wrong with values, gives what ``deploy/`` has, and installs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.kinds import POD, RESOURCECLAIM, RESOURCEPOOLSTATUSREQUEST
from drakkar.api.meta import Object
from drakkar.client import SystemClock
from drakkar.controllers import Controllers, ControllerSettings
from tests.e2e.test_helm import Helm
from tests.support import chart
from tests.support.eventually import eventually
from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up
from tests.unit.deploy.test_manifests import TEMPLATE, at_work, node, pod, replica, site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

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
        ("scheduler.mode=gate", "/scheduler/mode"),
        ("scheduler.schedulerName=default-scheduler", "/scheduler/schedulerName"),
        ("controllers.only={garbage}", "/controllers/only/0"),
        ("controllers.only={}", "/controllers/only"),
        ("drivers.gpu.mig=some", "/drivers/gpu/mig"),
        ("kubeletRoot=var/lib", "/kubeletRoot"),
        ("image.digest=sha256:1", "/image/digest"),
        ("drivers.gqu.enabled=true", "gqu"),
    ],
)
def test_wrong_values_are_named(setting: str, said: str) -> None:
    done = chart.helm("template", "drakkar", str(chart.CHART), "--set", setting)
    assert done.returncode != 0
    assert said in done.stderr


def test_everything_on_is_taken_and_the_rights_of_all_controllers_suffice() -> None:
    """Claims made and freed, a question about pools answered, pods of a lost node let go."""
    rendered = with_kinds_first(chart.objects(chart.template(*chart.all_on(), crds=True)))

    async def run() -> None:
        async with asyncio.timeout(60), site(rendered) as made:
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
                stray = pod("stray", "tpu")
                stray["spec"] = {"nodeName": "gone", "containers": [{"name": "c", "image": "i"}]}
                await made.create(stray)
                await eventually(lambda: count(admin, POD), lambda n: n == 0)
            assert made.refused == []

    asyncio.run(run())


async def count(client: Any, kind: Any) -> int:
    return len((await client.list(kind)).items)


def test_install_upgrade_and_uninstall(tmp_path: Path) -> None:
    """Against the embedded plane, whose hollow nodes run the pods; the kind survives, as helm leaves it."""
    with Up(tmp_path / "data", "--fleet", "tpu-16", "--sync", "normal", *FAST) as up:
        helm, kubectl = Helm(up.kubeconfig, tmp_path / "home"), Kubectl(up.kubeconfig, tmp_path / "home")
        words = ("drakkar", str(chart.CHART), "--namespace", chart.NAMESPACE, "--wait", "--timeout", "90s")
        helm.run("install", *words, "--create-namespace", "--set", "drivers.tpu.enabled=true")
        ask = ("-n", chart.NAMESPACE, "get", "deployments", "-o", "jsonpath={.items[*].status.readyReplicas}")
        assert kubectl.run(*ask) == "2 2 2"
        helm.run("upgrade", *words, "--set", "drivers.tpu.enabled=true", "--set", "image.tag=next")
        images = kubectl.run(
            "-n", chart.NAMESPACE, "get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}"
        )
        assert "drakkar:next" in images
        helm.run("uninstall", "drakkar", "--namespace", chart.NAMESPACE, "--wait", "--timeout", "60s")
        assert "computedomains" in kubectl.run("get", "crd", "-o", "name")
        assert "drakkar" not in kubectl.run("get", "clusterroles,validatingadmissionpolicies", "-o", "name")
