"""Expressions made to break the evaluator: they end soon, with a value or with one of the language's errors."""

from __future__ import annotations

import random
import re
import string

import pytest

from drakkar.api.resource.v1 import Device, DeviceAttribute
from drakkar.cel import CompileError, DeviceInput, EvaluationError, Program, compile_selector
from drakkar.cel.limits import MAX_SIZE

A = 'device.attributes["d"]'
DEVICE = DeviceInput(
    "d", Device(attributes={"s": DeviceAttribute(string="x" * 64), "l": DeviceAttribute(strings=["a" * 64] * 64)})
)


def grown(first: str, step: str, times: int, last: str) -> str:
    """``last`` of what ``times`` steps make of ``first``; ``@`` stands for the value before."""
    text = last.replace("@", f"v{times}")
    for number in range(times, 0, -1):
        text = f"cel.bind(v{number}, {step.replace('@', f'v{number - 1}')}, {text})"
    return f"cel.bind(v0, {first}, {text})"


TOO_LARGE = {
    "list": grown("[1, 2]", "@ + @", 60, "size(@) > 0"),
    "text": grown('"ab"', "@ + @", 60, "size(@) > 0"),
    "replace": grown('"abcdefghij"', '@.replace("", @)', 8, "size(@) > 0"),
    "join": grown('["abcdefgh"]', '[@.join(","), @.join(","), @.join(",")]', 30, "size(@) > 0"),
    "format": grown('"abcdefgh"', '"%s%s%s%s%s%s".format([@, @, @, @, @, @])', 20, "size(@) > 0"),
    "text of shared lists": grown("[1, 2]", "[@, @]", 60, '"%s".format([@]) != ""'),
    "flattened shared lists": grown("[1, 2]", "[@, @]", 60, "@.flatten(100).size() > 0"),
    "sums kept": "cel.bind(b, lists.range(400000), lists.range(20000).map(x, b + b).size() > 0)",
    "flattened many": "cel.bind(b, lists.range(300000), lists.range(1000).map(x, b).flatten().size() > 0)",
    "range": f"lists.range({MAX_SIZE + 1}).size() > 0",
    "loops": "lists.range(300).all(x, lists.range(300).all(y, lists.range(300).all(z, x + y + z >= 0)))",
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_grows_is_stopped(name: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_selector(TOO_LARGE[name]).evaluate(DEVICE)
    assert caught.value.error_class == "cost-limit"


def test_no_operator_absorbs_the_stop() -> None:
    with pytest.raises(EvaluationError, match="cost limit"):
        compile_selector(f"{TOO_LARGE['list']} || true").evaluate(DEVICE)


@pytest.mark.parametrize(
    ("step", "last"),
    [
        ("[@, @]", "@ == @"),
        ("[@, @]", "@ in [@]"),
        ("[@, @]", "sets.equivalent([@], [@])"),
        ("[@, @]", "[@, @].distinct().size() == 1"),
        ('{"a": @, "b": @}', "@ == @"),
        ("optional.of([@, @])", "@ == @"),
    ],
)
def test_shared_parts_are_compared_once(step: str, last: str) -> None:
    assert compile_selector(grown('{"a": 1}' if "{" in step else "[1, 2]", step, 60, last)).evaluate(DEVICE) is True


@pytest.mark.parametrize(
    "text",
    [
        'int("{nines}") == 1', 'uint("{nines}") == 1u', "{nines} == 1", "-{nines} == 1", "{nines}u == 1u",
        '"{nines}" == "" || isSemver("1.{nines}.0")', 'duration("{nines}h") == duration("1s")',
        'duration("0.{nines}s") == duration("1s")', 'quantity("{nines}").isGreaterThan(quantity("1"))',
        'isCIDR("1.2.3.4/{nines}")', 'double("{nines}") > 1.0', '"%.{nines}f".format([1.0]) == ""',
        '"%.65535e".format([1.0]) == ""', 'ip("{nines}") == ip("::1")', 'timestamp("{nines}") == timestamp(0)',
        'timestamp(0).getHours("{nines}:00") == 1', 'url("http://h:{nines}/").getPort() == ""',
    ],
)  # fmt: skip
def test_long_numbers(text: str) -> None:
    _judge(text.replace("{nines}", "9" * 5000))


@pytest.mark.parametrize(
    "text",
    ["!" * 9000 + "true", "-" * 9000 + "1 == 1", "[" * 240 + "]" * 240 + " == []", "1" + " + 1" * 2400 + " > 0",
     "device" + ".a" * 4000, '"a"' + ".trim()" * 1400 + ' == "a"', "(" * 5000, "a?" * 3000, "{" * 300, "\\", "`a", '"',
     "'''", 'b"\\xff"', '"\\ud800"', "\x00", "\ufeff", "é", "😀 == 1", "//", "true//", "1e", "0x", ".5.", "1..2"],
)  # fmt: skip
def test_deep_and_broken_texts(text: str) -> None:
    _judge(text)


@pytest.mark.parametrize("depth", [60, 120, 150, 200])
@pytest.mark.parametrize(
    ("opening", "middle", "closing"),
    [("!(", "true", ")"), ("[1].all(x, ", "true", ")"), ("cel.bind(x, 1, ", "x == 1", ")"), ("(true && ", "true", ")"),
     ("(true ? ", "true", " : false)"), ("size([", "1", "])"), ("[", "1", "]")],
)  # fmt: skip
def test_nesting(opening: str, middle: str, closing: str, depth: int) -> None:
    text = opening * depth + middle + closing * depth
    try:
        program = compile_selector(text if middle != "1" else f"{text} == {text}")
    except CompileError:
        return
    failure = program.measure(DEVICE)[1]
    assert failure is None or failure.error_class in ("too-deep", "cost-limit")
    if failure is None:
        assert program.evaluate(DEVICE) in (True, False)


def _judge(text: str) -> None:
    """Compiles and evaluates; only the two errors of the language may come out."""
    try:
        program: Program = compile_selector(text)
    except CompileError:
        return
    answers: list[object] = []
    value, failure, cost = program.measure(DEVICE)
    assert cost >= 0
    answers.append((failure.error_class, failure.key) if failure else value)
    try:
        answers.append(program.value(DEVICE))
    except EvaluationError as error:
        answers.append((error.error_class, error.key))
    if failure is None or failure.error_class != "cost-limit":
        assert str(answers[0]) == str(answers[1]) or "object at" in str(answers[0])


_TOKEN = re.compile(r'\s+|"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|[0-9]+(?:\.[0-9]+)?|&&|\|\||==|!=|<=|>=|.', re.DOTALL)
_SEEDS = [
    f'{A}.s == "x" && {A}.l.exists(t, t.startsWith("a"))',
    f'has({A}.v) ? {A}.v.isGreaterThan(semver("1.2.3")) : {A}.?v.orValue(semver("v1", true)).major() == 1',
    'device.capacity["d"].?m.orValue(quantity("1Gi")).compareTo(quantity("1500m")) >= 0',
    '[3, 1, 2].sort().map(x, x * 2).filter(y, y > 2) == [4, 6] && {"a": 1}.transformMap(k, v, v + 1)["a"] == 2',
    'timestamp("2024-02-29T12:34:56.789Z").getHours("+02:00") == 14 && duration("1h30m").getMinutes() == 90',
    '"%s-%d-%.2f-%x".format(["é", 1, 1.5, 255]) == "é-1-1.50-ff" && "a,b".split(",").join("-").matches("^a.b$")',
    'cidr("10.0.0.0/8").containsIP(ip("10.1.2.3")) && url("https://h:1/p?q=1").getPort() == "1" && isIP("::1")',
    "sets.contains([1, 2], [1]) && [[1], [2, [3]]].flatten(2).size() == 3 && optional.of(1).optMap(x, x).value() == 1",
    'cel.bind(a, 9223372036854775807, a % 2 == 1 && -a < 0 && 1u < 2u && b"\\xff" != b"a" && string(1.5e6) != "")',
    'format.dns1123Label().validate("A_").hasValue() && [1, 2].exists(i, v, i == v || "a" in {"a": 1})',
]


def test_mutations_raise_nothing_but_the_errors_of_the_language() -> None:
    chance = random.Random(4)
    seeds = [_TOKEN.findall(text) for text in _SEEDS]
    pool = [token for tokens in seeds for token in tokens if not token.isspace()]
    pool += ['""', "null", "-1", "18446744073709551615u", "1e300", "[]", "{}", '"😀"', "type", "optional.none()", "?"]
    for _ in range(1500):
        tokens = list(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(tokens))
            match chance.randrange(5):
                case 0:
                    del tokens[at]
                case 1:
                    tokens.insert(at, chance.choice(pool))
                case 2:
                    tokens[at : at + 1] = chance.choice(seeds)[chance.randrange(6) :][: chance.randrange(9)]
                case 3:
                    tokens[at] = chance.choice(string.printable)
                case _:
                    tokens[at] = chance.choice(pool)
            tokens = tokens or ["1"]
        _judge("".join(tokens)[:2000])
