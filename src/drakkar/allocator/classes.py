"""Nodes that are equal to a plan, names aside, and share what is found out about one of them.

In a large fleet most nodes are alike: the same devices as far as the plan looks at them, the same of them in
use. Whether such nodes pass, which devices the search takes (by position) and mostly also why it takes
none is then the same for all. Two nodes are in one class when for each of their pools, in order, these are equal:
the form of the pool (:class:`drakkar.inventory.pools.Form`), what each request makes of its devices, the values of the
attributes under a constraint, the state of holding, and which positions target the node and are on it.
Nodes with broken pools are classes of their own, because messages name those.

Source: spec/engine.md section 5.2.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from drakkar.allocator.plan import Plan
from drakkar.allocator.reasons import Reason
from drakkar.allocator.results import Solution
from drakkar.allocator.wishes import all_wishes
from drakkar.inventory.pools import Base, Pool, usage_on
from drakkar.inventory.snapshot import Node, NodeView, SeenPool, Snapshot

#: Classes, and pools, that a plan remembers; more than a fleet of twenty thousand nodes should ever have.
_KEPT: Final = 65536

Key = tuple[object, ...]


class PoolKind:
    """Pools that are alike to a plan. Only its identity counts."""

    __slots__ = ("base", "pool")

    def __init__(self, pool: Pool | None, base: Base | None) -> None:
        #: A pool that all nodes have to look at is a kind of its own.
        self.pool = pool
        self.base = base


class NodeClass:
    """What is known about all nodes of a class."""

    __slots__ = ("key", "passes", "reasons", "refuted", "solution")

    def __init__(self, key: Key | None, passes: bool, refuted: bool) -> None:
        #: None for a node that is a class of its own.
        self.key = key
        #: Whether counting lets the nodes pass.
        self.passes = passes
        #: Whether it is proved that nothing fits.
        self.refuted = refuted
        #: What the search found, once it was asked.
        self.solution: Solution | None = None
        #: Why nothing fits, by the names that the reason may speak of.
        self.reasons: dict[Key, Reason] = {}


class Classes:
    """The classes of one plan in one inventory."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._alternatives = [
            alternative for claim in plan.claims for request in claim.requests for alternative in request.alternatives
        ]
        self.wishes = all_wishes(plan)
        named = [c.attribute for claim in plan.claims for c in (*claim.constraints, *claim.wishes)]
        self._attributes = list(dict.fromkeys(named))
        #: Names without a domain are looked up differently, and derived attributes are computed: nothing is shared.
        self._shared = not plan.derived and all("/" in attribute for attribute in self._attributes)
        #: Whether nodes differ for the claims: one was seen on which they can have partitions, of which some spoil more
        #: than others, or they prefer something.
        self.partial = bool(self.wishes)
        self._kinds: dict[Key, PoolKind] = {}
        self._kind_of: dict[int, PoolKind] = {}
        self._known: dict[Key, NodeClass] = {}

    def key(self, snapshot: Snapshot, node: Node, view: NodeView) -> Key | None:
        """Equal for nodes of one class; None for a node that is a class of its own."""
        if view.broken or view.fatal is not None or not self._shared:
            for seen in view.pools:
                if seen.view.base.serial not in self._kind_of:
                    self._find_kind(seen, snapshot)
            return None
        parts: list[object] = [snapshot.switches.OptionalNodeOperations and node.features]
        kind_of = self._kind_of
        for seen in view.pools:
            base = seen.view.base
            kind = kind_of.get(base.serial)
            if kind is None:
                kind = self._find_kind(seen, snapshot)
            parts += (kind, snapshot.state(seen), seen.targets, seen.here)
        return tuple(parts)

    def get(self, key: Key) -> NodeClass | None:
        """The class with the key, if a node of it was seen."""
        return self._known.get(key)

    def add(self, key: Key, passes: bool) -> NodeClass:
        """A new class. What counting refuses is refuted under policy ``drakkar``.

        Under ``upstream`` a search that fails can meet an error in an alternative that counting did not look at.
        """
        if len(self._known) >= _KEPT:
            self._known.clear()
        refuted = not passes and self._plan.countable and self._plan.policy != "upstream"
        made = self._known[key] = NodeClass(key, passes, refuted)
        return made

    def after(self, key: Key, pools: Container[Pool], snapshot: Snapshot) -> Key:
        """What becomes of a key when something changes in what is held of pools that all nodes look at."""
        parts = list(key)
        for at, kind in enumerate(parts):
            if isinstance(kind, PoolKind) and kind.pool is not None and kind.base is not None and kind.pool in pools:
                parts[at + 1] = usage_on(kind.base, snapshot.usage(kind.pool))
        return tuple(parts)

    def _find_kind(self, seen: SeenPool, snapshot: Snapshot) -> PoolKind:
        base = seen.view.base
        if len(self._kind_of) >= _KEPT:
            self._kind_of.clear()
            self._kinds.clear()
            self._known.clear()
        table, switches = snapshot.shared.selectors, snapshot.switches
        key: Key = (base.form, *[alternative.on_base(base, table, switches) for alternative in self._alternatives])
        if self._attributes:
            rows = table.rows_of(base)
            key += tuple([table.codes(attribute, rows) for attribute in self._attributes])
        everywhere = seen.pool.hooks is None
        if everywhere:
            key += (base.serial,)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = PoolKind(seen.pool, base) if everywhere else PoolKind(None, None)
            partitions = base.with_counters & ~base.reusable
            if partitions and self._plan.policy != "upstream":
                self.partial = self.partial or any(
                    a.on_base(base, table, switches).open & partitions for a in self._alternatives
                )
        self._kind_of[base.serial] = kind
        return kind


def names_on(view: NodeView) -> Key:
    """The names of all devices on a node; a reason can speak of any of them."""
    return tuple([tuple([record.name for record in seen.view.base.devices]) for seen in view.pools])


def place_of(node: Node, view: NodeView) -> Key:
    """The names of the node and of its pools."""
    return (node.name, *[seen.pool.key for seen in view.pools])


def speaks_of_place(reason: Reason, node: Node, view: NodeView) -> bool:
    """Whether a reason names the node or one of its pools, so that it is for this node only."""
    text = reason.message + reason.cure
    return node.name in text or any(seen.pool.key[1] in text for seen in view.pools)
