"""Feature gates and their mapping to the allocator's flags."""

from __future__ import annotations

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.features import ALLOCATOR_FLAGS, GATES, LOCKED, Features, stage


def test_untouched_cluster_has_these_allocator_features() -> None:
    assert Features.default().allocator_flags() == {
        "AdminAccess", "ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "FractionalCapacityRange",
        "PartitionableDevices", "PrioritizedList",
    }  # fmt: skip


def test_drakkar_has_everything() -> None:
    assert Features.drakkar().gates == GATES
    assert Features.drakkar().allocator_flags() == set(ALLOCATOR_FLAGS)


def test_flags_round_trip() -> None:
    for flag in ALLOCATOR_FLAGS:
        assert Features.from_allocator_flags([flag]).allocator_flags() == {flag}
    with pytest.raises(UsageError, match="Unknowable"):
        Features.from_allocator_flags(["Unknowable"])


def test_profiles_grow() -> None:
    assert "DRADeviceTaints" not in Features.profile("1.35")
    assert "DRADeviceTaints" in Features.profile("1.36")
    assert Features.profile("1.37") == Features.default()
    with pytest.raises(UsageError, match="unknown feature profile"):
        Features.profile("1.99")
    assert "DRADeviceTaints" in Features.known_to("1.34")
    assert "DRADeviceTaintRules" not in Features.known_to("1.34")
    assert Features.known_to("1.37") == GATES


def test_single_gates() -> None:
    off = Features.drakkar().with_({"DRAResourceClaimDeviceStatus": False})
    assert "DRAResourceClaimDeviceStatus" not in off
    assert not off.binding_conditions, "it needs the other gate"
    assert Features.drakkar().binding_conditions
    with pytest.raises(UsageError, match="DRATypo"):
        off.with_({"DRATypo": True})
    with pytest.raises(UsageError, match="DRATypo"):
        off.enabled("DRATypo")


def test_a_flag_changes_single_gates_and_stages() -> None:
    made = Features.from_flag("AllAlpha=false, DRAListTypeAttributes=true,DRADeviceTaints=false")
    assert "DRAListTypeAttributes" in made
    assert "DRADerivedAttributes" not in made
    assert "DRADeviceTaints" not in made
    assert "DRAPartitionableDevices" in made
    assert Features.from_flag("", Features.default()) == Features.default()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("Nothing=true", "unknown feature gate 'Nothing'"),
        ("DRADeviceTaints", "needs a value: write DRADeviceTaints=true"),
        ("DRADeviceTaints=maybe", "needs a value"),
        ("DRAAdminAccess=false", "cannot set feature gate DRAAdminAccess to false, feature is locked to true"),
        ("DRAWorkloadResourceClaims=true,GenericWorkload=false", "needs GenericWorkload"),
    ],
)
def test_flags_that_are_refused(flag: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Features.from_flag(flag)
    assert said in str(caught.value)


def test_locked_gates_are_on_in_1_37_and_every_gate_has_a_stage() -> None:
    assert all(gate in Features.default() for gate in LOCKED)
    assert {stage(gate) for gate in GATES} == {"", "ALPHA", "BETA"}
    # Whatever is on by default is no alpha.
    assert all(stage(gate) != "ALPHA" for gate in Features.default().gates)
