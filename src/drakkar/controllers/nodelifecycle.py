"""Node life cycle: from silence to conditions, from conditions to taints.

A node that is not heard of for the grace gets Ready=Unknown (and its other conditions with
it); taints follow the conditions. The way back is the node's own: only the agent sets
Ready=True again, after it has cleaned up, and only then do the taints go.

Pods on an unreachable node are marked not ready. Evicting them is the duty of
`drakkar.controllers.nodeeviction`, mourning them that of `drakkar.controllers.nodeloss`.
"""

from __future__ import annotations

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import NODE, POD
from drakkar.api.meta import Object
from drakkar.api.objects import condition, condition_is, is_deleting, key_of, name_of, pod_is_done, split_key, uid_of
from drakkar.api.tree import children
from drakkar.client.cache import Caches
from drakkar.client.clock import timestamp
from drakkar.client.writes import After, Patch, Record, Write
from drakkar.controllers.common import BY_NODE, Queue, Reader, node_index, pod_status_patch
from drakkar.controllers.heartbeats import Heartbeats

#: Conditions that an agent reports and that are unknown without it.
AGENT_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
#: (condition, status) -> key of the NoSchedule taint.
CONDITION_TAINTS = {
    ("Ready", "False"): names.TAINT_NOT_READY,
    ("Ready", "Unknown"): names.TAINT_UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
OURS = {*CONDITION_TAINTS.values(), names.TAINT_UNSCHEDULABLE}
#: The two that also evict.
EVICTING = (names.TAINT_NOT_READY, names.TAINT_UNREACHABLE)


class NodeLifecycle:
    """Keys are node names and ``pod:ns/name``; ``grace`` and ``lease_period`` in seconds."""

    name = "node-lifecycle"

    def __init__(self, reader: Reader, clock: Clock, *, grace: float = 40.0, lease_period: float = 10.0):
        self._clock = clock
        self._heartbeats = Heartbeats(reader, clock, grace=grace, lease_period=lease_period)

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to nodes, leases and pods."""
        self._queue = queue
        self._nodes = caches.of(NODE)
        self._pods = caches.of(POD, indexes={BY_NODE: node_index})
        self._heartbeats.setup(caches)
        self._heartbeats.on_return(queue.add)
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    def _node_changed(self, event: str, old: Object | None, new: Object | None) -> None:
        if new is None or event == "DELETED":
            return
        if old is None or _what_matters(old) != _what_matters(new):
            self._queue.add(name_of(new))
            if _unreachable(new):
                for pod in self._pods.by(BY_NODE, name_of(new)):
                    self._queue.add(f"pod:{key_of(pod)}")

    def _pod_changed(self, event: str, old: Object | None, new: Object | None) -> None:
        if new is not None and event != "DELETED" and self._claims_to_be_ready(new):
            self._queue.add(f"pod:{key_of(new)}")

    def _claims_to_be_ready(self, pod: Object) -> bool:
        """Whether the pod counts as ready although nobody can know."""
        if not condition_is(pod, names.POD_READY) or is_deleting(pod) or pod_is_done(pod):
            return False
        node = self._nodes.get("", pod.get("spec", {}).get("nodeName") or "")
        return node is not None and _unreachable(node)

    async def reconcile(self, key: str) -> list[Write]:
        """See the class; raises ApiError when the live check of a lease fails."""
        if key.startswith("pod:"):
            return self._reconcile_pod(key.removeprefix("pod:"))
        node = self._nodes.get("", key)
        if node is None or is_deleting(node):
            return []
        rest = await self._heartbeats.silence(key)
        node = self._nodes.get("", key)
        if node is None:
            return []
        conditions = self._lost_conditions(node) if rest <= 0 else []
        writes = self._taint(node, conditions)
        if conditions:
            body = {"metadata": {"uid": uid_of(node)}, "status": {"conditions": conditions}}
            writes.append(Patch(NODE, "", key, body, "strategic", "status"))
            writes.append(Record(NODE, node, "Normal", "NodeNotReady", f"Node {key} status is now: NodeNotReady"))
        if rest > 0:
            writes.append(After(rest))
        return writes

    def _reconcile_pod(self, key: str) -> list[Write]:
        pod = self._pods.get(*split_key(key))
        if pod is None or not self._claims_to_be_ready(pod):
            return []
        entry = {
            "type": names.POD_READY,
            "status": "False",
            "reason": "NodeUnreachable",
            "message": "the node has not been heard of for its grace period",
            "lastTransitionTime": timestamp(self._clock.time()),
        }
        return [
            pod_status_patch(pod, {"conditions": [entry]}),
            Record(POD, pod, "Warning", "NodeNotReady", "Node is not ready"),
        ]

    def _lost_conditions(self, node: Object) -> list[Object]:
        """The conditions that a lost node does not have yet."""
        now = timestamp(self._clock.time())
        found: list[Object] = []
        for type_ in AGENT_CONDITIONS:
            current = condition(node, type_)
            if current is None:
                found.append(
                    {
                        "type": type_,
                        "status": "Unknown",
                        "reason": "NodeStatusNeverUpdated",
                        "message": "Kubelet never posted node status.",
                        "lastHeartbeatTime": node["metadata"].get("creationTimestamp"),
                        "lastTransitionTime": now,
                    }
                )
            elif current.get("status") != "Unknown":
                found.append(
                    {
                        **current,
                        "status": "Unknown",
                        "reason": "NodeStatusUnknown",
                        "message": "Kubelet stopped posting node status.",
                        "lastTransitionTime": now,
                    }
                )
        return found

    def _taint(self, node: Object, coming: list[Object]) -> list[Write]:
        """Taints that follow from the conditions, ``coming`` ones included; conditional on what was looked at.

        They stand before the condition in the list of writes: the condition moves the version.
        """
        statuses = {entry["type"]: entry.get("status") for entry in children(node, "status", "conditions")}
        statuses |= {entry["type"]: entry["status"] for entry in coming}
        if "Ready" not in statuses:
            return []
        keys = {key for (type_, status), key in CONDITION_TAINTS.items() if statuses.get(type_) == status}
        wanted = {(key, "NoSchedule") for key in keys} | {(key, "NoExecute") for key in keys if key in EVICTING}
        if node.get("spec", {}).get("unschedulable"):
            wanted.add((names.TAINT_UNSCHEDULABLE, "NoSchedule"))
        present = children(node, "spec", "taints")
        kept = [
            taint
            for taint in present
            if taint.get("key") not in OURS or (taint.get("key"), taint.get("effect")) in wanted
        ]
        have = {(taint.get("key"), taint.get("effect")) for taint in kept}
        added = [
            {"key": key, "effect": effect, "timeAdded": timestamp(self._clock.time())}
            for key, effect in sorted(wanted - have)
        ]
        if not added and len(kept) == len(present):
            return []
        metadata = {"uid": uid_of(node), "resourceVersion": node["metadata"].get("resourceVersion")}
        body = {"metadata": metadata, "spec": {"taints": [*kept, *added] or None}}
        return [Patch(NODE, "", name_of(node), body)]


def _unreachable(node: Object) -> bool:
    return condition_is(node, names.NODE_READY, "Unknown")


def _what_matters(node: Object) -> tuple[object, ...]:
    """The part of a Node that taints and conditions follow from; heartbeats leave it as it is."""
    return (
        [(entry["type"], entry.get("status")) for entry in children(node, "status", "conditions")],
        children(node, "spec", "taints"),
        node.get("spec", {}).get("unschedulable"),
        uid_of(node),
    )
