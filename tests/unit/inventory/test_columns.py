"""After any events the columns of selectors say what each device by itself says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.cel import DeviceInput, EvaluationError, compile_selector
from drakkar.inventory import Inventory, selection
from drakkar.inventory import inventory as books_module
from drakkar.inventory.published import Published, is_damaged
from drakkar.inventory.selection import ERROR, NO, YES
from tests.support.allocation import DRIVER, device, published, taint_rule

A = f'device.attributes["{DRIVER}"]'
OTHER = 'device.attributes["nic.example.com"]'
TEXTS = (
    f'device.driver == "{DRIVER}"',
    f'{A}.uuid == "u3"',
    f'{A}.uuid != "u3" && {A}.n > 1',
    f'{A}.?uuid.orValue("none") in ["u1", "u5", "none"]',
    f'!({A}.uuid.startsWith("u1")) || {A}.mixed == 1',
    f'{A}.mixed == "1.0.0"',
    f'"1.0.0" == {A}.mixed',
    f"{A}.?mixed.hasValue() && {OTHER}.speed >= 1",
    f'has({A}.flag) ? {A}.flag : "x" in {A}.?tags.orValue([])',
    f'{A}.tags == ["x", "y"]',
    f'{A}.model.matches("^m[12]$") && device.allowMultipleAllocations',
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("2Gi")) >= 0',
    'device.attributes["other.example.com"].x == "q"',
    "device.attributes.exists(d, d == 'other.example.com')",
    "1 / 0 == 1",
)


def a_device(rnd: random.Random, name: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if rnd.random() < 0.8:
        attributes[rnd.choice(["uuid", f"{DRIVER}/uuid"])] = f"u{rnd.randint(0, 9)}"
    if rnd.random() < 0.7:
        attributes["n"] = rnd.randint(0, 3)
    if rnd.random() < 0.7:
        attributes["model"] = rnd.choice(["m1", "m2", "x"])
    if rnd.random() < 0.5:
        attributes["mixed"] = rnd.choice(["1.0.0", 1, True, {"version": "1.0.0"}, {"strings": ["1.0.0"]}])
    if rnd.random() < 0.4:
        attributes["tags"] = rnd.choice([{"strings": ["x", "y"]}, {"strings": []}, {"ints": [1]}, {"bools": [True]}])
    if rnd.random() < 0.4:
        attributes["flag"] = rnd.random() < 0.5
    if rnd.random() < 0.3:
        attributes["other.example.com/x"] = rnd.choice(["q", 1])
    if rnd.random() < 0.3:
        attributes[rnd.choice(["speed", "nic.example.com/speed"])] = rnd.randint(0, 2)
    if rnd.random() < 0.1:
        attributes["broken"] = rnd.choice([{}, {"version": "v1"}, {"versions": ["1.0.0", "x"]}])
    if rnd.random() < 0.2:
        attributes[f"rare{rnd.randint(0, 90)}"] = "r"
    capacity = {"memory": rnd.choice(["1Gi", "2Gi", "4096Mi", "2G"])} if rnd.random() < 0.7 else {}
    more = {"allowMultipleAllocations": True} if rnd.random() < 0.3 else {}
    return device(name, attributes=attributes, capacity=capacity, **more)


def alone(text: str, driver: str, published_device: Any) -> int:
    try:
        return YES if compile_selector(text).evaluate(DeviceInput(driver, published_device)) else NO
    except EvaluationError:
        return ERROR


@pytest.mark.parametrize("seed", range(12))
def test_columns_after_any_events(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = random.Random(seed)
    # Small bounds, so that all ways of filling and asking are met.
    monkeypatch.setattr(selection, "_TOGETHER", rnd.choice([3, 7, 1000]))
    monkeypatch.setattr(selection, "_MANY", rnd.choice([1, 5, 1000]))
    monkeypatch.setattr(books_module, "_SPARE_ROWS", rnd.choice([0, 30]))
    monkeypatch.setattr("drakkar.inventory.published._MOST_NAMES", rnd.choice([4, 64]))
    books = Inventory()
    for step in range(60):
        number = rnd.randint(0, 7)
        match rnd.randrange(8):
            case 0:
                books.remove_slice(f"s{number}")
            case 1:
                books.set_taint_rule(taint_rule("rule", "k", driver=DRIVER))
            case 2:
                books.remove_taint_rule("rule")
            case _:
                devices = [a_device(rnd, f"d{place}") for place in range(rnd.randint(0, 4))]
                driver = rnd.choice([DRIVER, DRIVER, "nic.example.com"])
                books.set_slice(published(f"s{number}", devices, pool=f"p{number}", driver=driver))
        if step % 3:
            continue
        snapshot = books.snapshot()
        for text in rnd.sample(TEXTS, 5):
            for pool in snapshot.world.pools.values():
                base = pool.any_base()
                table = snapshot.shared.selectors
                answers = table.answers(text, table.rows_of(base))
                wanted = bytes(alone(text, pool.key[0], record.device) for record in base.devices)
                assert answers == wanted, (step, text)


def test_a_taint_adds_no_rows() -> None:
    books = Inventory()
    books.set_slice(published("s", [device("a"), device("b")]))
    before = len(books.snapshot().shared.selectors.rows)
    books.set_taint_rule(taint_rule("rule", "k", driver=DRIVER))
    assert len(books.snapshot().shared.selectors.rows) == before == 2


def test_damage_is_found_while_values_are_gathered() -> None:
    rnd = random.Random(1)
    books = Inventory()
    for number in range(40):
        books.set_slice(published(f"s{number}", [a_device(rnd, "a"), a_device(rnd, "b")], pool=f"p{number}"))
    records = [record for pool in books.snapshot().world.pools.values() for record in pool.any_base().devices]
    gathered = Published(DRIVER)
    gathered.add(records[:50])
    gathered.add(records[50:])
    assert gathered.damaged == [place for place, record in enumerate(records) if is_damaged(record)] != []
