"""What a pod's status says, from what its containers are doing: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drakkar.api.kinds import POD
from drakkar.api.meta import Object
from drakkar.api.names import CONTAINERS_READY, POD_INITIALIZED, POD_READY, POD_READY_TO_START_CONTAINERS
from drakkar.api.objects import condition, condition_is, pod_qos_class, uid_of
from drakkar.api.tree import children, text
from drakkar.client.clock import timestamp
from drakkar.client.writes import Patch
from drakkar.node.agent.shims import Exit

INIT, SIDECAR, MAIN = "init", "sidecar", "main"
#: Reason of a container that has ended and waits for its next start.
BACK_OFF = "CrashLoopBackOff"


@dataclass(slots=True, eq=False)
class Slot:
    """A container of the pod and where it stands. ``number`` counts attempts, that is restarts."""

    spec: Object
    kind: str
    number: int = 0
    identity: str = ""
    image: str = ""
    #: Unix time of the current attempt's start, None while nothing runs.
    started_at: float | None = None
    #: How the current attempt ended.
    exit: Exit | None = None
    #: How the one before ended.
    last: Exit | None = None
    last_identity: str = ""
    waiting: tuple[str, str] = ("ContainerCreating", "")
    ready: bool = False
    started: bool = False
    #: Devices' health: ``{name, resources: [{resourceID, health, message}]}``.
    devices: list[Object] = field(default_factory=list[Object])
    #: What the container left as its last words (``terminationMessagePath``).
    message: str = ""

    @property
    def name(self) -> str:
        """Name of the container."""
        return self.spec["name"]

    @property
    def running(self) -> bool:
        """Whether the current attempt runs."""
        return self.started_at is not None and self.exit is None


@dataclass(frozen=True, slots=True)
class Where:
    """Addresses that the status shows."""

    host_ip: str
    pod_ip: str


def phase(slots: Sequence[Slot], *, over: bool) -> str:
    """The pod's phase; ``over``: no container will run again."""
    mains = [slot for slot in slots if slot.kind == MAIN]
    if over:
        inits = [slot for slot in slots if slot.kind == INIT]
        failed = any(slot.exit is None or slot.exit.exitCode != 0 for slot in mains)
        return (
            "Failed"
            if failed or any(slot.exit is not None and slot.exit.exitCode != 0 for slot in inits)
            else "Succeeded"
        )
    return "Running" if any(slot.started_at is not None or slot.last is not None for slot in mains) else "Pending"


def status_of(
    pod: Object,
    slots: Sequence[Slot],
    where: Where,
    now: float,
    *,
    over: bool,
    sandbox: bool,
    extra: Object | None = None,
) -> Object:
    """The status; ``sandbox``: claims, volumes and network are there; ``extra``: reason and message of a failure."""
    stamp = timestamp(now)
    mains = [slot for slot in slots if slot.kind == MAIN]
    inits = [slot for slot in slots if slot.kind != MAIN]
    initialized = all(_past(slot) for slot in inits)
    ready = initialized and all(slot.ready for slot in (*mains, *(s for s in inits if s.kind == SIDECAR))) and not over
    what = phase(slots, over=over) if not extra else "Failed"
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(what, "ContainersNotReady")
    conditions = [
        _condition(pod, POD_READY_TO_START_CONTAINERS, sandbox and not over, stamp),
        _condition(pod, POD_INITIALIZED, initialized or over, stamp, "" if initialized else "ContainersNotInitialized"),
        _condition(pod, POD_READY, ready and _gates(pod), stamp, ended if not ready else "ReadinessGatesNotReady"),
        _condition(pod, CONTAINERS_READY, ready, stamp, ended),
    ]
    status: Object = {
        "phase": what,
        "startTime": text(pod, "status", "startTime") or stamp,
        "hostIP": where.host_ip,
        "hostIPs": [{"ip": where.host_ip}],
        "qosClass": text(pod, "status", "qosClass") or pod_qos_class(pod),
        "conditions": conditions,
        "containerStatuses": [_container(slot, initialized) for slot in mains],
    }
    if where.pod_ip:
        status |= {"podIP": where.pod_ip, "podIPs": [{"ip": where.pod_ip}]}
    if inits:
        status["initContainerStatuses"] = [_container(slot, True) for slot in inits]
    return status | (extra or {})


def patch_of(pod: Object, status: Object) -> Patch | None:
    """The write that brings the status there; None when it is so already."""
    current = pod.get("status") or {}
    if all(_equal(key, value, current.get(key)) for key, value in status.items()):
        return None
    metadata = pod["metadata"]
    body = {"metadata": {"uid": uid_of(pod)}, "status": status}
    return Patch(POD, metadata["namespace"], metadata["name"], body, type="strategic", subresource="status")


def _equal(key: str, new: object, old: object) -> bool:
    if key != "conditions" or not isinstance(old, list) or not isinstance(new, list):
        return new == old
    # Others have conditions here too; upstream's server adds fields to ours.
    known = {entry["type"]: entry for entry in old}
    return all(all(known.get(entry["type"], {}).get(field) == value for field, value in entry.items()) for entry in new)


def _past(slot: Slot) -> bool:
    if slot.kind == SIDECAR:
        return slot.started
    return slot.exit is not None and slot.exit.exitCode == 0


def _gates(pod: Object) -> bool:
    gates = (gate["conditionType"] for gate in children(pod, "spec", "readinessGates"))
    return all(condition_is(pod, gate) for gate in gates)


def _condition(pod: Object, kind: str, state: bool, stamp: str, reason: str = "") -> Object:
    entry: Object = {"type": kind, "status": "True" if state else "False", "lastTransitionTime": stamp}
    if not state and reason:
        entry["reason"] = reason
    old = condition(pod, kind)
    if old is not None and old.get("status") == entry["status"] and old.get("lastTransitionTime"):
        entry["lastTransitionTime"] = old["lastTransitionTime"]
    return entry


def _container(slot: Slot, initialized: bool) -> Object:
    status: Object = {
        "name": slot.name,
        "image": slot.spec.get("image", ""),
        "imageID": slot.image,
        "ready": slot.ready or (slot.kind == INIT and _past(slot)),
        "started": slot.started,
        "restartCount": slot.number,
        "state": _state(slot, initialized),
    }
    if slot.identity:
        status["containerID"] = slot.identity
    if slot.exit is not None and _waits(slot):
        status["lastState"] = {"terminated": _terminated(slot.exit, slot.identity, slot.message)}
    elif slot.last is not None:
        status["lastState"] = {"terminated": _terminated(slot.last, slot.last_identity)}
    if slot.devices:
        status["allocatedResourcesStatus"] = slot.devices
    return status


def _state(slot: Slot, initialized: bool) -> Object:
    if slot.running:
        assert slot.started_at is not None
        return {"running": {"startedAt": timestamp(slot.started_at)}}
    if slot.exit is not None and not _waits(slot):
        return {"terminated": _terminated(slot.exit, slot.identity, slot.message)}
    reason, message = slot.waiting if initialized or slot.waiting[0] != "ContainerCreating" else ("PodInitializing", "")
    return {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}


def _waits(slot: Slot) -> bool:
    return slot.waiting[0] == BACK_OFF


def _terminated(ended: Exit, identity: str, message: str = "") -> Object:
    reason = "Completed" if ended.exitCode == 0 else "Error"
    if ended.outOfMemory:
        reason = "OOMKilled"
    if ended.error:
        reason = "StartError" if ended.exitCode == 128 else "ContainerStatusUnknown"
    entry: Object = {
        "exitCode": ended.exitCode,
        "reason": reason,
        "startedAt": timestamp(ended.startedAt),
        "finishedAt": timestamp(ended.finishedAt),
    }
    if ended.error or message:
        entry["message"] = ended.error or message
    if ended.signal:
        entry["signal"] = ended.signal
    if identity:
        entry["containerID"] = identity
    return entry
