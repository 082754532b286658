"""The normaliser forgives what every run makes anew, and not one other word."""

from __future__ import annotations

import re

import pytest

from tests.support.normal import normal
from tests.support.recorded import commands

FILES = ("write", "read", "edit", "delete", "auth", "discovery")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('uid: "85aff1ae-b618-486b-b3c7-b82c35100ea8"', 'uid: "00000000-b618-486b-b3c7-000000000000"'),
        ('time: "2026-11-29T17:12:45Z"', 'time: "2027-01-01T00:00:00Z"'),
        ("Start Time:  Sun, 29 Nov 2026 17:12:53 +0000", "Start Time:  Mon, 30 Nov 2026 01:02:03 +0000"),
        ("LAST DEPLOYED: Sun Nov 29 17:14:59 2026", "LAST DEPLOYED: Mon Nov  2 01:00:00 2026"),
        ('resourceVersion: "348"', 'resourceVersion: "9"'),
        ("  Resource Version:    348", "  Resource Version:    7"),
        ("pod/dep-a-57575c658-7pt8v deleted", "pod/dep-a-f6t9665njp-vnblf deleted"),
        ("pod-a-r-58kkc   allocated   19s", "pod-a-r-xk2bv   allocated   3m"),
        ("is running at https://127.0.0.1:18001", "is running at https://127.0.0.1:6443"),
        ("--- /tmp/LIVE-3873888167/v1.ConfigMap", "--- /tmp/x/y/LIVE-1/v1.ConfigMap"),
        ("a   <none>   1d2h   b", "a  <none>  5s  b"),
    ],
)
def test_what_every_run_makes_anew(one: str, other: str) -> None:
    assert one != other
    assert normal(one) == normal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("class-widget", "class-gadget"),
        ("replicas 1", "replicas 2"),
        ("image: busybox:1", "image: busybox:2"),
        ("apiVersion: v1", "apiVersion: v2"),
        ("10.96.0.1", "10.96.0.2"),
        ("generation: 3", "generation: 4"),
        ("a b", "ab"),
        ("a  b", "a b"),
        ("  a", " a"),
        ("port 80/TCP", "port 81/TCP"),
        ("cpu 8 0 (0%)", "cpu 9 0 (0%)"),
    ],
)
def test_what_must_stay_apart(one: str, other: str) -> None:
    assert normal(one) != normal(other)


def test_one_changed_word_shows_in_every_recorded_output() -> None:
    mutated = 0
    for command in commands(*FILES):
        for text in (command.stdout, command.stderr):
            want = normal(text)
            # What is left after normalising was not replaced, so each word of it has to matter in the original.
            for word in {*re.findall(r"[A-Za-z]{3,}", re.sub(r"<\w+>", " ", want))}:
                at = re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
                if at is not None:
                    changed = text[: at.start()] + word[::-1] + "q" + text[at.end() :]
                    assert normal(changed) != want, f"{command.name}: {word}"
                    mutated += 1
    assert mutated > 1500
