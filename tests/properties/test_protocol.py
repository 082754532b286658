"""How allocations are written, explored to the end: all interleavings of two leaders and somebody else.

Two pods with two claims each want the same two devices. An old leader may be paused between any two steps and go on
after a new one has begun; the writes of somebody else are judged by nobody, by the guard, or kept away by the fence.
The model follows `drakkar.scheduler.commit` and `drakkar.scheduler.guard`; that each part of the protocol is needed
shows by what is found without it. Source: spec/groups.md 3.4, extended to two claims a pod, the guard, and processes
that have not seen their own last write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import pytest

#: Claims of each pod; claim i wants device i % 2. Ours writes them in this order, one after the other.
CLAIMS = ((0, 1), (2, 3))
#: How often older Bindings of a pod are made void, at most.
TOUCHES = 1


class Protocol(NamedTuple):
    """Its parts, and who else is there."""

    #: Before a pod is bound its allocations have come back on the watch, and nobody was earlier.
    verify: bool = True
    #: The Binding names the pod's version, and who takes claims back changes the pod first.
    version: bool = True
    #: Who goes on with an allocation that is there writes the claim all the same.
    renew: bool = True
    #: The second pod is somebody else's, who looks at nothing but their own watch, and binds at once.
    foreign: bool = False
    #: The leader judges all writes of allocations.
    guard: bool = False
    #: Somebody else gives none of the devices away.
    fence: bool = False
    #: To claims, at most.
    writes: int = 5


class Actor(NamedTuple):
    """A leader, or somebody else; ``pod`` is None while nothing is under way."""

    #: How much of the log of claims it has seen.
    seen: int = 0
    pod: int | None = None
    #: Version of the pod at the decision, and what was seen of the log then: what is written is conditional on both.
    version: int = 0
    base: int = 0
    #: Next step: 0 and 1 write the claims, 2 verifies and binds; 3 and 4 take them back.
    step: int = 0
    #: The write that the guard has let through and the server has not stored: claim and the version it replaces.
    asked: tuple[int, int] | None = None
    #: How often it may begin anew.
    attempts: int = 1


class State(NamedTuple):
    """All there is. A claim's version is the number of the last write to it."""

    #: Writes in order: claim, and whether it is allocated by it.
    log: tuple[tuple[int, bool], ...] = ()
    #: Version of each pod; bound or not.
    pods: tuple[int, int] = (0, 0)
    bound: tuple[bool, bool] = (False, False)
    #: Old leader, new leader, somebody else.
    actors: tuple[Actor, Actor, Actor] = (Actor(attempts=1), Actor(attempts=2), Actor(attempts=1))
    #: Whether the new leader has begun.
    takeover: bool = False
    #: What the leader has allowed to be written and has not seen settled: claim and the version it replaces.
    admitted: frozenset[tuple[int, int]] = frozenset()


OLD, NEW, ELSE = 0, 1, 2


@cache
def held(log: tuple[tuple[int, bool], ...]) -> Mapping[int, int]:
    """Claims that are allocated, and the number of the write since which they are."""
    found: dict[int, int] = {}
    for number, (claim, allocated) in enumerate(log, start=1):
        if not allocated:
            found.pop(claim, None)
        else:
            found.setdefault(claim, number)
    return found


@cache
def version_of(log: tuple[tuple[int, bool], ...], claim: int) -> int:
    return max((number for number, (other, _) in enumerate(log, start=1) if other == claim), default=0)


def faults(state: State) -> set[str]:
    """What must not be."""
    now = held(state.log)
    used = [claim % 2 for pod, claims in enumerate(CLAIMS) if state.bound[pod] for claim in claims if claim in now]
    found = {"double use"} if len(used) != len(set(used)) else set[str]()
    if any(claim not in now for pod, claims in enumerate(CLAIMS) if state.bound[pod] for claim in claims):
        found.add("stuck pod")
    if len({claim % 2 for claim in now}) != len(now):
        found.add("held twice")
    return found


class Model:
    """The steps of one protocol."""

    def __init__(self, protocol: Protocol):
        self.protocol = protocol

    def steps(self, state: State) -> Iterator[State]:
        """Every state that one step of somebody leads to."""
        for who, actor in enumerate(state.actors):
            if who == NEW and not state.takeover:
                continue
            if who == ELSE and (not self.protocol.foreign or self.protocol.fence):
                continue
            if actor.seen < len(state.log) and self._looks(state, who):
                yield self._see(state, who)
            if actor.pod is None:
                yield from self._begin(state, who)
            else:
                # Given up: by a fault, or by the end of a process that will not come back.
                yield self._with(state, who, self._idle(actor))
                yield from self._go_on(state, who, actor.pod)
        # The lease leaves time for what the old leader has let through to be stored, or to be refused as too late.
        if not state.takeover and not any(actor.asked for actor in state.actors):
            actors = state.actors[OLD], state.actors[NEW]._replace(seen=len(state.log)), state.actors[ELSE]
            yield state._replace(takeover=True, actors=actors, admitted=frozenset())

    def _with(self, state: State, who: int, actor: Actor, **more: object) -> State:
        actors = list(state.actors)
        actors[who] = actor
        return state._replace(actors=tuple(actors), **more)

    def _looks(self, state: State, who: int) -> bool:
        """Whether what it has not seen yet can make a difference to what it does."""
        actor = state.actors[who]
        if self.protocol.guard and who == self._leader(state):
            return True
        if actor.pod is None:
            return actor.attempts > 0
        return actor.step == 2 and self.protocol.verify

    @staticmethod
    def _idle(actor: Actor) -> Actor:
        return Actor(seen=actor.seen, attempts=actor.attempts)

    def _leader(self, state: State) -> int:
        return NEW if state.takeover else OLD

    def _see(self, state: State, who: int) -> State:
        actor = state.actors[who]
        actor = actor._replace(seen=actor.seen + 1)
        state = self._with(state, who, actor)
        if who == self._leader(state):
            log = state.log[: actor.seen]
            state = state._replace(admitted=frozenset(a for a in state.admitted if version_of(log, a[0]) <= a[1]))
        return state

    def _begin(self, state: State, who: int) -> Iterator[State]:
        actor, mine = state.actors[who], self._pods_of(who)
        view = held(state.log[: actor.seen])
        for pod in mine if actor.attempts else ():
            if state.bound[pod]:
                continue
            fresh = actor._replace(pod=pod, version=state.pods[pod], base=actor.seen, attempts=actor.attempts - 1)
            claims = CLAIMS[pod]
            taken = {claim % 2 for claim in view if claim not in claims}
            if who == self._leader(state):
                taken |= {claim % 2 for claim, _ in state.admitted if claim not in claims}
            if not taken:
                yield self._with(state, who, fresh._replace(step=0))
            if who != ELSE and any(claim in view for claim in claims):
                yield self._with(state, who, fresh._replace(step=3))

    def _pods_of(self, who: int) -> tuple[int, ...]:
        if not self.protocol.foreign:
            # The two are alike: the first one to be decided about may as well be the first.
            return (0,) if who == OLD else (0, 1)
        return (1,) if who == ELSE else (0,)

    def _go_on(self, state: State, who: int, pod: int) -> Iterator[State]:
        actor = state.actors[who]
        match actor.step:
            case 0 | 1:
                yield from self._write(state, who, CLAIMS[pod][actor.step])
            case 2:
                yield from self._bind(state, who, pod)
            case 3:
                if not self.protocol.version:
                    yield self._with(state, who, actor._replace(step=4))
                elif not state.bound[pod] and state.pods[pod] == actor.version < TOUCHES:
                    pods = tuple(version + (other == pod) for other, version in enumerate(state.pods))
                    yield self._with(state, who, actor._replace(step=4), pods=pods)
            case _:
                view = state.log[: actor.base]
                for claim in held(view).keys() & set(CLAIMS[pod]):
                    if (
                        version_of(view, claim) == version_of(state.log, claim)
                        and len(state.log) < self.protocol.writes
                    ):
                        yield self._with(state, who, actor, log=(*state.log, (claim, False)))

    def _write(self, state: State, who: int, claim: int) -> Iterator[State]:
        actor = state.actors[who]
        onward = actor._replace(step=actor.step + 1, asked=None)
        if actor.asked is not None:
            if version_of(state.log, claim) == actor.asked[1]:
                yield self._with(state, who, onward, log=(*state.log, (claim, True)))
            return
        view = state.log[: actor.base]
        if claim in held(view) and not (self.protocol.renew and who != ELSE):
            yield self._with(state, who, onward)
            return
        if len(state.log) + sum(1 for other in state.actors if other.asked) >= self.protocol.writes:
            return
        if not self.protocol.guard or claim in held(view):
            if version_of(view, claim) == version_of(state.log, claim):
                yield self._with(state, who, onward, log=(*state.log, (claim, True)))
            return
        if self._allowed(state, who, claim):
            asked = claim, version_of(view, claim)
            yield self._with(state, who, actor._replace(asked=asked), admitted=state.admitted | {asked})

    def _allowed(self, state: State, who: int, claim: int) -> bool:
        """The guard's answer: of the leader, by its watch, its decision and what it has let through."""
        leader = self._leader(state)
        own = state.actors[leader]
        if who == leader:
            return True
        taken = {other % 2 for other in held(state.log[: own.seen]) if other != claim}
        taken |= {other % 2 for other, _ in state.admitted if other != claim}
        if own.pod is not None and own.step < 3:
            taken |= {other % 2 for other in CLAIMS[own.pod] if other != claim}
        return claim % 2 not in taken

    def _bind(self, state: State, who: int, pod: int) -> Iterator[State]:
        actor, claims = state.actors[who], CLAIMS[pod]
        if self.protocol.verify and who != ELSE:
            view = held(state.log[: actor.seen])
            # Not until what it wrote has come back.
            if any(version_of(state.log[: actor.seen], claim) < self._own(state, claim) for claim in claims):
                return
            if any(claim not in view for claim in claims):
                return
            for claim in claims:
                if any(other != claim and other % 2 == claim % 2 and view[other] < view[claim] for other in view):
                    yield self._with(state, who, actor._replace(step=3, base=actor.seen))
                    return
        stale = self.protocol.version and who != ELSE and state.pods[pod] != actor.version
        if not state.bound[pod] and not stale:
            bound = tuple(now or other == pod for other, now in enumerate(state.bound))
            yield self._with(state, who, self._idle(actor), bound=bound)

    @staticmethod
    def _own(state: State, claim: int) -> int:
        """The write that made the allocation stand: whoever goes on to bind has made or seen it."""
        return held(state.log).get(claim, 0)


def explore(protocol: Protocol, until: frozenset[str] = frozenset()) -> set[str]:
    """All that is wrong in any state; ends early when all of ``until`` is found, if there is any."""
    model, start = Model(protocol), State()
    known, waiting, found = {start}, deque([start]), set[str]()
    while waiting and not (until and until <= found):
        state = waiting.popleft()
        for after in model.steps(state):
            if after not in known:
                known.add(after)
                found |= faults(after)
                waiting.append(after)
    return found


@pytest.mark.parametrize(
    ("protocol", "wrong"),
    [
        (Protocol(verify=False, version=False), {"double use", "stuck pod"}),
        (Protocol(verify=False), {"double use"}),
        (Protocol(version=False), {"stuck pod"}),
        # The one who takes a claim back, or has done so without having seen it yet, and the one who goes on with it.
        (Protocol(renew=False), {"stuck pod"}),
        (Protocol(foreign=True), {"double use"}),
    ],
)
def test_every_part_is_needed(protocol: Protocol, wrong: set[str]) -> None:
    assert wrong <= explore(protocol, frozenset(wrong))


def test_two_leaders() -> None:
    # That two claims hold a device for a while is why there is something to verify.
    assert explore(Protocol()) == {"held twice"}
    assert explore(Protocol(guard=True)) == set()


@pytest.mark.parametrize(
    "writes", [4, pytest.param(7, marks=[pytest.mark.slow, pytest.mark.timeout(120)])], ids=lambda writes: f"{writes}"
)
def test_beside_somebody_else(writes: int) -> None:
    assert explore(Protocol(foreign=True, guard=True, writes=writes)) == set()
    assert explore(Protocol(foreign=True, fence=True, writes=writes)) <= {"held twice"}
