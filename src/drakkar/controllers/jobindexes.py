"""Sets of completion indexes in the form that a Job's status uses: ``1,3-5,7``."""

from __future__ import annotations

from collections.abc import Iterable

from drakkar.api.tree import whole


def parse_indexes(text: str | None, completions: int) -> set[int]:
    """The indexes below ``completions``; a malformed part is left out, as nothing can be said of it."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        start, end = whole(first), whole(last or first)
        if start is not None and end is not None:
            found.update(range(start, min(end + 1, completions)))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """Ascending; runs of three and more as ``first-last``, as upstream prints them."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(set(indexes)), None]:
        if run and index == run[-1] + 1:
            run.append(index)
            continue
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts.extend(map(str, run))
        run = [] if index is None else [index]
    return ",".join(parts)
