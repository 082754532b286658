"""The file ``expect.yaml`` of a case, as docs/reference/cases.md describes it.

It is read strictly: a misspelt field would be an expectation that can never be missed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.errors import UsageError
from drakkar.api.manifests import documents

_Text = str | int
_OneOf = _Text | list[_Text]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    pass


class _Fault(_Strict):
    field: str
    type: str


class _Invalid(_Strict):
    kind: str
    name: str
    errors: list[_Fault]


class _Refused(_Strict):
    kind: str
    name: str
    status: int
    mentions: str | list[str] = []
    message: str | list[str] = []


class _Devices(_Strict):
    claim: str
    request: str
    driver: str
    pool: _OneOf | None = None
    device: _OneOf | None = None
    count: int = 1
    capacity: dict[str, _Text] = {}


class _Pod(_Strict):
    name: str
    scheduled: bool
    node: _OneOf | None = None
    devices: list[_Devices] | None = None
    reason: str = ""
    mentions: list[str] = []
    must_not_mention: list[str] = []


class _Group(_Strict):
    pods: list[str]
    scheduled_count: int


class _Attribute(_Strict):
    pod: str
    attribute: str
    requests: list[str]


class _Check(_Strict):
    distinct: list[str] | None = None
    same: list[str] | None = None
    same_attribute: _Attribute | None = None
    distinct_attribute: _Attribute | None = None


class _Expectation(_Strict):
    format: int
    title: str = ""
    kind: str = ""
    certainty: str = ""
    features: list[str] = []
    invalid: list[_Invalid] = []
    refused: list[_Refused] = []
    pods: list[_Pod] = []
    groups: list[_Group] = []
    checks: list[_Check] = []
    usage: dict[str, dict[str, _Text]] = {}


def read_expectation(path: Path, text: str) -> dict[str, Any]:
    """The expectation as it stands in the file. Raises UsageError that names the file, the field and what is wrong."""
    (found,) = documents(text, str(path))[:1] or [None]
    if not isinstance(found, dict) or found.get("format") != 1:
        raise UsageError(f"{path}: no expectation of format 1; it begins with `format: 1`")
    try:
        read = msgspec.convert(found, _Expectation)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}; docs/reference/cases.md lists the fields") from error
    for number, check in enumerate(read.checks):
        if len([rule for rule in msgspec.structs.astuple(check) if rule is not None]) != 1:
            raise UsageError(
                f"{path}: checks[{number}] must have one of distinct, same, sameAttribute, distinctAttribute"
            )
    return found
