"""The cluster as it was at one moment, for decisions.

A snapshot shares almost everything with the inventory it comes from and with other snapshots. It never
changes; :meth:`Snapshot.assume` and :meth:`Snapshot.release` give a *what-if* snapshot beside
it, for plans and for deciding about several pods before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from drakkar.api.resource.v1 import AllocationResult, Device, DeviceClass
from drakkar.inventory.devices import PoolKey
from drakkar.inventory.draws import DeviceKey, device_key
from drakkar.inventory.nodeselector import NAME_KEY, Hook
from drakkar.inventory.pages import Pages, Shards
from drakkar.inventory.pools import BaseUsage, Pool, PoolView, usage_on
from drakkar.inventory.selection import SelectorTable
from drakkar.inventory.switches import Switches
from drakkar.inventory.usage import Holding, PoolUsage, holdings_of

NO_POOLS: tuple[Pool, ...] = ()


class Node:
    """A node and the pools that reach it. A change of its labels makes a new one."""

    __slots__ = ("features", "labels", "name", "view", "view_of", "world")

    def __init__(self, name: str, labels: dict[str, str], features: frozenset[str]) -> None:
        self.name = name
        self.labels = labels
        self.features = features
        self.view: NodeView | None = None
        #: What the kept view was made of; it counts only while this is unchanged.
        self.view_of: tuple[tuple[Pool, ...], ...] = ()
        #: Number of the world in which that was last found to be so.
        self.world = 0


@dataclass(slots=True, eq=False)
class SeenPool:
    """A pool in a node's view: where its positions start, and which devices really are on the node. Never changes."""

    pool: Pool
    view: PoolView
    offset: int
    #: Positions (of the pool) in slices that target the node; selectors are asked about these.
    targets: int
    #: Those whose own node fields select the node too; only they can be taken.
    here: int


@dataclass(frozen=True, slots=True, eq=False)
class BrokenPool:
    """An incomplete or invalid pool; ``before`` valid ones stand before it in the order of pools."""

    before: int
    pool: Pool
    view: PoolView


class NodeView:
    """All devices a node can use, in the order in which upstream tries them."""

    __slots__ = ("_places", "_strict", "broken", "fatal", "name", "pools", "size")

    def __init__(self, name: str, pools: list[SeenPool], broken: list[BrokenPool], fatal: str | None) -> None:
        self.name = name
        self.pools = pools
        #: Incomplete and invalid pools, in order.
        self.broken = broken
        #: A fault that ends every attempt on this node (a node selector that cannot be parsed).
        self.fatal = fatal
        self.size = pools[-1].offset + len(pools[-1].view.base.devices) if pools else 0
        self._places: list[tuple[int, int]] | None = None
        self._strict: NodeView | None = None

    @property
    def strict(self) -> NodeView:
        """The view without pools that are out of date or contradict themselves, which upstream does not notice."""
        if self._strict is None:
            self._strict = self
            if any([seen.view.stale or seen.view.doubt for seen in self.pools]):
                self._strict = self._without_doubt()
        return self._strict

    def _without_doubt(self) -> NodeView:
        kept: list[SeenPool] = []
        broken = [BrokenPool(0, entry.pool, entry.view) for entry in self.broken]
        offset = 0
        for seen in self.pools:
            view = seen.view
            if view.doubt and not view.stale:
                broken.append(BrokenPool(0, seen.pool, replace(view, status="incomplete", detail=view.doubt)))
            elif not view.stale:
                kept.append(replace(seen, offset=offset))
                offset += len(view.base.devices)
        return NodeView(self.name, kept, broken, self.fatal)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Position in the view → (number of the pool, position in the pool)."""
        if self._places is None:
            self._places = [
                (number, local)
                for number, seen in enumerate(self.pools)
                for local in range(len(seen.view.base.devices))
            ]
        return self._places


class NodeOrder:
    """The names of all nodes in the order in which they were added. Changes only when a node comes or goes."""

    __slots__ = ("names", "places")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.places = {name: place for place, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The structure that snapshots share until it changes: who exists, not who holds what."""

    nodes: Shards[str, Node]
    order: NodeOrder
    classes: dict[str, DeviceClass]
    pools: Shards[PoolKey, Pool]
    #: Label (or node name) → pools that nodes with it may see.
    hooks: Shards[Hook, tuple[Pool, ...]]
    #: Pools that every node has to look at.
    everywhere: tuple[Pool, ...]
    #: Tells worlds apart, those of other inventories too.
    number: int = field(default_factory=count(1).__next__)
    #: Number of a pool → nodes that may see it, for those that were asked for (:func:`nodes_of`).
    reach: dict[int, frozenset[str] | None] = field(default_factory=dict[int, "frozenset[str] | None"])


def nodes_of(world: World, pool: Pool) -> frozenset[str] | None:
    """Names of the nodes that may see a pool, perhaps some more; None for all."""
    if pool.hooks is None:
        return None
    if pool.index not in world.reach:
        names = {name for key, name in pool.hooks if key == NAME_KEY}
        labels = {hook for hook in pool.hooks if hook[0] != NAME_KEY}
        if labels:
            names.update([node.name for node in world.nodes.values() if not labels.isdisjoint(node.labels.items())])
        world.reach[pool.index] = frozenset(names)
    return world.reach[pool.index]


def pools_for(world: World, node: Node) -> tuple[tuple[Pool, ...], ...]:
    """Pools that may reach the node, grouped by the way they were found."""
    hooks = world.hooks
    found = [world.everywhere] if world.everywhere else []
    mine = hooks.get((NAME_KEY, node.name))
    if mine is not None:
        found.append(mine)
    for label in node.labels.items():
        pools = hooks.get(label)
        if pools is not None:
            found.append(pools)
    return tuple(found)


def node_view(world: World, node: Node) -> NodeView:
    """The node's view, made when first needed and again after a change of the pools that reach it."""
    kept = node.view
    if kept is not None and node.world == world.number:
        return kept
    sources = pools_for(world, node)
    if kept is not None and len(sources) == len(node.view_of):
        for new, old in zip(sources, node.view_of, strict=True):
            if new is not old:
                break
        else:
            node.world = world.number
            return kept
    node.view = made = _make_view(node, sources)
    node.view_of = sources
    node.world = world.number
    return made


def _make_view(node: Node, sources: tuple[tuple[Pool, ...], ...]) -> NodeView:
    if len(sources) == 1 and len(sources[0]) == 1:
        pools: Iterable[Pool] = sources[0]
    else:
        pools = {pool.key: pool for group in sources for pool in group}.values()
    fatal: str | None = None
    found: list[tuple[Pool, PoolView]] = []
    for pool in pools:
        relevant, fault = pool.relevant(node.labels, node.name)
        if fault is not None:
            fatal = fatal or fault
            continue
        view = pool.view(relevant)
        if view is not None:
            found.append((pool, view))
    if len(found) > 1:
        found.sort(key=_place_of)
    valid: list[SeenPool] = []
    broken: list[BrokenPool] = []
    offset = 0
    for pool, view in found:
        if view.status != "valid":
            broken.append(BrokenPool(len(valid), pool, view))
            continue
        base = view.base
        here = base.on_node(view.targets, node.labels, node.name) if base.per_device else view.targets
        valid.append(SeenPool(pool, view, offset, view.targets, here))
        offset += len(base.devices)
    return NodeView(node.name, valid, broken, fatal)


def _place_of(found: tuple[Pool, PoolView]) -> tuple[bool, bytes, bytes]:
    pool, view = found
    return view.binding, pool.key[0].encode(), pool.key[1].encode()


@dataclass(slots=True)
class Shared:
    """What all snapshots of one inventory have in common: tables that only grow, and caches."""

    selectors: SelectorTable
    switches: Switches
    #: Kept by the allocator: prepared plans by their key.
    plans: dict[Any, Any]
    #: One entry per change: names of the nodes whose answer may have changed, or a pool that all nodes look at and of
    #: which the holders have changed, or None when anything may be different anywhere.
    log: list[frozenset[str] | Pool | None]
    #: Number of the change that ``log[0]`` is.
    log_start: int


class Snapshot:
    """An immutable view of the cluster; make one with :meth:`Inventory.snapshot` or :func:`drakkar.snapshot`."""

    __slots__ = ("_usage", "origin", "shared", "spread", "touched", "version", "world")

    def __init__(
        self,
        world: World,
        usage: Pages[PoolUsage],
        shared: Shared,
        version: int | None,
        origin: Snapshot | None = None,
        touched: frozenset[str] = frozenset(),
        spread: frozenset[Pool] = frozenset(),
    ) -> None:
        self.world = world
        self._usage = usage
        self.shared = shared
        #: Number of changes the inventory had seen; None for a what-if snapshot.
        self.version = version
        #: The snapshot beside which a what-if stands, and where something is held otherwise: in pools for all nodes,
        #: and on single nodes.
        self.origin = origin
        self.spread = spread
        self.touched = touched

    @property
    def switches(self) -> Switches:
        """Feature switches of the inventory."""
        return self.shared.switches

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, in the order in which they were added."""
        return self.world.order.names

    def view(self, node: str) -> NodeView:
        """What the node can use; :class:`KeyError` for an unknown node."""
        return node_view(self.world, self.world.nodes[node])

    def usage(self, pool: Pool) -> PoolUsage:
        """Who holds what in the pool."""
        return self._usage[pool.index]

    def state(self, seen: SeenPool) -> BaseUsage:
        """What is in use and what is left, by the positions of the pool."""
        return usage_on(seen.view.base, self._usage[seen.pool.index])

    def definitions(self, allocation: AllocationResult) -> dict[DeviceKey, Device]:
        """The devices of an allocation as they are published now, as far as they are of pools with counters."""
        found: dict[DeviceKey, Device] = {}
        for result in allocation.devices.results or ():
            key = device_key(result)
            pool = self.world.pools.get(key[0])
            base = pool.any_base() if pool is not None else None
            if base is not None and base.declared:
                for device in base.published(key[1]):
                    found[key] = device
        return found

    def assume(self, allocation: AllocationResult) -> Snapshot:
        """A snapshot in which somebody holds this allocation too."""
        return self._with(allocation, PoolUsage.book)

    def release(self, allocation: AllocationResult) -> Snapshot:
        """A snapshot in which this allocation, held before, is free again."""
        return self._with(allocation, PoolUsage.release)

    def _with(self, allocation: AllocationResult, change: Callable[[PoolUsage, Holding], None]) -> Snapshot:
        usage = self._usage.fork()
        own: dict[int, PoolUsage] = {}
        touched, spread = self.touched, self.spread
        for holding in holdings_of(allocation, self.switches.ConsumableCapacity):
            pool = self.world.pools.get(holding.pool)
            if pool is None:
                continue
            if pool.index not in own:
                usage[pool.index] = own[pool.index] = usage[pool.index].copy()
                reached = nodes_of(self.world, pool)
                if reached is None:
                    spread |= {pool}
                else:
                    touched |= reached
            change(own[pool.index], holding)
        return Snapshot(self.world, usage, self.shared, None, self.origin or self, touched, spread)
