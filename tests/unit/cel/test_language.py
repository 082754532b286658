"""What an expression tells about itself, how errors read, and how the pieces fit together."""

from __future__ import annotations

import pytest

from drakkar.api.features import Features
from drakkar.api.resource.v1 import Device, DeviceAttribute, DeviceCapacity
from drakkar.cel import CompileError, DeviceInput, EvaluationError, compile_derived, compile_selector
from drakkar.cel.cost import SATURATED

A = 'device.attributes["gpu.example.com"]'
MODEL = {("attributes", "gpu.example.com", "model")}
BOTH = MODEL | {("attributes", "gpu.example.com", "index")}


def gpu(**attributes: str | int | bool) -> DeviceInput:
    values = {
        name: DeviceAttribute(bool=value)
        if isinstance(value, bool)
        else DeviceAttribute(int=value)
        if isinstance(value, int)
        else DeviceAttribute(string=value)
        for name, value in attributes.items()
    }
    return DeviceInput("gpu.example.com", Device(attributes=values, capacity={"memory": DeviceCapacity(value="80Gi")}))


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("true", set()),
        ('device.driver == "x"', {("driver",)}),
        ("device.allowMultipleAllocations", {("multi",)}),
        (f'{A}.model == "x" && {A}["index"] > 1', BOTH),
        (f"has({A}.model)", MODEL),
        (f'"model" in {A}', MODEL),
        (f"{A}.?model.hasValue()", MODEL),
        (f'{A}[?"model"].orValue("") == ""', MODEL),
        (f"cel.bind(a, {A}, a.model == '' && has(a.index))", BOTH),
        ('device.capacity["d"].m.isInteger()', {("capacity", "d", "m")}),
        ("device.attributes.d.m == 1", {("attributes", "d", "m")}),
        (f"[1, 2].exists(device, device == 2) && {A}.x == 1", {("attributes", "gpu.example.com", "x")}),
        ("device.attributes.exists(d, d == '')", None),
        (f"size({A}) == 1", None),
        ("device.attributes[device.driver].x == 1", None),
        ('"gpu.example.com" in device.attributes', None),
        (f"cel.bind(a, {A}, size(a) == 1)", None),
    ],
)  # fmt: skip
def test_reads(text: str, reads: set[tuple[str, ...]] | None) -> None:
    found = compile_selector(text).reads
    assert found == (None if reads is None else frozenset(reads))


def test_conjuncts_are_programs_in_order() -> None:
    program = compile_selector(f'device.driver == "a" && ({A}.x == 1 || true) && !{A}.y')
    operator, parts = program.operands("_&&_")
    assert operator == "_&&_"
    assert [part.reads for part in parts] == [
        frozenset({("driver",)}),
        frozenset({("attributes", "gpu.example.com", "x")}),
        frozenset({("attributes", "gpu.example.com", "y")}),
    ]
    assert parts[1].evaluate(gpu()) is True
    assert parts[0].max_cost == 3
    assert compile_selector("true").operands() == ("", ())


def test_a_compile_error_shows_the_place() -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector("true &&\n  devize.driver == 'x'")
    issue = caught.value.issues[0]
    assert (issue.error_class, issue.line, issue.column) == ("undeclared", 2, 3)
    assert str(caught.value).endswith(" |   devize.driver == 'x'\n |   ^")


def test_columns_count_code_points() -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector("'😀é' == x")
    assert caught.value.issues[0].column == 9


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('device.capacity["d"].m > quantity("1")', "isGreaterThan"),
        ('device.capacity["d"].m.sign() == 1', "sign(quantity)"),
        ('device.capacity["d"].m == "1Gi"', 'quantity("1Gi")'),
        ("1 == 1.0", "double(1)"),
    ],
)
def test_frequent_mistakes_get_a_cure(text: str, hint: str) -> None:
    with pytest.raises(CompileError, match="no matching overload") as caught:
        compile_selector(text)
    assert hint in str(caught.value)


def test_a_missing_key_comes_with_advice_and_place() -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_selector(f"{A}.model == 'x'").evaluate(gpu())
    error = caught.value
    assert (error.error_class, error.key, error.position) == ("no-such-key", "model", (1, 37))
    assert "has(" in error.message
    assert ".?model.orValue(" in error.message


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    with pytest.raises(CompileError, match="nested"):
        compile_selector("(" * 400 + "true" + ")" * 400)
    with pytest.raises(CompileError, match="nested"):
        compile_selector("1" + "+1" * 4000 + " == 1")
    assert compile_selector(" || ".join(["false"] * 1500)).evaluate(gpu()) is False


def test_environments_and_switches() -> None:
    text = f'{A}.tags.includes("mig")'
    without = Features.drakkar().with_({"DRAListTypeAttributes": False})
    compile_selector(text, environment="stored", features=without)
    compile_selector(text, environment="new-expressions")
    with pytest.raises(CompileError):
        compile_selector(text, environment="new-expressions", features=without)
    with pytest.raises(ValueError, match="environment"):
        compile_selector(text, environment="other")


def test_programs_are_kept() -> None:
    assert compile_selector("1 == 1") is compile_selector("1 == 1")
    assert compile_selector("1 == 1") is not compile_derived("1 == 1")


def test_the_cost_limit_stops_evaluation() -> None:
    text = "lists.range(100).all(x, lists.range(100).all(y, lists.range(100).all(z, x + y + z >= 0)))"
    program = compile_selector(text, cost_limit=10_000)
    assert program.too_expensive
    with pytest.raises(EvaluationError) as caught:
        program.evaluate(gpu())
    assert caught.value.error_class == "cost-limit"


def test_harmless_expressions_with_saturated_estimates_run_uncounted() -> None:
    program = compile_selector(f'"x" in {A}.?tags.orValue([])')
    assert program.max_cost == SATURATED
    assert program.operands() == ("", ())
    assert program.evaluate(gpu()) is False


def test_a_device_with_a_broken_value_fails_every_expression() -> None:
    broken = DeviceInput("d", Device(attributes={"v": DeviceAttribute(version="1.0"), "x": DeviceAttribute()}))
    assert broken.error is not None
    with pytest.raises(EvaluationError) as caught:
        compile_selector("true").evaluate(broken)
    assert caught.value.error_class == "device-data"


def test_the_qualified_spelling_of_a_name_wins() -> None:
    attributes = {"d/x": DeviceAttribute(int=2), "x": DeviceAttribute(int=1)}
    device = DeviceInput("d", Device(attributes=attributes))
    assert compile_selector('device.attributes["d"].x == 2').evaluate(device)


def test_a_bound_name_is_evaluated_lazily_and_once() -> None:
    assert compile_selector("cel.bind(x, 1 / 0, true)").evaluate(gpu())
    assert compile_selector("cel.bind(x, [1, 2].map(y, y + 1), x[0] == 2 && x[1] == 3)").evaluate(gpu())
    assert compile_selector("[1, 2].all(i, cel.bind(x, i + 1, x == i + 1))").evaluate(gpu())


def test_inner_names_hide_outer_ones() -> None:
    assert compile_selector("cel.bind(x, 1, [2].all(x, x == 2) && x == 1)").evaluate(gpu())
    assert compile_selector(f"cel.bind(a, {A}, [1].all(a, a == 1) && a.index == 3)").evaluate(gpu(index=3))
    assert compile_selector(f"[1].exists(device, device == 1) && {A}.index == 3").evaluate(gpu(index=3))


def test_the_order_of_maps_is_fixed() -> None:
    text = '{"b": 1, "a": 2}.transformList(k, v, k) == ["b", "a"]'
    assert compile_selector(text).evaluate(gpu())
    attributes = {"z.example.com/x": DeviceAttribute(int=1), "a.example.com/x": DeviceAttribute(int=1)}
    device = DeviceInput("d", Device(attributes=attributes))
    assert compile_selector('device.attributes.map(d, d) == ["a.example.com", "z.example.com"]').evaluate(device)


def test_there_are_no_protocol_buffers() -> None:
    with pytest.raises(CompileError) as caught:
        compile_selector("google.protobuf.Int64Value{value: 1} == 1")
    assert caught.value.error_class == "undeclared"


def test_widths_are_bounded() -> None:
    assert compile_selector('"%.65535e".format([1.0]).size() == 1000').evaluate(gpu())
