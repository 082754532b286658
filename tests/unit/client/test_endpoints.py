"""A Service that leads to one process."""

from __future__ import annotations

import asyncio

import pytest

from drakkar.api.errors import UsageError
from drakkar.client import SystemClock, endpoints
from drakkar.client.endpoints import ENDPOINTSLICE, SERVICE, address_for, lead_here
from tests.support.eventually import eventually, memory_plane


@pytest.mark.parametrize(
    ("service", "ip", "said"),
    [
        ("guard", "10.0.0.1", "use NAMESPACE/NAME"),
        ("a/b/c", "10.0.0.1", "use NAMESPACE/NAME"),
        ("a/b", "", "set POD_IP"),
        ("a/b", "localhost", "is no IP address"),
    ],
)
def test_what_is_no_address(service: str, ip: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        address_for(service, ip, 1)


def test_the_last_one_to_lead_has_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with memory_plane() as client:
            clock, ready = SystemClock(), asyncio.Event()

            async def leads_to() -> list[str]:
                found = (await client.list(ENDPOINTSLICE, "default")).items
                return [
                    f"{address}:{port['port']}"
                    for obj in found
                    if obj["metadata"]["labels"]["kubernetes.io/service-name"] == "guard"
                    for endpoint in obj["endpoints"]
                    for address in endpoint["addresses"]
                    for port in obj["ports"]
                ]

            first = asyncio.create_task(lead_here(client, clock, address_for("default/guard", "10.0.0.1", 7), ready))
            await asyncio.sleep(0.05)
            assert await leads_to() == []
            ready.set()
            spec = {"ports": [{"name": "webhook", "port": 443, "targetPort": 7}]}
            service = await client.create(SERVICE, {"metadata": {"name": "guard"}, "spec": spec}, "default")
            await eventually(leads_to, lambda found: found == ["10.0.0.1:7"])
            # It belongs to the Service, so that both are gone after an uninstall.
            (owner,) = (await client.get(ENDPOINTSLICE, "guard", "default"))["metadata"]["ownerReferences"]
            assert owner == {"apiVersion": "v1", "kind": "Service", "name": "guard", "uid": service["metadata"]["uid"]}
            first.cancel()
            second = asyncio.create_task(lead_here(client, clock, address_for("default/guard", "10.0.0.2", 8), ready))
            await eventually(leads_to, lambda found: found == ["10.0.0.2:8"])
            second.cancel()
            asked = 0
            monkeypatch.setattr(endpoints, "PAUSE", 0.001)

            def sure() -> bool:
                nonlocal asked
                asked += 1
                return asked > 3

            # Who may have a successor looks again before it takes the Service.
            address = address_for("default/guard", "10.0.0.3", 9)
            third = asyncio.create_task(lead_here(client, clock, address, ready, sure))
            await eventually(leads_to, lambda found: found == ["10.0.0.3:9"])
            assert asked == 4
            third.cancel()
            await asyncio.gather(first, second, third, return_exceptions=True)

    asyncio.run(story())
