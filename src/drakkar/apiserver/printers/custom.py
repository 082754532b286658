"""Columns that a custom resource definition names, by JSONPath."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from drakkar.apiserver.printers.table import Printer
from drakkar.apiserver.printers.text import age

Step = Callable[[Any], list[Any]]

_TOKEN = re.compile(
    r"""\.?(?P<name>(?:[^.\[\]\\'"]|\\.)+)
      | \[\s*(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\s*\]
      | \[\s*(?P<index>-?\d+)\s*\]
      | (?P<all>\[\s*\*\s*\]|\.\*)
      | \[\s*\?\(\s*@(?P<field>[^=!<>\s]+)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^\s)]+)\s*\)\s*\]
    """,
    re.VERBOSE,
)

#: The column every custom resource has when its definition names none.
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def custom_printer(columns: list[dict[str, Any]] | None) -> Printer:
    """Printer for ``additionalPrinterColumns``; without any: NAME and AGE."""
    chosen = columns or [_AGE]
    definitions = [{"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}]
    getters: list[Callable[[Any, float], Any]] = []
    for column in chosen:
        definitions.append(
            {
                "name": column["name"],
                "type": column["type"],
                "format": column.get("format", ""),
                "description": column.get("description", ""),
                "priority": column.get("priority", 0),
            }
        )
        getters.append(_getter(column["type"], _compile(column["jsonPath"])))

    def cells(obj: dict[str, Any], now: float) -> list[Any]:
        return [obj["metadata"]["name"], *(getter(obj, now) for getter in getters)]

    return Printer(tuple(definitions), cells)


def _getter(kind: str, steps: list[Step]) -> Callable[[Any, float], Any]:
    def get(obj: Any, now: float) -> Any:
        found = [obj]
        for step in steps:
            found = [item for value in found for item in step(value)]
        if not found:
            return None
        value = found[0]
        match kind:
            case "date":
                return age(value, now) if isinstance(value, str) else "<invalid>"
            case "integer":
                return value if type(value) is int else int(value) if type(value) is float else None
            case "number":
                return value if type(value) in (int, float) else None
            case "boolean":
                return value if type(value) is bool else None
            case _:
                # Several values or a structure are shown as they stand in JSON.
                if isinstance(value, str) and len(found) == 1:
                    return value
                return " ".join(item if isinstance(item, str) else json.dumps(item) for item in found)

    return get


def _compile(path: str) -> list[Step]:
    """Steps of the part of JSONPath that definitions use: names, quoted names, indexes, ``*``, equality filters."""
    text = path.strip().removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(text) and text[position:] != ".":
        match = _TOKEN.match(text, position)
        if match is None:
            # An unreadable path selects nothing, as an absent field does.
            return [_nothing]
        position = match.end()
        if match["all"]:
            steps.append(_all)
        elif match["index"] is not None:
            steps.append(_at(int(match["index"])))
        elif match["field"] is not None:
            steps.append(_where(_compile(match["field"]), match["op"] == "==", _literal(match["value"])))
        elif match["name"] == "*":
            steps.append(_all)
        else:
            name = match["quoted"] if match["quoted"] is not None else re.sub(r"\\(.)", r"\1", match["name"])
            steps.append(_member(name))
    return steps


def _nothing(value: Any) -> list[Any]:
    return []


def _all(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _member(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _at(index: int) -> Step:
    return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _where(steps: list[Step], equal: bool, literal: Any) -> Step:
    def keep(item: Any) -> bool:
        found = [item]
        for step in steps:
            found = [below for value in found for below in step(value)]
        return bool(found) and (found[0] == literal) == equal

    return lambda value: [item for item in _all(value) if keep(item)]


def _literal(text: str) -> Any:
    if text[0] in "\"'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text
