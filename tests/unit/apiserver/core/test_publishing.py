"""The Service ``kubernetes`` and the endpoints of its servers."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from typing import Any

from drakkar.apiserver import ApiServer
from drakkar.apiserver.publishing import ENDPOINT, LIFETIME, PERIOD, Publisher, advertised
from drakkar.store import MemoryBackend
from drakkar.store.sqlite import SqliteBackend
from tests.unit.apiserver.core.serving import Api, StoppedClock
from tests.unit.apiserver.core.test_writes import play

SERVICE = "/api/v1/namespaces/default/services/kubernetes"
ENDPOINTS = "/api/v1/namespaces/default/endpoints/kubernetes"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


async def places(api: Api) -> dict[str, list[str]]:
    """Name of each slice → address and port of its endpoints; the Endpoints have to say the same."""
    found: dict[str, list[str]] = {}
    for item in (await api.get(SLICES))["items"]:
        [port] = item["ports"]
        assert port == {"name": "https", "port": port["port"], "protocol": "TCP"}
        assert item["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
        ready = [one["addresses"][0] for one in item["endpoints"] if one["conditions"] == {"ready": True}]
        found[item["metadata"]["name"]] = [f"{address}:{port['port']}" for address in ready]
    subsets = (await api.get(ENDPOINTS))["subsets"]
    old = [f"{one['ip']}:{subset['ports'][0]['port']}" for subset in subsets for one in subset["addresses"]]
    assert sorted(old) == sorted(place for slice_ in found.values() for place in slice_)
    return found


async def drained() -> None:
    """Until everything is done that the passing of time has brought about; nothing here waits for anything else."""
    for _ in range(300):
        await asyncio.sleep(0)


def test_a_server_publishes_itself_and_mends_what_is_broken() -> None:
    async def scene(api: Api) -> None:
        await api.server.publish("192.0.2.7", 6443)
        service = await api.get(SERVICE)
        assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
        assert service["spec"] == {
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        }
        assert await places(api) == {"kubernetes": ["192.0.2.7:6443"]}
        settled = api.server.state.revision
        await api.clock.pass_(3 * PERIOD)
        assert api.server.state.revision == settled  # nothing to do, nothing written
        await api.delete(SERVICE)
        await api.delete(ENDPOINTS)
        await api.patch(f"{SLICES}/kubernetes", {"endpoints": []})
        await api.clock.pass_(PERIOD)
        await drained()
        assert (await api.get(SERVICE))["spec"]["clusterIP"] == "10.96.0.1"
        assert await places(api) == {"kubernetes": ["192.0.2.7:6443"]}
        assert (await api.get(LEASES))["items"] == []  # nobody else could be on this store

    play(scene)


def test_a_restart_at_another_place(tmp_path: Any) -> None:
    async def run() -> None:
        uids: set[str] = set()
        for host, port in (("192.0.2.7", 6443), ("192.0.2.8", 7443), ("2001:db8::7", 7443)):
            api = await Api.start(SqliteBackend(tmp_path / "db"))
            await api.server.publish(host, port)
            service = await api.get(SERVICE)
            assert service["spec"]["ports"][0]["targetPort"] == port
            uids.add(service["metadata"]["uid"])
            assert await places(api) == {"kubernetes": [f"{host}:{port}"]}
            await api.close()
        assert len(uids) == 1

    asyncio.run(run())


def test_somebody_has_the_address() -> None:
    async def scene(api: Api) -> None:
        body = {"metadata": {"name": "quick"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}
        await api.post("/api/v1/namespaces/default/services", body)
        await api.server.publish("192.0.2.7", 6443)
        address = (await api.get(SERVICE))["spec"]["clusterIP"]
        assert ipaddress.ip_address(address) in ipaddress.ip_network("10.96.0.0/12")
        assert address != "10.96.0.1"

    play(scene)


def test_several_servers_are_all_there_until_they_go() -> None:
    async def run() -> None:
        clock = StoppedClock()
        server = ApiServer(MemoryBackend(), clock=clock, rng=random.Random(7))
        await server.start()
        api = Api(server, clock, server.token("admin", "system:masters"))
        wanted = [("192.0.2.7", 6443), ("192.0.2.8", 6443), ("192.0.2.7", 7443)]
        servers = [Publisher(server.registry, clock, place, shared=True) for place in wanted]
        for one in servers:
            await one.start()
        everybody = {"kubernetes": ["192.0.2.7:6443", "192.0.2.8:6443"], "kubernetes-7443": ["192.0.2.7:7443"]}
        assert await places(api) == everybody
        leases = (await api.get(LEASES))["items"]
        assert sorted(lease["metadata"]["annotations"][ENDPOINT] for lease in leases) == sorted(
            f"{address} {port}" for address, port in wanted
        )
        for _ in range(2 * int(LIFETIME / PERIOD)):
            await clock.pass_(PERIOD)
            await drained()
        assert await places(api) == everybody
        # One stops in order, one is killed.
        await servers[0].close()
        assert await places(api) == {"kubernetes": ["192.0.2.8:6443"], "kubernetes-7443": ["192.0.2.7:7443"]}
        killed = servers[1]._task
        assert killed is not None
        killed.cancel()
        for _ in range(2 + int(LIFETIME / PERIOD)):
            await clock.pass_(PERIOD)
            await drained()
        assert await places(api) == {"kubernetes": ["192.0.2.7:7443"]}
        assert len((await api.get(LEASES))["items"]) == 1
        await servers[2].close()
        await server.close()

    asyncio.run(run())


def test_the_address_that_others_are_told() -> None:
    assert advertised("192.0.2.7") == "192.0.2.7"
    assert advertised("2001:db8::7") == "2001:db8::7"
    assert ipaddress.ip_address(advertised("localhost")).is_loopback
    assert not ipaddress.ip_address(advertised("0.0.0.0")).is_unspecified
    assert not ipaddress.ip_address(advertised("::")).is_unspecified
