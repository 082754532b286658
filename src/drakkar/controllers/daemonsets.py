"""DaemonSets: one pod on every node that fits.

A pod is made for its node: required node affinity names it, so the scheduler only checks and binds.
Which nodes fit is decided here by node selector, affinity and taints, with the tolerations that every
daemon has. Updates replace pods node by node within ``maxUnavailable``, or put new ones beside the old
within ``maxSurge``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import CONTROLLERREVISION, DAEMONSET, NODE, POD
from drakkar.api.meta import Object
from drakkar.api.objects import (
    annotations_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    pod_is_done,
    pod_node,
    split_key,
    uid_of,
)
from drakkar.api.selectors import node_selector_matches, node_toleration_matches
from drakkar.api.tree import at, child, children, text, texts
from drakkar.client.cache import Caches
from drakkar.client.writes import After, Create, Record, Write
from drakkar.controllers.common import Queue, Reader, phase_of
from drakkar.controllers.revisions import History, history, surplus
from drakkar.controllers.workloads import (
    OWNING,
    REVISION_HASH,
    NameBook,
    born_to,
    claim,
    delete,
    gone,
    is_active,
    is_ready,
    pod_of,
    scaled,
    selector_of,
    status_patch,
    until_available,
    wakes,
)

#: Pods created or deleted in one go.
BURST = 250
GENERATION = "deprecated.daemonset.template.generation"
GENERATION_LABEL = "pod-template-generation"
#: Pause before a failed daemon is replaced, doubled each time, and its bound; in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 900.0

NUMBERS = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")

_TOLERATED = (
    (names.TAINT_NOT_READY, "NoExecute"),
    (names.TAINT_UNREACHABLE, "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    (names.TAINT_UNSCHEDULABLE, "NoSchedule"),
)
_TOLERATED_ON_HOST = ("node.kubernetes.io/network-unavailable", "NoSchedule")


@dataclass(slots=True)
class _Pause:
    """How long failed pods of a node are left, and until when (Unix seconds)."""

    seconds: float = 0.0
    until: float = 0.0


@dataclass(slots=True)
class _Memory:
    book: NameBook = field(default_factory=NameBook)
    pauses: dict[str, _Pause] = field(default_factory=dict[str, _Pause])


class DaemonSets:
    """The DaemonSet controller; keys are ``ns/name``."""

    name = "daemonset-controller"

    def __init__(self, reader: Reader, clock: Clock):
        self._reader = reader
        self._clock = clock
        self._memory: dict[str, _Memory] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to DaemonSets, their pods and revisions, and nodes."""
        self._sets = caches.of(DAEMONSET)
        self._revisions = caches.of(CONTROLLERREVISION, indexes=OWNING)
        self._nodes = caches.of(NODE)
        self._pods = caches.of(POD, indexes=OWNING)

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            if new is not None and (uid := born_to(DAEMONSET, event, new)):
                self._memory.setdefault(uid, _Memory()).book.saw(name_of(new))
            wakes(queue, DAEMONSET, self._sets, event, old, new)

        def set_changed(event: str, old: Object | None, new: Object | None) -> None:
            self._memory.pop(gone(event, old, new), None)
            if event != "DELETED" and new is not None:
                queue.add(key_of(new))

        def node_changed(event: str, old: Object | None, new: Object | None) -> None:
            if event == "MODIFIED" and old is not None and new is not None and _place(old) == _place(new):
                return
            for owner in self._sets:
                queue.add(key_of(owner))

        def revision_changed(event: str, old: Object | None, new: Object | None) -> None:
            wakes(queue, DAEMONSET, self._sets, event, old, new)

        self._sets.subscribe(set_changed)
        self._revisions.subscribe(revision_changed)
        self._nodes.subscribe(node_changed)
        self._pods.subscribe(pod_changed)

    async def reconcile(self, key: str) -> list[Write]:
        """References, the revision, then pods, then the status; raises ApiError when a live read fails."""
        owner = self._sets.get(*split_key(key))
        if owner is None or not selector_of(owner).requirements:
            return []
        pods, writes = await claim(self._reader, DAEMONSET, owner, POD, self._pods)
        revisions, more = await claim(self._reader, DAEMONSET, owner, CONTROLLERREVISION, self._revisions)
        writes.extend(more)
        if is_deleting(owner):
            return writes
        found = history(DAEMONSET, owner, revisions, self._revisions, hash_label=REVISION_HASH)
        if found.writes:
            return [*writes, *found.writes]
        memory = self._memory.setdefault(uid_of(owner), _Memory())
        view = _Pass(owner, pods, [*self._nodes], found, memory, self._clock.time())
        return sorted([*writes, *view.writes()], key=lambda write: isinstance(write, Record))


def _place(node: Object) -> tuple[object, ...]:
    """What decides whether daemons fit."""
    return labels_of(node), children(node, "spec", "taints"), at(node, "spec", "unschedulable")


def target_node(pod: Object) -> str:
    """The node a daemon is on or was made for; empty when it cannot be told."""
    if pod_node(pod):
        return pod_node(pod)
    required = child(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in children(required, "nodeSelectorTerms"):
        for entry in children(term, "matchFields"):
            if entry["key"] == "metadata.name" and entry["operator"] == "In" and len(texts(entry, "values")) == 1:
                return texts(entry, "values")[0]
    return ""


class _Pass:
    """One look at one DaemonSet."""

    def __init__(
        self,
        owner: Object,
        pods: Sequence[Object],
        nodes: Sequence[Object],
        found: History,
        memory: _Memory,
        now: float,
    ):
        self.owner = owner
        self.now = now
        self.memory = memory
        self.history = found
        self.hash = labels_of(found.current).get(REVISION_HASH, "")
        self.template = child(owner, "spec", "template")
        self.tolerations = [*children(self.template, "spec", "tolerations"), *_tolerations(self.template)]
        self.min_ready: int = at(owner, "spec", "minReadySeconds") or 0
        self.pods = pods
        self.by_node: dict[str, list[Object]] = {}
        for pod in pods:
            self.by_node.setdefault(target_node(pod), []).append(pod)
        self.nodes = {name_of(node): node for node in nodes}
        fits = {name: self._fits(node) for name, node in self.nodes.items()}
        self.wanted = sorted(name for name, (run, _) in fits.items() if run)
        self.may_stay = {name for name, (_, stay) in fits.items() if stay}
        knobs = child(owner, "spec", "updateStrategy", "rollingUpdate")
        self.rolling = text(owner, "spec", "updateStrategy", "type") != "OnDelete"
        self.surge = scaled(knobs.get("maxSurge"), len(self.wanted), up=True) if self.rolling else 0
        unavailable = knobs.get("maxUnavailable")
        self.max_unavailable = scaled(1 if unavailable is None else unavailable, len(self.wanted), up=True)
        self.gone: dict[str, Object] = {}
        self.timers: list[float] = []

    def writes(self) -> list[Write]:
        """What has to happen now."""
        events: list[Write] = []
        create = self._manage(events)
        if self.rolling and not create and not self.gone:
            create = self._surge() if self.surge else self._roll()
        writes: list[Write] = [delete(POD, pod) for pod in list(self.gone.values())[:BURST]]
        for pod in list(self.gone.values())[:BURST]:
            events.append(self._record("Normal", "SuccessfulDelete", f"Deleted pod: {name_of(pod)}"))
        for node in create[:BURST]:
            (name,) = self.memory.book.free(self.owner, node)
            refused = self._record("Warning", "FailedCreate", "Error creating: {error}")
            writes.append(Create(POD, self._pod(name, node), refused=refused))
            events.append(self._record("Normal", "SuccessfulCreate", f"Created pod: {name}"))
        if not create and not self.gone:
            hashes = {labels_of(pod).get(REVISION_HASH, "") for pod in self.pods}
            in_use = {name_of(e) for e in self.history.revisions if labels_of(e).get(REVISION_HASH, "") in hashes}
            writes.extend(surplus(self.history, at(self.owner, "spec", "revisionHistoryLimit"), in_use))
        patch = status_patch(DAEMONSET, self.owner, self._status(), always=NUMBERS)
        if patch is not None:
            writes.append(patch)
        if self.timers:
            writes.append(After(min(self.timers)))
        return [*writes, *events]

    def _record(self, type_: str, reason: str, message: str) -> Record:
        return Record(DAEMONSET, self.owner, type_, reason, message)

    def _fits(self, node: Object) -> tuple[bool, bool]:
        """Whether a daemon shall run on the node, and whether one that is there may stay."""
        spec = child(self.template, "spec")
        if spec.get("nodeName") and spec["nodeName"] != name_of(node):
            return False, False
        node_labels = labels_of(node)
        if not child(spec, "nodeSelector").items() <= node_labels.items():
            return False, False
        required = at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        if required and not node_selector_matches(required, node_labels, name_of(node)):
            return False, False
        open_ = [
            taint["effect"]
            for taint in children(node, "spec", "taints")
            if not any(node_toleration_matches(toleration, taint) for toleration in self.tolerations)
        ]
        return not {"NoSchedule", "NoExecute"} & {*open_}, "NoExecute" not in open_

    def _is_new(self, pod: Object) -> bool:
        return labels_of(pod).get(REVISION_HASH) == self.hash

    def _available(self, pod: Object) -> bool:
        rest = until_available(pod, self.min_ready, self.now)
        if rest:
            self.timers.append(rest)
        return rest == 0

    def _withdraw(self, pod: Object) -> None:
        if not is_deleting(pod):
            self.gone[uid_of(pod)] = pod

    # one pod per node

    def _manage(self, events: list[Write]) -> list[str]:
        """Marks what has to go; the nodes that lack a pod."""
        create: list[str] = []
        wanted = {*self.wanted}
        for node in self.nodes:
            pods = self.by_node.get(node, [])
            if node not in self.may_stay:
                for pod in pods:
                    self._withdraw(pod)
                continue
            if node in wanted and not pods:
                create.append(node)
                continue
            self._failed(node, pods, events)
            live = [pod for pod in pods if is_active(pod)]
            for pod in live:
                if is_ready(pod):
                    self.memory.pauses.pop(node, None)
            for pod in self._doubles(live):
                self._withdraw(pod)
        for node, pods in self.by_node.items():
            if node not in self.nodes:
                for pod in pods:
                    # A bound pod of a node that is gone is the business of node-loss.
                    if not pod_node(pod):
                        self._withdraw(pod)
        return sorted(create)

    def _failed(self, node: str, pods: Sequence[Object], events: list[Write]) -> None:
        for pod in pods:
            if not pod_is_done(pod) or is_deleting(pod):
                continue
            pause = self.memory.pauses.setdefault(node, _Pause())
            if pause.until > self.now:
                self.timers.append(pause.until - self.now)
                continue
            pause.seconds = min(pause.seconds * 2 or FIRST_PAUSE, LONGEST_PAUSE)
            pause.until = self.now + pause.seconds
            which = ("Warning", "FailedDaemonPod") if phase_of(pod) == "Failed" else ("Normal", "SucceededDaemonPod")
            message = f"Found {phase_of(pod).lower()} daemon pod {key_of(pod)} on node {node}, will try to kill it"
            events.append(self._record(*which, message))
            self._withdraw(pod)

    def _doubles(self, live: Sequence[Object]) -> list[Object]:
        """All but the oldest pod of a node; beside it, where a surge is allowed, the oldest new one."""
        order = sorted(
            live, key=lambda pod: (not pod_node(pod), text(pod, "metadata", "creationTimestamp"), name_of(pod))
        )
        if not self.surge:
            return order[1:]
        new = [pod for pod in order if self._is_new(pod)]
        old = [pod for pod in order if not self._is_new(pod)]
        if new and old and self._available(new[0]):
            return [*new[1:], *old]
        return [*new[1:], *old[1:]]

    # updates

    def _pair(self, node: str) -> tuple[Object | None, Object | None]:
        """The new and the old pod of a node."""
        live = [pod for pod in self.by_node.get(node, []) if not pod_is_done(pod)]
        new = next((pod for pod in live if self._is_new(pod)), None)
        old = next((pod for pod in live if not self._is_new(pod)), None)
        return new, old

    def _roll(self) -> list[str]:
        """Marks old pods: those that are not available at once, others within ``maxUnavailable``."""
        missing = 0
        candidates: list[Object] = []
        for node in self.wanted:
            new, old = self._pair(node)
            if new is not None or old is None:
                missing += new is None or is_deleting(new) or not self._available(new)
            elif is_deleting(old) or not self._available(old):
                missing += 1
                self._withdraw(old)
            else:
                candidates.append(old)
        for pod in candidates[: max(0, self.max_unavailable - missing)]:
            self._withdraw(pod)
        return []

    def _surge(self) -> list[str]:
        """Nodes on which a new pod may start beside the old one."""
        allowed: list[str] = []
        candidates: list[str] = []
        busy = 0
        for node in self.wanted:
            new, old = self._pair(node)
            if old is None:
                continue
            if new is not None:
                busy += not self._available(new)
            elif self._available(old):
                candidates.append(node)
            else:
                allowed.append(node)
        return [*allowed, *candidates[: max(0, self.surge - busy)]]

    def _pod(self, name: str, node: str) -> Object:
        labels = {REVISION_HASH: self.hash}
        generation = annotations_of(self.owner).get(GENERATION)
        if generation:
            labels[GENERATION_LABEL] = generation
        pod = pod_of(DAEMONSET, self.owner, self.template, name, labels)
        spec = pod["spec"]
        affinity = child(spec, "affinity")
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {**affinity, "nodeAffinity": {**child(affinity, "nodeAffinity"), **required}}
        spec["tolerations"] = self.tolerations
        return pod

    def _status(self) -> Object:
        wanted = {*self.wanted}
        current = misplaced = ready = available = updated = 0
        for node in self.nodes:
            live = [pod for pod in self.by_node.get(node, []) if is_active(pod)]
            if node not in wanted:
                misplaced += bool(live)
                continue
            if not live:
                continue
            current += 1
            ready += any(is_ready(pod) for pod in live)
            available += any([self._available(pod) for pod in live])
            updated += any(self._is_new(pod) for pod in live)
        return {
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": current,
            "numberMisscheduled": misplaced,
            "numberReady": ready,
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
            "updatedNumberScheduled": updated,
            "observedGeneration": at(self.owner, "metadata", "generation"),
        }


def _tolerations(template: Object) -> list[Object]:
    wanted = [*_TOLERATED, *([_TOLERATED_ON_HOST] if at(template, "spec", "hostNetwork") else ())]
    own = children(template, "spec", "tolerations")
    found = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in wanted]
    return [entry for entry in found if entry not in own]
