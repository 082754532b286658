"""Devices with a share of their parent: what drivers build, what the API makes of it, what they check."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drakkar.api.errors import UsageError
from drakkar.api.features import Features
from drakkar.api.registry import strategy_for
from drakkar.api.resource import v1
from drakkar.api.resource.conversion import convert
from drakkar.api.resource.drawn import (
    Draw,
    Use,
    draws_of,
    function_of,
    overdrawn,
    port_counters,
    uses_of,
    whole_port,
)
from drakkar.api.resource.validation import validate_create

PORT = port_counters("p0", "100G", 4)
SPAN = v1.CapacityRequestPolicyRange(min="1G", max="50G", step="1G")
BANDWIDTH = v1.DeviceCapacity(value="50G", requestPolicy=v1.CapacityRequestPolicy(default="1G", validRange=SPAN))
VF = function_of(PORT, "p0-vf0", BANDWIDTH, {"kind": v1.DeviceAttribute(string="vf")})
OTHER = function_of(PORT, "p0-vf1", BANDWIDTH)
WHOLE = whole_port(PORT, "p0", {"kind": v1.DeviceAttribute(string="port")})
DEVICES = {device.name: device for device in (VF, OTHER, WHOLE)}


def resource_slice(name: str, **spec: Any) -> dict[str, Any]:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
    made = {"driver": "nic.drakkar.dev", "pool": pool, "nodeName": "n1", **msgspec.to_builtins(spec)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": made}


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
def test_the_api_takes_and_keeps_it_with_its_default_gates(version: str) -> None:
    for sent in (resource_slice("c", sharedCounters=[PORT]), resource_slice("d", devices=[VF, OTHER, WHOLE])):
        assert validate_create("ResourceSlice", sent) == []
        kept = copy.deepcopy(sent)
        strategy = strategy_for("resource.k8s.io", "ResourceSlice")
        assert strategy is not None
        strategy.prepare_create(kept, "2026-01-01T00:00:00Z", Features.default())
        assert kept["spec"] == sent["spec"]
        there = convert(sent, "ResourceSlice", "v1", version)
        assert convert(there, "ResourceSlice", version, "v1")["spec"] == sent["spec"]


def test_what_a_function_declares() -> None:
    assert draws_of(VF) == (Draw("bandwidth", "p0", "bandwidth"),)
    assert draws_of(WHOLE) == ()
    qualified = msgspec.structs.replace(VF, capacity={"nic.drakkar.dev/bandwidth": BANDWIDTH})
    assert draws_of(qualified) == (Draw("nic.drakkar.dev/bandwidth", "p0", "bandwidth"),)
    assert draws_of(msgspec.structs.replace(VF, capacity=None)) == (Draw("bandwidth", "p0/bandwidth", ""),)


def test_what_cannot_be_published_is_said_before() -> None:
    with pytest.raises(UsageError, match="give the counter set a shorter name"):
        function_of(port_counters("p" * 60, "1G", 1), "vf", v1.DeviceCapacity(value="1G"))
    with pytest.raises(UsageError, match="bandwidth 200G is more than the port's 100G"):
        function_of(PORT, "vf", v1.DeviceCapacity(value="200G"))


def use(device: str, bandwidth: str | None = None) -> Use:
    return Use(device, None if bandwidth is None else {"bandwidth": bandwidth, "function": "1"})


def check(prepared: list[Use], *wanted: Use) -> str | None:
    return overdrawn([PORT], DEVICES, prepared, wanted)


def test_a_driver_refuses_what_another_scheduler_gave_out_twice() -> None:
    assert check([use("p0-vf0", "50G")], use("p0-vf1", "50G")) is None
    text = check([use("p0-vf0", "50G")], use("p0-vf1", "51G"))
    assert text is not None
    assert text.startswith("bandwidth of p0 is 100G; 50G is in use and the claim takes 51G")
    assert "scheduler that does not count shares" in text
    assert check([], use("p0")) is None
    assert check([use("p0-vf0", "1G")], use("p0")) is not None
    assert check([use("p0")], use("p0-vf0", "1G")) is not None
    # What does not say how much it took, took all of its own.
    assert check([use("p0-vf0")], use("p0-vf1", "50G")) is None
    assert check([use("p0-vf0")], use("p0-vf1", "51G")) is not None


def test_what_is_overdrawn_elsewhere_stops_nobody() -> None:
    other = port_counters("p1", "10G", 1)
    devices = {**DEVICES, "p1-vf0": function_of(other, "p1-vf0", v1.DeviceCapacity(value="10G"))}
    prepared = [use("p0-vf0", "90G"), use("p0-vf1", "90G")]
    assert overdrawn([PORT, other], devices, prepared, [use("p1-vf0", "10G")]) is None
    assert "p1" in (overdrawn([PORT], devices, prepared, [use("p1-vf0", "10G")]) or "")


def test_administrators_use_nothing_and_definitions_are_needed() -> None:
    results = [
        v1.DeviceRequestAllocationResult(device="p0-vf0", adminAccess=True),
        v1.DeviceRequestAllocationResult(device="p0-vf1", consumedCapacity={"bandwidth": "2G"}),
    ]
    assert uses_of(results) == [Use("p0-vf1", {"bandwidth": "2G"})]
    with pytest.raises(UsageError, match="device gone is in use and its definition was not given"):
        check([use("gone", "1G")], use("p0-vf0", "1G"))


def test_the_example_of_the_reference_runs() -> None:
    page = Path(__file__).parents[3] / "docs/reference/shares.md"
    found = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    exec(found[1], {})
