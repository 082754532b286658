"""A fleet of hollow nodes: nodes as the API sees them, without machines and containers.

One process serves thousands of them with one watch each for nodes, pods and claims, one heap
of timers and one task for leases. Faults are asked for by the annotation ``drakkar.dev/hollow``
on the Node, which nobody else reads:

``failed``
    the node stops everything: heartbeats, pod status, deletions; as if its power was cut
``slow``
    it starts and stops pods only after ``slow_delay`` seconds

When the annotation goes, or after the process was stopped for longer than the lease lasts, a
node comes back as a real one has to: it reads its pods anew, ends those that the API no longer
wants, and only then renews its lease and reports Ready.

What runs is kept in the API alone, so a fleet that is started anew adopts the pods of the old one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import NODE, POD, RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.api.names import NODE_READY
from drakkar.api.objects import (
    condition_is,
    is_deleting,
    name_of,
    namespace_of,
    pod_claim_names,
    pod_is_done,
    pod_node,
    uid_of,
)
from drakkar.api.resource import v1
from drakkar.api.tree import text
from drakkar.client.cache import Cache, Caches
from drakkar.client.client import Client
from drakkar.client.queue import KeyQueue
from drakkar.client.runner import Runner
from drakkar.client.transport import Unreachable
from drakkar.client.writes import After, Create, Write
from drakkar.node.heartbeat import RETRIES, Beat, Heartbeats
from drakkar.node.hollow_host import HollowHost
from drakkar.node.hollow_nodes import (
    FAILED,
    SLOW,
    NodeEndpoint,
    addresses,
    fault_of,
    label_writes,
    ready_write,
    registration,
)
from drakkar.node.hollow_pods import Place, pod_step, ready_again, started_at

logger = logging.getLogger(__name__)

#: Keys of the queue: ("node", "", name) and ("pod", namespace, name).
Key = tuple[str, str, str]

#: Pause before a node that cannot reach the server tries to join again, in seconds; longer for more nodes than try in
#: that time at a rate of :data:`drakkar.node.heartbeat.RETRIES`.
REJOIN = 0.5
#: Keys that are worked on at the same time.
WORKERS = 16


@dataclass(slots=True, eq=False)
class HollowNode:
    """One node of the fleet and what it has to remember."""

    manifest: Object
    index: int
    beat: Beat
    #: Whether the Node object was seen; one that vanishes after that stays away, as with a kubelet.
    registered: bool = False
    #: Counts pod addresses.
    next_address: int = 1

    @property
    def name(self) -> str:
        """Name of the Node."""
        return self.beat.name

    def place(self, pod: Object) -> Place:
        """Addresses for the pod: those it has already, else new ones."""
        host_ip, network = addresses(self.index)
        known = text(pod, "status", "podIP")
        if not known:
            self.next_address = self.next_address % 254 + 1
            known = f"{network}.{self.next_address}"
        return Place(host_ip, known)


class HollowFleet:
    """Hollow nodes for the given Node manifests (name, labels, annotations, capacity) at one API server.

    Times are in seconds. :meth:`run` ends by cancellation and leaves everything as it is.
    """

    name = "hollow-nodes"

    def __init__(
        self,
        client: Client,
        clock: Clock,
        nodes: Sequence[Object],
        *,
        lease_period: float = 10.0,
        lease_duration: float = 40.0,
        slow_delay: float = 5.0,
    ):
        self._client = client
        #: Where the agent of these nodes listens, to be set before :meth:`run`; None: nowhere.
        self.endpoint: NodeEndpoint | None = None
        self._clock = clock
        self._slow_delay = slow_delay
        self._beats = Heartbeats(
            client, clock, period=lease_period, duration=lease_duration, expired=lambda beat: self._look_at(beat.name)
        )
        self.nodes = {
            name_of(manifest): HollowNode(manifest, index, Beat(name_of(manifest)))
            for index, manifest in enumerate(nodes)
        }
        # Pods that run here: uid → node and exact start. The API's status has whole seconds only.
        self._running: dict[str, tuple[str, float]] = {}
        self._serving = False
        # When a slow node gets round to a pod.
        self._delayed: dict[Key, float] = {}

    async def run(self) -> None:
        """Register the nodes and serve them until cancelled."""
        caches = Caches(self._client)
        runner = Runner(self._client, caches, self, self._clock, workers=WORKERS)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(runner.run(), name="hollow-runner")
                group.create_task(self._beats.run(), name="hollow-leases")
        finally:
            await caches.stop()

    def host(self) -> HollowHost:
        """What the endpoint of these nodes answers from; nodes that have failed answer nothing."""

        def find(namespace: str, name: str) -> Object | None:
            pod = self._pods.get(namespace, name) if self._serving else None
            return pod if pod is not None and self._is_served(pod) else None

        def every() -> list[Object]:
            return [pod for pod in self._pods.list() if self._is_served(pod)] if self._serving else []

        return HollowHost(find, every)

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch nodes, bound pods and claims."""
        self._queue = queue
        self._serving = True
        self._node_cache: Cache = caches.of(NODE)
        self._pods: Cache = caches.of(
            POD, field_selector="spec.nodeName!=", indexes={"claim": _claim_keys, "node": lambda pod: [pod_node(pod)]}
        )
        self._claims: Cache = caches.of(RESOURCECLAIM)
        self._node_cache.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)
        for name in self.nodes:
            self._look_at(name)

    async def reconcile(self, key: Key) -> Sequence[Write]:
        """Writes for one node or pod."""
        what, namespace, name = key
        if what == "pod":
            return self._pod(namespace, name)
        try:
            return await self._node(self.nodes[name])
        except (Unreachable, ApiError) as error:
            # Not left to the queue's back-off: a node that stays away longer than it must is taken for dead.
            logger.info("node %s: cannot join: %s", name, error)
            return [After(max(REJOIN, len(self.nodes) / RETRIES))]

    async def _node(self, hollow: HollowNode) -> list[Write]:
        node = self._node_cache.get("", hollow.name)
        if node is None:
            hollow.beat.live = False
            if hollow.registered:
                return []
            return [Create(NODE, registration(hollow.manifest))]
        hollow.registered = True
        if fault_of(node) == FAILED:
            hollow.beat.live = False
            return []
        if self._beats.is_current(hollow.beat) and condition_is(node, NODE_READY):
            return []
        hollow.beat.live = False
        return await self._join(hollow, node)

    async def _join(self, hollow: HollowNode, node: Object) -> list[Write]:
        """First the pods, from the server and not from the cache, then the lease, then Ready."""
        listed = await self._client.list(POD, field_selector=f"spec.nodeName={hollow.name}")
        known = {uid_of(pod) for pod in listed.items}
        self._running = {uid: entry for uid, entry in self._running.items() if entry[0] != hollow.name or uid in known}
        now = self._clock.time()
        ending = [
            write
            for pod in listed.items
            if is_deleting(pod)
            for write in pod_step(pod, hollow.place(pod), self._claim, now)
        ]
        if ending:
            return [*ending, After(0.01)]
        current = self._node_cache.get("", hollow.name)
        if current is None or fault_of(current) == FAILED:
            return []  # it failed again while it was joining
        await self._beats.join(hollow.beat, node)
        # Those, too, that came while the node was joining: they were left alone until now.
        for pod in (*listed.items, *self._pods.by("node", hollow.name)):
            self._queue.add(_pod_key(pod))
        return [
            *label_writes(node, hollow.manifest),
            ready_write(node, hollow.manifest, hollow.index, now, self.endpoint),
        ]

    def _pod(self, namespace: str, name: str) -> list[Write]:
        pod = self._pods.get(namespace, name)
        hollow = self.nodes.get(pod_node(pod)) if pod is not None else None
        if pod is None or hollow is None or not self._beats.is_current(hollow.beat):
            return []  # joining looks at all pods again
        now = self._clock.time()
        uid = uid_of(pod)
        writes = pod_step(pod, hollow.place(pod), self._claim, now, self._started(pod))
        if any(not isinstance(write, After) for write in writes):
            delay = self._delay(hollow, ("pod", namespace, name))
            if delay > 0:
                return [After(delay)]
        elif condition_is(self._node_cache.get("", hollow.name) or {}, NODE_READY):
            # Not before: who said that the pod is not ready would say so again.
            writes = [*ready_again(pod, now), *writes]
        if pod_is_done(pod) or is_deleting(pod):
            self._running.pop(uid, None)
        elif (started := self._started(pod)) is not None:
            self._running[uid] = (hollow.name, started)
        elif text(pod, "status", "phase") != "Running" and any(_starts(write) for write in writes):
            self._running[uid] = (hollow.name, now)
        return writes

    def _started(self, pod: Object) -> float | None:
        """When the pod's containers started: exactly when that was seen here, else as the status tells."""
        told = started_at(pod)
        exact = self._running.get(uid_of(pod))
        if told is not None and exact is not None and 0 <= exact[1] - told < 1:
            return exact[1]
        return told

    def _delay(self, hollow: HollowNode, key: Key) -> float:
        """Seconds that a slow node still lets this pod wait."""
        node = self._node_cache.get("", hollow.name)
        if node is None or fault_of(node) != SLOW:
            self._delayed.pop(key, None)
            return 0.0
        now = self._clock.monotonic()
        due = self._delayed.setdefault(key, now + self._slow_delay)
        if due <= now:
            del self._delayed[key]
        return due - now

    def _claim(self, namespace: str, name: str) -> v1.ResourceClaim | None:
        return self._claims.get(namespace, name)

    def _look_at(self, name: str) -> None:
        self._queue.add(("node", "", name))

    def _node_changed(self, event_type: str, old: Object | None, new: Object) -> None:
        hollow = self.nodes.get(name_of(new))
        if hollow is None:
            return
        if event_type == "DELETED" or fault_of(new) == FAILED:
            # At once, not when the queue gets to it: a dead node writes nothing.
            hollow.beat.live = False
        elif condition_is(new, NODE_READY) and not condition_is(old or {}, NODE_READY):
            for pod in self._pods.by("node", hollow.name):
                self._queue.add(_pod_key(pod))
        self._look_at(hollow.name)

    def _pod_changed(self, event_type: str, old: Object | None, new: Object) -> None:
        if event_type == "DELETED":
            if self._is_served(new):
                self._running.pop(uid_of(new), None)
                self._delayed.pop(_pod_key(new), None)
        elif pod_node(new) in self.nodes:
            self._queue.add(_pod_key(new))

    def _is_served(self, pod: Object) -> bool:
        hollow = self.nodes.get(pod_node(pod))
        return hollow is not None and self._beats.is_current(hollow.beat)

    def _claim_changed(self, event_type: str, old: v1.ResourceClaim | None, new: v1.ResourceClaim) -> None:
        for pod in self._pods.by("claim", f"{new.metadata.namespace}/{new.metadata.name}"):
            if pod_node(pod) in self.nodes and text(pod, "status", "phase") in ("", "Pending"):
                self._queue.add(_pod_key(pod))


def _pod_key(pod: Object) -> Key:
    return ("pod", namespace_of(pod), name_of(pod))


def _starts(write: Write) -> bool:
    body = getattr(write, "body", None)
    return isinstance(body, dict) and text(body, "status", "phase") == "Running"


def _claim_keys(pod: Object) -> list[str]:
    return [f"{namespace_of(pod)}/{name}" for name in pod_claim_names(pod).values() if name]
