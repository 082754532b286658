"""Cases on real nodes: an agent for each of their Nodes, drivers for their slices, and a look into the containers.

What a case says of pods, devices and reasons is compared by `drakkar.insight.cases`, as everywhere. Here it is added
that every container that runs has the devices that its pod was given for it, no other ones, and gives them back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import NODE, POD, PODGROUP, RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.api.objects import is_sidecar, key_of, name_of, namespace_of, pod_claim_names, pod_node, uid_of
from drakkar.api.resource import v1
from drakkar.api.tree import at, child, children, text
from drakkar.client import Client
from drakkar.client.clock import SystemClock
from drakkar.driver import Driver
from drakkar.driver.metadata import IN_CONTAINER
from drakkar.driver.publication import Publication
from drakkar.driver.service import DriverService
from drakkar.drivers.replay.driver import PREFIX, ReplayDriver
from drakkar.drivers.replay.recorded import drivers_of, pools_of, slices_of
from drakkar.insight.cases import Case, play, roomy
from drakkar.node.agent.env import split
from drakkar.node.agent.process_runtime import ROOT
from drakkar.node.agent.runtime import Runtime
from tests.support.agents import Cluster, cluster
from tests.support.eventually import eventually

Results = Sequence[v1.DeviceRequestAllocationResult]


@dataclass(frozen=True)
class Inside:
    """A container as its first process sees it."""

    env: dict[str, str]
    #: Where its files are: the root of its file system, or what stands for one.
    files: Path
    #: Whether it has a file system, and so device nodes, of its own.
    isolated: bool


@dataclass(frozen=True)
class Kit:
    """Which drivers stand for the hardware of a case, and how one reads in a container which devices it has."""

    #: Drivers of a node, given its name, a folder and the slices of the case.
    drivers: Callable[[str, Path, Sequence[v1.ResourceSlice]], Sequence[Driver]]
    #: What a container shows of devices, in any words.
    seen: Callable[[Inside], Sequence[str]]
    #: The same words for the devices that it should have; the flag: it has a file system of its own.
    due: Callable[[Results, bool], Sequence[str]]


def _replayed(node: str, folder: Path, slices: Sequence[v1.ResourceSlice]) -> list[Driver]:
    drivers = [ReplayDriver(name, slices, node) for name in drivers_of(slices)]
    return [driver for driver in drivers if driver.pools(node) or driver.cluster_pools()]


def _told(inside: Inside) -> list[str]:
    """By variables, and by the files that describe devices."""
    variables = [value for name, value in inside.env.items() if name.startswith(PREFIX)]
    contents = [
        # A stream of objects, one for each version of the form.
        json.JSONDecoder().raw_decode(path.read_text())[0]
        for path in (inside.files / IN_CONTAINER.lstrip("/")).glob("*/*/*/*-metadata.json")
    ]
    described = [
        f"described: {device['driver']}/{device['pool']}/{device['name']}"
        for content in contents
        for request in content["requests"]
        for device in request["devices"]
    ]
    return [*variables, *described]


def _to_tell(results: Results, isolated: bool) -> list[str]:
    words: list[str] = []
    for result in results:
        amounts = [f"{name}={amount}" for name, amount in (result.consumedCapacity or {}).items()]
        identity = f"{result.driver}/{result.pool}/{result.device}"
        words.append(" ".join([identity, *sorted(amounts), *(["admin"] if result.adminAccess else [])]))
        words.append(f"described: {identity}")
    return words


#: The slices of the case as they are.
REPLAY = Kit(drivers=_replayed, seen=_told, due=_to_tell)


def _by_hand(slices: Sequence[v1.ResourceSlice], nodes: Collection[str]) -> set[str]:
    """Slices that no driver of the framework publishes: those of absent nodes, all of a driver with a faulty pool."""
    faulty = {driver for driver in drivers_of(slices) if _is_faulty(driver, slices, nodes)}
    return {
        found.metadata.name
        for found in slices
        if found.spec.driver in faulty or (found.spec.nodeName and found.spec.nodeName not in nodes)
    }


def _is_faulty(driver: str, slices: Sequence[v1.ResourceSlice], nodes: Collection[str]) -> bool:
    try:
        for node in ("", *nodes):
            pools_of(driver, slices, node)
    except UsageError:
        return True
    return False


@dataclass(frozen=True)
class Played:
    """How a case went."""

    #: What was not as it should be.
    misses: list[str]
    #: Slices that were created as they are, since no driver would publish them; what they give away is not looked for.
    by_hand: set[str]


async def play_on_nodes(
    case: Case, folder: Path, root: Path, runtime: Callable[[Path], Runtime], kit: Kit = REPLAY
) -> Played:
    """Play the case from the registration of its nodes to the end of its pods."""
    refused = {(entry["kind"], entry["name"]) for key in ("invalid", "refused") for entry in case.expect.get(key) or ()}
    given = [obj for obj in case.cluster if (obj["kind"], name_of(obj)) not in refused]
    nodes = {name_of(obj): obj for obj in given if obj["kind"] == "Node"}
    slices = slices_of(given)
    by_hand = _by_hand(slices, nodes)
    slices = [found for found in slices if found.metadata.name not in by_hand]
    done = [*nodes.values(), *(obj for obj in given if obj["kind"] == "ResourceSlice" and name_of(obj) not in by_hand)]
    rest = replace(
        case,
        cluster=[obj for obj in case.cluster if obj not in done],
        workload=[_waiting(obj) if obj["kind"] == "Pod" else obj for obj in case.workload],
    )
    async with cluster(folder, root, only=None) as site:
        sites: dict[str, Cluster] = {}
        for number, name in enumerate(nodes):
            place = root / str(number)
            sites[name] = site.beside(name, place, lambda place=place: runtime(place))
        await asyncio.gather(*(_join(each, nodes[name]) for name, each in sites.items()))
        services = await asyncio.gather(
            *(
                each.start_driver(driver, driver.name, health_period=5.0)
                for name, each in sites.items()
                for driver in kit.drivers(name, each.root / "hardware", slices)
            )
        )
        async with _without_nodes(site.client, [service.driver for service in services]):
            result = await play(rest, site.client)
            look = _Look(site.client, sites, kit, {service.driver.name for service in services}, runtime(root).isolates)
            return Played(
                [*result.misses, *await look.containers(), *await _clear(site.client, sites, services)], by_hand
            )


def _waiting(pod: Object) -> Object:
    """The pod with containers that only wait: what they would do is nothing that a case speaks of."""
    spec = dict(child(pod, "spec"))
    for key in ("initContainers", "containers"):
        if key in spec:
            kept = ("name", "resources", "ports", "restartPolicy")
            spec[key] = [
                {"image": "pause", **{field: each[field] for field in kept if field in each}} for each in spec[key]
            ]
    return {**pod, "spec": spec}


async def _join(site: Cluster, node: Object) -> None:
    """The Node of the case with an agent behind it, that is as large as the case says and not as this machine."""
    await site.client.create(NODE, roomy(node))
    await site.start_agent()
    status = {key: roomy(node)["status"][key] for key in ("capacity", "allocatable")}
    await site.client.patch(NODE, site.node, None, {"status": status}, subresource="status")


@contextlib.asynccontextmanager
async def _without_nodes(client: Client, drivers: Sequence[Driver]) -> AsyncIterator[None]:
    """The devices that belong to no node, published by one instance of each driver."""
    parts: list[asyncio.Task[None]] = []
    try:
        for driver in {driver.name: driver for driver in drivers if driver.cluster_pools()}.values():
            publication = Publication(driver, client, SystemClock(), node_name="", counts=Counter())
            await publication.discover_until_it_works()
            parts.append(asyncio.create_task(publication.run()))
            await asyncio.wait_for(publication.published.wait(), 30)
        yield
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


class _Look:
    """Into every container that runs, init containers too, which it then ends: they only wait otherwise."""

    def __init__(self, client: Client, sites: dict[str, Cluster], kit: Kit, drivers: Collection[str], isolated: bool):
        self._client = client
        self._sites = sites
        self._kit = kit
        #: Those that run; a pod with devices of another one waits for it on its node.
        self._drivers = drivers
        #: Whether containers have file systems of their own.
        self._isolated = isolated

    async def containers(self) -> list[str]:
        """What is wrong, of all pods that have a node."""
        pods = (await self._client.list(POD)).items
        claims = {key_of_claim(claim): claim for claim in (await self._client.list(RESOURCECLAIM)).items}
        placed = [pod for pod in pods if pod_node(pod) and self._is_served(pod, claims)]
        found = await asyncio.gather(*(self._pod(pod, claims) for pod in placed))
        held = {uid_of(pod) for pod in pods if not pod_node(pod)}
        started = [
            f"pod {key_of(pod)}: waits for a node, but {name} has begun it"
            for pod in pods
            for name, site in self._sites.items()
            if uid_of(pod) in held and (site.root / "pods" / uid_of(pod)).exists()
        ]
        return [*(miss for misses in found for miss in misses), *started]

    def _is_served(self, pod: Object, claims: dict[str, v1.ResourceClaim]) -> bool:
        names = {f"{namespace_of(pod)}/{name}" for name in pod_claim_names(pod).values()}
        allocations = [claims[name].status.allocation for name in names if name in claims]
        results = [result for each in allocations if each is not None for result in each.devices.results or ()]
        return {result.driver for result in results} <= set(self._drivers)

    async def _pod(self, pod: Object, claims: dict[str, v1.ResourceClaim]) -> list[str]:
        seen: dict[str, list[str]] = {}
        pids: dict[str, int] = {}
        containers = [*children(pod, "spec", "initContainers"), *children(pod, "spec", "containers")]
        passing = {each["name"] for each in children(pod, "spec", "initContainers") if not is_sidecar(each)}

        async def look() -> Object:
            now: Object = await self._client.get(POD, name_of(pod), namespace_of(pod))
            for entry in (
                *children(now, "status", "initContainerStatuses"),
                *children(now, "status", "containerStatuses"),
            ):
                name = entry["name"]
                if name not in seen and at(entry, "state", "running") is not None:
                    pids[name], inside = await self._inside(now, name)
                    seen[name] = sorted(self._kit.seen(inside))
            for name in passing & pids.keys():
                await asyncio.to_thread(_end, pids[name])
            return now

        try:
            await eventually(look, lambda _: len(seen) == len(containers))
        except AssertionError as error:
            return [f"pod {key_of(pod)}: not all of its containers run: {error}"]
        misses: list[str] = []
        for container in containers:
            due = sorted(self._kit.due(_due_to(pod, container, claims), self._isolated))
            if seen[container["name"]] != due:
                misses.append(
                    f"pod {key_of(pod)}, container {container['name']}: sees {seen[container['name']]}, not {due}"
                )
        return misses

    async def _inside(self, pod: Object, container: str) -> tuple[int, Inside]:
        """Process of a container and what it sees, as the kernel knows them."""
        folder = self._sites[pod_node(pod)].root / "pods" / uid_of(pod) / "containers" / container
        attempt = max(folder.iterdir(), key=lambda path: int(path.name))
        pid: int = msgspec.json.decode((attempt / "state.json").read_bytes())["pid"]

        async def read() -> dict[str, str]:
            return await asyncio.to_thread(_environment, pid)

        # A moment ago it may have been the runtime's own program.
        env = await eventually(read, lambda env: env.get("HOSTNAME") == name_of(pod))
        files = Path(f"/proc/{pid}/root") if self._isolated else Path(env[ROOT])
        return pid, Inside(env, files, self._isolated)


def _end(pid: int) -> None:
    """Let a waiting container end; no other process may be meant when it has ended already."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text() == "pause\n":
            os.kill(pid, signal.SIGTERM)


def _environment(pid: int) -> dict[str, str]:
    return split(Path(f"/proc/{pid}/environ").read_text().split("\0"))


def key_of_claim(claim: v1.ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _due_to(
    pod: Object, container: Object, claims: dict[str, v1.ResourceClaim]
) -> list[v1.DeviceRequestAllocationResult]:
    """The devices that the container should have, by what it names of the pod's claims."""
    names = pod_claim_names(pod)
    wanted = [
        (names[entry["name"]], entry.get("request") or "") for entry in children(container, "resources", "claims")
    ]
    extended = child(pod, "status", "extendedResourceClaimStatus")
    for mapping in children(extended, "requestMappings"):
        if mapping["containerName"] == container["name"]:
            wanted.append((text(extended, "resourceClaimName"), mapping["requestName"]))
    found: dict[tuple[str | None, int], v1.DeviceRequestAllocationResult] = {}
    for claim, request in wanted:
        allocation = claims[f"{namespace_of(pod)}/{claim}"].status.allocation
        assert allocation is not None
        results = allocation.devices.results or ()
        for number, result in enumerate(results):
            if request in ("", result.request.partition("/")[0]) and _is_prepared(result, results):
                found[claim, number] = result
    return list(found.values())


def _is_prepared(result: v1.DeviceRequestAllocationResult, results: Sequence[v1.DeviceRequestAllocationResult]) -> bool:
    """Whether the driver is asked at all: not when none of its devices of the claim needs it."""
    return any(
        not {"NodePrepareResources", "*"} & set(each.skipNodeOperations or ())
        for each in results
        if each.driver == result.driver
    )


async def _clear(client: Client, sites: dict[str, Cluster], services: Sequence[DriverService]) -> list[str]:
    """Delete all pods; what is left of them and their claims."""

    async def pods() -> list[Object]:
        return (await client.list(POD)).items

    # First those that wait: they would get what the others give back.
    for pod in sorted(await pods(), key=lambda pod: bool(pod_node(pod))):
        with contextlib.suppress(ApiError):
            await client.delete(POD, name_of(pod), namespace_of(pod), uid=uid_of(pod), grace=1)
    await eventually(pods, lambda left: not left)
    for group in (await client.list(PODGROUP)).items:
        # Its claims are held for it as long as it is there.
        await client.delete(PODGROUP, name_of(group), namespace_of(group))

    async def held() -> list[str]:
        found = (await client.list(RESOURCECLAIM)).items
        return [key_of_claim(claim) for claim in found if claim.status.allocation or claim.status.reservedFor]

    await eventually(held, lambda left: not left)
    misses: list[str] = []
    for name, site in sites.items():
        assert site.agent is not None
        assert site.agent.claims is not None
        misses += [f"node {name}: claim {r.claimUID} is not unprepared" for r in site.agent.claims.records()]
        left = [path.name for path in (site.root / "cdi").glob("*")]
        misses += [f"node {name}: CDI file {path} is left" for path in left]
    for service in services:
        assert service.preparer is not None
        where = f"driver {service.driver.name} on {service.settings.node_name}"
        misses += [f"{where}: claim {uid} is not unprepared" for uid in service.preparer.known()]
        failed = sum(count for (_, kind), count in service.preparer.calls.items() if kind == "error")
        if failed:
            misses.append(f"{where}: {failed} calls failed")
    return misses
