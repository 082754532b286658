"""Bodies to dicts, with duplicate fields reported in upstream's words."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from drakkar.apiserver import status
from drakkar.apiserver.schema.walk import json_word

#: How much of a body an error message repeats.
_SUMMARY = 30


def decode_json(body: bytes, kind: str = "") -> tuple[dict[str, Any], list[str]]:
    """The object and its duplicate fields (``duplicate field "data.a"``); the last one wins.

    ``kind`` is the kind that was expected, for the error message.

    Raises:
        StatusError: 400 when the body is no JSON object.
    """
    try:
        obj = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        fault = f"couldn't get version/kind; json parse error: {_go_syntax_error(body, error)}"
        raise status.StatusError(_unrecognized(body, kind, fault)) from None
    except (RecursionError, UnicodeDecodeError):
        fault = "couldn't get version/kind; json parse error: exceeded max depth"
        raise status.StatusError(_unrecognized(body, kind, fault)) from None
    if type(obj) is not dict:
        fault = (
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {json_word(obj)} into Go value of "
            'type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
        raise status.StatusError(_unrecognized(body, kind, fault))
    # Without duplicates the compact body and what we would write are usually equal, byte by byte;
    # where they differ (escapes, number formats, duplicates) the slow decoder finds out why.
    if msgspec.json.format(body, indent=-1) == msgspec.json.encode(obj):
        return obj, []
    try:
        return obj, _duplicates(body)
    except (RecursionError, ValueError):
        fault = "couldn't get version/kind; json parse error: exceeded max depth or digits of a number"
        raise status.StatusError(_unrecognized(body, kind, fault)) from None


def decode_yaml(body: bytes, kind: str = "") -> tuple[dict[str, Any], list[str]]:
    """Like :func:`decode_json` for YAML, of which JSON is a part.

    Raises:
        StatusError: 400 when the body is no YAML mapping.
    """
    if body.lstrip()[:1] == b"{":
        return decode_json(body, kind)
    import yaml

    from drakkar.apiserver.schema.yaml_loader import DuplicateAwareLoader

    try:
        loader = DuplicateAwareLoader(body)
        try:
            obj = loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        # Numbers and texts that only look well-formed fail with ValueError, tags that do not fit with LookupError.
        text = f"error converting YAML to JSON: yaml: {error}"
        raise status.StatusError(_unrecognized(body, kind, text)) from None
    if type(obj) is not dict:
        text = f"couldn't get version/kind; json parse error: json: cannot unmarshal {json_word(obj)} into an object"
        raise status.StatusError(_unrecognized(body, kind, text))
    return obj, [f'duplicate field "{path}"' for path in loader.duplicates]


def _unrecognized(body: bytes, kind: str, fault: str) -> dict[str, Any]:
    expected = f" (must be of type {kind})" if kind else ""
    return status.bad_request(f"the object provided is unrecognized{expected}: {fault} ({_summary(body)})")


def _summary(body: bytes) -> str:
    """The start of a body as upstream's messages show it: text for JSON, hexadecimal otherwise."""
    if not body:
        return "<empty>"
    more = " ..." if len(body) > _SUMMARY else ""
    head = body[:_SUMMARY]
    return (head.decode("utf-8", "replace") if body[:1] == b"{" else head.hex()) + more


def _go_syntax_error(body: bytes, error: Exception) -> str:
    """A syntax error in the words of Go's decoder, as near as the position tells."""
    try:
        json.loads(body)
    except json.JSONDecodeError as found:
        rest = found.doc[found.pos :].lstrip()
        if not rest or found.msg.startswith("Unterminated"):
            return "unexpected end of JSON input"
        looking = {
            "Expecting value": "looking for beginning of value",
            "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
            "Expecting ':' delimiter": "after object key",
            "Expecting ',' delimiter": "after object key:value pair",
            "Extra data": "after top-level value",
        }.get(found.msg, f"({found.msg})")
        return f"invalid character {rest[0]!r} {looking}"
    except (ValueError, RecursionError):
        # Not UTF-8, a number of too many digits, too deep: the first decoder's words have to do.
        pass
    return str(error)


class _Pairs(list[tuple[str, Any]]):
    """An object as the list of its members, duplicates included."""


def _duplicates(body: bytes) -> list[str]:
    found: dict[str, None] = {}
    _walk_pairs(json.loads(body, object_pairs_hook=_Pairs), "", found)
    return [f'duplicate field "{path}"' for path in found]


def _walk_pairs(value: Any, path: str, found: dict[str, None]) -> None:
    if type(value) is _Pairs:
        seen: set[str] = set()
        for name, item in value:
            below = f"{path}.{name}" if path else name
            if name in seen:
                found.setdefault(below)
            seen.add(name)
            _walk_pairs(item, below, found)
    elif type(value) is list:
        for index, item in enumerate(value):
            _walk_pairs(item, f"{path}[{index}]", found)
