"""The Service ``kubernetes``: where programs inside the cluster find its API servers.

A server publishes its address and port as endpoints of the Service ``default/kubernetes`` and sees to it, every ten
seconds, that they stay. Of several servers over one store each keeps a Lease in ``kube-system``; those whose Lease
is no longer renewed are taken out by the others. A slice has one set of ports, so servers at another port than the
lowest have a slice of their own.

Source: kube-apiserver, its controller of the Service ``kubernetes`` and its identity leases.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import logging
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.times import timestamp
from drakkar.apiserver.cache import Entry
from drakkar.apiserver.options import DeleteOptions, WriteOptions
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.views import View

_log = logging.getLogger(__name__)
Object = dict[str, Any]

#: Seconds between two looks, and after which a Lease that does not change stands for a server that is gone.
PERIOD, LIFETIME = 10.0, 40.0
#: How often it starts anew at once because of another server, and seconds for taking itself out at the end.
_ATTEMPTS, _GOODBYE = 5, 2.0
NAMESPACE, NAME = "default", "kubernetes"
#: The first address of the range for Services, which upstream keeps for this one.
CLUSTER_IP = "10.96.0.1"
_LEASES = "kube-system"
_IDENTITY = {"apiserver.kubernetes.io/identity": "kube-apiserver"}
#: Annotation of a server's Lease: where it listens.
ENDPOINT = "drakkar.dev/endpoint"

Place = tuple[str, int]


def advertised(host: str) -> str:
    """The IP address under which a server that listens on ``host`` is found.

    For all addresses of the machine it is the one of its default route, else the loopback address.
    """
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if not address.is_unspecified:
            return str(address)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            # Nothing is sent: the address is one that is kept for documentation.
            probe.connect(("192.0.2.1" if address.version == 4 else "2001:db8::1", 9))
            return str(probe.getsockname()[0])
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


class Publisher:
    """Publishes one server; ``shared`` where others may work on the same store."""

    def __init__(self, registry: Registry, clock: Clock, place: Place, *, shared: bool):
        self._registry = registry
        self._clock = clock
        self._place = place
        self._shared = shared
        address, port = place
        digest = hashlib.sha256(f"{address} {port}".encode()).digest()
        self._lease = "apiserver-" + base64.b32encode(digest).decode().lower()[:26]
        self._holder = f"{self._lease}_{uuid.UUID(int=registry.rng.getrandbits(128), version=4)}"
        #: Lease → its revision and when that was first seen: no clock but our own counts.
        self._seen: dict[str, tuple[int, float]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Publishes, as far as the store lets us, and goes on looking."""
        await self._try(first=True)
        self._task = asyncio.create_task(self._run(), name="apiserver service")

    async def close(self) -> None:
        """Stops looking; of several servers this one takes itself out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            if self._shared:
                # Whatever keeps it from that, the others will find out.
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(_GOODBYE):
                        await self._remove(self._view("coordination.k8s.io", "leases"), _LEASES, self._lease)
                        await self._endpoints(sorted(self._places() - {self._place}))

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(PERIOD)
            await self._try(first=False)

    async def _try(self, *, first: bool) -> None:
        try:
            for _ in range(_ATTEMPTS):
                try:
                    if self._shared:
                        await self._renew()
                    await self._service(first=first)
                    await self._endpoints(sorted(self._places()))
                    return
                except StatusError as error:
                    # Another server was quicker: what is missing now is another thing.
                    if error.code != 409:
                        raise
        except StatusError as error:
            # The store has no room, or does not answer: the next look sees to it.
            _log.warning("the Service kubernetes could not be brought up to date: %s", error)
        except Exception:
            _log.exception("the Service kubernetes could not be brought up to date")

    # What is wanted.

    def _places(self) -> set[Place]:
        """Where servers listen that are there, this one always."""
        found = {self._place}
        if not self._shared:
            return found
        now = self._clock.monotonic()
        for entry in self._identities().values():
            revision, since = self._seen.get(entry.name, (0, 0.0))
            if revision != entry.revision:
                self._seen[entry.name] = (entry.revision, since := now)
            if now - since < LIFETIME:
                obj = self._view("coordination.k8s.io", "leases").decode(entry)
                address, _, port = (obj["metadata"].get("annotations") or {}).get(ENDPOINT, "").rpartition(" ")
                if address and port.isdigit():
                    found.add((address, int(port)))
        return found

    def _identities(self) -> dict[str, Entry]:
        entries = self._view("coordination.k8s.io", "leases").table.entries.values()
        return {
            entry.name: entry
            for entry in entries
            if entry.namespace == _LEASES and _IDENTITY.items() <= (entry.labels or {}).items()
        }

    async def _renew(self) -> None:
        now = timestamp(self._clock.time(), micro=True)
        address, port = self._place
        lease: Object = {
            "metadata": {"labels": dict(_IDENTITY), "annotations": {ENDPOINT: f"{address} {port}"}},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": int(LIFETIME),
                "renewTime": now,
            },
        }
        await self._settle("coordination.k8s.io", "leases", _LEASES, self._lease, lease)
        # Those of servers that are gone are of no use to anybody.
        horizon = self._clock.monotonic() - LIFETIME
        for name, entry in self._identities().items():
            if name != self._lease and self._seen.get(name, (0, horizon + 1))[1] <= horizon:
                self._seen.pop(name, None)
                await self._remove(self._view("coordination.k8s.io", "leases"), _LEASES, entry.name)

    async def _service(self, *, first: bool) -> None:
        port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": self._place[1]}
        view = self._view("", "services")
        entry = view.table.entries.get(f"{NAMESPACE}/{NAME}")
        if entry is not None:
            spec = view.decode(entry).get("spec") or {}
            # Each server brings it up to date once: with different ports they would quarrel for ever.
            if first and spec.get("ports") != [port]:
                await self._settle("", "services", NAMESPACE, NAME, {"spec": {"ports": [port]}})
            return
        for wanted in (CLUSTER_IP, ""):
            service: Object = {
                "metadata": {
                    "name": NAME,
                    "namespace": NAMESPACE,
                    "labels": {"component": "apiserver", "provider": "kubernetes"},
                },
                "spec": {"clusterIP": wanted, "ports": [port], "sessionAffinity": "None", "type": "ClusterIP"},
            }
            try:
                await self._registry.create(view, NAMESPACE, service, WriteOptions(), [])
                return
            except StatusError as error:
                if error.code != 422 or not wanted:
                    raise
                _log.warning("the Service kubernetes gets another address, %s is another Service's", wanted)

    async def _endpoints(self, places: list[Place]) -> None:
        """Endpoints and slices for exactly these places."""
        ports: dict[tuple[int, int], list[str]] = {}
        for address, port in places:
            ports.setdefault((port, ipaddress.ip_address(address).version), []).append(address)
        slices: dict[str, Object] = {}
        subsets: list[Object] = []
        for (port, version), addresses in sorted(ports.items()):
            named: Object = {"name": "https", "port": port, "protocol": "TCP"}
            suffix = "" if not slices else f"-{port}" if version == 4 else f"-{port}-ipv6"
            slices[NAME + suffix] = {
                "metadata": {"labels": {"kubernetes.io/service-name": NAME}},
                "addressType": f"IPv{version}",
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
                "ports": [named],
            }
            subsets.append({"addresses": [{"ip": address} for address in addresses], "ports": [named]})
        skip = {"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}, "subsets": subsets}
        await self._settle("", "endpoints", NAMESPACE, NAME, skip)
        view = self._view("discovery.k8s.io", "endpointslices")
        for entry in list(view.table.entries.values()):
            mine = entry.namespace == NAMESPACE and (entry.name == NAME or entry.name.startswith(f"{NAME}-"))
            if mine and (entry.labels or {}).get("kubernetes.io/service-name") == NAME:
                old = slices.get(entry.name)
                # The family of a slice cannot be changed.
                if old is None or view.decode(entry).get("addressType") != old["addressType"]:
                    await self._remove(view, NAMESPACE, entry.name)
        for name, wanted in slices.items():
            await self._settle("discovery.k8s.io", "endpointslices", NAMESPACE, name, wanted)

    # Writing; what is as it should be is not written.

    def _view(self, group: str, plural: str) -> View:
        served = self._registry.catalog.find(group, "v1", plural)
        assert served is not None
        return self._registry.view(served)

    async def _settle(self, group: str, plural: str, namespace: str, name: str, wanted: Object) -> None:
        """Creates the object, or makes its fields those that are wanted; others stay as they are."""
        view = self._view(group, plural)
        if f"{namespace}/{name}" not in view.table.entries:
            meta = {**wanted["metadata"], "name": name, "namespace": namespace}
            await self._registry.create(view, namespace, {**wanted, "metadata": meta}, WriteOptions(), [])
            return
        await self._registry.update(view, namespace, name, "", lambda old: _over(old, wanted), WriteOptions(), [])

    async def _remove(self, view: View, namespace: str, name: str) -> None:
        try:
            await self._registry.delete(view, namespace, name, DeleteOptions())
        except StatusError as error:
            if error.code not in (404, 409):
                raise


def _over(old: Object, wanted: Mapping[str, Any]) -> Object:
    """``old`` with the fields of ``wanted`` in place of its own; lists are taken whole."""
    new = dict(old)
    for key, value in wanted.items():
        new[key] = _over(old.get(key) or {}, value) if isinstance(value, dict) else value
    return new
