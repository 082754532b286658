"""Sets of nodes in the order of the inventory, one bit per node.

Such a set costs a fraction of a microsecond to change and nothing to share, however many nodes there are;
names are looked up only for those that somebody wants to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, overload

from drakkar.inventory.snapshot import NodeOrder

#: So many names are found bit by bit; who goes on wants all of them.
_FEW: Final = 8
_FLAGS: Final = bytes.maketrans(b"01", b"\x00\x01")


class Names(Sequence[str]):
    """Names that are looked up one after the other, when they are wanted."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return tuple(self)[index]


class NodeNames(Names):
    """The names of the nodes whose bits are set, in order. Equal to a tuple of the same names."""

    __slots__ = ("_mask", "_order")

    def __init__(self, mask: int, order: NodeOrder) -> None:
        self._mask = mask
        self._order = order

    def __iter__(self) -> Iterator[str]:
        mask, names = self._mask, self._order.names
        for _ in range(_FEW):
            if not mask:
                return
            low = mask & -mask
            yield names[low.bit_length() - 1]
            mask ^= low
        if mask:
            yield from compress(names, f"{mask:b}"[::-1].encode().translate(_FLAGS))

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __contains__(self, name: object) -> bool:
        place = self._order.places.get(name) if isinstance(name, str) else None
        return place is not None and bool((self._mask >> place) & 1)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NodeNames):
            return tuple(self) == tuple(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def mask_of(flags: Sequence[bool]) -> int:
    """The set of the places that are true."""
    return int("".join(["1" if flag else "0" for flag in reversed(flags)]) or "0", 2)
