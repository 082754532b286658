"""The strings extension (version 2) and the regular expression functions of Kubernetes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.limits import check_size
from drakkar.cel.operators import double_text, to_string
from drakkar.cel.regex import find_all, search
from drakkar.cel.timelib import duration_text, timestamp_text
from drakkar.cel.values import INT_MAX, Duration, Timestamp, TypeValue, Uint, from_key, is_map, kind_of, same, type_name

_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWER: Final = {code: code + 32 for code in range(65, 91)}
_UPPER: Final = {code: code - 32 for code in range(97, 123)}
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_QUOTES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip
#: Wider texts than this are of no use to anybody.
_MAX_WIDTH: Final = 1000


def _range_error(what: str) -> EvaluationError:
    return EvaluationError("index-out-of-range", f"index out of range: {what}")


def _check(function: str, args: tuple[Any, ...], *kinds: type) -> None:
    for arg, kind in zip(args, kinds, strict=False):
        if kind_of(arg) is not kind:
            raise no_overload(function, *args)


def char_at(text: Any, at: Any) -> str:
    """``charAt``: empty right behind the last character."""
    _check("charAt", (text, at), str, int)
    if not 0 <= at <= len(text):
        raise _range_error(str(at))
    return text[at : at + 1]


def position(items: list[Any], wanted: Any) -> int:
    """Where the first equal element of a list is, or -1."""
    return next((at for at, item in enumerate(items) if same(item, wanted)), -1)


def last_position(items: list[Any], wanted: Any) -> int:
    """Where the last equal element of a list is, or -1."""
    return next((at for at in range(len(items) - 1, -1, -1) if same(items[at], wanted)), -1)


def index_of(text: Any, part: Any, start: Any = 0) -> int:
    """``indexOf`` on strings and lists."""
    if kind_of(text) is list:
        return position(cast("list[Any]", text), part)
    _check("indexOf", (text, part, start), str, str, int)
    if start < 0:
        raise _range_error(str(start))
    if start >= len(text):
        return -1 if part else len(text)
    return text.find(part, start)


def last_index_of(text: Any, part: Any, start: Any = None) -> int:
    """``lastIndexOf`` on strings and lists."""
    if kind_of(text) is list:
        return last_position(cast("list[Any]", text), part)
    _check("lastIndexOf", (text, part), str, str)
    if start is None:
        return text.rfind(part)
    _check("lastIndexOf", (start,), int)
    if start < 0:
        raise _range_error(str(start))
    if start >= len(text):
        return -1 if part else len(text)
    return text.rfind(part, 0, start + len(part))


def join(items: Any, separator: Any = "") -> str:
    """``join``."""
    _check("join", (items, separator), list, str)
    if any(kind_of(item) is not str for item in items):
        raise no_overload("join", items)
    check_size(sum(map(len, items)) + len(separator) * len(items))
    return str(separator).join(items)


def lower_ascii(text: Any) -> str:
    """``lowerAscii``."""
    _check("lowerAscii", (text,), str)
    return text.translate(_LOWER)


def upper_ascii(text: Any) -> str:
    """``upperAscii``."""
    _check("upperAscii", (text,), str)
    return text.translate(_UPPER)


def replace(text: Any, old: Any, new: Any, limit: Any = -1) -> str:
    """``replace``; a negative limit means all."""
    _check("replace", (text, old, new, limit), str, str, str, int)
    if len(new) > len(old):
        count = text.count(old)
        check_size(len(text) + (count if limit < 0 else min(count, limit)) * (len(new) - len(old)))
    return text.replace(old, new, max(limit, -1))


def split(text: Any, separator: Any, limit: Any = -1) -> list[str]:
    """``split``; an empty separator splits into characters."""
    _check("split", (text, separator, limit), str, str, int)
    whole, most = str(text), int(limit)
    if most == 0:
        return []
    if separator:
        return whole.split(separator, most - 1 if most > 0 else -1)
    if 0 < most < len(whole):
        return [*whole[: most - 1], whole[most - 1 :]]
    return list(whole)


def substring(text: Any, start: Any, end: Any = None) -> str:
    """``substring``."""
    _check("substring", (text, start), str, int)
    stop = len(text) if end is None else end
    _check("substring", (stop,), int)
    if start > stop:
        raise EvaluationError("index-out-of-range", f"invalid substring range: start {start}, end {stop}")
    if not 0 <= start <= len(text):
        raise _range_error(str(start))
    if not 0 <= stop <= len(text):
        raise _range_error(str(stop))
    return text[start:stop]


def trim(text: Any) -> str:
    """``trim``."""
    _check("trim", (text,), str)
    return text.strip(_SPACE)


def quote(text: Any) -> str:
    """``strings.quote``."""
    _check("strings.quote", (text,), str)
    return '"' + "".join(_QUOTES.get(char, char) for char in str(text)) + '"'


def regex_find(text: Any, pattern: Any) -> str:
    """``find``: the first match or an empty string."""
    _check("find", (text, pattern), str, str)
    match = search(pattern, text)
    return match.group() if match else ""


def regex_find_all(text: Any, pattern: Any, limit: Any = -1) -> list[str]:
    """``findAll``."""
    _check("findAll", (text, pattern, limit), str, str, int)
    return find_all(pattern, text, limit)


# format


def _bad(clause: str, value: Any, wanted: str) -> EvaluationError:
    return EvaluationError("invalid-argument", f"%{clause} takes {wanted}, not {type_name(value)}")


def clauses(template: str) -> Iterator[str | tuple[str, int | None]]:
    """A template as text pieces and clauses ``(letter, precision)``; raises ``ValueError`` where malformed."""
    at = 0
    while True:
        percent = template.find("%", at)
        if percent < 0:
            yield template[at:]
            return
        yield template[at:percent]
        at = percent + 1
        if at >= len(template):
            raise ValueError("the template ends with a single %")
        if template[at] == "%":
            yield "%"
            at += 1
            continue
        precision = None
        if template[at] == ".":
            start = at + 1
            at = start
            while at < len(template) and template[at] in "0123456789":
                at += 1
            if at >= len(template):
                raise ValueError("the template ends within a precision")
            if at == start:
                raise ValueError("a precision needs digits behind the point")
            precision = int(template[start:at][:20])
            if precision > INT_MAX:
                raise ValueError(f"precision {precision} is out of range")
        letter = template[at]
        if letter not in "sdfebxXo":
            raise ValueError(f"unrecognized formatting clause %{letter}")
        yield letter, precision
        at += 1


def format_text(template: Any, args: Any) -> str:
    """``format``."""
    _check("format", (template, args), str, list)
    result: list[str] = []
    at = size = 0
    try:
        for piece in clauses(template):
            if isinstance(piece, str):
                result.append(piece)
                continue
            if at >= len(args):
                raise _too_few(at)
            result.append(_CLAUSES[piece[0]](args[at], piece[1]))
            size += len(result[-1])
            check_size(size)
            at += 1
    except ValueError as error:
        if at >= len(args):
            raise _too_few(at) from None
        raise EvaluationError("invalid-argument", f"format: {error}") from None
    return "".join(result)


def _too_few(at: int) -> EvaluationError:
    return EvaluationError("index-out-of-range", f"format: index {at} out of range: too few arguments")


def _plain(value: Any, precision: int | None) -> str:
    kind = kind_of(value)
    if kind is str:
        return value
    if kind is bytes:
        return to_string(value)
    if kind is Duration:
        return duration_text(value)
    if kind is Timestamp:
        return timestamp_text(value)
    if kind is float:
        return double_text(value)
    return _nested(value, {})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _nested(value: Any, known: dict[int, str]) -> str:
    """A value within a list or map; ``known`` are the texts of lists and maps that were met before."""
    kind = kind_of(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is Uint:
        return int.__repr__(value)
    if kind is float:
        return f"{value:.6f}" if math.isfinite(value) else f'"{double_text(value)}"'
    if kind is str:
        return _quoted(value)
    if kind is bytes:
        return "b" + _quoted(to_string(value))
    if kind is Duration:
        return f'duration("{duration_text(value)}")'
    if kind is Timestamp:
        return f'timestamp("{timestamp_text(value)}")'
    if kind is TypeValue:
        return value.name
    if kind is list or is_map(value):
        if id(value) not in known:
            known[id(value)] = _of_parts(value, known)
        return known[id(value)]
    raise _bad("s", value, "strings, numbers, bools, bytes, lists, maps, times and types")


def _of_parts(value: Any, known: dict[int, str]) -> str:
    parts: list[str] = []
    if kind_of(value) is list:
        left, right = "[", "]"
        for item in value:
            parts.append(_nested(item, known))
    else:
        left, right = "{", "}"
        pairs = [(_nested(_map_key(from_key(key)), known), _nested(one, known)) for key, one in value.items()]
        parts = [f"{key}:{one}" for key, one in sorted(pairs)]
    check_size(sum(map(len, parts)))
    return left + ", ".join(parts) + right


def _map_key(key: Any) -> Any:
    if kind_of(key) not in (str, bool, int, Uint):
        raise _bad("s", key, "maps with keys of other types than this:")
    return key


def _special(value: float) -> str | None:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return None


def _decimal(value: Any, precision: int | None) -> str:
    if kind_of(value) is int or kind_of(value) is Uint:
        return int.__repr__(value)
    raise _bad("d", value, "integers")


def _number(clause: str, value: Any) -> float | str:
    if kind_of(value) is float:
        return _special(value) or value
    if kind_of(value) is str and value in ("Infinity", "-Infinity", "NaN"):
        return _special(float(value)) or value
    raise _bad(clause, value, "doubles")


def _fixed(value: Any, precision: int | None) -> str:
    number = _number("f", value)
    if isinstance(number, str):
        return number
    # The printer keeps the number of digits in eight bits.
    digits = 6 if precision is None else precision & 0xFF
    # Printed as for readers of English, with the thousands apart; zero has no sign.
    return f"{number or 0.0:,.{digits}f}"


def _scientific(value: Any, precision: int | None) -> str:
    # The pinned version of the library takes the precision for the least width of the text.
    width = min(6 if precision is None else precision, _MAX_WIDTH)
    number = _number("e", value)
    if isinstance(number, str):
        return number.rjust(width)
    mantissa, exponent = f"{number or 0.0:.6e}".split("e")
    power = int(exponent)
    sign = "⁻" if power < 0 else ""
    return (f"{mantissa}×10{sign}" + f"{abs(power):02d}".translate(_SUPERSCRIPT)).rjust(width)


def _binary(value: Any, precision: int | None) -> str:
    if kind_of(value) is bool:
        return "1" if value else "0"
    if kind_of(value) is int or kind_of(value) is Uint:
        return f"{int(value):b}"
    raise _bad("b", value, "integers and bools")


def _octal(value: Any, precision: int | None) -> str:
    if kind_of(value) is int or kind_of(value) is Uint:
        return f"{int(value):o}"
    raise _bad("o", value, "integers")


def _hexadecimal(value: Any, precision: int | None) -> str:
    if kind_of(value) is int or kind_of(value) is Uint:
        return f"{int(value):x}"
    if kind_of(value) is str:
        return value.encode().hex()
    if kind_of(value) is bytes:
        return value.hex()
    raise _bad("x", value, "integers, bytes and strings")


_CLAUSES: Final[dict[str, Callable[[Any, int | None], str]]] = {
    "s": _plain, "d": _decimal, "f": _fixed, "e": _scientific, "b": _binary, "o": _octal, "x": _hexadecimal,
    "X": lambda value, precision: _hexadecimal(value, precision).upper(),
}  # fmt: skip

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "charAt": char_at, "indexOf": index_of, "lastIndexOf": last_index_of, "join": join, "lowerAscii": lower_ascii,
    "upperAscii": upper_ascii, "replace": replace, "split": split, "substring": substring, "trim": trim,
    "format": format_text, "strings.quote": quote, "find": regex_find, "findAll": regex_find_all,
}  # fmt: skip
