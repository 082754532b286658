"""A list whose copies cost next to nothing.

Snapshots of the inventory must not cost work that grows with the fleet. ``Pages`` keeps its
items in pages of 64; ``fork`` shares all of them, and the first write to a page after a fork
copies that page only.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")
_SHIFT = 6
_SIZE = 1 << _SHIFT


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
