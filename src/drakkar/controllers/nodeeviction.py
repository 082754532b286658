"""Evicts pods from nodes with a NoExecute taint.

A pod stays as long as it tolerates every such taint of its node: for good without
``tolerationSeconds``, else the shortest of them counts from the taint's ``timeAdded``.
"""

from __future__ import annotations

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import NODE, POD
from drakkar.api.meta import Object
from drakkar.api.objects import (
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    pod_is_done,
    pod_node,
    split_key,
    uid_of,
)
from drakkar.api.selectors import node_toleration_matches
from drakkar.api.tree import children
from drakkar.client.cache import Caches
from drakkar.client.clock import parse_timestamp
from drakkar.client.writes import After, Delete, Record, Write
from drakkar.controllers.common import BY_NODE, NO_EXECUTE, Queue, disruption_patch, node_index

MESSAGE = "Taint manager: deleting due to NoExecute taint"
EVENT = "TaintManagerEviction"


class NodeEviction:
    """Keys are ``ns/name`` of pods."""

    name = "node-taint-eviction"

    def __init__(self, clock: Clock):
        self._clock = clock
        self._first_seen: dict[tuple[str, str, str], float] = {}
        self._pending: set[str] = set()

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to nodes and pods."""
        self._nodes = caches.of(NODE)
        self._pods = caches.of(POD, indexes={BY_NODE: node_index})

        def node_changed(event: str, old: Object | None, new: Object | None) -> None:
            node = new or old
            assert node is not None
            if _evicting_taints(old) != _evicting_taints(new):
                for pod in self._pods.by(BY_NODE, name_of(node)):
                    queue.add(key_of(pod))

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            if event == "DELETED" or new is None:
                if old is not None:
                    self._pending.discard(uid_of(old))
            elif pod_node(new) and not is_deleting(new):
                queue.add(key_of(new))

        self._nodes.subscribe(node_changed)
        self._pods.subscribe(pod_changed)

    def reconcile(self, key: str) -> list[Write]:
        """See the module."""
        pod = self._pods.get(*split_key(key))
        if pod is None or is_deleting(pod) or pod_is_done(pod):
            return []
        due = self._due(pod)
        if due is None:
            if uid_of(pod) in self._pending:
                self._pending.discard(uid_of(pod))
                return [Record(POD, pod, "Normal", EVENT, f"Cancelling deletion of Pod {key}")]
            return []
        now = self._clock.time()
        if due > now:
            self._pending.add(uid_of(pod))
            return [After(due - now)]
        self._pending.discard(uid_of(pod))
        condition = disruption_patch(pod, names.REASON_NODE_TAINT, MESSAGE, now)
        return [
            *([condition] if condition else []),
            Delete(POD, namespace_of(pod), name_of(pod), uid=uid_of(pod)),
            Record(POD, pod, "Normal", EVENT, f"Marking for deletion Pod {key}"),
        ]

    def _due(self, pod: Object) -> float | None:
        """When the pod has to go, in Unix seconds; None: it may stay."""
        node = self._nodes.get("", pod_node(pod))
        taints = _evicting_taints(node)
        if node is None or not taints:
            return None
        earliest: float | None = None
        for taint in taints:
            matching = [t for t in children(pod, "spec", "tolerations") if node_toleration_matches(t, taint)]
            waits = [toleration.get("tolerationSeconds") for toleration in matching]
            if None in waits:
                continue
            if taint.get("timeAdded"):
                added = parse_timestamp(taint["timeAdded"])
            else:
                origin = (uid_of(node), taint.get("key", ""), taint.get("value") or "")
                added = self._first_seen.setdefault(origin, self._clock.time())
            at = added + min((max(0, wait) for wait in waits if wait is not None), default=0)
            earliest = at if earliest is None else min(earliest, at)
        return earliest


def _evicting_taints(node: Object | None) -> list[Object]:
    return [taint for taint in children(node, "spec", "taints") if taint.get("effect") == NO_EXECUTE]
