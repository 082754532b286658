"""The driver `example.drakkar.dev`: what its profile says there is, handed out as environment variables.

Devices can be made sick: a file named after a device in `faults` (a folder) holds its state and a message,
for example ``Unhealthy fan stuck``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from drakkar.api.errors import UsageError
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Health, Pool, PrepareError
from drakkar.driver.driver import State
from drakkar.drivers.example import profiles
from drakkar.drivers.example.profiles import NAME, Found
from drakkar.version import __version__

#: Profile → the devices of a node.
PROFILES: Mapping[str, Callable[[], Found]] = {
    "plain": profiles.plain,
    "partitionable": profiles.partitionable,
    "consumable": profiles.consumable,
    "taints": profiles.taints,
    "binding-conditions": profiles.binding_conditions,
    "extended-resource": profiles.plain,
    "network-attached": lambda: (),
}


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """Opaque parameters of a claim or class."""

    interval: str = ""
    sharing: str = ""


class ExampleDriver(Driver):
    """One profile on one node. Raises UsageError for a profile that does not exist."""

    name = NAME
    version = __version__
    configs = {(f"{NAME}/v1", "Settings"): Settings}
    unhealthy = "NoExecute"

    def __init__(self, profile: str = "plain", faults: Path | None = None) -> None:
        if profile not in PROFILES:
            raise UsageError(f"profile {profile!r}: there is none of that name; choose one of {', '.join(PROFILES)}")
        self.profile = profile
        self._faults = faults

    def discover(self) -> Found:
        """What the profile says."""
        return PROFILES[self.profile]()

    def cluster_pools(self) -> Sequence[Pool]:
        """Devices that any node with a label reaches over the network."""
        return [profiles.network_pool()] if self.profile == "network-attached" else []

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[ContainerEdits]:
        """An environment variable per device that says what it is and how much of it."""
        edits: list[ContainerEdits] = []
        for found in devices:
            settings = found.configs[-1] if found.configs else Settings()
            assert isinstance(settings, Settings)
            if settings.sharing not in ("", "TimeSlicing", "SpacePartitioning"):
                raise PrepareError(f"sharing {settings.sharing!r}: choose TimeSlicing or SpacePartitioning")
            key = found.name.upper().replace("-", "_")
            words = [f"{name}={value}" for name, value in sorted((found.result.consumedCapacity or {}).items())]
            words += [f"{name}={value}" for name, value in msgspec.structs.asdict(settings).items() if value]
            edits.append(ContainerEdits(env=[f"EXAMPLE_{key}={' '.join([found.name, *words])}"]))
        return edits

    def health(self) -> Mapping[str, Health]:
        """What the files in the folder of faults say."""
        found: dict[str, Health] = {}
        for path in sorted(self._faults.iterdir()) if self._faults is not None and self._faults.is_dir() else ():
            state, _, message = path.read_text().strip().partition(" ")
            if state not in get_args(State):
                state, message = "Unknown", f"{path.name}: {state!r} is none of {', '.join(get_args(State))}"
            found[path.name] = Health(state, message)  # pyright: ignore[reportArgumentType]
        return found
