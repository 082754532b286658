"""The feature switches that change what an allocation may look like.

Upstream's allocator knows eleven of them; several API gates can stand behind one switch. They
are fixed for the life of an inventory, because they decide how slices are read.

Source: spec/allocation.md section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from drakkar.api.features import ALLOCATOR_FLAGS


@dataclass(frozen=True, slots=True)
class Switches:
    """One boolean per allocator feature; the defaults are those of Kubernetes 1.37."""

    AdminAccess: bool = True
    CompatibilityGroups: bool = False
    ConsumableCapacity: bool = True
    DerivedAttributes: bool = False
    DeviceBindingAndStatus: bool = True
    DeviceTaints: bool = True
    DeviceTaintRules: bool = True
    FractionalCapacityRange: bool = True
    ListTypeAttributes: bool = False
    OptionalNodeOperations: bool = False
    PartitionableDevices: bool = True
    PrioritizedList: bool = True
    #: Not upstream's: a slice may have devices beside the counters that they draw on. Kubernetes 1.34 wants it so,
    #: later servers refuse it, and the allocator of 1.37 does not look at devices of such a slice.
    MixedSlices: bool = False

    @property
    def variant(self) -> str:
        """Which of upstream's three allocators these features select: stable, incubating or experimental."""
        if self.ListTypeAttributes or self.OptionalNodeOperations or self.DerivedAttributes or self.CompatibilityGroups:
            return "experimental"
        if self.DeviceBindingAndStatus or self.ConsumableCapacity or self.FractionalCapacityRange:
            return "incubating"
        return "stable"

    @staticmethod
    def from_names(names: Mapping[str, bool] | None) -> Switches:
        """Switches of a scenario of the oracle: all off unless named; None means the defaults."""
        if names is None:
            return Switches()
        known = {field.name for field in fields(Switches)}
        chosen = {name: bool(on) for name, on in names.items() if name in known}
        return Switches(**{name: chosen.get(name, name == "DeviceTaintRules") for name in known})

    @staticmethod
    def from_gates(enabled: Callable[[str], bool]) -> Switches:
        """Switches that follow from feature gates of the API server; ``enabled`` tells a gate's state."""
        flags = {flag: all(map(enabled, gates)) for flag, gates in ALLOCATOR_FLAGS.items()}
        return Switches(DeviceTaintRules=enabled("DRADeviceTaintRules"), MixedSlices=True, **flags)
