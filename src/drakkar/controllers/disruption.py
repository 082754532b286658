"""PodDisruptionBudgets: how many pods may be disrupted now, for whoever evicts.

The number of pods that ought to exist is what the pods' workloads ask for, not what happens to run: a
budget of a percentage would otherwise shrink with every eviction. An eviction that was granted stands in
``status.disruptedPods`` until the pod is seen going, for two minutes at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from drakkar.api.clock import Clock
from drakkar.api.kinds import DEPLOYMENT, POD, PODDISRUPTIONBUDGET, REPLICASET, STATEFULSET
from drakkar.api.meta import Object
from drakkar.api.objects import (
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    split_key,
    uid_of,
    with_condition,
)
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, child, children
from drakkar.client.cache import Caches
from drakkar.client.clock import parse_timestamp, timestamp
from drakkar.client.writes import After, Record, Write
from drakkar.controllers.common import Queue
from drakkar.controllers.workloads import OWNING, is_ready, scaled, status_patch

#: Seconds after which a granted eviction that did not delete its pod counts as never having been.
GRANTED = 120.0
ALLOWED = "DisruptionAllowed"
NUMBERS = ("currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed")


class UnknownScale(Exception):
    """A pod's workload whose size cannot be told."""


class Disruption:
    """The status of PodDisruptionBudgets; keys are ``ns/name``."""

    name = "disruption-controller"

    def __init__(self, clock: Clock):
        self._clock = clock

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to budgets, pods and the workloads that say how many pods there should be."""
        self._budgets = caches.of(PODDISRUPTIONBUDGET)
        self._pods = caches.of(POD)
        self._sets = caches.of(REPLICASET, indexes=OWNING)
        self._deployments = caches.of(DEPLOYMENT)
        self._stateful = caches.of(STATEFULSET)

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            pod = new or old
            assert pod is not None
            for budget in self._budgets.list(namespace_of(pod)):
                selector = _selector(budget)
                if any(selector.matches(labels_of(found)) for found in (old, new) if found is not None):
                    queue.add(key_of(budget))

        def workload_changed(event: str, old: Object | None, new: Object | None) -> None:
            found = new or old
            before = at(old, "spec", "replicas")
            if found is not None and (event != "MODIFIED" or at(new, "spec", "replicas") != before):
                for budget in self._budgets.list(namespace_of(found)):
                    queue.add(key_of(budget))

        self._budgets.subscribe(lambda event, old, new: queue.add(key_of(new)) if event != "DELETED" else None)
        self._pods.subscribe(pod_changed)
        for cache in (self._sets, self._deployments, self._stateful):
            cache.subscribe(workload_changed)

    def reconcile(self, key: str) -> list[Write]:
        """The status, and when it has to be looked at again."""
        budget = self._budgets.get(*split_key(key))
        if budget is None:
            return []
        now = self._clock.time()
        selector = _selector(budget)
        pods = [pod for pod in self._pods.list(namespace_of(budget)) if selector.matches(labels_of(pod))]
        disrupted, rest, events = self._disrupted(budget, pods, now)
        healthy = sum(is_ready(pod) and not is_deleting(pod) and name_of(pod) not in disrupted for pod in pods)
        try:
            expected, desired = self._expected(budget, pods)
        except UnknownScale as problem:
            status = {"disruptionsAllowed": 0, "conditions": _conditions(budget, "SyncFailed", str(problem), now)}
            patch = status_patch(PODDISRUPTIONBUDGET, budget, status, always=NUMBERS)
            if patch is None:
                return []
            return [
                patch,
                Record(PODDISRUPTIONBUDGET, budget, "Warning", "CalculateExpectedPodCountFailed", str(problem)),
            ]
        allowed = healthy - desired if expected > 0 and healthy > desired else 0
        status: Object = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
            "observedGeneration": at(budget, "metadata", "generation"),
            "conditions": _conditions(budget, "SufficientPods" if allowed else "InsufficientPods", "", now),
        }
        # A merge patch has to name what goes.
        left = child(budget, "status", "disruptedPods")
        if left.keys() != disrupted.keys():
            status["disruptedPods"] = {name: disrupted.get(name) for name in left}
        patch = status_patch(PODDISRUPTIONBUDGET, budget, status, always=NUMBERS)
        writes: list[Write] = [patch] if patch is not None else []
        return [*writes, *events, *([After(rest)] if rest is not None else [])]

    def _disrupted(
        self, budget: Object, pods: Sequence[Object], now: float
    ) -> tuple[dict[str, str], float | None, list[Write]]:
        """Granted evictions whose pods are still to go, seconds until the first is void, and what to tell."""
        by_name = {name_of(pod): pod for pod in pods}
        kept: dict[str, str] = {}
        rests: list[float] = []
        events: list[Write] = []
        for name, since in child(budget, "status", "disruptedPods").items():
            pod = by_name.get(name)
            if pod is None or is_deleting(pod):
                continue
            rest = parse_timestamp(since) + GRANTED - now
            if rest <= 0:
                message = f"Pod was expected by PDB {key_of(budget)} to be deleted but it wasn't"
                events.append(Record(POD, pod, "Warning", "NotDeleted", message))
                continue
            kept[name] = since
            rests.append(rest)
        return kept, min(rests, default=None), events

    def _expected(self, budget: Object, pods: Sequence[Object]) -> tuple[int, int]:
        """How many pods there ought to be, and how many of them healthy."""
        most, least = at(budget, "spec", "maxUnavailable"), at(budget, "spec", "minAvailable")
        if most is not None:
            expected = self._scale(pods)
            return expected, max(0, expected - scaled(most, expected, up=True))
        if isinstance(least, str):
            expected = self._scale(pods)
            return expected, scaled(least, expected, up=True)
        return len(pods), 0 if least is None else least

    def _scale(self, pods: Sequence[Object]) -> int:
        """What the controllers of the pods are asked for; pods without one do not count."""
        sizes: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is None or owner["uid"] in sizes:
                continue
            found = self._workload(owner)
            if found is None:
                raise UnknownScale(
                    f"{owner['kind']}.{owner['apiVersion']} {owner['name']} of pod {name_of(pod)} has no scale"
                )
            replicas = at(found, "spec", "replicas")
            sizes[owner["uid"]] = 0
            sizes[uid_of(found)] = 1 if replicas is None else replicas
        return sum(sizes.values())

    def _workload(self, owner: Object) -> Object | None:
        if not owner["apiVersion"].startswith("apps/"):
            return None
        if owner["kind"] == STATEFULSET.kind:
            return self._stateful.uid(owner["uid"])
        if owner["kind"] != REPLICASET.kind:
            return None
        found = self._sets.uid(owner["uid"])
        parent = controller_of(found) if found is not None else None
        if parent is not None and parent["kind"] == DEPLOYMENT.kind:
            return self._deployments.uid(parent["uid"]) or found
        return found


def _selector(budget: Object) -> LabelSelector:
    """``spec.selector``: an empty one selects every pod, an absent one none."""
    return LabelSelector.from_object(at(budget, "spec", "selector"))


def _conditions(budget: Object, reason: str, message: str, now: float) -> list[Object]:
    new = {
        "type": ALLOWED,
        "status": "True" if reason == "SufficientPods" else "False",
        "reason": reason,
        "message": message,
        "observedGeneration": at(budget, "metadata", "generation") or 0,
        "lastTransitionTime": timestamp(now),
    }
    return with_condition(children(budget, "status", "conditions"), new)
