"""Running a case: create a cluster and a workload through an API, compare with what was expected.

The format is that of docs/reference/cases.md. A case runs against any API server with a
scheduler and controllers behind it; where it comes from is the caller's business
(``plane_factory``). Nothing is read but the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api import kinds, names, objects
from drakkar.api.errors import ApiError, UsageError
from drakkar.api.groups import group_of
from drakkar.api.kinds import Kind
from drakkar.api.manifests import parse_objects
from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.api.resource.strategy import lost_fields
from drakkar.client import Client
from drakkar.insight.dump import DUMPED, read
from drakkar.insight.expectation import read_expectation
from drakkar.insight.explain import Explanation, explain, lines

PlaneFactory = Callable[[], AbstractAsyncContextManager[Client]]

#: Longest time in seconds until a pod must be placed or refused.
PATIENCE = 60.0
POLL = 0.01
#: Time in seconds for pods that were told to wait at their turn and may start with a later one.
GRACE = 10.0
#: Given to nodes that state nothing: the format says that nothing else limits a node.
_ROOM = {"cpu": "1000", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": "1000"}


@dataclass
class CaseResult:
    """The outcome of one run; ``misses`` says in words what differs from the expectation."""

    name: str
    misses: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Whether everything came out as expected."""
        return not self.misses


@dataclass(frozen=True, slots=True)
class _Device:
    """One allocation result as the expectation sees it."""

    claim: str
    request: str
    driver: str
    pool: str
    device: str
    capacity: dict[str, str]

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device


@dataclass(frozen=True, slots=True)
class Case:
    """A case as its folder has it."""

    name: str
    cluster: list[Object]
    workload: list[Object]
    expect: dict[str, Any]


def read_case(folder: Path, shuffle_seed: int | None = None) -> Case:
    """Read a case folder. Raises UsageError for files that are missing or not YAML."""
    expect = read_expectation(folder / "expect.yaml", _read(folder / "expect.yaml"))
    cluster, workload = (
        parse_objects(_read(folder / name), str(folder / name)) for name in ("cluster.yaml", "workload.yaml")
    )
    if shuffle_seed is not None:
        _shuffle(cluster, random.Random(shuffle_seed))
    return Case(folder.name, cluster, workload, expect)


async def run_case(folder: Path, *, plane_factory: PlaneFactory, shuffle_seed: int | None = None) -> CaseResult:
    """Run one case folder. Raises UsageError for files that are missing or not YAML."""
    case = read_case(folder, shuffle_seed)
    async with plane_factory() as client:
        return await play(case, client)


async def play(case: Case, client: Client) -> CaseResult:
    """Create what the case says and compare. Whoever has brought about a part of its cluster leaves that part out.

    Of the pods on the server only those in namespaces of the workload are looked at.
    """
    result = CaseResult(case.name)
    run = _Run(client, case, result.misses)
    for obj in case.cluster:
        await run.create(obj)
    for obj in case.workload:
        await run.create(obj)
        if obj["kind"] == "Pod":
            await run.settle(obj)
    run.refusals()
    await run.pods()
    return result


class ServedKinds:
    """Kinds by the words of a manifest: those that are known here, others as the server describes them."""

    def __init__(self, client: Client):
        self._client = client
        self._kinds: dict[tuple[str, str], Kind] = {(kind.api_version, kind.kind): kind for kind in kinds.KINDS}

    async def of(self, obj: Object) -> Kind:
        """The kind of the object; raises UsageError when the server has none of that name."""
        key = (str(obj["apiVersion"]), str(obj["kind"]))
        known = self._kinds.get(key)
        if known is None:
            known = self._kinds[key] = await self._discovered(*key)
        return known

    async def _discovered(self, api_version: str, name: str) -> Kind:
        group, _, version = api_version.rpartition("/")
        for kind in kinds.KINDS:
            if (kind.group, kind.kind) == (group, name):
                return Kind(group, version, name, kind.plural, kind.namespaced)
        path = f"/apis/{api_version}" if group else f"/api/{version}"
        with contextlib.suppress(ApiError):
            for resource in json.loads((await self._client.send("GET", path)).body).get("resources") or ():
                if resource["kind"] == name and "/" not in resource["name"]:
                    return Kind(group, version, name, resource["name"], bool(resource["namespaced"]))
        raise UsageError(f"{api_version} {name}: no such kind on the server; it cannot be part of a case")


class _Run:
    """One case in progress."""

    def __init__(self, client: Client, case: Case, misses: list[str]):
        self.client = client
        self.expect = case.expect
        self.misses = misses
        self.errors: dict[tuple[str, str], ApiError] = {}
        self.kinds = ServedKinds(client)
        self.namespaces = {obj["metadata"].get("namespace", "default") for obj in case.workload}
        #: Why a pod waited when its turn was over: later pods may take what it could not use.
        self.pending: dict[str, Explanation] = {}

    async def create(self, obj: Object) -> None:
        kind = await self.kinds.of(obj)
        body = roomy(obj) if kind is kinds.NODE else obj
        namespace = obj["metadata"].get("namespace", "default") if kind.namespaced else None
        try:
            stored = await self.client.create(kind, body, namespace=namespace)
        except ApiError as error:
            self.errors[(obj["kind"], obj["metadata"]["name"])] = error
            return
        if obj["apiVersion"] == v1.API_VERSION:
            lost = lost_fields(obj, msgspec.to_builtins(stored))
            # Whatever comes out then says nothing about the case.
            self.misses += [
                f"{obj['kind']} {obj['metadata']['name']}: this server drops {field} (feature gate {gates} is off)"
                for field, gates in lost.items()
            ]

    async def settle(self, pod: Object) -> None:
        """Until the pod has a node, or the scheduler has said why not and would say so again; not while it is gated."""
        name, namespace = pod["metadata"]["name"], pod["metadata"].get("namespace", "default")
        if ("Pod", name) in self.errors:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while loop.time() < deadline:
            stored = await self.client.get(kinds.POD, name, namespace)
            if objects.pod_node(stored) or stored["spec"].get("schedulingGates"):
                return
            refused = objects.condition_is(stored, names.POD_SCHEDULED, "False")
            made = None not in objects.pod_claim_names(stored).values()
            if refused and made:
                found = explain(await read(self.client, DUMPED), name, namespace, kind="Pod")
                if found.state == "pending":
                    self.pending[name] = found
                    return
            await asyncio.sleep(POLL)
        self.misses.append(f"pod {name}: neither placed nor refused within {PATIENCE:g} s")

    def refusals(self) -> None:
        """Compare what was refused with ``invalid`` and ``refused``."""
        expected: set[tuple[str, str]] = set()
        for entry in self.expect.get("invalid") or ():
            key = (entry["kind"], entry["name"])
            expected.add(key)
            error = self.errors.get(key)
            if error is None:
                self.misses.append(f"{key[0]} {key[1]}: accepted, should be invalid")
                continue
            causes = (error.status.get("details") or {}).get("causes") or ()
            got = sorted((cause.get("field", ""), cause.get("reason", "")) for cause in causes)
            want = sorted((fault["field"], fault["type"]) for fault in entry["errors"])
            if got != want:
                self.misses.append(f"{key[0]} {key[1]}: errors are {got}, expected {want}")
        for entry in self.expect.get("refused") or ():
            key = (entry["kind"], entry["name"])
            expected.add(key)
            error = self.errors.get(key)
            words = entry.get("mentions") or entry.get("message") or ()
            if error is None:
                self.misses.append(f"{key[0]} {key[1]}: accepted, should be refused")
            elif error.code != entry["status"] or not all(word in str(error) for word in _listed(words)):
                self.misses.append(f"{key[0]} {key[1]}: refused with {error.code} {error}, expected {entry}")
        for key, error in self.errors.items():
            if key not in expected:
                self.misses.append(f"{key[0]} {key[1]}: refused: {error}")

    async def pods(self) -> None:
        """Compare the pods, groups, relations and quota usage."""
        await self._started()
        world = await read(self.client)
        pods = {objects.name_of(obj): obj for obj in world if obj["kind"] == "Pod" and self._is_ours(obj)}
        claims = {objects.key_of(obj): obj for obj in world if obj["kind"] == "ResourceClaim"}
        held = {name: [*_devices(pod, claims)] for name, pod in pods.items()}
        started = {name for name, pod in pods.items() if objects.pod_node(pod)}
        for entry in self.expect.get("pods") or ():
            self._pod(entry, pods, held)
        for group in self.expect.get("groups") or ():
            count = len(started & set(group["pods"]))
            if count != group["scheduledCount"]:
                self.misses.append(f"of {', '.join(group['pods'])} {count} started, expected {group['scheduledCount']}")
        published = {
            (obj["spec"]["driver"], obj["spec"]["pool"]["name"], device["name"]): device
            for obj in world
            if obj["kind"] == "ResourceSlice"
            for device in obj["spec"].get("devices") or ()
        }
        for check in self.expect.get("checks") or ():
            self._check(check, held, started, published)
        await self._usage()

    async def _started(self) -> None:
        """Until all pods have a node that should have one: pods of a gang get theirs with its last one."""
        wanted = {entry["name"] for entry in self.expect.get("pods") or () if entry["scheduled"]}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GRACE
        while loop.time() < deadline:
            pods = [pod for pod in (await self.client.list(kinds.POD)).items if self._is_ours(pod)]
            if wanted <= {objects.name_of(pod) for pod in pods if objects.pod_node(pod)}:
                return
            await asyncio.sleep(POLL)

    def _is_ours(self, pod: Object) -> bool:
        return objects.namespace_of(pod) in self.namespaces

    def _pod(self, entry: dict[str, Any], pods: dict[str, Object], held: dict[str, list[_Device]]) -> None:
        name = entry["name"]
        pod = pods.get(name)
        if pod is None:
            self.misses.append(f"pod {name}: does not exist")
            return
        node = objects.pod_node(pod)
        if bool(node) != entry["scheduled"]:
            said = (objects.condition(pod, names.POD_SCHEDULED) or {}).get("message", "")
            self.misses.append(f"pod {name}: {f'runs on {node}' if node else f'is pending ({said})'}")
            return
        if node and entry.get("node") and node not in _listed(entry["node"]):
            self.misses.append(f"pod {name}: runs on {node}, expected {entry['node']}")
        if "devices" in entry:
            self._devices(name, entry["devices"], held[name])
        if not node:
            pending = self.pending.get(name)
            word = pending.reason if pending is not None else "nothing"
            text = "\n".join(lines(pending)) if pending is not None else ""
            if entry.get("reason") and word != entry["reason"]:
                self.misses.append(f"pod {name}: pending because of {word}, expected {entry['reason']} ({text})")
            missing = [mention for mention in entry.get("mentions") or () if mention not in text]
            if missing:
                self.misses.append(f"pod {name}: the reason does not mention {missing}: {text}")
            needless = [mention for mention in entry.get("mustNotMention") or () if mention in text]
            if needless:
                self.misses.append(f"pod {name}: the reason mentions {needless}: {text}")

    def _devices(self, pod: str, expected: list[dict[str, Any]], held: list[_Device]) -> None:
        places = [entry for entry in expected for _ in range(entry.get("count", 1))]
        if len(places) != len(held) or not _assignable(held, places):
            got = "; ".join(f"{d.claim}/{d.request}: {d.driver}/{d.pool}/{d.device} {d.capacity or ''}" for d in held)
            self.misses.append(f"pod {pod}: has {got or 'no devices'}, expected {expected}")

    def _check(
        self,
        check: dict[str, Any],
        held: dict[str, list[_Device]],
        started: set[str],
        published: dict[tuple[str, str, str], Object],
    ) -> None:
        if "distinct" in check:
            seen: dict[tuple[str, str, str], str] = {}
            for name in check["distinct"]:
                for device in held.get(name, []) if name in started else ():
                    if seen.setdefault(device.identity, name) != name:
                        self.misses.append(f"{name} and {seen[device.identity]} share {'/'.join(device.identity)}")
        elif "same" in check:
            sets = {name: frozenset(device.identity for device in held.get(name, [])) for name in check["same"]}
            if len(set(sets.values())) > 1:
                self.misses.append(f"{', '.join(check['same'])} should have the same devices: {sets}")
        else:
            word = "sameAttribute" if "sameAttribute" in check else "distinctAttribute"
            rule = check[word]
            if rule["pod"] not in started:
                return
            values = [
                _attribute(published.get(device.identity, {}), rule["attribute"], device.driver)
                for device in held[rule["pod"]]
                if device.request in rule["requests"] or device.request.split("/")[0] in rule["requests"]
            ]
            distinct = len(set(values))
            if None in values or distinct != (1 if word == "sameAttribute" else len(values)):
                self.misses.append(f"pod {rule['pod']}: {word} {rule['attribute']}: values are {values}")

    async def _usage(self) -> None:
        quota = Kind("", "v1", "ResourceQuota", "resourcequotas", True)
        for namespace, wanted in (self.expect.get("usage") or {}).items():
            used: dict[str, str] = {}
            for obj in (await self.client.list(quota, namespace)).items:
                used |= (obj.get("status") or {}).get("used") or {}
            for name, amount in wanted.items():
                if str(used.get(name)) != str(amount):
                    self.misses.append(f"namespace {namespace}: used {name} is {used.get(name)}, expected {amount}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: {why}; a case has cluster.yaml, workload.yaml and expect.yaml") from error


def _shuffle(cluster: list[Object], rng: random.Random) -> None:
    """Another order of nodes, slices and devices; the other kinds stay first, in their order."""
    moved = [obj for obj in cluster if obj["kind"] in ("Node", "ResourceSlice")]
    rest = [obj for obj in cluster if obj not in moved]
    rng.shuffle(moved)
    for obj in moved:
        rng.shuffle(obj["spec"].get("devices") or []) if obj["kind"] == "ResourceSlice" else None
    cluster[:] = rest + moved


def roomy(node: Object) -> Object:
    """The Node with room for everything that it does not limit itself."""
    status = dict(node.get("status") or {})
    for key in ("capacity", "allocatable"):
        status[key] = {**_ROOM, **(status.get(key) or {})}
    return {**node, "status": status}


def _devices(pod: Object, claims: dict[str, Object]) -> Iterator[_Device]:
    namespace = objects.namespace_of(pod)
    entries = dict(objects.pod_claim_names(pod))
    special = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    if special:
        entries["<extended>"] = special
    for entry, name in entries.items():
        allocation = ((claims.get(f"{namespace}/{name}") or {}).get("status") or {}).get("allocation") or {}
        reserved = ((claims.get(f"{namespace}/{name}") or {}).get("status") or {}).get("reservedFor") or ()
        group = group_of(pod)
        if not any(
            consumer["uid"] == objects.uid_of(pod)
            or (consumer["resource"] == kinds.PODGROUP.plural and consumer["name"] == group)
            for consumer in reserved
        ):
            continue
        for result in (allocation.get("devices") or {}).get("results") or ():
            yield _Device(
                entry,
                result["request"],
                result["driver"],
                result["pool"],
                result["device"],
                result.get("consumedCapacity") or {},
            )


def _assignable(held: list[_Device], places: list[dict[str, Any]]) -> bool:
    """Whether every result can take an expected place of its own (augmenting paths)."""
    taken: dict[int, int] = {}

    def place(index: int, tried: set[int]) -> bool:
        for slot, entry in enumerate(places):
            if slot not in tried and _matches(held[index], entry):
                tried.add(slot)
                if slot not in taken or place(taken[slot], tried):
                    taken[slot] = index
                    return True
        return False

    return all(place(index, set()) for index in range(len(held)))


def _matches(device: _Device, entry: dict[str, Any]) -> bool:
    return (
        device.claim == entry["claim"]
        and device.request == entry["request"]
        and device.driver == entry["driver"]
        and device.pool in _listed(entry.get("pool") or device.pool)
        and (not entry.get("device") or device.device in [str(name) for name in _listed(entry["device"])])
        and all(device.capacity.get(name) == str(amount) for name, amount in (entry.get("capacity") or {}).items())
    )


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]


def _attribute(device: Object, name: str, driver: str) -> Any:
    attributes = device.get("attributes") or {}
    found = attributes.get(name)
    if found is None and name.startswith(driver + "/"):
        found = attributes.get(name.removeprefix(driver + "/"))
    return None if found is None else next(iter(found.values()))
