"""Quotas and limit ranges: what admission lets through, and what it adds."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.apiserver.core.serving import Api, Object, Refused
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, PODS, claim, play, pod, refused

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
LIMITS = "/api/v1/namespaces/default/limitranges"
CLASS = "gpu.example.com"
DEVICES = f"{CLASS}.deviceclass.resource.k8s.io/devices"


def quota(name: str, **hard: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"hard": hard}}


def sized(name: str, **resources: Any) -> Object:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = resources
    return made


async def outcome(work: Any) -> int:
    try:
        await work
    except Refused as error:
        return error.code
    return 201


def test_object_counts_hold_for_creates_that_come_together() -> None:
    async def scene(api: Api) -> None:
        await api.post(QUOTAS, quota("q", **{"count/configmaps": "3"}))
        made = await asyncio.gather(
            *(outcome(api.post(CONFIGMAPS, {"metadata": {"name": f"c{index}"}})) for index in range(10))
        )
        assert sorted(made) == [201] * 3 + [403] * 7
        error = await refused(api.post(CONFIGMAPS, {"metadata": {"name": "more"}}))
        assert str(error) == (
            'configmaps "more" is forbidden: exceeded quota: q, requested: count/configmaps=1, '
            "used: count/configmaps=3, limited: count/configmaps=3"
        )
        kept = await api.get(CONFIGMAPS)
        await api.delete(f"{CONFIGMAPS}/{kept['items'][0]['metadata']['name']}")
        await api.post(CONFIGMAPS, {"metadata": {"name": "again"}})
        assert await outcome(api.post(CONFIGMAPS, {"metadata": {"name": "more"}})) == 403

    play(scene)


def test_a_rehearsal_is_judged_and_not_charged() -> None:
    async def scene(api: Api) -> None:
        await api.post(QUOTAS, quota("q", configmaps="1"))
        for _ in range(3):
            await api.post(f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "c"}})
        await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
        assert await outcome(api.post(f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "d"}})) == 403

    play(scene)


def test_devices_of_a_class_are_charged_to_claims() -> None:
    async def scene(api: Api) -> None:
        await api.post(QUOTAS, quota("q", **{DEVICES: "3"}))
        two = claim("two")
        two["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
        await api.post(CLAIMS, two)
        two["metadata"]["name"] = "again"
        error = await refused(api.post(CLAIMS, two))
        assert (error.code, f"requested: {DEVICES}=2, used: {DEVICES}=2, limited: {DEVICES}=3" in str(error)) == (
            403,
            True,
        )
        all_ = claim("all")
        all_["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = "All"
        assert "requested: " + DEVICES + "=32" in str(await refused(api.post(CLAIMS, all_)))
        await api.post(CLAIMS, claim("one"))
        # The old version is charged as the new one is.
        flat = {
            "metadata": {"name": "old"},
            "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": CLASS}]}},
        }
        path = CLAIMS.replace("/v1/", "/v1beta1/")
        assert await outcome(api.post(path, flat)) == 403

    play(scene)


def test_extended_resources_of_pods_and_claims_share_a_quota() -> None:
    async def scene(api: Api) -> None:
        await api.post(
            "/apis/resource.k8s.io/v1/deviceclasses",
            {"metadata": {"name": CLASS}, "spec": {"extendedResourceName": "example.com/gpu"}},
        )
        await api.post(QUOTAS, quota("q", **{"requests.example.com/gpu": "2"}))
        await api.post(PODS, sized("p", limits={"example.com/gpu": "1"}))
        await api.post(CLAIMS, claim("c"))
        assert await outcome(api.post(CLAIMS, claim("d"))) == 403
        assert await outcome(api.post(PODS, sized("q", limits={"example.com/gpu": "1"}))) == 403

    play(scene)


def test_a_quota_of_requests_wants_every_container_to_say_what_it_needs() -> None:
    async def scene(api: Api) -> None:
        await api.post(QUOTAS, quota("q", **{"requests.cpu": "1", "limits.memory": "1Gi"}))
        error = await refused(api.post(PODS, pod("p")))
        assert str(error).endswith("failed quota: q: must specify limits.memory for: c; requests.cpu for: c")
        ask = {"requests": {"cpu": "600m"}, "limits": {"memory": "256Mi"}}
        await api.post(PODS, sized("a", **ask))
        assert await outcome(api.post(PODS, sized("b", **ask))) == 403
        # What has ended is charged no more.
        await api.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
        await api.post(PODS, sized("b", **ask))

    play(scene)


def test_a_pod_past_its_grace_is_charged_no_more() -> None:
    async def scene(api: Api) -> None:
        await api.post(QUOTAS, quota("q", pods="1"))
        await api.post(PODS, pod("a"))
        await api.post(f"{PODS}/a/binding", {"target": {"kind": "Node", "name": "n"}})
        await api.delete(f"{PODS}/a")
        assert await outcome(api.post(PODS, pod("b"))) == 403
        await api.clock.pass_(61)
        await api.post(PODS, pod("b"))
        await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
        assert await outcome(api.post(PODS, pod("c"))) == 403

    play(scene)


def test_scopes_and_growth() -> None:
    async def scene(api: Api) -> None:
        best = quota("best", pods="1")
        best["spec"]["scopes"] = ["BestEffort"]
        await api.post(QUOTAS, best)
        await api.post(QUOTAS, quota("space", **{"requests.storage": "3Gi"}))
        await api.post(PODS, pod("a"))
        assert await outcome(api.post(PODS, pod("b"))) == 403
        await api.post(PODS, sized("c", requests={"cpu": "1"}))
        volumes = "/api/v1/namespaces/default/persistentvolumeclaims"
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
        await api.post(volumes, {"metadata": {"name": "v"}, "spec": spec})
        grown = {"spec": {"resources": {"requests": {"storage": "4Gi"}}}}
        assert await outcome(api.patch(f"{volumes}/v", grown)) == 403
        await api.patch(f"{volumes}/v", {"metadata": {"labels": {"x": "y"}}})

    play(scene)


def test_limit_ranges_fill_in_and_refuse() -> None:
    async def scene(api: Api) -> None:
        entry = {
            "type": "Container",
            "default": {"cpu": "500m"},
            "defaultRequest": {"cpu": "100m"},
            "max": {"cpu": "1"},
            "min": {"cpu": "50m"},
        }
        await api.post(LIMITS, {"metadata": {"name": "l"}, "spec": {"limits": [entry]}})
        made = await api.post(PODS, pod("p"))
        assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}
        assert made["status"]["qosClass"] == "Burstable"
        assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        )
        error = await refused(api.post(PODS, sized("q", limits={"cpu": "2"})))
        assert str(error) == 'pods "q" is forbidden: maximum cpu usage per Container is 1, but limit is 2'
        error = await refused(api.post(PODS, sized("q", requests={"cpu": "10m"})))
        assert str(error).endswith("minimum cpu usage per Container is 50m, but request is 10m")
        # What already runs is left alone.
        await api.patch(f"{PODS}/p", {"metadata": {"labels": {"x": "y"}}})

    play(scene)


SERVICES = "/api/v1/namespaces/default/services"


def service(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, **spec}}


def test_services_get_addresses_and_ports_of_their_own() -> None:
    async def scene(api: Api) -> None:
        made = await asyncio.gather(*(api.post(SERVICES, service(f"s{index}")) for index in range(5)))
        addresses = {one["spec"]["clusterIP"] for one in made}
        assert len(addresses) == 5
        spec = made[0]["spec"]
        assert all(address.startswith("10.") for address in addresses)
        assert spec == {
            "clusterIP": spec["clusterIP"],
            "clusterIPs": [spec["clusterIP"]],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            "selector": {"a": "b"},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        }
        await api.post(SERVICES, service("dns", clusterIP="10.96.0.10"))
        again = await refused(api.post(SERVICES, service("dns2", clusterIP="10.96.0.10")))
        assert "provided IP is already allocated" in str(again)
        assert "not in the valid range" in str(await refused(api.post(SERVICES, service("x", clusterIP="192.168.0.1"))))
        headless = await api.post(SERVICES, service("headless", clusterIP="None"))
        assert headless["spec"]["clusterIPs"] == ["None"]
        # An update that says nothing about addresses keeps them; a changed one is refused.
        kept = await api.put(f"{SERVICES}/s0", service("s0", ports=[{"port": 81}]))
        assert kept["spec"]["clusterIP"] == spec["clusterIP"]
        moved = await refused(api.patch(f"{SERVICES}/s0", {"spec": {"clusterIP": "10.96.0.99", "clusterIPs": None}}))
        assert "may not change once set" in str(moved)

    play(scene)


def test_node_ports() -> None:
    async def scene(api: Api) -> None:
        made = await api.post(SERVICES, service("n", type="NodePort"))
        port = made["spec"]["ports"][0]["nodePort"]
        assert 30000 <= port <= 32767
        assert made["spec"]["externalTrafficPolicy"] == "Cluster"
        taken = service("m", type="NodePort", ports=[{"port": 80, "nodePort": port}])
        assert "provided port is already allocated" in str(await refused(api.post(SERVICES, taken)))
        kept = await api.patch(f"{SERVICES}/n", {"spec": {"ports": [{"port": 80, "targetPort": 8080}]}})
        assert kept["spec"]["ports"][0]["nodePort"] == port
        away = service("away", type="ExternalName", externalName="example.com", ports=None)
        assert "clusterIP" not in (await api.post(SERVICES, away))["spec"]
        back = await api.patch(f"{SERVICES}/n", {"spec": {"type": "ClusterIP"}})
        assert "nodePort" not in back["spec"]["ports"][0]

    play(scene)


def test_the_token_of_an_account_is_mounted_unless_somebody_does_not_want_it() -> None:
    async def scene(api: Api) -> None:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        await api.post(accounts, {"metadata": {"name": "robot"}, "imagePullSecrets": [{"name": "pull"}]})
        await api.post(accounts, {"metadata": {"name": "shy"}, "automountServiceAccountToken": False})
        made = (await api.post(PODS, pod("p", serviceAccountName="robot")))["spec"]
        (volume,) = made["volumes"]
        assert volume["name"].startswith("kube-api-access-")
        assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
            "serviceAccountToken",
            "configMap",
            "downwardAPI",
        ]
        path = "/var/run/secrets/kubernetes.io/serviceaccount"
        mount = {"name": volume["name"], "readOnly": True, "mountPath": path}
        assert made["containers"][0]["volumeMounts"] == [mount]
        assert made["imagePullSecrets"] == [{"name": "pull"}]
        own = pod("own", serviceAccountName="robot", volumes=[{"name": "v", "emptyDir": {}}])
        own["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]
        assert [entry["name"] for entry in (await api.post(PODS, own))["spec"]["volumes"]] == ["v"]
        for silent in (
            pod("a", serviceAccountName="shy"),
            pod("b", serviceAccountName="robot", automountServiceAccountToken=False),
            pod("c", serviceAccountName="not-there"),
        ):
            assert "volumes" not in (await api.post(PODS, silent))["spec"]

    play(scene)
