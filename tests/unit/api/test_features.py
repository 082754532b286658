"""Feature gates and their mapping to the allocator's flags."""

from __future__ import annotations

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.features import ALLOCATOR_FLAGS, GATES, Features


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


def test_single_gates() -> None:
    off = Features.drakkar().with_({"DRAResourceClaimDeviceStatus": False})
    assert "DRAResourceClaimDeviceStatus" not in off
    assert not off.binding_conditions, "it needs the other gate"
    assert Features.drakkar().binding_conditions
    with pytest.raises(UsageError, match="DRATypo"):
        off.with_({"DRATypo": True})
    with pytest.raises(UsageError, match="DRATypo"):
        off.enabled("DRATypo")
