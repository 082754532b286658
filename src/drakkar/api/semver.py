"""Semantic versions as Kubernetes reads them in attributes and in CEL.

Strict reading takes three numbers without leading zeroes. The normalising reading, which
only CEL asks for, strips one ``v`` and leading zeroes and pads missing numbers with
``.0``; a short version with a pre-release or build part stays an error.

Source: spec/api.md section 2, spec/cel-choice.md 3.2 number 12.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Final

from drakkar.api.errors import ParseError

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PRE: Final = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_STRICT: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PRE}(?:\.{_PRE})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
)
_UINT64_MAX: Final = 2**64 - 1


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version; order and equality ignore build metadata, as semver.org defines precedence."""

    major: int
    minor: int
    patch: int
    #: Pre-release identifiers; numeric ones are ints.
    pre: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str, normalize: bool = False) -> Semver:
        """The version that ``text`` spells; :class:`ParseError` when it spells none. Cached."""
        return _parse(_normalized(text) if normalize else text)

    def _key(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int | str], ...]]:
        # A release sorts behind its pre-releases, numbers before words, a longer list behind its prefix.
        pre = tuple((isinstance(part, str), part) for part in self.pre)
        return self.major, self.minor, self.patch, not self.pre, pre

    def compare(self, other: Semver) -> int:
        """-1, 0 or 1."""
        mine, theirs = self._key(), other._key()
        return (mine > theirs) - (mine < theirs)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: Semver) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        return text + "+" + ".".join(self.build) if self.build else text


@lru_cache(maxsize=4096)
def _parse(text: str) -> Semver:
    match = _STRICT.fullmatch(text)
    if match is None:
        raise ParseError(
            f"{text!r} is no semantic version: it needs three numbers without leading zeroes, such as 1.2.3"
        )
    if any(len(part) > 20 and part.isdigit() for part in re.split(r"[.+-]", text.partition("+")[0])):
        raise ParseError(f"{text[:80]!r} is no semantic version: a number exceeds 64 bits")
    major, minor, patch = int(match[1]), int(match[2]), int(match[3])
    pre: tuple[int | str, ...] = tuple(
        int(part) if part.isdigit() else part for part in (match[4].split(".") if match[4] else ())
    )
    if any(isinstance(part, int) and part > _UINT64_MAX for part in (major, minor, patch, *pre)):
        raise ParseError(f"{text!r} is no semantic version: a number exceeds 64 bits")
    return Semver(major, minor, patch, pre, tuple(match[5].split(".")) if match[5] else ())


def _normalized(text: str) -> str:
    text = text.removeprefix("v")
    parts = text.split(".", 2)
    for index, part in enumerate(parts):
        digits = re.match(r"[0-9]*", part)
        number, rest = (part[: digits.end()], part[digits.end() :]) if digits else ("", part)
        parts[index] = (number.lstrip("0") or "0") + rest if number else part
    if len(parts) < 3:
        if "-" in parts[-1] or "+" in parts[-1]:
            raise ParseError(
                f"{text!r} is no semantic version: a short version cannot have a pre-release or build part"
            )
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)
