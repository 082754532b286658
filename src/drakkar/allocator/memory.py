"""What a plan remembers of the nodes of one inventory from one pod to the next.

Nodes of one class (:mod:`drakkar.allocator.classes`) stand in one *group*. A change of one node moves that node to
another group; a change that all nodes see, as of a device of the fabric, moves the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from drakkar.allocator.classes import NodeClass
from drakkar.allocator.explain import Tally
from drakkar.allocator.nodes import NodeNames, mask_of
from drakkar.allocator.ranking import Ranking
from drakkar.allocator.reasons import Reason
from drakkar.inventory.snapshot import NodeOrder

#: Groups without nodes, beyond as many as there are nodes, after which they are cleared away.
_SPARE_GROUPS = 1024


class Memory:
    """Classes of nodes as of the inventory's ``version``."""

    __slots__ = (
        "_classes",
        "_group_of",
        "_masks",
        "_number",
        "mask",
        "order",
        "ranking",
        "refusal",
        "tally",
        "untold",
        "version",
    )

    def __init__(self) -> None:
        self.version = -1
        self.order: NodeOrder | None = None
        #: Node → number of its group, and number → class of the group.
        self._group_of: dict[str, int] = {}
        self._classes: list[NodeClass] = []
        #: Class → number of a group that has it.
        self._number: dict[NodeClass, int] = {}
        #: Number → one bit per node of the group, kept once it was asked for.
        self._masks: list[int] | None = None
        #: One bit per node that passes.
        self.mask = 0
        self.refusal: Reason | None = None
        #: Why the nodes do not pass, as far as it was asked for, and the nodes that are missing there (None: all).
        self.tally = Tally()
        self.untold: dict[str, None] | None = None
        #: The nodes by what they lose, once somebody asked.
        self.ranking: Ranking | None = None

    def copy(self) -> Memory:
        """A memory of the same moment that can go another way."""
        other = Memory()
        other.version, other.order, other.mask = self.version, self.order, self.mask
        other._group_of, other._classes = self._group_of.copy(), self._classes.copy()
        other._number = self._number.copy()
        other._masks = None if self._masks is None else self._masks.copy()
        return other

    def of(self, name: str) -> NodeClass:
        """The class of a node."""
        return self._classes[self._group_of[name]]

    def fill(self, order: NodeOrder, found: Iterable[NodeClass]) -> None:
        """Starts anew, with the classes of all nodes in order."""
        self._group_of, self._classes, self._number = {}, [], {}
        for name, known in zip(order.names, found, strict=True):
            self._group_of[name] = self._group(known)
        self.untold, self.tally = None, Tally()
        self.reorder(order)

    def _group(self, known: NodeClass) -> int:
        number = self._number.get(known)
        if number is None:
            number = self._number[known] = len(self._classes)
            self._classes.append(known)
            if self._masks is not None:
                self._masks.append(0)
        return number

    def reorder(self, order: NodeOrder) -> None:
        """Takes over the nodes of a world."""
        for gone in [name for name in self._group_of if name not in order.places]:
            del self._group_of[gone]
            if self.untold is not None:
                self.untold[gone] = None
        self.order = order
        self.refusal = self.ranking = self._masks = None
        known = self._group_of
        self.mask = mask_of([name in known and self._classes[known[name]].passes for name in order.names])

    def record(self, name: str, place: int, found: NodeClass) -> None:
        """Enters what was found out about a node."""
        before = self._group_of.get(name)
        number = self._group_of[name] = self._group(found)
        self.refusal = None
        if self.untold is not None:
            self.untold[name] = None
        if found.passes != (before is not None and self._classes[before].passes):
            self.mask ^= 1 << place
        if self.ranking is not None:
            self.ranking.touch(name, place, found.passes)
        if self._masks is not None:
            if before is not None:
                self._masks[before] &= ~(1 << place)
            self._masks[number] |= 1 << place
        if len(self._classes) > len(self._group_of) + _SPARE_GROUPS:
            self._tidy()

    def shift(self, moved: Callable[[NodeClass, int], NodeClass | None]) -> Iterable[str]:
        """Asks for the new class of every group, given the old one and its nodes.

        Names the nodes of groups for which there is none (``None``): they have to be looked at one by one.
        """
        if self.order is None:
            return ()
        alone = 0
        self._number = {}
        for number, mask in enumerate(self._nodes_of_groups(self.order)):
            if not mask:
                continue
            old = self._classes[number]
            new = moved(old, mask)
            if new is None:
                alone |= mask
                continue
            self._classes[number] = new
            self._number.setdefault(new, number)
            if new.passes != old.passes:
                self.mask ^= mask
        self.refusal = self.ranking = self.untold = None
        self.tally = Tally()
        if len(self._classes) > 2 * len(self._number) + _SPARE_GROUPS:
            self._tidy()
        return NodeNames(alone, self.order)

    def _nodes_of_groups(self, order: NodeOrder) -> list[int]:
        if self._masks is None:
            self._masks = [0] * len(self._classes)
            for name, number in self._group_of.items():
                self._masks[number] |= 1 << order.places[name]
        return self._masks

    def _tidy(self) -> None:
        """Clears away groups that nobody is in and joins those of one class."""
        known = {name: self._classes[number] for name, number in self._group_of.items()}
        self._classes, self._number, self._masks = [], {}, None
        self._group_of = {name: self._group(found) for name, found in known.items()}
