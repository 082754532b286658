"""Forks of a paged list or a sharded dict do not see each other's writes."""

from __future__ import annotations

from drakkar.inventory.pages import Pages, Shards


def test_forks_are_independent() -> None:
    first: Pages[int] = Pages(0)
    for number in range(200):
        first[number] = number
    second = first.fork()
    first[150] = -1
    second[3] = -2
    third = second.fork()
    third[150] = -3
    assert (first[150], second[150], third[150]) == (-1, 150, -3)
    assert (first[3], second[3], third[3]) == (3, -2, -2)
    assert (first[5000], third[199]) == (0, 199)


def test_forks_of_shards_are_independent() -> None:
    first: Shards[str, int] = Shards()
    for number in range(2000):
        first[f"k{number}"] = number
    second = first.fork()
    first["k7"] = -1
    del second["k7"]
    third = second.fork()
    third["new"] = 1
    second["k8"] = -2
    assert (first["k7"], second.get("k7"), third.get("k7")) == (-1, None, None)
    assert (first["k8"], second["k8"], third["k8"]) == (8, -2, 8)
    assert ("new" in first, "new" in second, "new" in third) == (False, False, True)
    assert sorted(third) == sorted([*(f"k{number}" for number in range(2000) if number != 7), "new"])
    assert sum(first.values()) == sum(range(2000)) - 8
