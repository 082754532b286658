"""What of a pod outlives its agent, and when a container of it may start again."""

from __future__ import annotations

from pathlib import Path

from drakkar.node.agent.backoff import FIRST_PAUSE, GOOD_RUN, LONGEST_PAUSE, BackOff
from drakkar.node.agent.podfolder import LastAttempt, PodFolder, last_words
from drakkar.node.agent.shims import Exit


def test_pauses_grow_until_a_good_run() -> None:
    backoff, pauses = BackOff(), list[float]()
    assert backoff.left(0.0) <= 0
    for _ in range(8):
        backoff.ended(100.0)
        pauses.append(backoff.left(100.0))
    assert pauses == [0, FIRST_PAUSE, 20, 40, 80, 160, LONGEST_PAUSE, LONGEST_PAUSE]
    assert backoff.pause == LONGEST_PAUSE
    assert backoff.left(100.0 + LONGEST_PAUSE) <= 0
    backoff.ended(100.0, GOOD_RUN)
    assert backoff.left(100.0) == 0


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path / "uid")
    assert (folder.read_pod(), folder.newest("c"), folder.read_last("c")) == (None, None, None)
    folder.write_pod({"metadata": {"name": "p"}})
    for number in (2, 10, 9):
        folder.attempt("c", number).mkdir(parents=True)
    last = LastAttempt(Exit(exitCode=3, startedAt=1.0, finishedAt=2.0), "runc://uid-c-9")
    folder.write_last("c", last)
    again = PodFolder(tmp_path / "uid")
    assert again.read_pod() == {"metadata": {"name": "p"}}
    assert (again.newest("c"), again.read_last("c"), again.read_last("d")) == (10, last, None)


def test_a_spoilt_file_is_none(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path)
    (tmp_path / "pod.json").write_text("{")
    (tmp_path / "last-c.json").write_text('{"exit": {}, "identity": "x"}')
    assert (folder.read_pod(), folder.read_last("c")) == (None, None)


def test_last_words_are_short_and_may_be_none(tmp_path: Path) -> None:
    assert last_words(tmp_path) == ""
    (tmp_path / "termination-log").write_bytes(b"x" * 5000)
    assert last_words(tmp_path) == "x" * 4096
