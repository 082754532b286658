"""Messages: bytes as protobuf defines them, and nothing else accepted."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.plugin import protobuf, wire


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (wire.InfoRequest(), ""),
        (wire.RegistrationStatus(plugin_registered=True, error="x"), "0801 120178"),
        (wire.PluginInfo(type="t", supported_versions=["a", ""]), "0a0174 220161 2200"),
        (wire.NodePrepareResourcesRequest(claims=[wire.Claim("n", "u", "c")]), "0a09 0a016e 120175 1a0163"),
        (wire.Device(share_id=""), "2a00"),
        (
            wire.NodeUnprepareResourcesResponse(claims={"u": wire.NodeUnprepareResourceResponse(error="e")}),
            "0a08 0a0175 1203 0a0165",
        ),
        (wire.NodeUnprepareResourcesResponse(claims={"": wire.NodeUnprepareResourceResponse()}), "0a04 0a00 1200"),
        (wire.DeviceHealth(last_updated_time=300, health=2), "1002 18ac02"),
        (wire.DeviceHealth(health_check_timeout_seconds=-1), "20 ffffffffffffffffff01"),
        (wire.DeviceHealth(device=wire.DeviceIdentifier("p", "d")), "0a06 0a0170 120164"),
    ],
)
def test_bytes(value: object, content: str) -> None:
    assert protobuf.encode(value) == bytes.fromhex(content)
    assert protobuf.decode(type(value), bytes.fromhex(content)) == value


def test_what_others_may_send_is_read() -> None:
    # Unknown fields of every wire type, a field twice, a message in two parts, a map entry without a key.
    decode = protobuf.decode
    assert decode(wire.Claim, bytes.fromhex("5001 59 0000000000000000 5d 00000000 6200 0a0161 0a0162")).namespace == "b"
    merged = decode(wire.DeviceHealth, bytes.fromhex("0a03 0a0170 0a03 120164"))
    assert merged.device == wire.DeviceIdentifier("p", "d")
    assert decode(wire.NodeUnprepareResourcesResponse, bytes.fromhex("0a00")).claims.keys() == {""}


@pytest.mark.parametrize(
    "content", ["0a", "0a05 61", "0801", "0b", "02", "0a02 c328", "ff" * 11, "5d 0000", "80"], ids=str
)
def test_what_is_no_message_is_refused(content: str) -> None:
    with pytest.raises(protobuf.WireError, match=r"^Claim: "):
        protobuf.decode(wire.Claim, bytes.fromhex(content))


TEXT = st.text(max_size=5)
DEVICES = st.lists(
    st.builds(wire.Device, st.lists(TEXT, max_size=2), TEXT, TEXT, st.lists(TEXT, max_size=2), st.none() | TEXT),
    max_size=2,
)
ANSWERS = st.builds(
    wire.NodePrepareResourcesResponse,
    st.dictionaries(TEXT, st.builds(wire.NodePrepareResourceResponse, DEVICES, TEXT), max_size=3),
)


@settings(max_examples=50)
@given(ANSWERS)
def test_round_trip(answer: wire.NodePrepareResourcesResponse) -> None:
    assert protobuf.decode(wire.NodePrepareResourcesResponse, protobuf.encode(answer)) == answer


@settings(max_examples=50)
@given(st.binary(max_size=40))
def test_nothing_but_a_wire_error(content: bytes) -> None:
    with contextlib.suppress(protobuf.WireError):
        protobuf.decode(wire.NodePrepareResourcesResponse, content)
