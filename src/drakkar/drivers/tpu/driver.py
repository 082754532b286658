"""The central controller of multi-host TPU slices.

It reads Nodes that carry the labels of :data:`LABELS`, publishes one pool per TPU pod, and
taints every logical device with a host that does not answer. Everything it knows stands in
Nodes and in its own slices, so it may die and start again at any time. It reacts to events;
nothing is polled.

Source: spec/scheduling.md section 15.1; docs/reference/tpu-driver.md for users.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from drakkar.api.clock import Clock
from drakkar.api.kinds import NODE
from drakkar.api.meta import Object
from drakkar.api.names import LABEL_HOSTNAME, NODE_READY, TAINT_NOT_READY, TAINT_UNREACHABLE, TPU_DRIVER
from drakkar.api.objects import annotations_of, condition_is, is_deleting, labels_of, name_of
from drakkar.api.resource import v1
from drakkar.api.tree import children
from drakkar.client.cache import Cache, Caches
from drakkar.client.client import Client
from drakkar.client.queue import KeyQueue
from drakkar.client.runner import Runner
from drakkar.client.writes import Write
from drakkar.driver import Pool, SlicePublisher
from drakkar.driver.gates import Probe, probe_of
from drakkar.drivers.tpu.connector import Connector
from drakkar.drivers.tpu.fabric import Fabric
from drakkar.drivers.tpu.shapes import Host, hosts_in_slices, tpu_pool

logger = logging.getLogger(__name__)

LABEL_POD = f"{TPU_DRIVER}/pod"
LABEL_X = f"{TPU_DRIVER}/x"
LABEL_Y = f"{TPU_DRIVER}/y"
LABEL_HOST_TOPOLOGY = f"{TPU_DRIVER}/host-topology"
#: Annotation of a Node whose chips its own part of the driver misses; the value says how many.
BROKEN = f"{TPU_DRIVER}/broken"
#: Labels that make a Node a host of a TPU pod; the host topology is optional and 2x2 by default.
LABELS = (LABEL_POD, LABEL_X, LABEL_Y)

_DEAD = (TAINT_NOT_READY, TAINT_UNREACHABLE)
_TOPOLOGY = re.compile(r"([1-9][0-9]?)x([1-9][0-9]?)")


class TpuController:
    """What `drakkar.client.runner` runs: pools of TPU pods as keys."""

    def __init__(self, clock: Clock, *, linked: bool = False, probe: Probe | None = None):
        self.name = "tpu-driver"
        self._linked = linked
        self._publisher = SlicePublisher(TPU_DRIVER, self._desired, clock, probe=probe)
        self._nodes: Cache | None = None
        self._complained: set[str] = set()

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch nodes and the driver's slices."""
        self._publisher.setup(caches, queue)
        self._nodes = caches.of(NODE, indexes={"tpu-pod": _pods_of})
        self._nodes.subscribe(self._node_changed)

    def reconcile(self, key: str) -> Sequence[Write] | Awaitable[Sequence[Write]]:
        """Writes for the pool of one TPU pod."""
        return self._publisher.reconcile(key)

    def _node_changed(self, event_type: str, old: Object | None, new: Object) -> None:
        before = host_of(old) if old is not None else None
        after = host_of(new) if event_type != "DELETED" else None
        if before == after:
            return
        for host in (before, after):
            if host is not None:
                self._publisher.trigger(host[0])

    def _desired(self, pod: str, slices: Sequence[v1.ResourceSlice]) -> Pool | None:
        nodes = [] if self._nodes is None else self._nodes.by("tpu-pod", pod)
        return pool_of(pod, nodes, slices, self._complain, linked=self._linked)

    def grid(self, pod: str) -> Mapping[tuple[int, int], Host]:
        """Hosts of a TPU pod by place, as published."""
        return hosts_in_slices(self._publisher.slices(pod))

    def _complain(self, problem: str) -> None:
        if problem not in self._complained:
            self._complained.add(problem)
            logger.error("%s", problem)


class TpuDriver:
    """Runs the controller at one API server, and the one that switches the fabric where there is one."""

    def __init__(self, client: Client, clock: Clock, fabric: Fabric | None = None):
        self._client = client
        self._clock = clock
        self._fabric = fabric

    async def run(self) -> None:
        """Publish, and link, until cancelled."""
        controller = TpuController(self._clock, linked=self._fabric is not None, probe=probe_of(self._client))
        caches = Caches(self._client)
        try:
            publishing = Runner(self._client, caches, controller, self._clock)
            async with asyncio.TaskGroup() as group:
                group.create_task(publishing.run(), name=controller.name)
                if self._fabric is not None:
                    # Of a published device all hosts are known.
                    await publishing.ready.wait()
                    connector = Connector(self._fabric, controller.grid, self._clock)
                    runner = Runner(self._client, caches, connector, self._clock)
                    group.create_task(runner.run(), name=connector.name)
        finally:
            await caches.stop()


def host_of(node: Object) -> tuple[str, Host] | None:
    """The TPU pod and host that a Node stands for; None when its labels do not say so.

    Raises nothing: labels that are no numbers make it no host, which :func:`pool_of` reports.
    """
    labels = labels_of(node)
    if not all(labels.get(label) for label in LABELS):
        return None
    shape = _TOPOLOGY.fullmatch(labels.get(LABEL_HOST_TOPOLOGY, "2x2"))
    x, y = labels[LABEL_X], labels[LABEL_Y]
    if shape is None or not (x.isdecimal() and y.isdecimal() and len(x) < 5 and len(y) < 5):
        return None
    host = Host(
        x=int(x),
        y=int(y),
        hostname=labels.get(LABEL_HOSTNAME) or name_of(node),
        width=int(shape[1]),
        height=int(shape[2]),
        reachable=reachable(node) and not annotations_of(node).get(BROKEN),
    )
    return labels[LABEL_POD], host


def reachable(node: Object) -> bool:
    """Whether the node is Ready, not tainted as lost, and stays."""
    if is_deleting(node) or not condition_is(node, NODE_READY):
        return False
    return not any(taint.get("key") in _DEAD for taint in children(node, "spec", "taints"))


def pool_of(
    pod: str,
    nodes: Sequence[Object],
    slices: Sequence[v1.ResourceSlice],
    complain: Callable[[str], None],
    *,
    linked: bool = False,
) -> Pool | None:
    """The pool as Nodes and earlier slices say; None when there is neither.

    A host whose Node is gone stays, unreachable, until another Node takes its place: its devices may
    be allocated, and the taint is what makes their holders leave.
    """
    grid = hosts_in_slices(slices)
    taken: dict[tuple[int, int], str] = {}
    for node in sorted(nodes, key=name_of):
        found = host_of(node)
        if found is None:
            complain(
                f"node {name_of(node)}: labels {LABEL_X} and {LABEL_Y} must be whole numbers "
                f"and {LABEL_HOST_TOPOLOGY} of the form 2x2; the node is left out"
            )
            continue
        host = found[1]
        place = (host.x, host.y)
        if place in taken:
            complain(
                f"node {name_of(node)}: place ({host.x}, {host.y}) of TPU pod {pod} belongs to node {taken[place]}; "
                f"correct the labels {LABEL_X} and {LABEL_Y}; the node is left out"
            )
            continue
        taken[place] = name_of(node)
        grid[place] = host
    if not grid:
        return None
    shapes = {(host.width, host.height) for host in grid.values()}
    if len(shapes) > 1:
        complain(f"TPU pod {pod}: hosts differ in {LABEL_HOST_TOPOLOGY}; only those of the first host's shape are used")
        first = min(grid.values(), key=lambda host: (host.y, host.x))
        grid = {p: h for p, h in grid.items() if (h.width, h.height) == (first.width, first.height)}
    return tpu_pool(pod, grid.values(), linked=linked)


def _pods_of(node: Object) -> list[str]:
    labels = labels_of(node)
    return [labels[LABEL_POD]] if all(labels.get(label) for label in LABELS) else []
