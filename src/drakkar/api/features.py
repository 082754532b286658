"""Feature gates: which parts of the API and of the engine are on.

A :class:`Features` value is passed to whoever needs to know; nothing asks a global. Names
and defaults are those of Kubernetes 1.37. Drakkar itself turns everything on, unless a
profile that matches a Kubernetes version is chosen.

The allocator of Kubernetes knows the same switches under shorter names (``AdminAccess``);
:data:`ALLOCATOR_FLAGS` maps them.

Source: spec/api.md section 8, oracle/README.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from drakkar.api.errors import UsageError

# Gate → whether it is on in Kubernetes 1.34, 1.35, 1.36, 1.37; None where it does not exist.
_STAGES: Final[Mapping[str, tuple[bool | None, bool | None, bool | None, bool | None]]] = {
    "DynamicResourceAllocation": (True, True, True, True),
    "DRAAdminAccess": (True, True, True, True),
    "DRAPrioritizedList": (True, True, True, True),
    "DRAResourceClaimDeviceStatus": (True, True, True, True),
    "DRAExtendedResource": (False, False, True, True),
    "DRADeviceTaints": (False, False, True, True),
    "DRADeviceTaintRules": (None, False, False, True),
    "DRAPartitionableDevices": (False, False, True, True),
    "DRAConsumableCapacity": (False, False, True, True),
    "DRADeviceBindingConditions": (False, False, True, True),
    "DRASchedulerFilterTimeout": (True, True, True, True),
    "DRAResourceClaimGranularStatusAuthorization": (None, None, True, True),
    "ResourceHealthStatus": (False, False, True, True),
    # The schema of 1.37 names this gate; its stage is not known, so it counts as alpha.
    "ResourceHealthStatusMessage": (None, None, None, False),
    "DRAFractionalCapacityRange": (None, None, None, True),
    "DRAWorkloadResourceClaims": (None, None, False, False),
    "DRAListTypeAttributes": (None, None, False, False),
    "DRANodeAllocatableResources": (None, None, False, False),
    "DRAResourcePoolStatus": (None, None, False, False),
    "DRAPartitionableDevicesType": (None, None, None, False),
    "DRADerivedAttributes": (None, None, None, False),
    "DRADeviceCompatibilityGroups": (None, None, None, False),
    "DRAOptionalNodeOperations": (None, None, None, False),
    "GenericWorkload": (None, False, False, False),
    "TopologyAwareWorkloadScheduling": (None, None, False, False),
    "CompositePodGroup": (None, None, None, False),
    "PodGroupPreemptionPolicy": (None, None, None, False),
    "NodeDeclaredFeatures": (None, False, True, True),
    "NominatedNodeNameForExpectation": (False, True, True, True),
    "SchedulerPreQueueingHints": (None, None, None, False),
}

GATES: Final = frozenset(_STAGES)
"""Every gate name we know."""

PROFILES: Final[Mapping[str, int]] = {"1.34": 0, "1.35": 1, "1.36": 2, "1.37": 3}
"""Kubernetes versions whose defaults can be chosen → their column."""

NEEDS: Final[Mapping[str, str]] = {
    "DRADeviceBindingConditions": "DRAResourceClaimDeviceStatus",
    "DRAWorkloadResourceClaims": "GenericWorkload",
}
"""Gate → the gate without which it has no effect."""

LOCKED: Final = frozenset(
    (
        "DynamicResourceAllocation",
        "DRAAdminAccess",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRAExtendedResource",
    )
)
"""Gates that cannot be turned off any more in 1.37."""

_BETA: Final = frozenset(
    (
        "DRAPartitionableDevices",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRASchedulerFilterTimeout",
        "DRAResourceClaimGranularStatusAuthorization",
        "ResourceHealthStatus",
        "DRAFractionalCapacityRange",
        "DRAWorkloadResourceClaims",
        "GenericWorkload",
        "NominatedNodeNameForExpectation",
    )
)
_STABLE: Final = LOCKED | {"DRADeviceTaints", "DRADeviceTaintRules", "NodeDeclaredFeatures"}


def stage(gate: str) -> str:
    """``ALPHA``, ``BETA`` or, for what is generally available, nothing (as in kubernetes_feature_enabled)."""
    return "" if gate in _STABLE else "BETA" if gate in _BETA else "ALPHA"


ALLOCATOR_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "AdminAccess": ("DRAAdminAccess",),
    "CompatibilityGroups": ("DRADeviceCompatibilityGroups",),
    "ConsumableCapacity": ("DRAConsumableCapacity",),
    "DerivedAttributes": ("DRADerivedAttributes",),
    "DeviceBindingAndStatus": ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"),
    "DeviceTaints": ("DRADeviceTaints",),
    "FractionalCapacityRange": ("DRAFractionalCapacityRange",),
    "ListTypeAttributes": ("DRAListTypeAttributes",),
    "OptionalNodeOperations": ("DRAOptionalNodeOperations",),
    "PartitionableDevices": ("DRAPartitionableDevices",),
    "PrioritizedList": ("DRAPrioritizedList",),
}
"""Flag of the allocator → the gates that must all be on for it."""


class Features:
    """The gates that are on; immutable. ``gate in features`` asks, unknown names raise."""

    __slots__ = ("_on",)

    def __init__(self, on: Iterable[str]) -> None:
        gates = frozenset(on)
        _refuse_unknown(gates)
        self._on = frozenset(gate for gate in gates if NEEDS.get(gate, gate) in gates)

    @staticmethod
    def default() -> Features:
        """What an untouched Kubernetes 1.37 has on."""
        return Features.profile("1.37")

    @staticmethod
    @cache
    def drakkar() -> Features:
        """Everything on: what Drakkar runs with unless told otherwise. Always the same value, so ``is`` finds it."""
        return Features(GATES)

    @staticmethod
    def profile(version: str) -> Features:
        """The defaults of Kubernetes ``version`` (``1.34`` ... ``1.37``)."""
        column = _column(version)
        return Features(gate for gate, stages in _STAGES.items() if stages[column])

    @staticmethod
    def known_to(version: str) -> frozenset[str]:
        """The gates that there are in Kubernetes ``version``, of those that we know."""
        column = _column(version)
        return frozenset(gate for gate, stages in _STAGES.items() if stages[column] is not None)

    @staticmethod
    def from_allocator_flags(flags: Iterable[str]) -> Features:
        """Only what the allocator's flags name (and DRA itself); :class:`UsageError` for an unknown one."""
        gates = {"DynamicResourceAllocation"}
        for flag in flags:
            if flag not in ALLOCATOR_FLAGS:
                raise UsageError(f"unknown allocator feature {flag!r}: use one of {', '.join(sorted(ALLOCATOR_FLAGS))}")
            gates.update(ALLOCATOR_FLAGS[flag])
        return Features(gates)

    def allocator_flags(self) -> frozenset[str]:
        """The allocator's flags that these gates turn on."""
        return frozenset(flag for flag, gates in ALLOCATOR_FLAGS.items() if self._on.issuperset(gates))

    @staticmethod
    def from_flag(text: str, base: Features | None = None) -> Features:
        """``base`` (by default everything on) with the changes of a flag ``A=true,B=false``.

        ``AllAlpha`` and ``AllBeta`` stand for all gates of a stage and come before single ones. Raises UsageError
        that names the gate and the cure.
        """
        base = base or Features.drakkar()
        stages: dict[str, bool] = {}
        changes: dict[str, bool] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, word = (piece.strip() for piece in part.partition("="))
            if not equals or word.lower() not in ("true", "false", "1", "0", "t", "f"):
                raise UsageError(f"feature gate {name!r} needs a value: write {name}=true or {name}=false")
            wanted = word.lower() in ("true", "1", "t")
            if name in ("AllAlpha", "AllBeta"):
                stages |= {gate: wanted for gate in GATES if stage(gate) == name.removeprefix("All").upper()}
                continue
            _refuse_unknown((name,))
            if name in LOCKED and not wanted:
                raise UsageError(f"cannot set feature gate {name} to false, feature is locked to true")
            changes[name] = wanted
        made = base.with_(stages).with_(changes)
        for gate, wanted in changes.items():
            if wanted and gate not in made:
                raise UsageError(f"feature gate {gate} needs {NEEDS[gate]}: write {NEEDS[gate]}=true as well")
        return made

    def with_(self, changes: Mapping[str, bool]) -> Features:
        """A copy with single gates turned on or off."""
        _refuse_unknown(changes)
        on = {gate for gate in self._on if changes.get(gate, True)}
        return Features(on | {gate for gate, wanted in changes.items() if wanted})

    def enabled(self, gate: str) -> bool:
        """Whether the gate (and what it needs) is on; :class:`UsageError` for an unknown name."""
        if gate in self._on:
            return True
        if gate not in GATES:
            _refuse_unknown((gate,))
        return False

    __contains__ = enabled

    @property
    def gates(self) -> frozenset[str]:
        """The names of all gates that are on."""
        return self._on

    @property
    def binding_conditions(self) -> bool:
        """Whether devices may demand conditions before a pod is bound; takes two gates."""
        return "DRADeviceBindingConditions" in self._on

    def __eq__(self, other: object) -> bool:
        return self._on == other._on if isinstance(other, Features) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._on)

    def __repr__(self) -> str:
        return f"Features({sorted(self._on)})"


def _refuse_unknown(gates: Iterable[str]) -> None:
    unknown = sorted(set(gates) - GATES)
    if unknown:
        raise UsageError(f"unknown feature gate {unknown[0]!r}: known are {', '.join(sorted(GATES))}")


def _column(version: str) -> int:
    column = PROFILES.get(version)
    if column is None:
        raise UsageError(f"unknown feature profile {version!r}: use one of {', '.join(PROFILES)}")
    return column
