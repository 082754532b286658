"""Claims turned into what the search needs, once per claim template.

A plan depends on the claims' specs, their classes and the policy, not on nodes or holdings. Faults of
a request are kept with it instead of being raised, because upstream meets them in an order that
can be observed.

Source: spec/allocation.md sections 6 and 7.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from drakkar.allocator.capacity import Consumption, consumption
from drakkar.allocator.outcomes import Fault
from drakkar.api.resource.v1 import (
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from drakkar.api.selectors import tolerates
from drakkar.inventory.pools import Base, Form, bits
from drakkar.inventory.selection import ERROR, YES, SelectorTable, mask_of
from drakkar.inventory.snapshot import Snapshot
from drakkar.inventory.switches import Switches

MAX_RESULTS: Final = 32
#: Pool versions of which an alternative remembers its masks; more than a fleet has pools.
_KEPT_BASES: Final = 65536
_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")

#: (fault class, text) of something wrong with a request.
FaultNote = tuple[str, str]


@dataclass(slots=True, eq=False)
class OnBase:
    """What an alternative makes of a pool's devices, whoever holds them. All masks are positions."""

    passing: int
    #: The selector fails there with an error.
    failing: int
    #: Refused for good: taints, features that are off, operations the node lacks.
    tainted: int
    refused: int
    #: Binding conditions while that feature is off: not even looked at.
    unbound: int
    #: The request asks more, or something else, than the device has when empty.
    oversize: int
    #: The amount cannot be computed.
    uncountable: int
    #: What is left of ``passing`` after all of that.
    open: int


@dataclass(slots=True, eq=False)
class Alternative:
    """A request, or one subrequest of ``firstAvailable``."""

    #: ``request`` or ``request/subrequest``, as results spell it.
    name: str
    request: str
    class_name: str
    #: (what it belongs to, index there, text), in the order of evaluation.
    selectors: tuple[tuple[str, int, str], ...]
    count: int
    all_devices: bool
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: dict[str, str]
    #: Attribute name → expression that stands in for it in constraints.
    derived: dict[str, str]
    fault: FaultNote | None = None
    device_class: DeviceClass | None = None
    _bases: dict[int, OnBase] = field(default_factory=dict[int, OnBase])
    #: The same by form of the pool and answers of the selectors, for pools that are alike.
    _alike: dict[tuple[object, ...], OnBase] = field(default_factory=dict[tuple[object, ...], OnBase])
    _consumption: dict[tuple[Form, int], Consumption | None] = field(
        default_factory=dict[tuple[Form, int], Consumption | None]
    )

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for alternatives that accept the same devices."""
        return (tuple(text for _, _, text in self.selectors), self.tolerations, tuple(sorted(self.capacity.items())))

    def share(self, other: Alternative) -> None:
        """Has what is worked out about pools in common with an alternative of equal signature."""
        self._bases, self._alike, self._consumption = other._bases, other._alike, other._consumption

    def on_base(self, base: Base, table: SelectorTable, switches: Switches) -> OnBase:
        """The masks for a pool; worked out once for all pools of one form with equal answers of the selectors."""
        found = self._bases.get(base.serial)
        if found is None:
            if len(self._bases) >= _KEPT_BASES:
                self._bases.clear()
                self._alike.clear()
                self._consumption.clear()
            rows = table.rows_of(base)
            answers = [table.answers(text, rows) for _, _, text in self.selectors]
            key = (base.form, *answers)
            found = self._alike.get(key)
            if found is None:
                found = self._alike[key] = self._compute(base, answers, switches)
            self._bases[base.serial] = found
        return found

    def _compute(self, base: Base, answers: list[bytes], switches: Switches) -> OnBase:
        alive = (1 << len(base.devices)) - 1
        unbound = 0
        if not switches.DeviceBindingAndStatus:
            for position, record in enumerate(base.devices):
                if record.binding:
                    unbound |= 1 << position
        failing = 0
        for answer in answers:
            failing |= alive & mask_of(answer, ERROR)
            alive &= mask_of(answer, YES)
        tainted = refused = 0
        if switches.DeviceTaints and base.tainted:
            for position in bits(base.tainted):
                if any(not self.accepts(taint) for taint in base.devices[position].blocking):
                    tainted |= 1 << position
        # Older variants do not know the field and hand such devices out.
        if not switches.OptionalNodeOperations and switches.variant == "experimental":
            refused |= base.skip
        if not switches.PartitionableDevices:
            refused |= base.with_counters
        oversize = uncountable = 0
        if switches.ConsumableCapacity:
            for position in bits(alive if self.capacity else alive & ~base.whole):
                try:
                    if self.consumption(base, position, switches) is None:
                        oversize |= 1 << position
                except Fault:
                    uncountable |= 1 << position
        passing = alive & ~unbound
        left = passing & ~(tainted | refused | oversize | uncountable)
        return OnBase(passing, failing & ~unbound, tainted, refused, unbound, oversize, uncountable, left)

    def accepts(self, taint: DeviceTaint) -> bool:
        """Whether one of the request's tolerations covers the taint."""
        return any(tolerates(toleration, taint) for toleration in self.tolerations)

    def consumption(self, base: Base, position: int, switches: Switches) -> Consumption | None:
        """What the device at the position would have to give; see :func:`capacity.consumption`."""
        key = (base.form, position)
        if key in self._consumption:
            return self._consumption[key]
        found = consumption(self.capacity, base.devices[position].device, switches.FractionalCapacityRange)
        self._consumption[key] = found
        return found


def drivers_of(alternative: Alternative) -> list[str]:
    """Drivers that the selectors name with ``device.driver == ...``; empty when they name none."""
    found = [match for _, _, text in alternative.selectors for match in _DRIVER.findall(text)]
    return list(dict.fromkeys(found))


@dataclass(slots=True, eq=False)
class RequestPlan:
    """A request with its alternatives; ``ranked`` when they come from ``firstAvailable``."""

    name: str
    alternatives: tuple[Alternative, ...]
    ranked: bool
    fault: FaultNote | None = None


@dataclass(slots=True, eq=False)
class ConstraintPlan:
    """A constraint and the request names it covers (all of them when empty)."""

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def covers(self, alternative: Alternative) -> bool:
        """Whether devices for the alternative are under the constraint."""
        return not self.requests or alternative.name in self.requests or alternative.request in self.requests


@dataclass(slots=True, eq=False)
class ClaimPlan:
    """One claim of a plan."""

    spec: ResourceClaimSpec
    requests: tuple[RequestPlan, ...]
    constraints: tuple[ConstraintPlan, ...]
    constraint_fault: FaultNote | None
    #: Preferred constraints, see :mod:`drakkar.allocator.wishes`.
    wishes: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False)
class Plan:
    """All claims of one decision, and the classes they were planned with."""

    policy: str
    claims: tuple[ClaimPlan, ...]
    classes: dict[str, DeviceClass | None]
    #: Whether some request has derived attributes; then nothing is known about values in advance.
    derived: bool = False
    #: Whether counting devices says all there is to say in advance: no faults, no mode All.
    countable: bool = False
    #: Number of the first claim that needs too many devices, for countable plans.
    too_large: int | None = None
    #: What was found out about nodes (:mod:`drakkar.allocator.problem`) and about classes of them.
    memory: object = None
    known: object = None
    #: All classes of the snapshot for which the plan was last found current.
    checked: object = None

    def current(self, snapshot: Snapshot) -> bool:
        """Whether the classes are still those of the snapshot."""
        classes = snapshot.world.classes
        if classes is self.checked:
            return True
        if all(classes.get(name) is known for name, known in self.classes.items()):
            self.checked = classes
            return True
        return False


_encode: Final = msgspec.msgpack.Encoder().encode


def plan_key(specs: Sequence[ResourceClaimSpec], policy: str) -> tuple[str, bytes]:
    """Equal for claims that get equal plans."""
    return policy, _encode(specs)


def make_plan(specs: Sequence[ResourceClaimSpec], snapshot: Snapshot, policy: str) -> Plan:
    """Plans claims with the classes of the snapshot."""
    plan = Plan(policy, (), {})
    planner = _Planner(snapshot, plan.classes)
    plan.claims = tuple(planner.claim(spec) for spec in specs)
    plan.derived = any(
        alternative.derived
        for claim in plan.claims
        for request in claim.requests
        for alternative in request.alternatives
    )
    plan.countable = all(_countable(claim) for claim in plan.claims)
    if plan.countable:
        for number, claim in enumerate(plan.claims):
            if sum(min(a.count for a in request.alternatives) for request in claim.requests) > MAX_RESULTS:
                plan.too_large = number
                break
    return plan


def _countable(claim: ClaimPlan) -> bool:
    return claim.constraint_fault is None and all(
        request.fault is None and all(a.fault is None and not a.all_devices for a in request.alternatives)
        for request in claim.requests
    )


class _Planner:
    def __init__(self, snapshot: Snapshot, classes: dict[str, DeviceClass | None]) -> None:
        self._switches = snapshot.switches
        self._known = snapshot.world.classes
        self._classes = classes
        #: Signature → the first alternative that has it.
        self._alike: dict[tuple[object, ...], Alternative] = {}
        # Upstream's oldest variant does not know capacity requests, so it does not refuse them either.
        self._capacity_off = not snapshot.switches.ConsumableCapacity and snapshot.switches.variant != "stable"

    def claim(self, spec: ResourceClaimSpec) -> ClaimPlan:
        requests = tuple(self.request(request) for request in spec.devices.requests or ())
        constraints: list[ConstraintPlan] = []
        fault: FaultNote | None = None
        for constraint in spec.devices.constraints or ():
            # Upstream's oldest variant knows matchAttribute only.
            made = _constraint(constraint, self._switches.variant != "stable")
            if made is None:
                fault = ("constraint-unknown", "a constraint is neither matchAttribute nor distinctAttribute")
                break
            constraints.append(made)
        return ClaimPlan(spec, requests, tuple(constraints), fault)

    def request(self, request: DeviceRequest) -> RequestPlan:
        exact, ranked = request.exactly, request.firstAvailable
        if exact is not None:
            return RequestPlan(request.name, (self.alternative(request.name, request.name, exact),), False)
        if ranked:
            if not self._switches.PrioritizedList:
                fault = ("feature-off", f"request {request.name} needs DRAPrioritizedList, which is off")
                return RequestPlan(request.name, (), True, fault)
            fault = None
            if self._capacity_off and any(sub.capacity is not None for sub in ranked):
                fault = ("feature-off", f"request {request.name} needs DRAConsumableCapacity, which is off")
            alternatives = tuple(self.alternative(request.name, f"{request.name}/{sub.name}", sub) for sub in ranked)
            return RequestPlan(request.name, alternatives, True, fault)
        return RequestPlan(
            request.name,
            (),
            False,
            ("request-unknown", f"request {request.name} has neither exactly nor firstAvailable"),
        )

    def alternative(self, request: str, name: str, found: ExactDeviceRequest | DeviceSubRequest) -> Alternative:
        admin = found.adminAccess if isinstance(found, ExactDeviceRequest) else None
        mode = found.allocationMode or "ExactCount"
        made = Alternative(
            name=name,
            request=request,
            class_name=found.deviceClassName,
            selectors=(),
            count=found.count if found.count is not None else 1,
            all_devices=mode == "All",
            admin=bool(admin),
            tolerations=tuple(_spelled(toleration) for toleration in found.tolerations or ()),
            capacity=dict((found.capacity.requests if found.capacity else None) or {}),
            derived={item.name: item.expression for item in found.derivedAttributes or ()},
        )
        made.fault = self._fault(made, found, admin, mode)
        alike = self._alike.setdefault(made.signature, made)
        if alike is not made:
            made.share(alike)
        return made

    def _fault(
        self, made: Alternative, found: ExactDeviceRequest | DeviceSubRequest, admin: bool | None, mode: str
    ) -> FaultNote | None:
        switches = self._switches
        if found.capacity is not None and self._capacity_off:
            return ("feature-off", f"request {made.name} needs DRAConsumableCapacity, which is off")
        if found.derivedAttributes and not switches.DerivedAttributes:
            return ("feature-off", f"request {made.name} needs DRADerivedAttributes, which is off")
        selectors: list[tuple[str, int, str]] = []
        fault = _collect(found.selectors, "claim", selectors)
        if fault is not None:
            return fault
        if admin is not None and not switches.AdminAccess:
            return ("feature-off", f"request {made.name} needs DRAAdminAccess, which is off")
        if not made.class_name:
            return ("request-unknown", f"request {made.name} names no DeviceClass")
        device_class = self._known.get(made.class_name)
        self._classes[made.class_name] = device_class
        if device_class is None:
            return ("class-missing", f"request {made.name}: DeviceClass {made.class_name} does not exist")
        of_class: list[tuple[str, int, str]] = []
        fault = _collect(device_class.spec.selectors, "class", of_class)
        if fault is not None:
            return fault
        made.device_class = device_class
        made.selectors = (*of_class, *selectors)
        if mode not in ("All", "ExactCount"):
            return ("request-unknown", f"request {made.name}: unknown allocation mode {mode!r}")
        return None


def _spelled(toleration: DeviceToleration) -> DeviceToleration:
    """The toleration as results carry it: empty texts are absent on the wire."""
    empty = {name: None for name in ("effect", "key", "operator", "value") if getattr(toleration, name) == ""}
    return msgspec.structs.replace(toleration, **empty) if empty else toleration


def _collect(
    selectors: Sequence[DeviceSelector] | None, owner: str, into: list[tuple[str, int, str]]
) -> FaultNote | None:
    for index, selector in enumerate(selectors or ()):
        if selector.cel is None:
            return ("selector-unknown", f"{owner} selector #{index} has no CEL expression")
        into.append((owner, index, selector.cel.expression))
    return None


def _constraint(constraint: DeviceConstraint, distinct: bool) -> ConstraintPlan | None:
    names = frozenset(constraint.requests or ())
    if constraint.matchAttribute is not None:
        return ConstraintPlan(constraint.matchAttribute, False, names)
    if constraint.distinctAttribute is not None and distinct:
        return ConstraintPlan(constraint.distinctAttribute, True, names)
    return None
