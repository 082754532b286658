"""Death at a chosen write."""

from __future__ import annotations

import pytest

from drakkar.store.failpoints import VARIABLE, Failpoints


def test_the_nth_hit_before_or_after() -> None:
    deaths: list[str] = []
    points = Failpoints.parse("binding:2:before, store-commit:1:after", lambda: deaths.append("dead"))
    assert points is not None
    hits = points.before(["binding", "taint", "store-commit"])
    assert not deaths
    points.after(hits)
    assert deaths == ["dead"]
    points.before(["store-commit"])
    assert deaths == ["dead"]
    points.before(["binding", "binding"])
    assert deaths == ["dead", "dead"]


def test_nothing_is_made_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Failpoints.from_environment() is None


@pytest.mark.parametrize("text", ["binding", "binding:0:before", "binding:x:after", "binding:1:during", ":1:after"])
def test_a_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        Failpoints.parse(text)
