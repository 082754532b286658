"""Long lives: changed slices do not pile up, and a full change log only costs time."""

from __future__ import annotations

import pytest

from drakkar.allocator import prepare
from drakkar.inventory import inventory as module
from tests.support.allocation import HOST, chosen, claim, device, inventory, published, request, solve

SELECT = 'device.attributes["gpu.example.com"].n >= 0'


def test_tables_of_gone_devices_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE_ROWS", 20)
    books = inventory(published("a", [device("x", attributes={"n": 0})]))
    old = books.snapshot()
    tables = {id(old.shared.selectors)}
    rows = 0
    for number in range(1, 100):
        books.set_slice(published("a", [device("x", attributes={"n": number})]))
        snapshot = books.snapshot()
        assert prepare(snapshot, [claim(request(select=SELECT))]).feasible().nodes == ("n1",)
        assert chosen(solve(snapshot, claim(request(select=f"{SELECT[:-1]}{number}")))) == ["x"]
        tables.add(id(snapshot.shared.selectors))
        rows = max(rows, len(snapshot.shared.selectors.rows))
    assert rows < 40
    assert len(tables) > 2
    assert chosen(solve(old, claim(request(select='device.attributes["gpu.example.com"].n == 0')))) == ["x"]


def test_a_plan_that_slept_longer_than_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_LIMIT", 8)
    books = inventory(published("a", [device("x")]))
    wanted = claim(request())
    assert prepare(books.snapshot(), [wanted]).feasible().nodes == ("n1",)
    for number in range(30):
        name = f"m{number}"
        books.set_node(name, {HOST: name})
        books.set_slice(published(f"s{number}", [device("x")], pool=name, nodeName=name))
    assert len(prepare(books.snapshot(), [wanted]).feasible().nodes) == 31
    for number in range(30):
        books.remove_node(f"m{number}")
    assert prepare(books.snapshot(), [wanted]).feasible().nodes == ("n1",)


def test_an_older_snapshot_gets_its_own_answer() -> None:
    books = inventory(published("a", [device("x")]))
    before = books.snapshot()
    wanted = claim(request())
    books.set_node("n2", {HOST: "n2"})
    books.set_slice(published("b", [device("y")], pool="q", nodeName="n2"))
    assert prepare(books.snapshot(), [wanted]).feasible().nodes == ("n1", "n2")
    assert prepare(before, [wanted]).feasible().nodes == ("n1",)
    assert prepare(books.snapshot(), [wanted]).feasible().nodes == ("n1", "n2")


def test_a_slice_without_devices_leaves_nothing_that_another_could_be_taken_for() -> None:
    books = inventory(published("first", [device("y", attributes={"n": -1})], pool="first"))
    for number in range(20):
        for place in range(10):
            books.set_slice(published(f"empty{place}", [], pool=f"empty{place}"))
        for place in range(10):
            books.remove_slice(f"empty{place}")
        books.snapshot()
        for place in range(10):
            name = f"s{place}"
            books.set_slice(published(name, [device(name, attributes={"n": number})], pool=name))
        wanted = claim(request(count=10, select=f"{SELECT[:-4]}== {number}"))
        assert prepare(books.snapshot(), [wanted]).feasible().nodes == ("n1",), number
