"""Pools: which of their slices count on a node, and what is left of their counters.

Positions. All member slices of a pool generation, sorted by name, give every device of the pool
one position; sets of devices are Python integers with one bit per position. A node sees the
pool through a *target* mask. So a pool that reaches a thousand nodes is stored once.

Source: spec/allocation.md section 5 and 12.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from drakkar.api.resource.v1 import Device
from drakkar.inventory.devices import DeviceRecord, PoolKey, Scalar, SliceRecord, amount, scalar_of, values_of
from drakkar.inventory.draws import Draw, Remembered, differs, find_draws, kept, lost_groups, of_name
from drakkar.inventory.nodeselector import NAME_KEY, Hook
from drakkar.inventory.switches import Switches
from drakkar.inventory.usage import UNUSED, PoolUsage

#: (counter index, nano units) for each counter that a device draws on.
Uses = tuple[tuple[int, int], ...]
#: Per counter set: (set name, groups of the device, empty = without groups).
Groups = tuple[tuple[str, frozenset[str]], ...]


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Form:
    """The devices of a pool without their names, attributes and nodes; pools that are alike share one.

    What follows from positions alone is kept here, once for thousands of equal nodes: masks, draws, states of holding.
    """

    __slots__ = (
        "__weakref__",
        "binding",
        "counter_names",
        "declared",
        "drawn",
        "draws",
        "fault_sets",
        "groups",
        "idle",
        "multi",
        "per_device",
        "simple_names",
        "single",
        "size",
        "skip",
        "sound",
        "states",
        "tainted",
        "whole",
        "with_counters",
    )

    def __init__(self, members: tuple[SliceRecord, ...], switches: Switches, simple_names: bool) -> None:
        #: Whether no name occurs twice (several nodes can publish the same one).
        self.simple_names = simple_names
        self.counter_names: list[tuple[str, str]] = []
        self.declared: list[int] = []
        #: Counter set names that occur twice.
        self.fault_sets: list[str] = []
        self.multi = self.per_device = self.skip = self.with_counters = self.tainted = self.binding = 0
        #: Those of ``multi`` of which nobody can have a second share, because every share takes most of a capacity.
        self.single = 0
        #: Devices that a request without capacity can always have as far as capacity goes.
        self.whole = 0
        self.groups = False
        devices: list[DeviceRecord] = []
        seen_sets: set[str] = set()
        for member in members:
            if _offers(member, switches):
                self._classify(member, len(devices), switches)
                devices += member.devices
            if not _declares(member, switches):
                continue
            for counter_set in member.slice.spec.sharedCounters or ():
                if counter_set.name in seen_sets:
                    self.fault_sets.append(counter_set.name)
                    continue
                seen_sets.add(counter_set.name)
                for name, counter in counter_set.counters.items():
                    self.counter_names.append((counter_set.name, name))
                    self.declared.append(amount(counter.value))
        self.size = len(devices)
        index = {name: number for number, name in enumerate(self.counter_names)}
        #: Per position, what the device draws from the pool's counters.
        self.draws: list[Uses] = [
            tuple(
                (index[(use.counterSet, name)], amount(counter.value))
                for use in record.device.consumesCounters or ()
                for name, counter in use.counters.items()
                if (use.counterSet, name) in index
            )
            for record in devices
        ]
        #: Position → the counters that are drawn by shares of a capacity; None before somebody asked.
        self.drawn: dict[int, tuple[Draw, ...]] | None = None
        #: Whether all draws are on counters that are declared; None before somebody looked.
        self.sound: bool | None = None
        #: What is left when nothing is held, and other states by what tells them apart.
        self.idle: BaseUsage | None = None
        self.states: dict[Any, BaseUsage] = {}

    def _classify(self, member: SliceRecord, first: int, switches: Switches) -> None:
        """Fills the masks that follow from the devices of one slice."""
        every = ((1 << len(member.devices)) - 1) << first
        self.whole |= every
        if member.per_device:
            self.per_device |= every
        if member.slice.spec.skipNodeOperations:
            self.skip |= every
        bit = 1 << first
        for record in member.devices:
            device = record.device
            if record.multi and switches.ConsumableCapacity:
                self.multi |= bit
                if takes_most(device):
                    self.single |= bit
            if device.consumesCounters:
                self.with_counters |= bit
                self.groups = self.groups or (member.grouped and switches.CompatibilityGroups)
            if record.blocking:
                self.tainted |= bit
            if record.binding:
                self.binding |= bit
            if device.capacity:
                for capacity in device.capacity.values():
                    if capacity.requestPolicy is not None or capacity.value[:1] == "-":
                        self.whole &= ~bit
                        break
            bit <<= 1

    def keep(self, key: Any, state: BaseUsage) -> BaseUsage:
        """The state known under the key, which is this one if there is none yet."""
        if len(self.states) >= _KEPT_STATES:
            self.states.clear()
        return self.states.setdefault(key, state)


#: States of holding that a form remembers; more than a pool of eight devices can have.
_KEPT_STATES: Final = 1024


def _declares(member: SliceRecord, switches: Switches) -> bool:
    """Whether the slice counts for its counters."""
    return member.counters and switches.PartitionableDevices


def _offers(member: SliceRecord, switches: Switches) -> bool:
    """Whether the slice counts for its devices."""
    return switches.MixedSlices or not _declares(member, switches)


class Forms:
    """The forms of one inventory's pools, by what they are made of; one that no pool has any more is let go."""

    __slots__ = ("_known", "switches")

    def __init__(self, switches: Switches) -> None:
        self.switches = switches
        self._known: WeakValueDictionary[Any, Form] = WeakValueDictionary()

    def of(self, members: tuple[SliceRecord, ...], devices: list[DeviceRecord]) -> Form:
        """The form of a pool; equal keys mean that nothing but names, attributes and node selection differs."""
        switches = self.switches
        names = [record.name for record in devices]
        simple = len(set(names)) == len(names)
        if len(members) == 1 and not _declares(members[0], switches):
            key: Any = (simple or tuple(names), *members[0].likeness(drawn=False))
        else:
            counters = any([_declares(member, switches) for member in members])
            parts = [
                (
                    m.likeness_of_counters() if _declares(m, switches) else (),
                    m.likeness(counters) if _offers(m, switches) else (),
                )
                for m in members
            ]
            key = (simple or tuple(names), tuple(parts))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Form(members, switches, simple)
        return found


class Base:
    """The devices and counters of a set of member slices, with positions."""

    __slots__ = (
        "_having",
        "_here",
        "_here_asked",
        "_places",
        "_remembered",
        "_scalars",
        "_sets",
        "beside",
        "binding",
        "counter_names",
        "declared",
        "devices",
        "fault_sets",
        "firsts",
        "form",
        "groups",
        "key",
        "members",
        "multi",
        "per_device",
        "serial",
        "simple_names",
        "single",
        "skip",
        "tainted",
        "whole",
        "with_counters",
    )
    _next = 0

    def __init__(self, key: PoolKey, members: tuple[SliceRecord, ...], forms: Forms) -> None:
        Base._next += 1
        self.serial = Base._next
        self.key = key
        self.members = members
        #: The pool's other slices, of older generations mostly.
        self.beside: tuple[SliceRecord, ...] = ()
        #: Slice name → position of its first device.
        self.firsts: dict[str, int] = {}
        lone = members[0]
        if len(members) == 1 and not _declares(lone, forms.switches):
            self.devices: list[DeviceRecord] = lone.devices
            self.firsts[lone.name] = 0
        else:
            self.devices = []
            for member in members:
                if _offers(member, forms.switches):
                    self.firsts[member.name] = len(self.devices)
                    self.devices += member.devices
        self.form = form = forms.of(members, self.devices)
        self.counter_names = form.counter_names
        self.declared = form.declared
        self.fault_sets = form.fault_sets
        self.simple_names = form.simple_names
        self.multi = form.multi
        self.single = form.single
        self.per_device = form.per_device
        self.skip = form.skip
        self.with_counters = form.with_counters
        self.tainted = form.tainted
        self.binding = form.binding
        self.whole = form.whole
        self.groups = form.groups
        self._places: dict[str, int] | None = None
        self._remembered: dict[str, Remembered | None] | None = None
        #: Node label → positions whose own selector is content with it; the others have to be asked.
        self._here: dict[Hook, int] | None = None
        self._here_asked = 0
        self._scalars: dict[str, list[Scalar | None]] | None = None
        self._sets: dict[str, list[frozenset[Scalar]]] | None = None
        self._having: dict[str, dict[Scalar, int]] | None = None

    @property
    def by_name(self) -> dict[str, int]:
        """Device name → mask of its positions (more than one when nodes publish the same name)."""
        found = self._places
        if found is None:
            found = self._places = {}
            position = 1
            for record in self.devices:
                found[record.name] = found.get(record.name, 0) | position
                position <<= 1
        return found

    def on_node(self, targets: int, labels: dict[str, str], name: str) -> int:
        """Those of the targeted positions whose own node fields select the node too."""
        own = targets & self.per_device
        if not own:
            return targets
        if self._here is None:
            self._here = self._index_nodes()
        here = targets & ~own
        index = self._here
        found = index.get((NAME_KEY, name), 0)
        for label in labels.items():
            found |= index.get(label, 0)
        here |= own & found
        for position in bits(own & self._here_asked):
            if self.devices[position].on_node(labels, name):
                here |= 1 << position
        return here

    def _index_nodes(self) -> dict[Hook, int]:
        index: dict[Hook, int] = {}
        for position in bits(self.per_device):
            record = self.devices[position]
            device = record.device
            hooks: tuple[Hook, ...] | None = None
            if device.nodeName:
                hooks = ((NAME_KEY, device.nodeName),)
            elif not device.allNodes and record.node is not None and record.node.exact:
                hooks = record.node.hooks
            if hooks is None:
                self._here_asked |= 1 << position
                continue
            for hook in hooks:
                index[hook] = index.get(hook, 0) | 1 << position
        return index

    def draws(self) -> list[Uses]:
        """Per position, what the device draws from the pool's counters."""
        return self.form.draws

    @property
    def reusable(self) -> int:
        """Positions of which there can be a second share."""
        return self.multi & ~self.single

    def drawn(self) -> dict[int, tuple[Draw, ...]]:
        """Position → the counters that are drawn by shares of a capacity; empty for nearly all pools."""
        found = self.form.drawn
        if found is None:
            found = self.form.drawn = find_draws(self)
        return found

    def draws_of(self, name: str) -> Remembered | None:
        """What the devices of this name draw; None when there is none."""
        if self._remembered is None:
            self._remembered = {}
        if name not in self._remembered:
            self._remembered[name] = of_name(self.published(name))
        return self._remembered[name]

    def published(self, name: str) -> list[Device]:
        """The devices of this name."""
        return [self.devices[position].device for position in bits(self.by_name.get(name, 0))]

    def elsewhere(self, name: str) -> list[Device]:
        """The devices of this name in slices of the pool that do not count any more."""
        return [record.device for member in self.beside for record in member.devices if record.name == name]

    def scalars(self, attribute: str) -> list[Scalar | None]:
        """Per position, the scalar value of an attribute; None where it is missing, ``NO_SCALAR`` for a list."""
        if self._scalars is None:
            self._scalars = {}
        found = self._scalars.get(attribute)
        if found is None:
            found = self._scalars[attribute] = [
                None if (value := record.attribute(attribute)) is None else scalar_of(value) for record in self.devices
            ]
        return found

    def having(self, attribute: str, value: Scalar) -> int:
        """Positions at which a scalar attribute has the value."""
        return self.values_of(attribute).get(value, 0)

    def values_of(self, attribute: str) -> dict[Scalar, int]:
        """Scalar values of an attribute in the pool → positions."""
        if self._having is None:
            self._having = {}
        masks = self._having.get(attribute)
        if masks is None:
            masks = self._having[attribute] = {}
            for position, found in enumerate(self.scalars(attribute)):
                if found is not None:
                    masks[found] = masks.get(found, 0) | 1 << position
        return masks

    def sets(self, attribute: str) -> list[frozenset[Scalar]]:
        """Per position, the value of an attribute as a set; empty where it is missing."""
        if self._sets is None:
            self._sets = {}
        found = self._sets.get(attribute)
        if found is None:
            found = self._sets[attribute] = [
                frozenset() if (value := record.attribute(attribute)) is None else values_of(value)
                for record in self.devices
            ]
        return found

    def unknown_counter(self, positions: int) -> str | None:
        """A device among ``positions`` that draws on a counter which no member declares, described."""
        if not positions & self.with_counters:
            return None
        known: dict[str, set[str]] = {}
        for set_name, counter in self.counter_names:
            known.setdefault(set_name, set()).add(counter)
        sets = {s.name for m in self.members if m.counters for s in m.slice.spec.sharedCounters or ()}
        for position in bits(positions & self.with_counters):
            record = self.devices[position]
            for use in record.device.consumesCounters or ():
                if use.counterSet not in sets:
                    return (
                        f"device {record.name} draws on counter set {use.counterSet}, which the pool does not declare"
                    )
                for counter in use.counters:
                    if counter not in known.get(use.counterSet, ()):
                        return (
                            f"device {record.name} draws on counter {counter} of set {use.counterSet}, "
                            "which the pool does not declare"
                        )
        return None


def takes_most(device: Device) -> bool:
    """Whether a second share of the device is impossible: the least that one takes is over half of a capacity."""
    for capacity in (device.capacity or {}).values():
        policy = capacity.requestPolicy
        if policy is None:
            continue
        least = [*(policy.validValues or ()), *((policy.validRange.min,) if policy.validRange else ())]
        if policy.default is not None:
            least.append(policy.default)
        if (policy.validValues or policy.validRange) and 2 * min(amount(text) for text in least) > amount(
            capacity.value
        ) > 0:
            return True
    return False


class BaseUsage:
    """What usage means for the positions of a base: bits in use, counters left, shares taken."""

    __slots__ = (
        "_fitting",
        "_fitting_kept",
        "_form",
        "busy",
        "busy_kept",
        "consumed",
        "held_groups",
        "lost_groups",
        "negative",
        "residual",
        "residual_kept",
        "shared",
        "short",
        "unknown",
    )

    def __init__(self, base: Base, usage: PoolUsage) -> None:
        self._form = base.form
        self._fitting: int | None = None
        self._fitting_kept: int | None = None
        self.busy = 0
        for name in usage.dedicated:
            self.busy |= base.by_name.get(name, 0)
        self.shared = 0
        for name in usage.shares:
            self.shared |= base.by_name.get(name, 0)
        #: Policy ``drakkar``: also what has a share out and can have no second one, or is not shareable any more.
        self.busy_kept = self.busy | self.shared & ~base.reusable
        #: Position → capacity → consumed.
        self.consumed: dict[int, dict[str, int]] = {}
        for name, sums in usage.consumed.items():
            for position in bits(base.by_name.get(name, 0)):
                self.consumed[position] = sums
        #: Counters left, as upstream counts (only what is published draws).
        self.residual = list(base.declared)
        held = usage.held()
        if base.declared:
            draws = base.draws()
            for name in held:
                for position in bits(base.by_name.get(name, 0)):
                    for counter, nanos in draws[position]:
                        self.residual[counter] -= nanos
        #: Counters left under policy ``drakkar``: with shares, and with what vanished or changed devices go on drawing.
        self.residual_kept = self.residual
        #: Held devices of which nobody knows what they draw; while there are any, nothing else may draw.
        self.unknown: tuple[str, ...] = ()
        if (
            base.declared
            and held
            and (usage.ghosts or differs(base, usage) or base.drawn() or not held <= base.by_name.keys())
        ):
            self.residual_kept, self.unknown = kept(base, usage)
        #: What was asked of the capacities → positions where too little is left; kept by the allocator.
        self.short: dict[tuple[tuple[str, str], ...], int] = {}
        self.negative = any(left < 0 for left in self.residual)
        #: Positions held in any form, whose compatibility groups bind newcomers.
        self.held_groups = 0
        #: (counter set, groups) of held devices that are gone or have other groups now (policy ``drakkar``).
        self.lost_groups: tuple[tuple[str, frozenset[str]], ...] = ()
        if base.groups:
            for name in held:
                self.held_groups |= base.by_name.get(name, 0)
            self.lost_groups = lost_groups(base, usage)

    def fitting(self, upstream: bool) -> int:
        """Positions for which the counters left suffice; a device with shares out has paid already."""
        found = self._fitting if upstream else self._fitting_kept
        if found is None:
            found = self._find_fitting(upstream)
            if upstream:
                self._fitting = found
            else:
                self._fitting_kept = found
        return found

    def _find_fitting(self, upstream: bool) -> int:
        form = self._form
        every = (1 << form.size) - 1
        paid = self.shared & form.multi
        asked = form.with_counters & ~paid
        if not form.declared or not asked:
            return every
        if self.negative if upstream else self.unknown:
            return every & ~asked
        residual = self.residual if upstream else self.residual_kept
        draws = form.draws
        for position in bits(asked):
            for counter, nanos in draws[position]:
                if residual[counter] < nanos:
                    every &= ~(1 << position)
                    break
        return every

    def value(self) -> tuple[Any, ...]:
        """Equal for states of one form in which the same is left."""
        consumed = [(position, tuple(sorted(sums.items()))) for position, sums in sorted(self.consumed.items())]
        left = tuple(self.residual), tuple(self.residual_kept)
        return (self.busy, self.shared, tuple(consumed), left, self.unknown, self.held_groups, self.lost_groups)


def usage_on(base: Base, usage: PoolUsage) -> BaseUsage:
    """The usage seen through a base. Bases of one form share their states, so equal states are one object."""
    form = base.form
    if usage is UNUSED:
        if form.idle is None:
            form.idle = form.keep(0, BaseUsage(base, usage))
        return form.idle
    found = usage.cache.get(base.serial)
    if isinstance(found, BaseUsage):
        return found
    usage.cache[base.serial] = made = _state_of(base, usage)
    return made


def _state_of(base: Base, usage: PoolUsage) -> BaseUsage:
    form = base.form
    if not (usage.shares or usage.consumed or usage.ghosts or differs(base, usage)) and form.simple_names:
        # Only whole devices are held, so everything follows from their positions, if all are published.
        by_name = base.by_name
        positions = [by_name.get(name, 0) for name in usage.dedicated]
        if 0 not in positions:
            busy = sum(positions)
            return form.states.get(busy) or form.keep(busy, BaseUsage(base, usage))
    made = BaseUsage(base, usage)
    return form.keep(made.value(), made)


@dataclass(slots=True, eq=False)
class PoolView:
    """A pool as one node sees it. ``status`` is ``valid``, ``incomplete`` or ``invalid``. Never changes."""

    base: Base
    targets: int
    status: str
    detail: str = ""
    #: Whether a targeted device has binding conditions; such pools come last.
    binding: bool = False
    #: A newer generation exists where this node does not look. Upstream uses the old one, policy ``drakkar`` does not.
    stale: bool = False
    #: Policy ``drakkar``: what makes a pool that upstream takes for complete doubtful.
    doubt: str = ""


def _is_shared(record: SliceRecord) -> bool:
    return record.shared


class Pool:
    """All slices of one (driver, pool name). Never changes; a new slice makes a new pool."""

    __slots__ = ("_bases", "_forms", "_full", "_usable", "_views", "_whole", "hooks", "index", "key", "slices")

    def __init__(self, key: PoolKey, index: int, slices: dict[str, SliceRecord], forms: Forms) -> None:
        self.key = key
        #: Number of the pool in the inventory; usage is kept under it.
        self.index = index
        self.slices = slices
        self._forms = forms
        #: The view of nodes that all slices reach, and the base of all slices, mostly the only ones.
        self._whole: PoolView | None = None
        self._full: Base | None = None
        #: Relevant slices → view, and member slices → base, where it is otherwise.
        self._views: dict[tuple[str, ...], PoolView | None] | None = None
        self._bases: dict[tuple[str, ...], Base] | None = None
        #: Slices that the features allow, those of one node first.
        self._usable = [record for record in slices.values() if self._is_usable(record)]
        if len(self._usable) > 1:
            self._usable.sort(key=_is_shared)
        #: Labels by which nodes find the pool, or None when every node has to look at it.
        self.hooks = self._find_hooks()

    def _is_usable(self, record: SliceRecord) -> bool:
        partitions = self._forms.switches.PartitionableDevices
        return not self._dropped(record) and (partitions or not (record.per_device or record.counters))

    def _find_hooks(self) -> tuple[Hook, ...] | None:
        hooks: dict[Hook, None] = {}
        for record in self.slices.values():
            if record.node_name:
                hooks[(NAME_KEY, record.node_name)] = None
                continue
            if record.slice.spec.allNodes or (record.per_device and any(d.device.allNodes for d in record.devices)):
                return None
            for selector in record.selectors():
                # One that cannot be parsed is an error on every node.
                if selector.fault is not None or selector.hooks is None:
                    return None
                hooks.update(dict.fromkeys(selector.hooks))
            if record.per_device:
                hooks.update(dict.fromkeys((NAME_KEY, d.device.nodeName) for d in record.devices if d.device.nodeName))
        return tuple(hooks)

    def any_base(self) -> Base:
        """A base of the newest generation, whichever nodes it is for."""
        newest = max(record.generation for record in self.slices.values())
        return self._base([r for r in self.slices.values() if r.generation == newest and not self._dropped(r)])

    def _dropped(self, record: SliceRecord) -> bool:
        return record.grouped and not self._forms.switches.CompatibilityGroups

    def relevant(self, labels: dict[str, str], name: str) -> tuple[list[SliceRecord], str | None]:
        """Slices that reach the node, and the fault of an unusable node selector."""
        found: list[SliceRecord] = []
        for record in self._usable:
            hit, fault = record.relevant(labels, name)
            if fault is not None:
                return [], f"node selector of ResourceSlice {record.name}: {fault}"
            if hit:
                found.append(record)
        return found, None

    def view(self, relevant: list[SliceRecord]) -> PoolView | None:
        """The pool as seen by a node that these slices reach; None when it counts for nothing there."""
        if not relevant:
            return None
        if len(relevant) == len(self.slices):
            if self._whole is None:
                self._whole = self._make_view(_newest(relevant))
            return self._whole
        if len(relevant) > 1:
            relevant = _newest(relevant)
        names = tuple([record.name for record in relevant])
        if self._views is None:
            self._views = {}
        if names not in self._views:
            self._views[names] = self._make_view(relevant)
        return self._views[names]

    def _make_view(self, relevant: list[SliceRecord]) -> PoolView | None:
        generation, want = relevant[0].generation, relevant[0].want
        members = relevant
        if len(relevant) != want:
            if any(record.generation > generation for record in self.slices.values()):
                return None
            members = [r for r in self.slices.values() if r.generation == generation and not self._dropped(r)]
        stale = members is relevant and any(record.generation > generation for record in self.slices.values())
        counts = sorted({record.want for record in members})
        doubt = ""
        if len(counts) > 1:
            doubt = f"slices of pool {self.key[1]} of {self.key[0]} disagree on resourceSliceCount: {counts}"
        base = self._base(members)
        targets = 0
        for record in relevant:
            first = base.firsts.get(record.name)
            if first is not None:
                targets |= ((1 << len(record.devices)) - 1) << first
        if len(members) != want:
            detail = f"pool {self.key[1]} of {self.key[0]} has {len(members)} of {want} slices"
            return PoolView(base, targets, "incomplete", detail)
        binding = bool(base.binding & targets)
        fault = self._fault(base, targets)
        if fault is not None:
            return PoolView(base, targets, "invalid", f"pool {self.key[1]} of {self.key[0]}: {fault}", binding)
        return PoolView(base, targets, "valid", "", binding, stale, doubt)

    def _fault(self, base: Base, targets: int) -> str | None:
        if not base.simple_names:
            for name, mask in base.by_name.items():
                if (mask & targets).bit_count() > 1:
                    return f"device name {name} occurs twice"
        if not self._forms.switches.PartitionableDevices:
            return None
        if base.fault_sets:
            return f"counter set {base.fault_sets[0]} is declared twice"
        if base.form.sound:
            return None
        every = (1 << len(base.devices)) - 1
        fault = base.unknown_counter(targets) or base.unknown_counter(every & ~targets)
        base.form.sound = fault is None
        return fault

    def _base(self, members: list[SliceRecord]) -> Base:
        if len(members) == len(self.slices):
            if self._full is None:
                self._full = Base(self.key, tuple(sorted(members, key=_bytewise)), self._forms)
            return self._full
        ordered = sorted(members, key=_bytewise)
        names = tuple([record.name for record in ordered])
        if self._bases is None:
            self._bases = {}
        found = self._bases.get(names)
        if found is None:
            found = self._bases[names] = Base(self.key, tuple(ordered), self._forms)
            found.beside = tuple([record for name, record in self.slices.items() if name not in names])
        return found


def _newest(records: list[SliceRecord]) -> list[SliceRecord]:
    newest = max([record.generation for record in records])
    return [record for record in records if record.generation == newest]


def _bytewise(record: SliceRecord) -> bytes:
    return record.name.encode()
