"""Keeps the ResourceSlices of a driver as the driver wants them.

A controller for `drakkar.client.runner`: its keys are pool names. It reacts to changes of the
slices (somebody else's edits are undone) and to :meth:`SlicePublisher.trigger`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.meta import OwnerReference
from drakkar.api.resource import v1
from drakkar.client.cache import Cache, Caches
from drakkar.client.queue import KeyQueue
from drakkar.client.writes import After, Create, Patch, Write
from drakkar.driver.gates import Gates, Probe
from drakkar.driver.pools import Pool, check_pool, plan_pool
from drakkar.plugin.failpoints import hit

logger = logging.getLogger(__name__)

#: Longest wait in seconds for a created slice to show on the watch, and pause between looks.
CREATION_SEEN, LOOK_AGAIN = 2.0, 0.02
#: Pause in seconds before fields that the server dropped are sent again.
NEXT_ATTEMPT = 60.0
#: As long as what the server appends to a generated name.
SUFFIX = "xxxxx"

#: Says how a pool should be, given its name and its slices in the API; None: the pool should not exist.
Desired = Callable[[str, Sequence[v1.ResourceSlice]], Pool | None]
#: Told what is wrong with a pool: its name and one sentence.
OnProblem = Callable[[str, str], None]


def log_problem(pool: str, problem: str) -> None:
    """The default way to report a problem."""
    logger.error("%s", problem)


class SlicePublisher:
    """Publishes the pools of one driver in one process.

    ``node_name`` restricts it to the slices of one node; without it, it looks after slices that belong to no node.
    With ``probe`` the server is asked first which fields it keeps (`drakkar.driver.gates`).
    """

    def __init__(
        self,
        driver: str,
        desired: Desired,
        clock: Clock,
        *,
        owner: OwnerReference | None = None,
        node_name: str = "",
        on_problem: OnProblem = log_problem,
        probe: Probe | None = None,
    ):
        self.name = f"slices-{driver}"
        self.driver = driver
        self._desired = desired
        self._clock = clock
        self._owner = owner
        self._selector = f"spec.driver={driver},spec.nodeName={node_name}"
        self._on_problem = on_problem
        self._gates = Gates(probe, clock) if probe is not None else None
        #: Pool -> what was last said about fields that the server drops.
        self._said: dict[str, str] = {}
        self._queue: KeyQueue | None = None
        self._slices: Cache | None = None
        # Pool → name prefix and time of the slices that were created and not seen yet.
        self._created: dict[str, dict[str, float]] = {}
        # Pool and slice (or prefix of a created one) → its revision before the last write, and what that wanted.
        self._tried: dict[tuple[str, str], tuple[str, bytes]] = {}

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch the driver's slices."""
        self._queue = queue
        self._slices = caches.of(
            RESOURCESLICE, field_selector=self._selector, indexes={"pool": lambda found: [found.spec.pool.name]}
        )
        self._slices.subscribe(self._changed)

    def trigger(self, pool: str) -> None:
        """The driver wants the pool looked at."""
        if self._queue is not None:
            self._queue.add(pool)

    def slices(self, pool: str) -> list[v1.ResourceSlice]:
        """Slices of the pool in the API, by name."""
        found = [] if self._slices is None else self._slices.by("pool", pool)
        return sorted(found, key=lambda s: s.metadata.name)

    def reconcile(self, key: str) -> Sequence[Write] | Awaitable[Sequence[Write]]:
        """Writes for one pool."""
        existing = self.slices(key)
        pool = self._desired(key, existing)
        if pool is not None:
            problems = check_pool(pool)
            if problems:
                for problem in problems:
                    self._on_problem(key, problem)
                return []
            if self._gates is not None:
                return self._plan_kept(self._gates, key, pool)
        return self._plan(key, pool, existing)

    async def _plan_kept(self, gates: Gates, key: str, pool: Pool) -> Sequence[Write]:
        """Writes for what of the pool the server keeps."""
        try:
            fitted = await gates.fitted(self.driver, pool, self._owner)
        except ApiError as error:
            if error.code != 422:
                raise
            self._say(key, f"pool {key} is refused: {error}; it may need feature gates that are off at kube-apiserver")
            return [After(NEXT_ATTEMPT)]
        self._say(key, fitted.problem)
        return self._plan(key, fitted.pool, self.slices(key))

    def _say(self, key: str, problem: str) -> None:
        if self._said.get(key, "") != problem:
            self._said[key] = problem
            if problem:
                self._on_problem(key, problem)

    def _plan(self, key: str, pool: Pool | None, existing: Sequence[v1.ResourceSlice]) -> Sequence[Write]:
        writes = plan_pool(self.driver, pool, existing, now=self._clock.time(), owner=self._owner)
        if self._awaits_creation(key, existing, writes):
            return [After(LOOK_AGAIN)]
        if writes:
            hit("slices-planned")
        return self._without_futile(key, existing, writes)

    def _awaits_creation(self, key: str, existing: Sequence[v1.ResourceSlice], writes: Sequence[Write]) -> bool:
        """Whether slices that were created a moment ago have not come back on the watch: they must not be made twice.

        The server chooses their names, so a second creation would not fail.
        """
        now = self._clock.monotonic()
        wanted = {write.obj["metadata"]["generateName"] for write in writes if isinstance(write, Create)}
        pending = self._created.setdefault(key, {})
        for prefix, since in [*pending.items()]:
            if now - since > CREATION_SEEN or any(found.metadata.name.startswith(prefix) for found in existing):
                del pending[prefix]
        if wanted & pending.keys():
            return True
        pending |= dict.fromkeys(wanted, now)
        return False

    def _without_futile(self, key: str, existing: Sequence[v1.ResourceSlice], writes: list[Write]) -> list[Write]:
        """Holds writes back whose last attempt was carried out and did not last: the server dropped fields."""
        updates = {write.name: write for write in writes if isinstance(write, Patch)}
        futile: list[str] = []
        for found in existing:
            name, version = found.metadata.name, found.metadata.resourceVersion
            last = self._tried.pop((key, name), None) or self._tried.pop((key, name[: -len(SUFFIX)]), None)
            update = updates.get(name)
            if update is None:
                continue  # it is as it should be, or goes
            wanted = _digest(update.body["spec"])
            # Where the content is there already, only the generation goes up: another slice of the pool is missing.
            lasted = _digest(msgspec.to_builtins(found.spec)) == wanted
            if last is not None and last[0] != version and last[1] == wanted and not lasted:
                futile.append(name)
            else:
                self._tried[key, name] = (version, wanted)
        for write in writes:
            if isinstance(write, Create):
                self._tried[key, write.obj["metadata"]["generateName"]] = ("", _digest(write.obj["spec"]))
        if not futile:
            return writes
        self._on_problem(
            key,
            f"pool {key}: the server does not keep all fields of slice {futile[0]}; "
            "enable the feature gates that the driver needs",
        )
        # Somebody else's edit at the wrong moment looks the same, so it is worth another attempt, but not at once.
        return [After(NEXT_ATTEMPT)]

    def _changed(self, event_type: str, old: v1.ResourceSlice | None, new: v1.ResourceSlice) -> None:
        hit("slice-seen")
        self.trigger(new.spec.pool.name)


def _digest(spec: dict[str, Any]) -> bytes:
    """The content of a spec, without what changes with every write or is filled in by the server."""
    devices = [
        {**device, "taints": [{**taint, "timeAdded": None} for taint in device["taints"]]}
        if device.get("taints")
        else device
        for device in spec.get("devices") or ()
    ]
    content = {name: value for name, value in spec.items() if value is not None}
    return msgspec.json.encode(
        {**content, "pool": {**spec["pool"], "generation": 0}, "devices": devices}, order="sorted"
    )
