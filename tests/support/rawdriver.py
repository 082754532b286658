"""A DRA driver without our framework: its own records, slices and CDI files, and one mistake on demand.

``rawdriver.py [FAULT]``; where it works it finds in the environment, as `drakkar driver check` says. It goes by the
boot id, as many Go drivers do, and looks at its slices twice a second. The faults are those that show only over starts,
calls and time; what is wrong with single answers is tried in `tests/unit/driver`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import NODE, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.objects import uid_of
from drakkar.client import Client, kubeconfig
from drakkar.driver.threads import on_loop
from drakkar.plugin import wire
from drakkar.plugin.grpc_server import SocketServer, dra_services, health_services, registration_service

NAME = "raw.example.com"
DEVICES = ("d0", "d1", "d2")


class Refused(Exception):
    """A claim cannot be prepared; the words go to the kubelet."""


class RawDriver:
    def __init__(self, fault: str, client: Client) -> None:
        env = os.environ
        self.fault, self.client, self.loop = fault, client, asyncio.get_running_loop()
        self.node, self.root, self.cdi = env["NODE_NAME"], Path(env["KUBELET_ROOT"]), Path(env["CDI_DIR"])
        self.data = self.root / "plugins" / NAME
        self.data.mkdir(parents=True, exist_ok=True)
        self.records = self.data / "records.json"
        self.kept: list[object] = []
        self.instance = "" if fault == "same sockets" else env.get("POD_UID", "")[:8]
        self.boot = "" if fault == "no boot id" else Path("/proc/sys/kernel/random/boot_id").read_text()

    async def run(self) -> None:
        dra, registration = (
            self.data / f"dra{self.instance}.sock",
            self.root / "plugins_registry" / f"{self.instance}reg",
        )
        if self.fault == "stale sockets" and registration.exists():
            sys.exit("bind: address already in use")
        info = wire.PluginInfo(wire.DRA_PLUGIN, NAME, str(dra), [wire.DRA_V1, wire.HEALTH_V1])
        servers = [
            SocketServer(dra, [*dra_services(self.prepare, self.unprepare), *health_services(self.health)]),
            SocketServer(registration, [registration_service(lambda: info, lambda _: None)]),
        ]
        if self.fault == "registers first":
            servers.reverse()
        for server in servers:
            server.start()
            await asyncio.sleep(2 if self.fault == "registers first" else 0)
        stop = asyncio.Event()
        self.loop.add_signal_handler(signal.SIGTERM, stop.set)
        publishing = asyncio.ensure_future(self.publish())
        await stop.wait()
        publishing.cancel()
        for server in reversed(servers):
            await asyncio.to_thread(server.stop, 0.5)

    async def publish(self) -> None:
        name = f"{self.node}-raw"
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self.node,
            "uid": uid_of(await self.client.get(NODE, self.node)),
        }
        pool = {"name": self.node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NAME, "nodeName": self.node, "pool": pool, "devices": [{"name": each} for each in DEVICES]}
        metadata = {"name": name, "ownerReferences": [owner]}
        obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        if self.fault == "gap":
            for found in (await self.client.list(RESOURCESLICE)).items:
                await self.client.delete(RESOURCESLICE, found.metadata.name)
        for look in range(sys.maxsize):
            try:
                if not (self.fault == "published once" and look):
                    await self.client.create(RESOURCESLICE, obj)
            except ApiError as error:
                if error.code != 409:
                    raise
            await asyncio.sleep(0.5)

    def health(self, active: Callable[[], bool]) -> Iterator[wire.NodeWatchResourcesResponse]:
        begin = time.monotonic()
        while active():
            devices = [wire.DeviceIdentifier(self.node, name) for name in DEVICES]
            timeout = 2 if self.fault == "no news" else 30
            healthy = [
                wire.DeviceHealth(each, wire.HealthStatus.HEALTHY, int(time.time()), timeout) for each in devices
            ]
            if not (self.fault == "no news" and time.monotonic() - begin > 1):
                yield wire.NodeWatchResourcesResponse(healthy)
            time.sleep(1)

    def prepare(self, claims: list[wire.Claim]) -> wire.NodePrepareResourcesResponse:
        self.kept += [os.urandom(200_000)] if self.fault == "memory" else []
        answers: dict[str, wire.NodePrepareResourceResponse] = {}
        for claim in claims:
            try:
                answers[claim.uid] = wire.NodePrepareResourceResponse(self.locked(self.prepare_one, claim))
            except Refused as error:
                answers[claim.uid] = wire.NodePrepareResourceResponse(error=str(error))
        return wire.NodePrepareResourcesResponse(answers)

    def unprepare(self, claims: list[wire.Claim]) -> wire.NodeUnprepareResourcesResponse:
        for claim in claims:
            self.locked(self.unprepare_one, claim)
        return wire.NodeUnprepareResourcesResponse({c.uid: wire.NodeUnprepareResourceResponse() for c in claims})

    def locked(self, function: Callable[[dict[str, Any], wire.Claim], Any], claim: wire.Claim) -> Any:
        """Do it with the records, which both instances of an upgrade share; they are written when they changed."""
        with (self.data / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            records = self.read()
            before = json.dumps(records)
            result = function(records, claim)
            if json.dumps(records) != before:
                beside = self.records.with_name(".records")
                beside.write_text(json.dumps({"boot": self.boot, "claims": records}))
                beside.replace(self.records)
            return result

    def read(self) -> dict[str, Any]:
        if not self.records.exists():
            return {}
        found = json.loads(self.records.read_text())
        return found["claims"] if found["boot"] == self.boot else {}

    def prepare_one(self, records: dict[str, Any], asked: wire.Claim) -> list[wire.Device]:
        if asked.uid not in records:
            results = on_loop(self.loop, self.results(asked))
            taken = {device for record in records.values() for device in record["devices"]}
            if both := taken & {result.device for result in results if not result.adminAccess}:
                raise Refused(f"{', '.join(both)} in use")
            edits = {"env": [f"RAW={','.join(result.device for result in results)}"]}
            device = {"name": asked.uid, "containerEdits": edits}
            content = json.dumps({"cdiVersion": "0.5.0", "kind": f"{NAME}/raw", "devices": [device]})
            self.cdi_file(asked).write_text(content)
            time.sleep(1 if self.fault == "forgets what it left" else 0)
            answer = [[r.request.partition("/")[0], r.pool, r.device] for r in results]
            devices = [result.device for result in results if not result.adminAccess]
            records[asked.uid] = {"answer": answer, "devices": devices}
        return [
            wire.Device([request], pool, device, [f"{NAME}/raw={asked.uid}"])
            for request, pool, device in records[asked.uid]["answer"]
        ]

    def unprepare_one(self, records: dict[str, Any], asked: wire.Claim) -> None:
        known = records.pop(asked.uid, None)
        if not (self.fault == "forgets what it left" and known is None):
            self.cdi_file(asked).unlink(missing_ok=True)

    def cdi_file(self, asked: wire.Claim) -> Path:
        return self.cdi / f"raw-{asked.uid}.json"

    async def results(self, asked: wire.Claim) -> list[Any]:
        try:
            claim = await self.client.get(RESOURCECLAIM, asked.name, asked.namespace)
        except ApiError as error:
            raise Refused(str(error)) from None
        if claim.metadata.uid != asked.uid or claim.status.allocation is None:
            raise Refused("not this claim, or not allocated")
        devices = claim.status.allocation.devices
        for config in devices.config or ():
            if config.opaque is not None and config.opaque.driver == NAME:
                raise Refused(
                    f"no parameters are known, given {msgspec.json.encode(config.opaque.parameters).decode()}"
                )
        return [result for result in devices.results or () if result.driver == NAME]


async def main(fault: str) -> None:
    client = Client(kubeconfig.load(os.environ["KUBECONFIG"]).transport())
    try:
        await RawDriver(fault, client).run()
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:])))
