"""Preferred constraints: what a claim would like its devices to have in common, without insisting (policy ``drakkar``).

The API knows only constraints that must hold. The annotation ``drakkar.dev/preferred-constraints`` of a claim lists
further ones, in JSON or YAML, spelled like ``spec.devices.constraints`` with a ``weight`` of 1 to 100 (1 if left out)::

    drakkar.dev/preferred-constraints: '[{"matchAttribute": "resource.kubernetes.io/pcieRoot", "weight": 10}]'

On a node the heaviest is tried first and kept where the claims still fit with all that were kept before. Among nodes
the one with the least weight of what could not be kept wins.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
import yaml

from drakkar.allocator.needs import NodeTask
from drakkar.allocator.plan import ConstraintPlan, Plan
from drakkar.api.names import PREFERRED_CONSTRAINTS
from drakkar.api.resource.v1 import AllocationResult, ResourceClaim
from drakkar.inventory.devices import NO_SCALAR, Scalar, scalar_of
from drakkar.inventory.snapshot import Snapshot

#: Most preferred constraints of one claim; each can cost one more search per node.
MOST: Final = 8
MOST_WEIGHT: Final = 100
#: Longest annotation that is read.
_MOST_CHARACTERS: Final = 10_240


@dataclass(frozen=True, slots=True)
class Wish:
    """One preferred constraint; it covers all requests when it names none."""

    attribute: str
    distinct: bool
    requests: tuple[str, ...]
    weight: int

    def __str__(self) -> str:
        kind = "distinctAttribute" if self.distinct else "matchAttribute"
        whom = f" of {', '.join(self.requests)}" if self.requests else ""
        return f"{kind} {self.attribute}{whom} (weight {self.weight})"


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of a claim, heaviest first, or what is wrong with the annotation: then there are none."""

    wishes: tuple[Wish, ...] = ()
    fault: str = ""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    matchAttribute: str | None = None
    distinctAttribute: str | None = None
    requests: list[str] = []
    weight: int = 1


_NONE: Final = Wishes()


def wishes_of(claim: ResourceClaim) -> Wishes:
    """What the claim's annotation asks for."""
    text = (claim.metadata.annotations or {}).get(PREFERRED_CONSTRAINTS)
    if text is None:
        return _NONE
    names = {request.name for request in claim.spec.devices.requests or ()}
    names |= {f"{r.name}/{sub.name}" for r in claim.spec.devices.requests or () for sub in r.firstAvailable or ()}
    return _parsed(text, frozenset(names))


@lru_cache(maxsize=1024)
def _parsed(text: str, names: frozenset[str]) -> Wishes:
    if len(text) > _MOST_CHARACTERS:
        return _faulty(f"longer than {_MOST_CHARACTERS} characters")
    try:
        entries = msgspec.convert(yaml.load(text, Loader=_Loader), type=list[_Entry])
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        return _faulty(" ".join(str(error).split()))
    if len(entries) > MOST:
        return _faulty(f"{len(entries)} constraints, {MOST} are permitted")
    found: list[Wish] = []
    for number, entry in enumerate(entries):
        attribute = entry.matchAttribute or entry.distinctAttribute
        if not attribute or (entry.matchAttribute and entry.distinctAttribute):
            return _faulty(f"entry {number}: exactly one of matchAttribute and distinctAttribute is needed")
        if "/" not in attribute:
            return _faulty(f"entry {number}: {attribute!r} needs a domain, as in dra.example.com/{attribute}")
        if not 1 <= entry.weight <= MOST_WEIGHT:
            return _faulty(f"entry {number}: weight {entry.weight} is not between 1 and {MOST_WEIGHT}")
        unknown = [name for name in entry.requests if name not in names]
        if unknown:
            return _faulty(f"entry {number}: the claim has no request {unknown[0]!r}")
        found.append(Wish(attribute, entry.matchAttribute is None, tuple(entry.requests), entry.weight))
    return Wishes(tuple(sorted(found, key=lambda wish: -wish.weight)))


class _Loader(yaml.SafeLoader):
    """YAML without aliases and depth: a short text must stay a small value and cost little."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if cast("Any", self).check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not permitted")
        # A list of constraints with a list of requests.
        if self._depth == 4:
            raise yaml.YAMLError("nested too deeply")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _faulty(text: str) -> Wishes:
    return Wishes((), f"annotation {PREFERRED_CONSTRAINTS} is ignored: {text}")


#: (number of the claim, wish)
Granted = tuple[tuple[int, Wish], ...]


def all_wishes(plan: Plan) -> Granted:
    """The wishes of all claims of a plan, heaviest first, those of the first claim first."""
    found = [(number, wish) for number, claim in enumerate(plan.claims) for wish in claim.wishes]
    return tuple(sorted(found, key=lambda entry: -entry[1].weight))


def with_wishes(task: NodeTask, granted: Granted) -> NodeTask:
    """The task as if these wishes were constraints; candidates and holdings are the same."""
    claims = [*task.plan.claims]
    for number, wish in granted:
        constraint = ConstraintPlan(wish.attribute, wish.distinct, frozenset(wish.requests))
        claims[number] = replace(claims[number], constraints=(*claims[number].constraints, constraint))
    made = copy.copy(task)
    made.plan = replace(task.plan, claims=tuple(claims), memory=None, known=None)
    return made


def kept(snapshot: Snapshot, claim: ResourceClaim, allocation: AllocationResult) -> list[tuple[Wish, bool]]:
    """Which wishes of the claim its devices fulfil, as they are published now."""
    found: list[tuple[Wish, bool]] = []
    for wish in wishes_of(claim).wishes:
        values: list[Scalar | None] = []
        for result in allocation.devices.results or ():
            if wish.requests and not {result.request, result.request.partition("/")[0]} & {*wish.requests}:
                continue
            values.append(_value(snapshot, (result.driver, result.pool), result.device, wish.attribute))
        known = None not in values and NO_SCALAR not in values
        wanted = len(values) if wish.distinct else min(1, len(values))
        found.append((wish, known and len(set(values)) == wanted))
    return found


def _value(snapshot: Snapshot, key: tuple[str, str], name: str, attribute: str) -> Scalar | None:
    pool = snapshot.world.pools.get(key)
    for record in pool.any_base().devices if pool is not None else ():
        if record.name == name:
            value = record.attribute(attribute)
            return None if value is None else scalar_of(value)
    return None


def told(snapshot: Snapshot, claim: ResourceClaim, allocation: AllocationResult) -> Sequence[str]:
    """Sentences about the claim's wishes, for people."""
    found = wishes_of(claim)
    lines = [found.fault] if found.fault else []
    for wish, holds in kept(snapshot, claim, allocation):
        lines.append(f"prefers {wish}: {'fulfilled' if holds else 'not fulfilled'}")
    return lines
