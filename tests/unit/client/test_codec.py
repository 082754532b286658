"""JSON that is nested deeper than any decoder follows: whoever may write one claim must not stop all readers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.api.kinds import RESOURCECLAIM
from drakkar.client import codec


def _claim(name: str, parameters: str) -> str:
    opaque = '{"driver": "a.example.com", "parameters": ' + parameters + "}"
    config = '{"devices": {"config": [{"opaque": ' + opaque + "}]}}"
    return '{"metadata": {"name": "' + name + '", "namespace": "n"}, "spec": ' + config + "}"


#: As deep as the 10 KiB of opaque parameters allow.
DEEP = '{"a": ' + "[" * 5000 + "]" * 5000 + ', "b": 1}'


def test_a_list_with_a_claim_that_is_too_deep_is_read_whole() -> None:
    body = '{"metadata": {"resourceVersion": "7"}, "items": [' + ",".join(
        [_claim("before", '{"x": "]"}'), _claim("deep", DEEP), _claim("after", "{}")]
    )
    found = codec.decode_list((body + "]}").encode())
    assert found.metadata.resourceVersion == "7"
    claims = [codec.decode_object(RESOURCECLAIM, item) for item in found.items or ()]
    assert [claim.metadata.name for claim in claims] == ["before", "deep", "after"]
    assert claims[0].spec.devices.config[0].opaque.parameters == {"x": "]"}
    assert claims[1].spec.devices.config[0].opaque.parameters["b"] == 1


def test_an_event_with_one_too() -> None:
    frame = codec.decode_envelope(('{"type": "ADDED", "object": ' + _claim("deep", DEEP) + "}").encode())
    assert codec.decode_object(RESOURCECLAIM, frame.object).metadata.name == "deep"
    assert codec.decode_json(frame.object)["metadata"]["name"] == "deep"


def test_what_is_no_json_stays_so() -> None:
    for text in (b"[" * 5000, b"[" * 5000 + b"]" * 4999, b"{" * 5000, b"[" * 5000 + b'"' + b"]" * 5000):
        with pytest.raises(ValueError, match=r"truncated|malformed"):
            codec.decode_json(text)


VALUES = st.recursive(
    st.none() | st.text(alphabet='a"\\]}{[', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


def _shallow(value: object, levels: int) -> object:
    if isinstance(value, list):
        return [_shallow(each, levels - 1) for each in value] if levels > 0 else []
    if isinstance(value, dict):
        return {key: _shallow(each, levels - 1) for key, each in value.items()} if levels > 0 else {}
    return value


@given(VALUES, st.integers(0, 4))
def test_what_is_left_out(value: object, levels: int) -> None:
    assert json.loads(codec.cut(json.dumps(value).encode(), levels)) == _shallow(value, levels)
