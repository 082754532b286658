"""What differs between two runs of one command is replaced, and nothing else.

Replaced are uids, points in time and spans of time, resource versions, random suffixes of names and
ports. kubectl pads columns to the widest cell, so the width of a gap between columns follows from
what was replaced and counts for nothing; that there is a gap counts.
"""

from __future__ import annotations

import re

#: Alphabet of generated suffixes (no vowels, nothing that looks alike): apimachinery's ``rand.String``.
_RANDOM = "bcdfghjklmnpqrstvwxz2456789"

_UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIMES = (
    re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| ?[+-]\d{4})"),
    re.compile(r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"),
    re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\b"),
)
#: A span as kubectl prints ages, alone in its cell.
_SPAN = re.compile(r"(?<![\w./:=-])(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?(?<=[dhms])(?=\s|$|\))")
_VERSION = re.compile(r"(resourceVersion\"?: ?\"|Resource Version: +)\d+")
#: ``-x7k2p`` at the end of a name, hashes of pod templates (``-57575c658-``, ``=57575c658``), folders of ``diff``.
_SUFFIX = re.compile(rf"-[{_RANDOM}]{{5}}(?![\w-])")
_HASH = re.compile(rf"(?:(?<=-)|(?<=hash=)|(?<=hash: ))(?=[{_RANDOM}]*\d)[{_RANDOM}]{{6,10}}(?![\w])")
_FOLDER = re.compile(r"/tmp/[\w./-]*?(LIVE|MERGED|kubectl-edit)-\d+")
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+\b")
_GAP = re.compile(r"(?<=\S)(?: *\t[ \t]*|  +)(?=\S)")


def normal(text: str) -> str:
    """``text`` with a mark in place of everything that is made anew in every run."""
    text = _UID.sub("<uid>", text)
    for pattern in _TIMES:
        text = pattern.sub("<time>", text)
    text = _FOLDER.sub(r"<folder>/\1-<random>", text)
    text = _SPAN.sub("<span>", text)
    text = _VERSION.sub(r"\1<version>", text)
    text = _HASH.sub("<hash>", text)
    text = _SUFFIX.sub("-<random>", text)
    text = _PORT.sub("<port>", text)
    return "\n".join(_GAP.sub("  ", line).rstrip() for line in text.splitlines())
