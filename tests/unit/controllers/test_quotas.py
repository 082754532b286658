"""ResourceQuotas: what is charged for what, scopes, and the status that follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from drakkar.api.core import quota as rules
from drakkar.api.core.quota import CLAIMS, PODS, SERVICES, VOLUMES, ExtendedNames
from drakkar.api.kinds import CONFIGMAP, DEVICECLASS, POD, RESOURCECLAIM, RESOURCEQUOTA
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.client.clock import timestamp
from drakkar.client.writes import Delete
from drakkar.controllers.quotas import Quotas
from tests.unit.controllers.objects import claim, pod
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import START, World


def spelled(usage: dict[str, Quantity]) -> dict[str, str]:
    return {name: amount.canonical() for name, amount in usage.items()}


def device_class(name: str, explicit: str = "", created: str = "2026-01-01T00:00:00Z") -> Any:
    spec = {"extendedResourceName": explicit} if explicit else {}
    body = {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}
    return msgspec.convert(body, v1.DeviceClass)


def sized(requests: Any = None, limits: Any = None, **more: Any) -> dict[str, Any]:
    made = pod("p", **more)
    made["spec"]["containers"][0]["resources"] = {"requests": requests or {}, "limits": limits or {}}
    return made


def claims(*requests: Any, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c", **metadata}, "spec": {"devices": {"requests": list(requests)}}}


def exactly(name: str, **more: Any) -> dict[str, Any]:
    return {"name": "r", "exactly": {"deviceClassName": name, **more}}


def quota(hard: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard, **spec}}


def test_pods() -> None:
    made = sized({"cpu": "500m", "memory": "1Gi", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"}, {"cpu": "1"})
    made["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}]
    assert spelled(rules.usage(PODS, made)) == {
        "count/pods": "1",
        "pods": "1",
        "cpu": "2",
        "requests.cpu": "2",
        "memory": "1Gi",
        "requests.memory": "1Gi",
        "requests.example.com/gpu": "2",
        "hugepages-2Mi": "4Mi",
        "requests.hugepages-2Mi": "4Mi",
        "limits.cpu": "3",
    }
    assert spelled(rules.usage(PODS, sized({"cpu": "1"}, phase="Failed"))) == {"count/pods": "1"}


def test_a_pod_that_should_be_gone_is_not_charged() -> None:
    made = sized({"cpu": "1"})
    made["metadata"] |= {"deletionTimestamp": timestamp(START), "deletionGracePeriodSeconds": 30}
    assert "cpu" in rules.usage(PODS, made, now=START + 29)
    assert "cpu" not in rules.usage(PODS, made, now=START + 31)


def test_devices_of_claims() -> None:
    first = {
        "name": "f",
        "firstAvailable": [
            {"deviceClassName": "a", "count": 4},
            {"deviceClassName": "b", "allocationMode": "All"},
            {"deviceClassName": "a", "count": 2},
        ],
    }
    charged = spelled(rules.usage(CLAIMS, claims(exactly("a", count=3), exactly("c", adminAccess=True), first)))
    assert charged["count/resourceclaims.resource.k8s.io"] == "1"
    suffix = ".deviceclass.resource.k8s.io/devices"
    assert {name: amount for name, amount in charged.items() if name.endswith(suffix)} == {
        f"a{suffix}": "7",
        f"b{suffix}": "32",
        f"c{suffix}": "1",
    }


def test_extended_resources_are_charged_once() -> None:
    extended = ExtendedNames.of([device_class("gpu", "example.com/gpu")])
    explicit, implicit = "requests.example.com/gpu", "requests.deviceclass.resource.kubernetes.io/gpu"

    def charged(source: Any, obj: Any) -> tuple[str | None, str | None]:
        found = spelled(rules.usage(source, obj, extended=extended))
        return found.get(explicit), found.get(implicit)

    assert charged(CLAIMS, claims(exactly("gpu", count=2))) == ("2", "2")
    special = claims(exactly("gpu", count=2), annotations={"resource.kubernetes.io/extended-resource-claim": "true"})
    assert charged(CLAIMS, special) == (None, None)
    plugin = sized({"example.com/gpu": "1"})
    assert charged(PODS, plugin) == ("1", None)
    mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
    by_claim = {**plugin, "status": {"extendedResourceClaimStatus": {"requestMappings": [mapping]}}}
    assert charged(PODS, by_claim) == ("1", "1")
    assert charged(PODS, sized({"deviceclass.resource.kubernetes.io/gpu": "1"})) == ("1", "1")


def test_the_later_class_has_the_name() -> None:
    later = "2026-02-01T00:00:00Z"
    found = ExtendedNames.of([device_class("b", "x/y"), device_class("c", "x/y", later), device_class("a", "x/y")])
    assert found.classes == {"x/y": "c"}
    found = ExtendedNames.of([device_class("b", "x/y"), device_class("a", "x/y")])
    assert found.classes == {"x/y": "a"}


def test_services_and_volumes() -> None:
    balancer = {"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}}
    assert spelled(rules.usage(SERVICES, balancer)) == {
        "count/services": "1",
        "services": "1",
        "services.loadbalancers": "1",
        "services.nodeports": "2",
    }
    volume = {"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "3Gi"}}}}
    assert spelled(rules.usage(VOLUMES, volume)) == {
        "count/persistentvolumeclaims": "1",
        "persistentvolumeclaims": "1",
        "requests.storage": "3Gi",
        "fast.storageclass.storage.k8s.io/requests.storage": "3Gi",
        "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
    }


@pytest.mark.parametrize(
    ("scope", "taken"),
    [
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                }
            },
            True,
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]
                }
            },
            False,
        ),
        ({}, True),
    ],
)
def test_scopes(scope: dict[str, Any], taken: bool) -> None:
    made = sized({"cpu": "1"}, priorityClassName="high")
    assert rules.applies(quota({"pods": "1"}, **scope), PODS, made) is taken
    assert rules.applies(quota({"pods": "1"}, **scope), CLAIMS, claims()) is (not scope)


def test_words_of_a_refusal() -> None:
    limit = quota({"pods": "2", "requests.cpu": "1", "limits.cpu": "9"})
    more = rules.usage(PODS, sized({"cpu": "600m"}))
    assert rules.exceeded(limit, {}, more) == ""
    used = {"pods": Quantity.from_int(2), "requests.cpu": Quantity.parse("500m")}
    assert rules.exceeded(limit, used, more) == (
        "exceeded quota: q, requested: pods=1,requests.cpu=600m, used: pods=2,requests.cpu=500m, "
        "limited: pods=2,requests.cpu=1"
    )


def test_status_follows() -> None:
    def build(world: World) -> list[Any]:
        reader: Any = world
        return [Quotas(reader, world.clock)]

    where = Site(build)
    hard = {
        "pods": "5",
        "requests.cpu": "4",
        "count/configmaps": "9",
        "count/resourceclaims.resource.k8s.io": "3",
        "c.deviceclass.resource.k8s.io/devices": "8",
        "requests.example.com/gpu": "3",
        "unheard-of": "1",
    }

    def used() -> Any:
        return where.read(RESOURCEQUOTA, "q")["status"]["used"]

    where.create(RESOURCEQUOTA, quota(hard))
    assert used() == {name: "0" for name in hard if name != "unheard-of"}
    assert where.read(RESOURCEQUOTA, "q")["status"]["hard"] == hard
    where.world.create(CONFIGMAP, {"metadata": {"name": "m", "namespace": "default"}})
    where.world.create(RESOURCECLAIM, claim())
    where.world.create(POD, sized({"cpu": "1500m"}))
    where.rest()
    assert used() == {
        "pods": "1",
        "requests.cpu": "1500m",
        "count/configmaps": "1",
        "count/resourceclaims.resource.k8s.io": "1",
        "c.deviceclass.resource.k8s.io/devices": "1",
        "requests.example.com/gpu": "0",
    }
    where.world.create(DEVICECLASS, {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    where.rest()
    assert used()["requests.example.com/gpu"] == "1"
    where.world.update(POD, "p", "default", lambda p: p.update(status={"phase": "Succeeded"}))
    where.rest()
    assert (used()["pods"], used()["requests.cpu"]) == ("0", "0")
    where.world.delete(Delete(RESOURCECLAIM, "default", "c"))
    where.rest()
    assert used()["count/resourceclaims.resource.k8s.io"] == "0"
    where.change(RESOURCEQUOTA, "q", hard={"pods": "1"})
    assert where.read(RESOURCEQUOTA, "q")["status"] == {"hard": {"pods": "1"}, "used": {"pods": "0"}}
