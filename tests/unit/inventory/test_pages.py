"""Forks of a paged list do not see each other's writes."""

from __future__ import annotations

from drakkar.inventory.pages import Pages


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
