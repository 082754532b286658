"""Lets go of pods whose node cannot confirm their end.

A pod marked for deletion waits for its agent. On a node that is lost (heard of by nobody for
the grace, or declared ``node.kubernetes.io/out-of-service``) nobody will answer, so the pod is
set Failed and deleted with grace 0, on its UID. The agent that comes back kills what the API
no longer knows before it reports Ready, so nothing runs twice unseen.

A pod that is deleted before it has a node has no agent either and goes the same way.

Pods bound to a node that does not exist are let go as well, after the same grace: the node
may only be registering again.

On a real cluster silence alone is not taken for loss unless ``by_silence`` is asked for
(design.md, node loss). And it takes two: our own ear, and the node life cycle controller's verdict that
the node is not ready, whoever's controller that is.

What becomes of the claims of such pods is looked after by `drakkar.controllers.hostloss`, with the same idea of loss.
"""

from __future__ import annotations

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import NODE, POD
from drakkar.api.meta import Object
from drakkar.api.objects import (
    condition_is,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    pod_is_done,
    pod_node,
    split_key,
    uid_of,
)
from drakkar.api.tree import children
from drakkar.client.cache import Caches
from drakkar.client.writes import After, Delete, Write
from drakkar.controllers.common import BY_NODE, Queue, Reader, disruption_patch, live, node_index
from drakkar.controllers.heartbeats import Heartbeats
from drakkar.controllers.hostloss import HostLoss

LOST = "the node was lost while the pod was being deleted"
OUT_OF_SERVICE = "the node is out of service"
NEVER_BOUND = "the pod was deleted before it had a node"
NO_NODE = "the node of the pod no longer exists"


class NodeLoss:
    """Keys are ``pod:ns/name``, ``node:name``, and those of `HostLoss`; ``grace`` and ``lease_period`` in seconds.

    ``rules``: whether there are DeviceTaintRules to write.
    """

    name = "node-loss"

    def __init__(
        self,
        reader: Reader,
        clock: Clock,
        *,
        grace: float = 40.0,
        lease_period: float = 10.0,
        by_silence: bool = True,
        orphan_grace: float | None = None,
        rules: bool = True,
    ):
        self._reader = reader
        self._clock = clock
        self._by_silence = by_silence
        self._orphan_grace = grace if orphan_grace is None else orphan_grace
        self._heartbeats = Heartbeats(reader, clock, grace=grace, lease_period=lease_period)
        #: Node that is missing -> since when.
        self._missing: dict[str, float] = {}
        self._hosts = HostLoss(reader, clock, self._loss, settle=grace / 2, rules=rules)

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to pods, nodes and leases."""
        self._queue = queue
        self._nodes = caches.of(NODE)
        self._pods = caches.of(POD, indexes={BY_NODE: node_index})
        if self._by_silence:
            self._heartbeats.setup(caches)
            self._heartbeats.on_return(lambda node: queue.add(f"node:{node}"))
        self._hosts.setup(caches, queue)

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            if new is None or event == "DELETED":
                return
            if is_deleting(new) or (pod_node(new) and self._nodes.get("", pod_node(new)) is None):
                queue.add(f"pod:{key_of(new)}")

        def node_changed(event: str, old: Object | None, new: Object | None) -> None:
            node = new or old
            assert node is not None
            gone = event == "DELETED"
            if not gone:
                self._missing.pop(name_of(node), None)
            if gone or _out_of_service(node):
                for pod in self._pods.by(BY_NODE, name_of(node)):
                    queue.add(f"pod:{key_of(pod)}")
            if self._by_silence and not gone and (old is None or _is_ready(old) != _is_ready(node)):
                queue.add(f"node:{name_of(node)}")
            if gone or old is None or _state(old) != _state(node):
                self._hosts.node_changed(node)

        self._pods.subscribe(pod_changed)
        self._nodes.subscribe(node_changed)

    async def reconcile(self, key: str) -> list[Write]:
        """See the module; raises ApiError when a live check fails."""
        what, _, where = key.partition(":")
        if what == "node":
            return await self._reconcile_node(where)
        if what == "claim":
            return await self._hosts.reconcile_claim(where)
        if what == "rule":
            return await self._hosts.reconcile_rule(where)
        pod = self._pods.get(*split_key(where))
        if pod is None:
            return []
        if not pod_node(pod):
            return self._let_go(pod, NEVER_BOUND) if is_deleting(pod) else []
        node_name = pod_node(pod)
        node = self._nodes.get("", node_name)
        if node is None:
            return await self._without_node(pod, node_name)
        if not is_deleting(pod):
            return []
        if _out_of_service(node):
            return self._let_go(pod, OUT_OF_SERVICE)
        if not self._by_silence:
            return []
        rest = await self._heartbeats.silence(node_name)
        if rest > 0:
            return [After(rest)]
        return [] if _is_ready(node) else self._let_go(pod, LOST)

    async def _reconcile_node(self, node: str) -> list[Write]:
        """Notices the loss when it happens, and has the pods looked at that were being deleted by then."""
        if self._nodes.get("", node) is None:
            return []
        rest = await self._heartbeats.silence(node)
        if rest > 0:
            return [After(rest)]
        found = self._nodes.get("", node)
        if found is None or _is_ready(found):
            # Looked at again when somebody says that it is not.
            return []
        # By their own keys: a pod that is deleted just now has one already, and one key is worked on at a time.
        for pod in self._pods.by(BY_NODE, node):
            if is_deleting(pod):
                self._queue.add(f"pod:{key_of(pod)}")
        self._hosts.node_changed(found)
        return []

    async def _loss(self, node_name: str) -> float | None:
        """Seconds until the node is lost unless it is heard of before, 0 or less: it is lost; None: it is not."""
        node = self._nodes.get("", node_name)
        if node is None:
            return await self._absence(node_name)
        if _out_of_service(node):
            return 0.0
        if not self._by_silence or _is_ready(node):
            return None
        return await self._heartbeats.silence(node_name)

    async def _absence(self, node_name: str) -> float | None:
        """As :meth:`_loss`, of a node that is not in the cache."""
        now = self._clock.monotonic()
        rest = self._missing.setdefault(node_name, now) + self._orphan_grace - now
        if rest <= 0 and await live(self._reader, NODE, "", node_name) is not None:
            self._missing.pop(node_name, None)
            return None
        return rest

    async def _without_node(self, pod: Object, node_name: str) -> list[Write]:
        rest = await self._absence(node_name)
        if rest is None:
            return []
        return [After(rest)] if rest > 0 else self._let_go(pod, NO_NODE)

    def _let_go(self, pod: Object, why: str) -> list[Write]:
        if is_deleting(pod) and pod_is_done(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0:
            # Somebody's finalizer is all that keeps it.
            return []
        mark = disruption_patch(pod, names.REASON_POD_GC, why, self._clock.time(), failed=True)
        return [
            *([mark] if mark else []),
            Delete(POD, namespace_of(pod), name_of(pod), uid=uid_of(pod), grace=0),
        ]


def _is_ready(node: Object) -> bool:
    return condition_is(node, names.NODE_READY)


def _state(node: Object) -> tuple[bool, bool]:
    """What of a node decides whether it is lost; heartbeats leave it as it is."""
    return _is_ready(node), _out_of_service(node)


def _out_of_service(node: Object) -> bool:
    return any(taint.get("key") == names.TAINT_OUT_OF_SERVICE for taint in children(node, "spec", "taints"))
