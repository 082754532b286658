"""The 64-chip story as facts that an outsider can see through the API.

:class:`Story` is fed with watch events and nothing else. It notes the first moment at which
each fact holds, with the revision at which it was seen, because watches of different kinds
arrive independently while revisions order everything. At the end :meth:`Story.faults` says
which facts are missing or out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from drakkar.api.core.strategy import GATED
from drakkar.api.meta import Object
from drakkar.api.names import JOB_NAME_LABEL, LABEL_HOSTNAME, REASON_SCHEDULING_GATED, REASON_UNSCHEDULABLE
from drakkar.api.objects import labels_of, pod_node
from drakkar.api.resource import v1 as resource

#: Facts before the fault and after it, in the order of the story.
BEFORE = ("nodes-ready", "devices-published", "claim-allocated", "job-running", "other-job-running", "large-job-waits")
AFTER = (
    "node-lost",
    "devices-tainted",
    "pods-evicted",
    "pods-gone",
    "claim-freed",
    "claim-reallocated",
    "job-recovered",
)

TITLES = {
    "nodes-ready": "all nodes are Ready",
    "devices-published": "the driver's pool is complete",
    "claim-allocated": "the claim got one compact slice",
    "job-running": "four pods run on its four hosts, one each",
    "other-job-running": "a second job was placed on other hosts",
    "large-job-waits": "a job for all 64 chips waits, with a reason",
    "node-lost": "the dead host's node is NotReady",
    "devices-tainted": "every logical device with that host is tainted NoExecute",
    "pods-evicted": "the four pods are marked for eviction",
    "pods-gone": "all four are gone, the dead host's too",
    "claim-freed": "the claim is deallocated",
    "claim-reallocated": "the claim got a healthy slice",
    "job-recovered": "four new pods run on its hosts, one each",
}

#: Pairs (earlier, later) that must hold by revision, not by time of arrival.
ORDER = (
    ("claim-allocated", "job-running"),
    ("node-lost", "devices-tainted"),
    ("devices-tainted", "pods-evicted"),
    ("pods-evicted", "claim-freed"),
    ("claim-freed", "claim-reallocated"),
    ("claim-reallocated", "job-recovered"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was seen: when (seconds of the observer's clock), at which revision, and what exactly."""

    name: str
    time: float
    revision: int
    detail: str


@dataclass(slots=True)
class Cast:
    """Who plays: names in one namespace, and the sizes that the story promises."""

    namespace: str = "default"
    claim: str = "slice"
    job: str = "training"
    other_claim: str = "second-slice"
    other_job: str = "second"
    large_job: str = "whole-pod"
    nodes: int = 16
    pods: int = 4
    driver: str = "tpu.drakkar.dev"
    #: Whether the host may come back and be chosen again before the job has recovered.
    may_return: bool = False


@dataclass
class Story:
    """Collects facts from events; every method is free of I/O."""

    cast: Cast
    clock: Callable[[], float]
    on_fact: Callable[[Fact], None] = lambda fact: None
    facts: dict[str, Fact] = field(default_factory=dict[str, Fact])

    def __post_init__(self) -> None:
        self.nodes: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.claims: dict[str, resource.ResourceClaim] = {}
        self.slices: dict[str, resource.ResourceSlice] = {}
        self.jobs: dict[str, Object] = {}
        self.first_pods: set[str] = set()
        self.first_hosts: frozenset[str] = frozenset()
        self.other_pods: set[str] = set()
        self.evicted: set[str] = set()
        self.gone: set[str] = set()
        self.lost_node = ""

    # ---- events -------------------------------------------------------------------------

    def node(self, kind: str, obj: Object) -> None:
        """An event of a Node; those that are no hosts of the driver have no part."""
        if not labels_of(obj).get(f"{self.cast.driver}/pod"):
            return
        _keep(self.nodes, kind, obj["metadata"]["name"], obj)
        self._evaluate(_revision(obj))

    def pod(self, kind: str, obj: Object) -> None:
        """An event of a Pod."""
        meta = obj["metadata"]
        if meta.get("namespace") != self.cast.namespace:
            return
        uid = meta["uid"]
        _keep(self.pods, kind, uid, obj)
        if uid in self.first_pods:
            if _condition(obj, "DisruptionTarget").get("status") == "True":
                self.evicted.add(uid)
            if kind == "DELETED":
                self.gone.add(uid)
        self._evaluate(_revision(obj))

    def claim(self, kind: str, obj: resource.ResourceClaim) -> None:
        """An event of a ResourceClaim."""
        if obj.metadata.namespace == self.cast.namespace:
            _keep(self.claims, kind, obj.metadata.name, obj)
            self._evaluate(int(obj.metadata.resourceVersion or 0))

    def slice(self, kind: str, obj: resource.ResourceSlice) -> None:
        """An event of a ResourceSlice."""
        if obj.spec.driver == self.cast.driver:
            _keep(self.slices, kind, obj.metadata.name, obj)
            self._evaluate(int(obj.metadata.resourceVersion or 0))

    def job(self, kind: str, obj: Object) -> None:
        """An event of a Job."""
        if obj["metadata"].get("namespace") == self.cast.namespace:
            _keep(self.jobs, kind, obj["metadata"]["name"], obj)
            self._evaluate(_revision(obj))

    # ---- questions ----------------------------------------------------------------------

    def seen(self, names: Iterable[str]) -> bool:
        """Whether all these facts have been seen."""
        return all(name in self.facts for name in names)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Titles of the facts not seen yet, in the order of the story."""
        return [TITLES[name] for name in names if name not in self.facts]

    def faults(self) -> list[str]:
        """What contradicts the story: missing facts, wrong order, a job that was charged or disturbed."""
        faults = [f"not seen: {title}" for title in self.missing((*BEFORE, *AFTER))]
        for earlier, later in ORDER:
            first, second = self.facts.get(earlier), self.facts.get(later)
            if first and second and first.revision > second.revision:
                faults.append(f"wrong order: {TITLES[later]} (revision {second.revision}) before {TITLES[earlier]}")
        job = self.jobs.get(self.cast.job)
        if job is not None:
            if _condition(job, "Failed").get("status") == "True":
                faults.append(f"job {self.cast.job} failed: {_condition(job, 'Failed').get('message', '')}")
            if job.get("status", {}).get("failed", 0):
                faults.append(f"evictions were counted as failures of job {self.cast.job}: {job['status']['failed']}")
        still = {uid for uid, pod in self.pods.items() if _job_of(pod) == self.cast.other_job}
        if self.other_pods and still != self.other_pods:
            faults.append(f"job {self.cast.other_job} was disturbed: its pods changed")
        return faults

    def hosts(self, claim: str) -> frozenset[str]:
        """Hosts of a claim's allocation; empty while it has none."""
        obj = self.claims.get(claim)
        return claim_hosts(obj) if obj is not None else frozenset()

    # ---- rules --------------------------------------------------------------------------

    def _note(self, name: str, revision: int, detail: str) -> None:
        fact = Fact(name, self.clock(), revision, detail)
        self.facts[name] = fact
        self.on_fact(fact)

    def _evaluate(self, revision: int) -> None:
        for name in (*BEFORE, *AFTER):
            if name not in self.facts:
                detail = getattr(self, "_" + name.replace("-", "_"))()
                if detail:
                    self._note(name, revision, detail)

    def _nodes_ready(self) -> str:
        ready = [name for name, node in self.nodes.items() if _condition(node, "Ready").get("status") == "True"]
        return f"{len(ready)} nodes" if len(ready) == self.cast.nodes == len(self.nodes) else ""

    def _devices_published(self) -> str:
        pools: dict[str, list[resource.ResourceSlice]] = {}
        for obj in self.slices.values():
            pools.setdefault(obj.spec.pool.name, []).append(obj)
        if not pools:
            return ""
        for slices in pools.values():
            newest = max(obj.spec.pool.generation for obj in slices)
            current = [obj for obj in slices if obj.spec.pool.generation == newest]
            if len(current) != current[0].spec.pool.resourceSliceCount:
                return ""
        devices = sum(len(obj.spec.devices or ()) for obj in self.slices.values())
        return f"{devices} logical devices in {len(self.slices)} slices" if devices else ""

    def _claim_allocated(self) -> str:
        hosts = self.hosts(self.cast.claim)
        if len(hosts) != self.cast.pods or not self._compact(hosts):
            return ""
        self.first_hosts = hosts
        return f"{_devices(self.claims[self.cast.claim])} on {_names(hosts)}"

    def _job_running(self) -> str:
        running = self._running_on(self.cast.job, self.cast.claim)
        if not running or not self.seen(("claim-allocated",)):
            return ""
        self.first_pods = set(running)
        return _names(pod_node(self.pods[uid]) for uid in running)

    def _other_job_running(self) -> str:
        running = self._running_on(self.cast.other_job, self.cast.other_claim)
        if not running or self.hosts(self.cast.other_claim) & self.hosts(self.cast.claim):
            return ""
        self.other_pods = {uid for uid, pod in self.pods.items() if _job_of(pod) == self.cast.other_job}
        return f"{_devices(self.claims[self.cast.other_claim])} on {_names(self.hosts(self.cast.other_claim))}"

    def _large_job_waits(self) -> str:
        if "other-job-running" not in self.facts:
            return ""
        for pod in self.pods.values():
            scheduled = _condition(pod, "PodScheduled")
            reason, message = scheduled.get("reason"), str(scheduled.get("message", ""))
            if reason == REASON_SCHEDULING_GATED and message == GATED:
                continue
            if _job_of(pod) == self.cast.large_job and reason in (REASON_UNSCHEDULABLE, REASON_SCHEDULING_GATED):
                return message
        return ""

    def _node_lost(self) -> str:
        if not self.first_pods:
            return ""
        for name in self.first_hosts:
            ready = _condition(self.nodes.get(name, {}), "Ready")
            if ready.get("status") in ("False", "Unknown"):
                self.lost_node = name
                return f"{name}: Ready={ready['status']} ({ready.get('reason', '')})"
        return ""

    def _devices_tainted(self) -> str:
        if not self.lost_node:
            return ""
        affected = [
            device for obj in self.slices.values() for device in obj.spec.devices or () if self._contains(device)
        ]
        tainted = [device for device in affected if any(taint.effect == "NoExecute" for taint in device.taints or ())]
        return _names(device.name for device in tainted) if affected and len(tainted) == len(affected) else ""

    def _pods_evicted(self) -> str:
        return f"{len(self.evicted)} pods" if self.first_pods and self.evicted >= self.first_pods else ""

    def _pods_gone(self) -> str:
        return f"{len(self.gone)} pods" if self.first_pods and self.gone >= self.first_pods else ""

    def _claim_freed(self) -> str:
        claim = self.claims.get(self.cast.claim)
        return "no allocation" if self.lost_node and claim is not None and claim.status.allocation is None else ""

    def _claim_reallocated(self) -> str:
        hosts = self.hosts(self.cast.claim)
        if "claim-freed" not in self.facts or len(hosts) != self.cast.pods or not self._compact(hosts):
            return ""
        if self.lost_node in hosts and not self.cast.may_return:
            return ""
        return f"{_devices(self.claims[self.cast.claim])} on {_names(hosts)}"

    def _job_recovered(self) -> str:
        if "claim-reallocated" not in self.facts:
            return ""
        running = self._running_on(self.cast.job, self.cast.claim)
        if not running or set(running) & self.first_pods:
            return ""
        return _names(pod_node(self.pods[uid]) for uid in running)

    def _running_on(self, job: str, claim: str) -> list[str]:
        """UIDs of the job's pods when all of them run, on the claim's hosts, one each; else nothing."""
        running = [
            uid
            for uid, pod in self.pods.items()
            if _job_of(pod) == job
            and pod.get("status", {}).get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        ]
        nodes = {pod_node(self.pods[uid]) for uid in running}
        return running if len(running) == len(nodes) == self.cast.pods and nodes == self.hosts(claim) else []

    def _contains(self, device: resource.Device) -> bool:
        return self.lost_node in _selected_hosts(device.nodeSelector)

    def _compact(self, hosts: frozenset[str]) -> bool:
        """Whether hosts are one published logical device, hence neighbours by the driver's geometry."""
        return any(
            _selected_hosts(device.nodeSelector) == hosts
            for obj in self.slices.values()
            for device in obj.spec.devices or ()
        )


def _keep(table: dict[str, Any], kind: str, key: str, obj: Any) -> None:
    if kind == "DELETED":
        table.pop(key, None)
    else:
        table[key] = obj


def _revision(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)


def _condition(obj: Object, name: str) -> dict[str, Any]:
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition.get("type") == name:
            return condition
    return {}


def _job_of(pod: Object) -> str:
    return (pod["metadata"].get("labels") or {}).get(JOB_NAME_LABEL, "")


def _selected_hosts(selector: Any) -> frozenset[str]:
    """Host names that a node selector with one hostname requirement admits."""
    for term in selector.nodeSelectorTerms if selector else ():
        for requirement in term.matchExpressions or ():
            if requirement.key == LABEL_HOSTNAME and requirement.operator == "In":
                return frozenset(requirement.values or ())
    return frozenset()


def claim_hosts(claim: resource.ResourceClaim) -> frozenset[str]:
    """The hosts that a claim's allocation names; none while it has no allocation."""
    allocation = claim.status.allocation
    return _selected_hosts(allocation.nodeSelector) if allocation else frozenset()


def _devices(claim: resource.ResourceClaim) -> str:
    allocation = claim.status.allocation
    return _names(result.device for result in (allocation.devices.results or ())) if allocation else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
