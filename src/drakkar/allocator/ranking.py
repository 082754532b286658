"""The feasible nodes in order of how little the claims spoil there; see :mod:`drakkar.allocator.fitness`.

One set of nodes per loss. Only nodes that changed since the last pod of the same template are looked at again, and
equal nodes share their answer, so asking costs little more than the first name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from drakkar.allocator.nodes import Names, NodeNames
from drakkar.inventory.snapshot import NodeOrder

#: Nodes of which the loss is found out at a time; the others stand behind until the next time.
_AT_A_TIME: Final = 256

#: Whether the node has yet to be made, the weight of what is preferred and cannot be kept, and what is lost for later.
Loss = tuple[bool, float, float]
#: Loss of a node, and whether a search was needed to know it; None for a node that does not fit after all.
Score = Callable[[str], tuple[Loss | None, bool]]


class Ranking:
    """Losses of the feasible nodes of one plan, for one order of nodes."""

    def __init__(self, order: NodeOrder, mask: int) -> None:
        self.order = order
        self._sets: dict[Loss, int] = {}
        self._loss: dict[int, Loss] = {}
        #: Nodes to be looked at, and those of them that are feasible.
        self._stale: dict[str, None] = dict.fromkeys(NodeNames(mask, order))
        self._unknown = mask

    def touch(self, name: str, place: int, passes: bool) -> None:
        """Something about the node has changed."""
        self._forget(place)
        bit = 1 << place
        if passes:
            self._stale[name] = None
            self._unknown |= bit
        else:
            self._stale.pop(name, None)
            self._unknown &= ~bit

    def _forget(self, place: int) -> None:
        loss = self._loss.pop(place, None)
        if loss is not None:
            left = self._sets[loss] & ~(1 << place)
            if left:
                self._sets[loss] = left
            else:
                del self._sets[loss]

    def update(self, score: Score) -> None:
        """Finds out about nodes that changed, equal ones at no cost."""
        searched = 0
        for name in list(self._stale):
            place = self.order.places[name]
            loss, was_searched = score(name)
            del self._stale[name]
            self._unknown &= ~(1 << place)
            if loss is not None:
                self._loss[place] = loss
                self._sets[loss] = self._sets.get(loss, 0) | 1 << place
            searched += was_searched
            if searched >= _AT_A_TIME:
                break

    def names(self) -> Sequence[str]:
        """Nodes of least loss first, equal ones in the order of the inventory, those not looked at last."""
        masks = [self._sets[loss] for loss in sorted(self._sets)]
        return _Ranked([*masks, self._unknown] if self._unknown else masks, self.order)


class _Ranked(Names):
    """Sets of nodes, one behind the other; names are looked up when they are wanted."""

    __slots__ = ("_sets",)

    def __init__(self, masks: list[int], order: NodeOrder) -> None:
        self._sets = [NodeNames(mask, order) for mask in masks]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._sets)

    def __len__(self) -> int:
        return sum(map(len, self._sets))

    def __contains__(self, name: object) -> bool:
        return any(name in one for one in self._sets)
