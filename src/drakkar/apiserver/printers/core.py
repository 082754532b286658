"""Cells of the core kinds."""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.printers.text import NONE, UNKNOWN, age, epoch, joined, labels

Object = dict[str, Any]

_ROLE_PREFIX = "node-role.kubernetes.io/"


def pod(obj: Object, now: float) -> list[Any]:
    """Ready, status, restarts, age and the wide columns of a pod."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    init = {item["name"]: item for item in spec.get("initContainers") or ()}
    sidecars = {name for name, item in init.items() if item.get("restartPolicy") == "Always"}
    total = len(spec.get("containers") or ()) + len(sidecars)
    reason = status.get("reason") or status.get("phase", "")
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    counts = _Containers()
    waiting_for_init = _init_reason(status, sidecars, len(init), counts)
    if waiting_for_init:
        reason = waiting_for_init
    if not waiting_for_init or _is_true(conditions, "Initialized"):
        counts.restarts, counts.last_restart = counts.sidecar_restarts, counts.last_sidecar_restart
        running = False
        # The first container's trouble is shown, so the last ones are looked at first.
        for item in reversed(status.get("containerStatuses") or ()):
            counts.add(item)
            state = item.get("state") or {}
            waiting, terminated = state.get("waiting") or {}, state.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated is not None:
                reason = terminated.get("reason") or _exit(terminated)
            elif item.get("ready") and "running" in state:
                running = True
                counts.ready += 1
        if reason == "Completed" and running:
            reason = "Running" if _is_true(conditions, "Ready") else "NotReady"
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            reason = "Terminating"
    restarts = str(counts.restarts)
    if counts.restarts and counts.last_restart:
        restarts += f" ({age(counts.last_restart, now)} ago)"
    gates = spec.get("readinessGates") or ()
    passed = sum(_is_true(conditions, gate["conditionType"]) for gate in gates)
    addresses = status.get("podIPs") or ()
    return [
        obj["metadata"]["name"],
        f"{counts.ready}/{total}",
        reason,
        restarts,
        age(obj["metadata"].get("creationTimestamp"), now),
        (addresses[0].get("ip") if addresses else status.get("podIP")) or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    ]


class _Containers:
    """What is counted over the containers of a pod; times are those of the newest restart."""

    def __init__(self) -> None:
        self.ready = 0
        self.restarts = 0
        self.sidecar_restarts = 0
        self.last_restart = ""
        self.last_sidecar_restart = ""

    def add(self, item: Object, sidecar: bool = False) -> None:
        self.restarts += item.get("restartCount", 0)
        finished = ((item.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
        self.last_restart = _later(self.last_restart, finished)
        if sidecar:
            self.sidecar_restarts += item.get("restartCount", 0)
            self.last_sidecar_restart = _later(self.last_sidecar_restart, finished)


def _later(one: str, other: str) -> str:
    return other if (epoch(other) or 0) > (epoch(one) or 0) else one


def _init_reason(status: Object, sidecars: set[str], total: int, counts: _Containers) -> str:
    """What the first unfinished init container is doing; empty when all are through."""
    for index, item in enumerate(status.get("initContainerStatuses") or ()):
        sidecar = item["name"] in sidecars
        counts.add(item, sidecar)
        state = item.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if sidecar and item.get("started"):
            counts.ready += bool(item.get("ready"))
            continue
        if terminated is not None:
            return "Init:" + (terminated.get("reason") or _exit(terminated))
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return "Init:" + waiting["reason"]
        return f"Init:{index}/{total}"
    return ""


def _exit(terminated: Object) -> str:
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_true(conditions: dict[str, Object], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def node(obj: Object, now: float) -> list[Any]:
    """Status, roles, age, version and the wide columns of a node."""
    meta, status = obj["metadata"], obj.get("status", {})
    words: list[str] = []
    for condition in status.get("conditions") or ():
        if condition["type"] == "Ready":
            words = ["Ready" if condition["status"] == "True" else "NotReady"]
    words = words or ["Unknown"]
    if obj.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    roles: set[str] = set()
    for key, value in (meta.get("labels") or {}).items():
        if key.startswith(_ROLE_PREFIX) and len(key) > len(_ROLE_PREFIX):
            roles.add(key.removeprefix(_ROLE_PREFIX))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    info = status.get("nodeInfo") or {}
    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        meta["name"],
        ",".join(words),
        joined(sorted(roles)),
        age(meta.get("creationTimestamp"), now),
        info.get("kubeletVersion", ""),
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _address(status: Object, kind: str) -> str:
    found = (item["address"] for item in status.get("addresses") or () if item["type"] == kind)
    return next(found, NONE)


def namespace(obj: Object, now: float) -> list[Any]:
    """Phase and age."""
    meta = obj["metadata"]
    return [meta["name"], obj.get("status", {}).get("phase", ""), age(meta.get("creationTimestamp"), now)]


def configmap(obj: Object, now: float) -> list[Any]:
    """How many keys it has, and its age."""
    meta = obj["metadata"]
    size = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [meta["name"], size, age(meta.get("creationTimestamp"), now)]


def secret(obj: Object, now: float) -> list[Any]:
    """Type, number of keys, age."""
    meta = obj["metadata"]
    return [meta["name"], obj.get("type", ""), len(obj.get("data") or ()), age(meta.get("creationTimestamp"), now)]


def service(obj: Object, now: float) -> list[Any]:
    """Type, addresses, ports, age; selector when wide."""
    meta, spec = obj["metadata"], obj.get("spec", {})
    ports: list[str] = []
    for port in spec.get("ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}")
    cluster = (spec.get("clusterIPs") or [spec.get("clusterIP")])[0]
    return [
        meta["name"],
        spec.get("type", ""),
        cluster or NONE,
        _external(obj),
        joined(ports),
        age(meta.get("creationTimestamp"), now),
        labels(spec.get("selector")),
    ]


def _external(obj: Object) -> str:
    spec = obj.get("spec", {})
    fixed = list(spec.get("externalIPs") or ())
    match spec.get("type"):
        case "ExternalName":
            return spec.get("externalName", "")
        case "LoadBalancer":
            ingress = (obj.get("status", {}).get("loadBalancer") or {}).get("ingress") or ()
            given = [item.get("ip") or item.get("hostname", "") for item in ingress]
            return ",".join(given + fixed) or "<pending>"
        case _:
            return joined(fixed)


def event(obj: Object, now: float) -> list[Any]:
    """An event of the core group or of events.k8s.io, whose fields have other names."""
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    count = obj.get("count") or obj.get("deprecatedCount") or 1
    series = obj.get("series")
    if series:
        last, count = series.get("lastObservedTime"), series.get("count", 0)
    target = about.get("kind", "").lower()
    if about.get("name"):
        target += "/" + about["name"]
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        target,
        about.get("fieldPath", ""),
        ", ".join(part for part in (component, host) if part),
        (obj.get("message") or obj.get("note") or "").strip(),
        age(first, now),
        count,
        obj["metadata"]["name"],
    ]


def lease(obj: Object, now: float) -> list[Any]:
    """Who holds it, and its age."""
    meta = obj["metadata"]
    return [meta["name"], obj.get("spec", {}).get("holderIdentity", ""), age(meta.get("creationTimestamp"), now)]


def priority_class(obj: Object, now: float) -> list[Any]:
    """Value, whether it is the default, age, preemption policy."""
    meta = obj["metadata"]
    return [
        meta["name"],
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        age(meta.get("creationTimestamp"), now),
        obj.get("preemptionPolicy", ""),
    ]


def volume_claim(obj: Object, now: float) -> list[Any]:
    """Phase, volume, capacity, modes, class, age of a persistent volume claim."""
    meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
    phase = "Terminating" if meta.get("deletionTimestamp") else status.get("phase", "")
    bound = bool(spec.get("volumeName"))
    return [
        meta["name"],
        phase,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or "<unset>",
        age(meta.get("creationTimestamp"), now),
        spec.get("volumeMode") or "<unset>",
    ]


def volume(obj: Object, now: float) -> list[Any]:
    """Capacity, modes, policy, phase, claim, class, reason, age of a persistent volume."""
    meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
    claim = spec.get("claimRef")
    return [
        meta["name"],
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if meta.get("deletionTimestamp") else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or "<unset>",
        status.get("reason", ""),
        age(meta.get("creationTimestamp"), now),
        spec.get("volumeMode") or "<unset>",
    ]


_MODE_NAMES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: list[str] | None) -> str:
    present = modes or ()
    return ",".join(short for long, short in _MODE_NAMES.items() if long in present)
