"""The books: what exists, and who holds it, kept up to date by events.

Every ``set_…`` is one object as last read from the API, every ``remove_…`` its end. Order of
events does not matter: the same objects give the same answers. Work per event grows with the
object, not with the fleet. What a claim holds is booked by claim UID, so seeing a claim twice, or
first as decided (:meth:`Inventory.assume`) and then as written, books it once.
"""

from __future__ import annotations

from collections.abc import Iterable

from drakkar.api.features import Features
from drakkar.api.resource.v1 import AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from drakkar.inventory.devices import PoolKey, SliceRecord, rule_hits
from drakkar.inventory.drakkarcel import DrakkarCel
from drakkar.inventory.draws import of_name
from drakkar.inventory.nodeselector import NAME_KEY, Hook
from drakkar.inventory.pages import Pages, Shards
from drakkar.inventory.pools import Forms, Pool
from drakkar.inventory.selection import Cel, SelectorTable
from drakkar.inventory.snapshot import NO_POOLS, Node, NodeOrder, Shared, Snapshot, World
from drakkar.inventory.switches import Switches
from drakkar.inventory.usage import UNUSED, Holding, PoolUsage, holdings_of

_LOG_LIMIT = 8192
#: Rows of devices that are gone, beyond as many as there are live ones, after which the tables are made anew.
_SPARE_ROWS = 4096


class Inventory:
    """Devices, classes, nodes, taint rules and holdings; ask :meth:`snapshot` for a view to decide on."""

    def __init__(self, features: Features | Switches | None = None, cel: Cel | None = None) -> None:
        if isinstance(features, Switches):
            self.switches = features
        else:
            self.switches = Switches.from_gates((features or Features.default()).enabled)
        self._cel = cel or DrakkarCel()
        self._forms = Forms(self.switches)
        self._shared = Shared(SelectorTable(self._cel), self.switches, {}, [], 0)
        #: Number of devices that are published now.
        self._live = 0
        self._nodes: Shards[str, Node] = Shards()
        #: Their names in the order in which they were added.
        self._names: dict[str, None] = {}
        self._order: NodeOrder | None = None
        self._classes: dict[str, DeviceClass] = {}
        self._pools: Shards[PoolKey, Pool] = Shards()
        self._hooks: Shards[Hook, tuple[Pool, ...]] = Shards()
        self._everywhere: tuple[Pool, ...] = ()
        self._world: World | None = None
        #: Whether a snapshot shares the classes, which are to be copied before the next change.
        self._classes_shared = False
        self._usage: Pages[PoolUsage] = Pages(UNUSED)
        self._index: dict[PoolKey, int] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._pool_of: dict[str, PoolKey] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._written: dict[str, tuple[Holding, ...]] = {}
        self._uid_of: dict[tuple[str, str], str] = {}
        self._assumed: dict[str, tuple[Holding, ...]] = {}
        self._by_label: dict[Hook, set[str]] = {}
        self._reach: dict[PoolKey, frozenset[str] | None] = {}
        self._pools_of_hook: dict[Hook, set[PoolKey]] = {}

    # Classes.

    def set_class(self, device_class: DeviceClass) -> None:
        """Adds or replaces a DeviceClass."""
        self._classes_changed()[device_class.metadata.name] = device_class

    def remove_class(self, name: str) -> None:
        """Forgets a DeviceClass; nothing happens if it is unknown."""
        if name in self._classes:
            del self._classes_changed()[name]

    def _classes_changed(self) -> dict[str, DeviceClass]:
        if self._classes_shared:
            self._classes_shared = False
            self._classes = dict(self._classes)
        # No node is touched: plans know the classes they were made with.
        self._world = None
        return self._classes

    # Nodes.

    def set_node(self, name: str, labels: dict[str, str], declared_features: Iterable[str] = ()) -> None:
        """Adds a node or replaces its labels and declared features."""
        features = frozenset(declared_features)
        old = self._nodes.get(name)
        if old is not None and old.labels == labels and old.features == features:
            return
        if old is not None:
            self._unindex(old)
        else:
            self._order = None
            self._names[name] = None
        self._world = None
        self._nodes[name] = Node(name, dict(labels), features)
        for label in (*labels.items(), (NAME_KEY, name)):
            self._by_label.setdefault(label, set()).add(name)
            self._forget_reach(label)
        self._note(frozenset((name,)))

    def remove_node(self, name: str) -> None:
        """Forgets a node; nothing happens if it is unknown."""
        old = self._nodes.get(name)
        if old is not None:
            del self._nodes[name], self._names[name]
            self._world = self._order = None
            self._unindex(old)
            self._note(frozenset((name,)))

    def _unindex(self, node: Node) -> None:
        for label in (*node.labels.items(), (NAME_KEY, node.name)):
            names = self._by_label.get(label)
            if names is not None:
                names.discard(node.name)
                if not names:
                    del self._by_label[label]
            self._forget_reach(label)

    def _forget_reach(self, hook: Hook) -> None:
        for key in self._pools_of_hook.get(hook, ()):
            self._reach.pop(key, None)

    # Slices and taint rules.

    def set_slice(self, published: ResourceSlice) -> None:
        """Adds or replaces a ResourceSlice."""
        name = published.metadata.name
        key = (published.spec.driver, published.spec.pool.name)
        old = self._pool_of.get(name)
        if old is not None and old != key:
            self.remove_slice(name)
        self._slices[name] = published
        self._pool_of[name] = key
        pool = self._pools.get(key)
        slices = dict(pool.slices) if pool is not None else {}
        record = slices[name] = SliceRecord(published, self._rules_for(key))
        self._shared.selectors.enter(record)
        self._replace(key, slices)

    def remove_slice(self, name: str) -> None:
        """Forgets a ResourceSlice; nothing happens if it is unknown."""
        key = self._pool_of.pop(name, None)
        if key is None:
            return
        del self._slices[name]
        slices = dict(self._pools[key].slices)
        del slices[name]
        self._replace(key, slices)

    def set_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Adds or replaces a DeviceTaintRule: its taint joins those of the devices it selects."""
        old = self._rules.get(rule.metadata.name)
        self._rules[rule.metadata.name] = rule
        self._retaint([rule] if old is None else [old, rule])

    def remove_taint_rule(self, name: str) -> None:
        """Forgets a DeviceTaintRule; nothing happens if it is unknown."""
        old = self._rules.pop(name, None)
        if old is not None:
            self._retaint([old])

    def _rules_for(self, key: PoolKey) -> tuple[DeviceTaintRule, ...]:
        if not self.switches.DeviceTaintRules:
            return ()
        return tuple(rule for rule in self._rules.values() if rule_hits(rule, *key))

    def _retaint(self, rules: list[DeviceTaintRule]) -> None:
        if not self.switches.DeviceTaintRules:
            return
        for key in [key for key in self._pools if any(rule_hits(rule, *key) for rule in rules)]:
            effective = self._rules_for(key)
            self._replace(
                key, {name: SliceRecord(record.slice, effective) for name, record in self._pools[key].slices.items()}
            )

    def _replace(self, key: PoolKey, slices: dict[str, SliceRecord]) -> None:
        old = self._pools.get(key)
        index = self._index.setdefault(key, len(self._index))
        new = Pool(key, index, slices, self._forms) if slices else None
        self._live += sum(len(record.devices) for record in slices.values())
        self._live -= sum(len(record.devices) for record in old.slices.values()) if old is not None else 0
        if old is not None:
            self._remember_draws(old, new)
        self._world = None
        if old is not None:
            self._note(self._reached(old))
            self._unhook(old)
            del self._pools[key]
        self._reach.pop(key, None)
        if new is not None:
            self._pools[key] = new
            self._hook(new)
            self._note(self._reached(new))

    def _hook(self, pool: Pool) -> None:
        hooks = pool.hooks
        if hooks is None:
            self._everywhere = (*self._everywhere, pool)
            return
        for hook in hooks:
            self._hooks[hook] = (*(self._hooks.get(hook) or NO_POOLS), pool)
            self._pools_of_hook.setdefault(hook, set()).add(pool.key)

    def _unhook(self, pool: Pool) -> None:
        hooks = pool.hooks
        if hooks is None:
            self._everywhere = tuple(other for other in self._everywhere if other is not pool)
            return
        for hook in hooks:
            left = tuple(other for other in self._hooks[hook] if other is not pool)
            if left:
                self._hooks[hook] = left
            else:
                del self._hooks[hook]
            self._pools_of_hook[hook].discard(pool.key)
            if not self._pools_of_hook[hook]:
                del self._pools_of_hook[hook]

    def _reached(self, pool: Pool) -> frozenset[str] | None:
        """Names of nodes that may see the pool (perhaps some more); None for all."""
        if pool.key in self._reach:
            return self._reach[pool.key]
        hooks = pool.hooks
        found: frozenset[str] | None = None
        if hooks is not None:
            found = frozenset(name for hook in hooks for name in self._by_label.get(hook, ()))
        self._reach[pool.key] = found
        return found

    # Holdings.

    def set_claim(self, claim: ResourceClaim) -> None:
        """Books what ``status.allocation`` of the claim holds; an allocation that is gone is released.

        A decision taken with :meth:`assume` stays in force until the claim shows an allocation or
        :meth:`forget` is called.
        """
        uid = claim.metadata.uid
        place = (claim.metadata.namespace, claim.metadata.name)
        known = self._uid_of.get(place)
        if known is not None and known != uid:
            self._drop(known)
        self._uid_of[place] = uid
        allocation = claim.status.allocation
        if allocation is None:
            self._book(uid, (), self._written)
            return
        self._book(uid, (), self._assumed)
        self._book(uid, holdings_of(allocation, self.switches.ConsumableCapacity), self._written)

    def remove_claim(self, namespace: str, name: str) -> None:
        """Releases all that the claim holds; nothing happens if it is unknown."""
        uid = self._uid_of.pop((namespace, name), None)
        if uid is not None:
            self._drop(uid)

    def assume(self, claim_uid: str, allocation: AllocationResult) -> None:
        """Books a decision that is not yet seen back from the API; it counts like a written one.

        Ignored when the claim already shows an allocation.
        """
        if claim_uid not in self._written:
            self._book(claim_uid, holdings_of(allocation, self.switches.ConsumableCapacity), self._assumed)

    def forget(self, claim_uid: str) -> None:
        """Takes a decision back; nothing happens if there is none (any more)."""
        self._book(claim_uid, (), self._assumed)

    def _drop(self, uid: str) -> None:
        self._book(uid, (), self._assumed)
        self._book(uid, (), self._written)

    def _book(self, uid: str, new: tuple[Holding, ...], books: dict[str, tuple[Holding, ...]]) -> None:
        old = books.get(uid, ())
        if old == new:
            return
        if new:
            books[uid] = new
        else:
            del books[uid]
        touched: dict[PoolKey, PoolUsage] = {}
        for holding in old:
            self._own_usage(holding.pool, touched).release(holding)
        for holding in new:
            self._own_usage(holding.pool, touched).book(holding)
        for key, usage in touched.items():
            self._usage[self._index.setdefault(key, len(self._index))] = usage
            pool = self._pools.get(key)
            if pool is not None:
                reached = self._reached(pool)
                self._note(pool if reached is None else reached)

    def _own_usage(self, key: PoolKey, touched: dict[PoolKey, PoolUsage]) -> PoolUsage:
        """The pool's usage for this booking, a copy that nobody else has."""
        found = touched.get(key)
        if found is None:
            index = self._index.get(key)
            found = touched[key] = (UNUSED if index is None else self._usage[index]).copy()
        return found

    def _remember_draws(self, old: Pool, new: Pool | None) -> None:
        """Keeps what held devices drew from counters when they vanish or change (policy ``drakkar``)."""
        usage = self._usage[old.index]
        held = usage.held()
        if not held:
            return
        base = old.any_base()
        if not (base.with_counters or base.declared or usage.ghosts):
            return
        now = new.any_base() if new is not None else None
        ghosts = dict(usage.ghosts)
        for name in held:
            if name in usage.told:
                continue
            known, seen = ghosts.get(name), base.draws_of(name)
            if seen is None and known is None:
                seen = of_name(base.elsewhere(name))
            draws = known if seen is None else seen if known is None else known.joined(seen)
            if draws is not None:
                ghosts[name] = draws
        if now is not None:
            ghosts = {name: draws for name, draws in ghosts.items() if now.draws_of(name) != draws}
        if ghosts != usage.ghosts:
            self._usage[old.index] = usage.with_ghosts(ghosts)

    # Snapshots.

    def snapshot(self) -> Snapshot:
        """The present state, immutable. Costs the same however large the fleet is."""
        if self._world is None:
            if self._order is None:
                self._order = NodeOrder(self._names)
            nodes, pools, hooks = self._nodes.fork(), self._pools.fork(), self._hooks.fork()
            self._world = World(nodes, self._order, self._classes, pools, hooks, self._everywhere)
            self._classes_shared = True
        shared = self._shared
        if len(shared.selectors.rows) > 2 * self._live + _SPARE_ROWS:
            # Older snapshots keep the old tables.
            version = shared.log_start + len(shared.log)
            shared = self._shared = Shared(SelectorTable(self._cel), self.switches, {}, [], version)
        return Snapshot(self._world, self._usage.fork(), shared, shared.log_start + len(shared.log))

    def _note(self, entry: frozenset[str] | Pool | None) -> None:
        log = self._shared.log
        log.append(entry)
        if len(log) > _LOG_LIMIT:
            drop = _LOG_LIMIT // 2
            del log[:drop]
            self._shared.log_start += drop
