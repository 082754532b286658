"""Jobs: as many pods as asked for, each counted once, until enough succeeded or too much failed.

Counting survives a crash between any two writes. A finished pod keeps its finalizer until its
UID stands in ``status.uncountedTerminatedPods`` (or its index in ``completedIndexes``); the UID
moves into the number only after the finalizer is seen gone. Every status write is conditional
on the version it was computed from.

New pods get names that follow from the Job, the index and the pods seen before, so that a
create that is repeated on an old copy is refused by the server and doubles nothing.

Departure from Kubernetes: the pause before a replacement (10 s, doubled each time) counts
pods that failed by themselves. A pod that was evicted or deleted is replaced at once, because
waiting cures nothing there; ``status.failed`` and ``backoffLimit`` count it as Kubernetes does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import JOB, POD
from drakkar.api.meta import Object
from drakkar.api.objects import (
    annotations_of,
    condition,
    condition_is,
    controller_of,
    finalizers_of,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    owner_reference,
    pod_is_done,
    split_key,
    uid_of,
    with_condition,
)
from drakkar.api.tree import at, child, children, text, texts, whole
from drakkar.client.cache import Caches
from drakkar.client.clock import parse_timestamp, timestamp
from drakkar.client.writes import After, Create, Delete, Patch, Record, Write
from drakkar.controllers.common import (
    BY_CONTROLLER,
    Queue,
    Reader,
    controller_index,
    live,
    phase_of,
    pod_has_ended,
    same,
    suffix,
)
from drakkar.controllers.jobindexes import format_indexes, parse_indexes
from drakkar.controllers.jobpolicy import judge, success_rule_met

#: Pause before a failed pod is replaced, doubled with each failure since the last success; and its bound, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
#: UIDs in ``uncountedTerminatedPods`` at most; the rest waits for the next write.
UNCOUNTED_LIMIT = 500
#: Status fields that only inform: alone they wait for company, in seconds, so that a recovery is not held up by them.
INFORMING, INFORM_AFTER = frozenset(("active", "ready", "terminating")), 0.1
#: Pods created in one go.
CREATE_LIMIT = 500
#: ``backoffLimit`` where the object names none: 6, or none at all with a limit per index.
DEFAULT_LIMIT, NO_LIMIT = 6, 2**31 - 1
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
OWN_CONTROLLER = "kubernetes.io/job-controller"


@dataclass(slots=True)
class _Memory:
    """What this process knows of a Job beyond its copy in the cache; losing it costs nothing but work.

    Success never becomes undone, so what was seen once holds against any older copy.
    """

    #: Names of all its pods, and per slot the number that the next name is tried with.
    names: set[str]
    cursor: dict[str, int] = field(default_factory=dict[str, int])
    completed: set[int] = field(default_factory=set[int])
    succeeded: int = 0
    #: When the informing part of the status has to be written at the latest (Unix seconds).
    inform_at: float | None = None

    def free_name(self, job: Object, slot: str, taken: set[str]) -> str:
        """The next name of a pod of the slot (index, or ""), not one of ``taken``."""
        base = _name_base(job, slot)
        number = self.cursor.get(slot, 0)
        while base + suffix(uid_of(job), slot, number) in self.names:
            number += 1
        self.cursor[slot] = number
        while (name := base + suffix(uid_of(job), slot, number)) in self.names or name in taken:
            number += 1
        return name


class Jobs:
    """The Job controller; keys are ``job:ns/name`` and ``pod:ns/name`` (pods that lost their Job)."""

    name = "job-controller"

    def __init__(self, reader: Reader, clock: Clock):
        self._reader = reader
        self._clock = clock
        self._memory: dict[str, _Memory] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to Jobs and pods."""
        self._jobs = caches.of(JOB)
        self._pods = caches.of(POD, indexes={BY_CONTROLLER: controller_index})

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            pod = new or old
            assert pod is not None
            owner = controller_of(pod)
            if owner is not None and owner.get("kind") == JOB.kind:
                if owner["uid"] in self._memory:
                    self._memory[owner["uid"]].names.add(name_of(pod))
                queue.add(f"job:{namespace_of(pod)}/{owner['name']}")
                job = self._jobs.uid(owner["uid"])
            else:
                job = None
            if job is None and event != "DELETED" and names.JOB_TRACKING in finalizers_of(pod):
                queue.add(f"pod:{key_of(pod)}")

        def job_changed(event: str, old: Object | None, new: Object | None) -> None:
            job = new or old
            assert job is not None
            queue.add(f"job:{key_of(job)}")
            if event == "DELETED":
                self._memory.pop(uid_of(job), None)
                for pod in self._pods.by(BY_CONTROLLER, uid_of(job)):
                    queue.add(f"pod:{key_of(pod)}")

        self._pods.subscribe(pod_changed)
        self._jobs.subscribe(job_changed)

    async def reconcile(self, key: str) -> list[Write]:
        """See the class; raises ApiError when a live read fails."""
        what, _, where = key.partition(":")
        namespace, name = split_key(where)
        if what == "pod":
            return await self._reconcile_orphan(namespace, name)
        job = self._jobs.get(namespace, name)
        if job is None or job.get("spec", {}).get("managedBy", OWN_CONTROLLER) != OWN_CONTROLLER:
            return []
        pods = self._pods.by(BY_CONTROLLER, uid_of(job))
        now = self._clock.time()
        if condition_is(job, names.JOB_COMPLETE) or condition_is(job, names.JOB_FAILED):
            return _after_the_end(job, pods, now)
        memory = self._memory.get(uid_of(job))
        if memory is None:
            memory = self._memory[uid_of(job)] = _Memory({name_of(pod) for pod in pods})
        return _Pass(job, pods, now, memory).writes()

    async def _reconcile_orphan(self, namespace: str, name: str) -> list[Write]:
        """Takes our finalizer off a pod that no Job will ever count."""
        pod = self._pods.get(namespace, name)
        if pod is None or names.JOB_TRACKING not in finalizers_of(pod):
            return []
        owner = controller_of(pod)
        if owner is not None and owner.get("kind") == JOB.kind:
            job = await live(self._reader, JOB, namespace, owner["name"])
            if job is not None and uid_of(job) == owner["uid"]:
                return []
        return [_untrack(pod)]


def _after_the_end(job: Object, pods: Sequence[Object], now: float) -> list[Write]:
    """A finished Job: nothing may run or be held any more, and its time to live runs."""
    writes: list[Write] = []
    for pod in pods:
        if names.JOB_TRACKING in finalizers_of(pod):
            writes.append(_untrack(pod))
        if not pod_is_done(pod) and not is_deleting(pod):
            writes.append(Delete(POD, namespace_of(pod), name_of(pod), uid=uid_of(pod)))
    ttl = at(job, "spec", "ttlSecondsAfterFinished")
    if ttl is None or is_deleting(job):
        return writes
    ended = condition(job, names.JOB_COMPLETE) or condition(job, names.JOB_FAILED) or {}
    rest = parse_timestamp(ended["lastTransitionTime"]) + ttl - now if ended.get("lastTransitionTime") else 0
    if rest > 0:
        return [*writes, After(rest)]
    version = at(job, "metadata", "resourceVersion")
    gone = Delete(
        JOB, namespace_of(job), name_of(job), uid=uid_of(job), resource_version=version, propagation="Foreground"
    )
    return [*writes, gone]


@dataclass(slots=True)
class _Count:
    """What the pods say, on top of what the status says."""

    completed: set[int]
    failed_indexes: set[int]
    succeeded: int
    failed: int
    uncounted_succeeded: list[str]
    uncounted_failed: list[str]
    untrack: list[Object] = field(default_factory=list[Object])
    failure: str = ""


class _Pass:
    """One look at one Job: status first, then finalizers, then pods to delete and to create."""

    def __init__(self, job: Object, pods: Sequence[Object], now: float, memory: _Memory):
        self.job = job
        self.now = now
        self.memory = memory
        spec = job.get("spec", {})
        self.spec: Object = spec
        self.status: Object = job.get("status") or {}
        self.indexed = spec.get("completionMode") == "Indexed"
        self.parallelism: int = 1 if spec.get("parallelism") is None else spec["parallelism"]
        self.completions: int | None = spec.get("completions")
        if self.completions is None and (self.indexed or spec.get("parallelism") is None):
            self.completions = 1
        self.per_index: int | None = spec.get("backoffLimitPerIndex") if self.indexed else None
        #: Replace only what has ended; a pod that is still going keeps its place.
        self.only_failed = spec.get("podReplacementPolicy") == "Failed" or (
            not spec.get("podReplacementPolicy") and bool(spec.get("podFailurePolicy"))
        )
        self.suspended = bool(spec.get("suspend"))
        self.pods = pods
        running = [pod for pod in pods if not pod_has_ended(pod)]
        # Without our finalizer a pod would never be counted; it only remains to end it.
        self.strays = [pod for pod in running if not is_deleting(pod) and not _tracked(pod)]
        self.active = [pod for pod in running if not is_deleting(pod) and _tracked(pod)]
        self.terminating = [pod for pod in running if is_deleting(pod)] + self.strays
        self.conditions = children(self.status, "conditions")
        self.events: list[Record] = []
        self.count = self._take_stock()

    def writes(self) -> list[Write]:
        """Everything that has to happen now."""
        if is_deleting(self.job):
            # The collector deletes the pods; they are only held by us.
            return [_untrack(pod) for pod in self.pods if _tracked(pod) and (is_deleting(pod) or pod_is_done(pod))]
        verdict = self._verdict()
        pod_writes: list[Write] = [_delete(pod) for pod in self.strays]
        timers: list[Write] = []
        if verdict is not None:
            pod_writes.extend(_delete(pod) for pod in self.active)
        elif self.suspended:
            for pod in self.active:
                pod_writes.extend(self._withdraw(pod))
        else:
            pod_writes.extend(self._scale(timers))
            timers.extend(self._deadline_timer())
        held = self._delayed() if verdict is None else set[str]()
        untrack = [_untrack(pod) for pod in self.count.untrack if uid_of(pod) not in held]
        status = self._status(verdict, done=verdict is not None and self._is_over(untrack))
        # Events last: nothing waits for them.
        writes: list[Write] = [*status, *untrack, *pod_writes, *timers]
        return sorted(writes, key=lambda write: isinstance(write, Record))

    # counting

    def _take_stock(self) -> _Count:
        completions = self.completions or 0
        uncounted = child(self.status, "uncountedTerminatedPods")
        count = _Count(
            completed=parse_indexes(self.status.get("completedIndexes"), completions) if self.indexed else set(),
            failed_indexes=parse_indexes(self.status.get("failedIndexes"), completions),
            succeeded=self.status.get("succeeded") or 0,
            failed=self.status.get("failed") or 0,
            uncounted_succeeded=[],
            uncounted_failed=[],
        )
        tracked = {uid_of(pod) for pod in self.pods if _tracked(pod)}
        for uid in texts(uncounted, "succeeded"):
            if uid in tracked:
                count.uncounted_succeeded.append(uid)
            else:
                count.succeeded += 1
        for uid in texts(uncounted, "failed"):
            if uid in tracked:
                count.uncounted_failed.append(uid)
            else:
                count.failed += 1
        for pod in self.pods:
            if _tracked(pod):
                self._count_pod(pod, count)
        memory = self.memory
        if self.indexed:
            # A success that is no longer tracked has been recorded, whatever our copy of the Job says.
            for pod in self.pods:
                if phase_of(pod) == "Succeeded" and (index := self._index_of(pod)) is not None:
                    count.completed.add(index)
            memory.completed |= count.completed
            count.completed |= {index for index in memory.completed if index < completions}
            count.succeeded = len(count.completed)
            count.failed_indexes -= count.completed
        memory.succeeded = max(memory.succeeded, count.succeeded + len(count.uncounted_succeeded))
        return count

    def _count_pod(self, pod: Object, count: _Count) -> None:
        room = len(count.uncounted_succeeded) + len(count.uncounted_failed) < UNCOUNTED_LIMIT
        uid = uid_of(pod)
        if phase_of(pod) == "Succeeded":
            if self.indexed:
                index = self._index_of(pod)
                if index is not None:
                    count.completed.add(index)
            elif uid not in count.uncounted_succeeded:
                if not room:
                    return
                count.uncounted_succeeded.append(uid)
            count.untrack.append(pod)
            return
        if not self._has_failed(pod):
            return
        verdict = judge(self.job, pod)
        if self.per_index is not None:
            index = self._index_of(pod)
            if index is not None and (verdict.action == "FailIndex" or self._index_failures(pod) > self.per_index):
                count.failed_indexes.add(index)
        if verdict.action == "FailJob" and not count.failure:
            count.failure = verdict.message
        if verdict.action != "Ignore" and uid not in count.uncounted_failed:
            if not room:
                return
            count.uncounted_failed.append(uid)
        count.untrack.append(pod)

    def _has_failed(self, pod: Object) -> bool:
        return phase_of(pod) != "Succeeded" and (pod_has_ended(pod) or (is_deleting(pod) and not self.only_failed))

    def _index_of(self, pod: Object) -> int | None:
        """The completion index, None when the pod has none that counts."""
        index = whole(annotations_of(pod).get(names.JOB_COMPLETION_INDEX, ""))
        return None if index is None or index >= (self.completions or 0) else index

    def _index_failures(self, pod: Object) -> int:
        """Failures of the pod's index, this one included."""
        own = 0 if judge(self.job, pod).action == "Ignore" else 1
        return _index_failures(pod) + own

    def _delayed(self) -> set[str]:
        """UIDs of failed pods that carry the failure count of an index without a successor yet."""
        if self.per_index is None:
            return set()
        settled = self.count.completed | self.count.failed_indexes
        newest: dict[int, int] = {}
        for pod in self.active:
            index = self._index_of(pod)
            if index is not None:
                newest[index] = max(newest.get(index, 0), _index_failures(pod))
        held: set[str] = set()
        for pod in self.count.untrack:
            index = self._index_of(pod)
            if phase_of(pod) == "Succeeded" or index is None or index in settled:
                continue
            if newest.get(index, -1) < self._index_failures(pod):
                held.add(uid_of(pod))
        return held

    # deciding

    def _verdict(self) -> tuple[str, str, str] | None:
        """Interim condition, its reason and message, once the outcome of the Job is decided."""
        for type_ in (names.JOB_FAILURE_TARGET, names.JOB_SUCCESS_CRITERIA_MET):
            found = condition(self.job, type_)
            if found is not None and found.get("status") == "True":
                return type_, found.get("reason", ""), found.get("message", "")
        failure = self._failure()
        if failure is not None:
            return names.JOB_FAILURE_TARGET, *failure
        count = self.count
        if self.indexed:
            rule = success_rule_met(self.job, count.completed, self.completions or 0)
            if rule is not None:
                return names.JOB_SUCCESS_CRITERIA_MET, "SuccessPolicy", rule
        succeeded = count.succeeded + len(count.uncounted_succeeded)
        if self.completions is None:
            reached = succeeded > 0 and not self.active and not self.terminating
        else:
            reached = succeeded >= self.completions and not self.suspended
        if reached:
            message = "Reached expected number of succeeded pods"
            return names.JOB_SUCCESS_CRITERIA_MET, "CompletionsReached", message
        return None

    def _failure(self) -> tuple[str, str] | None:
        count, spec = self.count, self.spec
        if count.failure:
            return "PodFailurePolicy", count.failure
        limit = spec.get("backoffLimit")
        if limit is None:
            limit = DEFAULT_LIMIT if self.per_index is None else NO_LIMIT
        if count.failed + len(count.uncounted_failed) > limit or self._restarted_too_often(limit):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        rest = self._until_deadline()
        if rest is not None and rest <= 0:
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        if self.per_index is not None and count.failed_indexes:
            most = spec.get("maxFailedIndexes")
            if most is not None and len(count.failed_indexes) > most:
                return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
            if len(count.failed_indexes) + len(count.completed) >= (self.completions or 0):
                return "FailedIndexes", "Job has failed indexes"
        return None

    def _restarted_too_often(self, limit: int) -> bool:
        if text(self.spec, "template", "spec", "restartPolicy") != "OnFailure":
            return False
        restarts = sum(
            status.get("restartCount") or 0
            for pod in self.active
            for which in ("initContainerStatuses", "containerStatuses")
            for status in children(pod, "status", which)
        )
        return restarts > 0 if limit == 0 else restarts >= limit

    def _until_deadline(self) -> float | None:
        limit, started = self.spec.get("activeDeadlineSeconds"), self.status.get("startTime")
        if limit is None or not started or self.suspended:
            return None
        return parse_timestamp(started) + limit - self.now

    def _deadline_timer(self) -> list[Write]:
        rest = self._until_deadline()
        return [] if rest is None else [After(rest)]

    def _is_over(self, untrack: Sequence[Patch]) -> bool:
        """Whether nothing is left to end or to count."""
        count = self.count
        return not (self.active or self.terminating or untrack or count.uncounted_failed or count.uncounted_succeeded)

    # pods

    def _scale(self, timers: list[Write]) -> list[Write]:
        count = self.count
        succeeded = self.memory.succeeded
        if self.completions is None:
            want = len(self.active) if succeeded else self.parallelism
            want = min(want, self.parallelism)
        else:
            want = min(self.parallelism, self.completions - succeeded - len(count.failed_indexes))
        surplus = self._misplaced() if self.indexed else []
        keep = [pod for pod in self.active if pod not in surplus]
        keep.sort(key=_worth, reverse=True)
        surplus.extend(keep[max(want, 0) :])
        keep = keep[: max(want, 0)]
        writes = [write for pod in surplus for write in self._withdraw(pod)]
        going = len(self.terminating) if self.only_failed else len(self.strays)
        missing = min(want - len(keep) - going, CREATE_LIMIT)
        if missing > 0:
            writes.extend(self._create(missing, keep, timers))
        return writes

    def _misplaced(self) -> list[Object]:
        """Active pods whose index is taken, settled or no index at all."""
        taken = self.count.completed | self.count.failed_indexes
        found: list[Object] = []
        for pod in sorted(self.active, key=_worth, reverse=True):
            index = self._index_of(pod)
            if index is None or index in taken:
                found.append(pod)
            else:
                taken = taken | {index}
        return found

    def _create(self, missing: int, keep: Sequence[Object], timers: list[Write]) -> list[Write]:
        if not self.indexed:
            pause = self._pause(self.pods)
            if pause > 0:
                timers.append(After(pause))
                return []
            taken: set[str] = set()
            writes: list[Write] = []
            for _ in range(missing):
                writes.extend(self._new_pod(None, taken))
            return writes
        holding = [*keep, *(self.terminating if self.only_failed else self.strays)]
        busy = {self._index_of(pod) for pod in holding} | self.count.completed | self.count.failed_indexes
        if self.per_index is None:
            pause = self._pause(self.pods)
            if pause > 0:
                timers.append(After(pause))
                return []
        writes = []
        soonest: float | None = None
        for index in range(self.completions or 0):
            if missing == 0:
                break
            if index in busy:
                continue
            if self.per_index is not None:
                pause = self._pause([pod for pod in self.pods if self._index_of(pod) == index])
                if pause > 0:
                    soonest = pause if soonest is None else min(soonest, pause)
                    continue
            writes.extend(self._new_pod(index, set()))
            missing -= 1
        if soonest is not None:
            timers.append(After(soonest))
        return writes

    def _pause(self, pods: Sequence[Object]) -> float:
        """Seconds until a pod that failed by itself may be replaced."""
        success = max((_ended_at(pod) for pod in pods if phase_of(pod) == "Succeeded"), default=0.0)
        failures = [
            _ended_at(pod)
            for pod in pods
            if phase_of(pod) == "Failed"
            and not is_deleting(pod)
            and not condition_is(pod, names.DISRUPTION_TARGET)
            and judge(self.job, pod).action != "Ignore"
        ]
        failures = [ended for ended in failures if ended > success]
        if not failures:
            return 0.0
        return max(failures) + min(FIRST_PAUSE * 2 ** min(len(failures) - 1, 20), LONGEST_PAUSE) - self.now

    def _new_pod(self, index: int | None, taken: set[str]) -> list[Write]:
        job = self.job
        name = self.memory.free_name(job, "" if index is None else str(index), taken)
        taken.add(name)
        failures = 0
        if index is not None and self.per_index is not None:
            failures = max(
                (
                    self._index_failures(pod)
                    for pod in self.pods
                    if self._index_of(pod) == index and self._has_failed(pod)
                ),
                default=0,
            )
        pod = new_pod(job, index, name, failures if self.per_index is not None else None)
        refused = Record(JOB, job, "Warning", "FailedCreate", "Error creating: {error}")
        return [
            Create(POD, pod, refused=refused),
            Record(JOB, job, "Normal", "SuccessfulCreate", f"Created pod: {name}"),
        ]

    def _withdraw(self, pod: Object) -> list[Write]:
        """Ends a pod that is one too many: it shall not count as failed, so the finalizer goes first."""
        message = f"Deleted pod: {name_of(pod)}"
        return [_untrack(pod), _delete(pod), Record(JOB, self.job, "Normal", "SuccessfulDelete", message)]

    # status

    def _status(self, verdict: tuple[str, str, str] | None, *, done: bool) -> list[Write]:
        job, count = self.job, self.count
        now = timestamp(self.now)
        conditions = self.conditions
        start = self.status.get("startTime")
        completion = self.status.get("completionTime")
        events: list[Write] = []
        if verdict is not None:
            interim, reason, message = verdict
            if not condition_is(job, interim):
                conditions = with_condition(conditions, _condition(interim, reason, message, now))
            if done and interim == names.JOB_FAILURE_TARGET:
                conditions = with_condition(conditions, _condition(names.JOB_FAILED, reason, message, now))
                events.append(Record(JOB, job, "Warning", reason, message))
            elif done:
                conditions = with_condition(conditions, _condition(names.JOB_COMPLETE, reason, message, now))
                completion = now
                events.append(Record(JOB, job, "Normal", "Completed", "Job completed"))
        elif self.suspended:
            if not condition_is(job, names.JOB_SUSPENDED):
                entry = _condition(names.JOB_SUSPENDED, "JobSuspended", "Job suspended", now)
                conditions = with_condition(conditions, entry)
                events.append(Record(JOB, job, "Normal", "Suspended", "Job suspended"))
            start = None
        elif condition_is(job, names.JOB_SUSPENDED):
            entry = _condition(names.JOB_SUSPENDED, "JobResumed", "Job resumed", now, status="False")
            conditions = with_condition(conditions, entry)
            events.append(Record(JOB, job, "Normal", "Resumed", "Job resumed"))
            start = now
        elif not start:
            start = now
        ready = sum(condition_is(pod, names.POD_READY) for pod in self.active)
        uncounted: Object = {
            "succeeded": count.uncounted_succeeded or None,
            "failed": count.uncounted_failed or None,
        }
        wanted: Object = {
            "active": len(self.active),
            "ready": ready,
            "terminating": len(self.terminating),
            "succeeded": count.succeeded,
            "failed": count.failed,
            "uncountedTerminatedPods": uncounted,
            "conditions": conditions,
            "startTime": start,
            "completionTime": completion,
        }
        if self.indexed:
            wanted["completedIndexes"] = format_indexes(count.completed) or None
        if self.per_index is not None:
            wanted["failedIndexes"] = format_indexes(count.failed_indexes)
        changed = {key for key, value in wanted.items() if not same(self.status.get(key), value)}
        if not changed:
            self.memory.inform_at = None
            return []
        if changed <= INFORMING:
            if self.memory.inform_at is None:
                self.memory.inform_at = self.now + INFORM_AFTER
            if self.memory.inform_at > self.now:
                return [After(self.memory.inform_at - self.now)]
        self.memory.inform_at = None
        body = {
            "metadata": {"uid": uid_of(job), "resourceVersion": at(job, "metadata", "resourceVersion")},
            "status": wanted,
        }
        return [Patch(JOB, namespace_of(job), name_of(job), body, "merge", "status"), *events]


def new_pod(job: Object, index: int | None, name: str, index_failures: int | None = None) -> Object:
    """The pod of a Job's template for ``index`` (None: the Job is not indexed)."""
    template = child(job, "spec", "template")
    pattern = child(template, "metadata")
    labels = {
        **(pattern.get("labels") or {}),
        names.JOB_NAME_LABEL: name_of(job),
        names.JOB_NAME_LABEL_OLD: name_of(job),
        names.CONTROLLER_UID_LABEL: uid_of(job),
        names.CONTROLLER_UID_LABEL_OLD: uid_of(job),
    }
    annotations = dict(pattern.get("annotations") or {})
    spec: Object = dict(child(template, "spec"))
    if index is not None:
        labels[names.JOB_COMPLETION_INDEX] = annotations[names.JOB_COMPLETION_INDEX] = str(index)
        spec["hostname"] = f"{name_of(job)}-{index}"
        for which in ("containers", "initContainers"):
            if spec.get(which):
                spec[which] = [_with_index_variable(container) for container in spec[which]]
        if index_failures is not None:
            annotations[INDEX_FAILURES] = str(index_failures)
    metadata: Object = {
        "name": name,
        "generateName": name[:-5],
        "namespace": namespace_of(job),
        "labels": labels,
        "ownerReferences": [owner_reference(JOB, job)],
        "finalizers": [*(pattern.get("finalizers") or ()), names.JOB_TRACKING],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _with_index_variable(container: Object) -> Object:
    present = container.get("env") or []
    if any(variable.get("name") == "JOB_COMPLETION_INDEX" for variable in present):
        return container
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{names.JOB_COMPLETION_INDEX}']"}}
    return {**container, "env": [*present, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]}


def _name_base(job: Object, slot: str) -> str:
    """What the five generated characters follow; 58 characters at most."""
    tail = f"-{slot}-" if slot else "-"
    return name_of(job)[: 58 - len(tail)] + tail


def _tracked(pod: Object) -> bool:
    return names.JOB_TRACKING in finalizers_of(pod)


def _untrack(pod: Object) -> Patch:
    body = {"metadata": {"uid": uid_of(pod), "$deleteFromPrimitiveList/finalizers": [names.JOB_TRACKING]}}
    return Patch(POD, namespace_of(pod), name_of(pod), body, "strategic")


def _delete(pod: Object) -> Delete:
    return Delete(POD, namespace_of(pod), name_of(pod), uid=uid_of(pod))


def _worth(pod: Object) -> tuple[int, int, str, str]:
    """Sort key: the pod to keep longest is the largest (bound, ready, then the older one)."""
    bound = 1 if text(pod, "spec", "nodeName") else 0
    ready = 1 if condition_is(pod, names.POD_READY) else 0
    created = text(pod, "metadata", "creationTimestamp")
    inverted = "".join(chr(255 - ord(character)) for character in created)
    return bound, ready, inverted, name_of(pod)


def _ended_at(pod: Object) -> float:
    """When the pod ended, as well as can be told, in Unix seconds."""
    ends = [
        child(status, "state", "terminated").get("finishedAt")
        for which in ("containerStatuses", "initContainerStatuses")
        for status in children(pod, "status", which)
    ]
    known = [parse_timestamp(end) for end in ends if end]
    if known:
        return max(known)
    ready = condition(pod, names.POD_READY) or {}
    when = ready.get("lastTransitionTime") or at(pod, "metadata", "creationTimestamp")
    return parse_timestamp(when) if when else 0.0


def _condition(type_: str, reason: str, message: str, now: str, *, status: str = "True") -> Object:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": now,
        "lastTransitionTime": now,
    }


def _index_failures(pod: Object) -> int:
    """Failures of the pod's index before it."""
    return whole(annotations_of(pod).get(INDEX_FAILURES, "")) or 0
