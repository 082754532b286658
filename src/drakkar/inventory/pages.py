"""A list and a dict whose copies cost next to nothing.

Snapshots of the inventory must not cost work that grows with the fleet. ``Pages`` keeps its
items in pages of 64, ``Shards`` its entries in 256 dicts; ``fork`` shares all of them, and the first
write to one after a fork copies that one only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
_SHIFT = 6
_SIZE = 1 << _SHIFT
#: A power of two.
_SHARDS = 256


class Pages(Generic[T]):
    """Grows by assignment; reading past the end gives ``default``."""

    __slots__ = ("_default", "_own", "_pages", "_shared")

    def __init__(self, default: T) -> None:
        self._default = default
        self._pages: list[list[T]] = []
        self._own: set[int] = set()
        self._shared = False

    def fork(self) -> Pages[T]:
        """A second list with the same items; writes to either do not show in the other."""
        other: Pages[T] = Pages(self._default)
        other._pages = self._pages
        other._shared = self._shared = True
        self._own = set()
        return other

    def __getitem__(self, index: int) -> T:
        page = index >> _SHIFT
        return self._pages[page][index & (_SIZE - 1)] if page < len(self._pages) else self._default

    def __setitem__(self, index: int, item: T) -> None:
        if self._shared:
            self._pages = list(self._pages)
            self._shared = False
        page = index >> _SHIFT
        while page >= len(self._pages):
            self._own.add(len(self._pages))
            self._pages.append([self._default] * _SIZE)
        if page not in self._own:
            self._own.add(page)
            self._pages[page] = list(self._pages[page])
        self._pages[page][index & (_SIZE - 1)] = item


class Shards(Generic[K, T]):
    """A dict in no particular order."""

    __slots__ = ("_own", "_shards", "_shared")

    def __init__(self, shared: list[dict[K, T]] | None = None) -> None:
        self._shards: list[dict[K, T]] = [{} for _ in range(_SHARDS)] if shared is None else shared
        #: Numbers of the dicts that nobody else has.
        self._own: set[int] = set(range(_SHARDS)) if shared is None else set()
        #: Whether others have the list of dicts too.
        self._shared = shared is not None

    def fork(self) -> Shards[K, T]:
        """A second dict with the same entries; writes to either do not show in the other."""
        self._shared = True
        self._own = set()
        return Shards(self._shards)

    def get(self, key: K) -> T | None:
        """What stands under the key, if anything."""
        return self._shards[hash(key) & _SHARDS - 1].get(key)

    def __getitem__(self, key: K) -> T:
        return self._shards[hash(key) & _SHARDS - 1][key]

    def __contains__(self, key: K) -> bool:
        return key in self._shards[hash(key) & _SHARDS - 1]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._shards)

    def values(self) -> Iterator[T]:
        """All values."""
        return chain.from_iterable(shard.values() for shard in self._shards)

    def _writable(self, key: K) -> dict[K, T]:
        number = hash(key) & _SHARDS - 1
        if self._shared:
            self._shards = list(self._shards)
            self._shared = False
        if number not in self._own:
            self._own.add(number)
            self._shards[number] = dict(self._shards[number])
        return self._shards[number]

    def __setitem__(self, key: K, value: T) -> None:
        self._writable(key)[key] = value

    def __delitem__(self, key: K) -> None:
        del self._writable(key)[key]
