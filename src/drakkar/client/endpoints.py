"""A Service that leads to one process: the EndpointSlice of a Service without selector.

For what only a leader can answer. A selector would lead to all replicas, and readiness cannot tell them apart: an
update of the Deployment would wait for ever for replicas that stand by.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import Kind
from drakkar.api.objects import owner_reference
from drakkar.client.client import Client
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

ENDPOINTSLICE = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", True)
SERVICE = Kind("", "v1", "Service", "services", True)
#: Field manager of the slice.
MANAGER = "drakkar"
#: Seconds between two looks whether the slice still leads here, and until the next attempt after a failure.
LOOK, PAUSE = 30.0, 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Service is to lead: its namespace and name, the IP address and port of this process."""

    namespace: str
    name: str
    ip: str
    port: int


def address_for(service: str, ip: str, port: int) -> Address:
    """Of ``NAMESPACE/NAME`` and what this process listens at; raises UsageError."""
    namespace, slash, name = service.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise UsageError(f"service {service!r}: use NAMESPACE/NAME")
    try:
        return Address(namespace, name, str(ipaddress.ip_address(ip)), port)
    except ValueError as error:
        raise UsageError(
            f"{ip!r} is no IP address to lead the service to: give --pod-ip, or set POD_IP from status.podIP"
        ) from error


def slice_of(address: Address, service: Any) -> dict[str, Any]:
    """The EndpointSlice, which has the Service's name and goes with it."""
    version = ipaddress.ip_address(address.ip).version
    return {
        "apiVersion": ENDPOINTSLICE.api_version,
        "kind": ENDPOINTSLICE.kind,
        "metadata": {
            "name": address.name,
            "namespace": address.namespace,
            "ownerReferences": [owner_reference(SERVICE, service, controller=False, block=False)],
            "labels": {
                "kubernetes.io/service-name": address.name,
                "endpointslice.kubernetes.io/managed-by": "drakkar.dev",
            },
        },
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [address.ip], "conditions": {"ready": True}}],
        "ports": [{"name": "webhook", "port": address.port, "protocol": "TCP"}],
    }


async def lead_here(
    client: Client, clock: Clock, address: Address, ready: asyncio.Event, sure: Callable[[], bool] = lambda: True
) -> None:
    """Once ``ready``, has the Service lead to this process, and sees to it that it stays so, until cancelled.

    What is left at the end is for the next leader to overwrite. Nothing is written unless ``sure``: a process that has
    been stopped for a while may have a successor already, from whom it would take the Service.
    """
    await ready.wait()
    told = ""
    while True:
        try:
            service = await client.get(SERVICE, address.name, address.namespace)
            if not sure():
                await clock.sleep(PAUSE)
                continue
            await client.patch(
                *(ENDPOINTSLICE, address.name, address.namespace, slice_of(address, service), "apply", None, MANAGER),
                force=True,
            )
            told = ""
            await clock.sleep(LOOK)
        except (ApiError, Unreachable) as error:
            if str(error) != told:
                told = str(error)
                logger.warning(
                    "service %s/%s does not lead here, so nobody is asked about allocations: %s",
                    *(address.namespace, address.name, error),
                )
            await clock.sleep(PAUSE)
