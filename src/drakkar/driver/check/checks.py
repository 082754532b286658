"""The checks, in the order in which they make sense. Each one cleans up what it made, for the next to rely on."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from drakkar.api.errors import ApiError
from drakkar.api.formats import dns_subdomain
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.driver.check.report import Finding, Report
from drakkar.driver.check.subject import PATIENCE, CheckFailed, Subject
from drakkar.driver.pools import Pool, SliceContent, check_pool
from drakkar.plugin import wire
from drakkar.plugin.cdi import CdiError
from drakkar.plugin.grpc_client import PluginError, choose_health

logger = logging.getLogger(__name__)

#: Claims that are prepared at once, and crashes within a call.
PARALLEL, CRASHES = 16, 8


@dataclass(frozen=True, slots=True)
class Check:
    """One rule and how it is tried; `needs` names what the kit must have been given."""

    name: str
    rule: str
    run: Callable[[Subject], Awaitable[None]]
    needs: frozenset[str] = frozenset()


async def run_checks(
    subject: Subject, only: Sequence[str] = (), found: Callable[[Finding], None] = lambda _: None
) -> Report:
    """Run all checks (or those named in `only`); a broken one does not stop the others. `found` hears of each."""
    findings: list[Finding] = []
    have = {name for name, given in (("api", subject.client), ("command", subject.command)) if given}
    try:
        for check in CHECKS:
            if only and check.name not in only and check.name != "registration":
                continue
            findings.append(await _run(check, subject, have))
            found(findings[-1])
            if check.name == "registration" and findings[-1].status == "failed":
                break
    finally:
        await subject.close()
    return Report(driver=subject.name or "driver", findings=findings)


async def _run(check: Check, subject: Subject, have: set[str]) -> Finding:
    missing = sorted(check.needs - have)
    if missing:
        needs = " and ".join(f"--{name}" for name in missing)
        return Finding(check=check.name, rule=check.rule, status="not run", message=f"needs {needs}")
    begin = time.monotonic()
    try:
        await check.run(subject)
    except _NotApplicable as reason:
        return Finding(check=check.name, rule=check.rule, status="not run", message=str(reason))
    except (CheckFailed, PluginError, CdiError, ApiError, TimeoutError, OSError) as error:
        message = str(error) or type(error).__name__
        seconds = time.monotonic() - begin
        if check.run is not registration:
            if died := await subject.revive():
                message = f"{died}\n{message}"
            await subject.tidy()
        return Finding(check=check.name, rule=check.rule, status="failed", message=message, seconds=seconds)
    return Finding(check=check.name, rule=check.rule, status="ok", seconds=time.monotonic() - begin)


class _NotApplicable(Exception):
    """The driver has nothing that the check could be tried on."""


async def registration(subject: Subject) -> None:
    if subject.command:
        await subject.start()
    info = await subject.register()
    _expect(info.type == wire.DRA_PLUGIN, f"GetInfo says type {info.type!r}, a DRA driver says {wire.DRA_PLUGIN!r}")
    _expect(not dns_subdomain(info.name), f"GetInfo says name {info.name!r}, which is no DNS name")
    _expect(info.endpoint.startswith("/"), f"GetInfo says endpoint {info.endpoint!r}, it must be an absolute path")
    subject.connect()
    again = await subject.register()
    _expect(again == info, f"GetInfo says something else the second time: {again}")


async def unknown_claims(subject: Subject) -> None:
    claim = wire.Claim("default", "00000000-0000-0000-0000-000000000000", "drakkar-check-nobody")
    answer = (await subject.unprepare([claim]))[claim.uid]
    _expect(not answer.error, f"unprepare of a claim that was never prepared fails: {answer.error}")
    try:
        error = (await subject.prepare([claim]))[claim.uid].error
    except PluginError:
        return  # A Go driver fails the whole call, which a kubelet takes as well.
    _expect(bool(error), "prepare of a claim that does not exist succeeds")


async def empty_call(subject: Subject) -> None:
    _expect(await subject.prepare([]) == {}, "prepare of no claims does not answer an empty map")
    _expect(await subject.unprepare([]) == {}, "unprepare of no claims does not answer an empty map")


async def slices(subject: Subject) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (found := await subject.slices()):
            await asyncio.sleep(0.1)
        while any(len(_of(found, s)) < s.spec.pool.resourceSliceCount for s in found):
            await asyncio.sleep(0.1)
            found = await subject.slices()
    problems: list[str] = []
    for name in sorted({s.spec.pool.name for s in found}):
        mine = [s for s in found if s.spec.pool.name == name]
        generations = {s.spec.pool.generation for s in mine}
        if len(generations) > 1:
            problems.append(f"pool {name}: slices of generations {sorted(generations)} stand side by side")
        contents = tuple(SliceContent(tuple(s.spec.devices or ()), tuple(s.spec.sharedCounters or ())) for s in mine)
        problems += check_pool(Pool(name, contents))
        owners = [owner for s in mine for owner in s.metadata.ownerReferences or ()]
        if len(owners) < len(mine) or any(owner.kind != "Node" for owner in owners):
            problems.append(f"pool {name}: slices of a node must be owned by its Node, so that they go with it")
    _expect(not problems, "\n".join(problems))


async def advertised_is_delivered(subject: Subject) -> None:
    for pool, device in await _devices(subject):
        async with _prepared(subject, [(pool, device.name)]) as (_, answer):
            (one,) = _only(answer.devices, f"device {pool}/{device.name}")
            got = (one.pool_name, one.device_name)
            _expect(got == (pool, device.name), f"asked for {pool}/{device.name}, the answer names {got[0]}/{got[1]}")
            _expect(one.request_names in (["r0"], []), f"the device is for request r0, not {one.request_names}")
            subject.edits(answer.devices)


async def several_requests(subject: Subject) -> None:
    await _devices(subject, 2)
    found = _side_by_side(await subject.slices())
    if len(found) < 2:
        raise _NotApplicable("no two devices can be had at once")
    wanted = [(pool, device.name) for pool, device in found[:2]]
    async with _prepared(subject, wanted) as (_, answer):
        got = {(d.pool_name, d.device_name): d.request_names for d in answer.devices}
        _expect(got.keys() == set(wanted), f"asked for {wanted}, got {sorted(got)}")
        for i, key in enumerate(wanted):
            _expect(got[key] in ([f"r{i}"], []), f"device {key[0]}/{key[1]} belongs to r{i}, not {got[key]}")
        subject.edits(answer.devices)


async def idempotent(subject: Subject) -> None:
    before = subject.spec_files()
    pool, device = (await _devices(subject))[0]
    async with _prepared(subject, [(pool, device.name)]) as (claim, answer):
        again = (await subject.prepare([claim]))[claim.uid]
        _expect(again == answer, f"prepare answers {again} the second time, {answer} the first")
    for attempt in (1, 2):
        error = (await subject.unprepare([claim]))[claim.uid].error
        _expect(not error, f"unprepare fails the {attempt + 1}. time: {error}")
    left = subject.spec_files() - before
    names = [name for name in left if claim.uid in name]
    _expect(not names, f"after unprepare CDI files of the claim are left: {', '.join(sorted(names))}")


async def both_versions(subject: Subject) -> None:
    offered = [v for v in (wire.DRA_V1, wire.DRA_V1BETA1) if v in subject.info.supported_versions]
    if len(offered) < 2:
        raise _NotApplicable(f"the driver offers only {', '.join(offered)}")
    pool, device = (await _devices(subject))[0]
    async with _prepared(subject, [(pool, device.name)]) as (claim, answer):
        older = (await subject.prepare([claim], wire.DRA_V1BETA1))[claim.uid]
        same = [(d.pool_name, d.device_name, d.cdi_device_ids) for d in answer.devices]
        got = [(d.pool_name, d.device_name, d.cdi_device_ids) for d in older.devices]
        _expect(same == got, f"v1beta1 answers {got}, v1 {same}")


async def one_bad_claim(subject: Subject) -> None:
    pool, device = (await _devices(subject))[0]
    good = await subject.claim([(pool, device.name)])
    bad = await subject.claim([], allocated=False)
    try:
        answers = await subject.prepare([bad, good])
        _expect(bool(answers[bad.uid].error), "prepare of a claim that is not allocated succeeds")
        _expect(not answers[good.uid].error, f"one bad claim spoils another: {answers[good.uid].error}")
    except PluginError as error:
        if error.unreachable:
            raise
        # The whole call failed, as with the Go helper: allowed, but then nothing of the batch may stay prepared alone.
        answer = (await subject.prepare([good]))[good.uid]
        _expect(not answer.error, f"after a failed batch the good claim cannot be prepared: {answer.error}")
    finally:
        await subject.unprepare([bad, good])
        await subject.forget(good)
        await subject.forget(bad)


async def replaced_claim(subject: Subject) -> None:
    pool, device = (await _devices(subject))[0]
    claim = await subject.claim([(pool, device.name)])
    other = wire.Claim(claim.namespace, "11111111-1111-1111-1111-111111111111", claim.name)
    try:
        error = (await subject.prepare([other]))[other.uid].error
    except PluginError as failed:
        error = str(failed)
    finally:
        await subject.unprepare([other])
        await subject.forget(claim)
    _expect(bool(error), "prepare with another UID than the claim has succeeds: the claim was deleted and made anew")


async def lost_claim(subject: Subject) -> None:
    pool, device = (await _devices(subject))[0]
    claim = await subject.claim([(pool, device.name)])
    answer = (await subject.prepare([claim]))[claim.uid]
    _expect(not answer.error, answer.error)
    await subject.forget(claim)
    error = (await subject.unprepare([claim]))[claim.uid].error
    _expect(not error, f"unprepare fails once the claim is deleted: {error}")
    async with _prepared(subject, [(pool, device.name)]):
        pass


async def bad_config(subject: Subject) -> None:
    pool, device = (await _devices(subject))[0]
    config = {"apiVersion": "check.drakkar.dev/v1", "kind": "Nonsense", "level": -1}
    claim = await subject.claim([(pool, device.name)], config=config)
    try:
        error = (await subject.prepare([claim]))[claim.uid].error
    except PluginError as failed:
        error = str(failed)
    finally:
        undone = (await subject.unprepare([claim]))[claim.uid].error
        await subject.forget(claim)
    _expect(bool(error), "parameters that the driver cannot know are ignored; it must refuse them")
    _expect(not undone, f"after refused parameters unprepare fails: {undone}")


async def device_in_use(subject: Subject) -> None:
    found = [(pool, device) for pool, device in await _devices(subject) if not device.allowMultipleAllocations]
    if not found:
        raise _NotApplicable("every device may be shared")
    pool, device = found[0]
    async with _prepared(subject, [(pool, device.name)]):
        second = await subject.claim([(pool, device.name)])
        try:
            error = (await subject.prepare([second]))[second.uid].error
        except PluginError as failed:
            error = str(failed)
        finally:
            await subject.unprepare([second])
            await subject.forget(second)
        _expect(bool(error), f"device {pool}/{device.name} is prepared for two claims at once")


async def parallel_claims(subject: Subject) -> None:
    await _devices(subject)
    found = _side_by_side(await subject.slices())[:PARALLEL]
    claims = [await subject.claim([(pool, device.name)]) for pool, device in found]
    answers: list[dict[str, wire.NodePrepareResourceResponse]] = []
    try:
        for _ in range(2):
            answers = await asyncio.gather(*(subject.prepare([claim]) for claim in claims))
            for claim, answer in zip(claims, answers, strict=True):
                _expect(not answer[claim.uid].error, answer[claim.uid].error)
        ids = [name for answer in answers for one in answer.values() for d in one.devices for name in d.cdi_device_ids]
        for answer in answers:
            subject.edits([d for one in answer.values() for d in one.devices])
        per_claim = [name for name in ids if any(claim.uid in name for claim in claims)]
        _expect(len(set(per_claim)) == len(per_claim), "two claims got the same CDI device")
    finally:
        done = await asyncio.gather(*(subject.unprepare([claim]) for claim in claims))
        for claim in claims:
            await subject.forget(claim)
    for claim, answer in zip(claims, done, strict=True):
        _expect(not answer[claim.uid].error, answer[claim.uid].error)


async def health(subject: Subject) -> None:
    version = choose_health(subject.info.supported_versions)
    if version is None:
        raise _NotApplicable("the driver offers no health service")
    async with aclosing(subject.connect().watch_health(version)) as stream, asyncio.timeout(PATIENCE):
        report = await anext(stream)
    told = {(d.device.pool_name, d.device.device_name) for d in report.devices}
    states = {d.health for d in report.devices} - {*wire.HealthStatus}
    _expect(not states, f"health {sorted(states)} is none of {[*wire.HealthStatus]}")
    if subject.client is not None:
        missing = {(pool, device.name) for pool, device in await subject.devices()} - told
        _expect(not missing, f"the report must be complete, it lacks {sorted(missing)[:5]}")


async def crash_and_restart(subject: Subject) -> None:
    pool, device = (await _devices(subject))[0]
    async with _prepared(subject, [(pool, device.name)]) as (claim, answer):
        await subject.restart()
        await subject.register()
        again = (await subject.prepare([claim]))[claim.uid]
        _expect(again == answer, f"after a crash prepare answers {again}, before it {answer}")
        subject.edits(again.devices)
        await subject.restart()
        await subject.register()
        error = (await subject.unprepare([claim]))[claim.uid].error
        _expect(not error, f"after a crash unprepare fails: {error}")
    names = [name for name in subject.spec_files() if claim.uid in name]
    _expect(not names, f"after a crash and unprepare CDI files are left: {', '.join(sorted(names))}")


async def crash_in_between(subject: Subject) -> None:
    found = await _devices(subject)
    claims = [await subject.claim([(pool, device.name)]) for pool, device in found[:1]]
    try:
        for attempt in range(CRASHES):
            call = asyncio.ensure_future(subject.prepare(claims))
            await asyncio.sleep(0.0015 * attempt)
            await subject.end(number=signal.SIGKILL)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await subject.restart()
            await subject.register()
            for claim in claims:
                answer = (await subject.prepare([claim]))[claim.uid]
                _expect(not answer.error, f"after a crash within prepare: {answer.error}")
                subject.edits(answer.devices)
            undo = asyncio.ensure_future(subject.unprepare(claims))
            await asyncio.sleep(0.0015 * attempt)
            await subject.end(number=signal.SIGKILL)
            undo.cancel()
            await asyncio.gather(undo, return_exceptions=True)
            await subject.restart()
            await subject.register()
            for claim in claims:
                error = (await subject.unprepare([claim]))[claim.uid].error
                _expect(not error, f"after a crash within unprepare: {error}")
                names = [name for name in subject.spec_files() if claim.uid in name]
                _expect(not names, f"after a crash and unprepare CDI files are left: {', '.join(sorted(names))}")
    finally:
        for claim in claims:
            await subject.forget(claim)


async def emptied_cdi_folder(subject: Subject) -> None:
    pool, device = (await _devices(subject))[0]
    async with _prepared(subject, [(pool, device.name)]) as (claim, answer):
        if not subject.edits(answer.devices):
            raise _NotApplicable("the driver hands out no CDI devices")
        await subject.end()
        for name in subject.spec_files():
            (subject.cdi_folder / name).unlink()
        await subject.start()
        await subject.register()
        again = (await subject.prepare([claim]))[claim.uid]
        _expect(not again.error, again.error)
        subject.edits(again.devices)


async def two_instances(subject: Subject) -> None:
    await subject.end()
    await subject.start("11111111-aaaa-4aaa-8aaa-111111111111")
    first = await subject.register()
    pool, device = (await _devices(subject))[0]
    claim = await subject.claim([(pool, device.name)])
    try:
        answer = (await subject.prepare([claim]))[claim.uid]
        _expect(not answer.error, answer.error)
        try:
            await subject.start("22222222-bbbb-4bbb-8bbb-222222222222")
        except TimeoutError:
            raise CheckFailed("a second instance does not get a registration socket of its own") from None
        second = await subject.register()
        _expect(second.endpoint != first.endpoint, f"both instances listen at {first.endpoint}")
        await subject.end("11111111-aaaa-4aaa-8aaa-111111111111")
        again = (await subject.prepare([claim]))[claim.uid]
        _expect(again == answer, f"the second instance answers {again}, the first {answer}")
        error = (await subject.unprepare([claim]))[claim.uid].error
        _expect(not error, f"the second instance cannot unprepare: {error}")
        found = await subject.slices()
        _expect(bool(found), "the slices are gone after the upgrade")
    finally:
        await subject.forget(claim)
        for instance in ("11111111-aaaa-4aaa-8aaa-111111111111", "22222222-bbbb-4bbb-8bbb-222222222222"):
            await subject.end(instance)
        await subject.start()
        await subject.register()


async def orderly_stop(subject: Subject) -> None:
    (socket,) = subject.sockets() or [None]
    await subject.end()
    _expect(socket is None or not socket.exists(), f"after SIGTERM the registration socket {socket} is left")


_API, _ALL = frozenset(("api",)), frozenset(("api", "command"))

CHECKS: tuple[Check, ...] = (
    Check("registration", "GetInfo tells type, name, endpoint and versions, every time the same", registration),
    Check("empty-call", "a call without claims answers an empty map", empty_call),
    Check("unknown-claims", "unprepare of an unknown claim succeeds, prepare fails", unknown_claims),
    Check("slices", "complete pools, consistent counters, owned by the Node", slices, _API),
    Check("health", "a complete report of known states when the stream opens", health),
    Check("advertised-delivered", "every published device can be prepared", advertised_is_delivered, _API),
    Check("several-requests", "devices are told apart by request", several_requests, _API),
    Check("idempotent", "repeated calls answer the same and leave nothing behind", idempotent, _API),
    Check("both-versions", "v1 and v1beta1 answer alike", both_versions, _API),
    Check("one-bad-claim", "what is wrong with one claim does not touch another", one_bad_claim, _API),
    Check("replaced-claim", "a claim with another UID is refused", replaced_claim, _API),
    Check("lost-claim", "unprepare works once the claim is deleted", lost_claim, _API),
    Check("bad-config", "unknown opaque parameters are refused", bad_config, _API),
    Check("device-in-use", "a device is not prepared for a second claim", device_in_use, _API),
    Check("parallel-claims", f"{PARALLEL} claims at once, repeated", parallel_claims, _API),
    Check("crash-restart", "after SIGKILL the same answers", crash_and_restart, _ALL),
    Check("crash-between", "SIGKILL within prepare and unprepare is taken up again", crash_in_between, _ALL),
    Check("emptied-cdi-folder", "CDI files that a reboot removed come back", emptied_cdi_folder, _ALL),
    Check("two-instances", "an upgrade hands over without a gap", two_instances, _ALL),
    Check("orderly-stop", "SIGTERM removes the registration socket", orderly_stop, frozenset(("command",))),
)


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise CheckFailed(message)


def _only(items: Sequence[wire.Device], what: str) -> Sequence[wire.Device]:
    _expect(len(items) == 1, f"{what}: expected one device in the answer, got {len(items)}")
    return items


def _of(found: Sequence[v1.ResourceSlice], one: v1.ResourceSlice) -> list[v1.ResourceSlice]:
    return [s for s in found if s.spec.pool.name == one.spec.pool.name]


async def _devices(subject: Subject, least: int = 1) -> list[tuple[str, v1.Device]]:
    async with asyncio.timeout(PATIENCE):
        while not (found := await subject.devices()):
            await asyncio.sleep(0.1)
    if len(found) < least:
        raise _NotApplicable(f"needs {least} devices, the driver publishes {len(found)}")
    return found


def _side_by_side(slices: Sequence[v1.ResourceSlice]) -> list[tuple[str, v1.Device]]:
    """Devices that can be had at the same time: in order, as far as the counters of their pool go."""
    left: dict[tuple[str, str, str], Quantity] = {}
    for found in slices:
        for counters in found.spec.sharedCounters or ():
            for name, counter in counters.counters.items():
                left[found.spec.pool.name, counters.name, name] = Quantity.parse(counter.value)
    chosen: list[tuple[str, v1.Device]] = []
    for found in slices:
        pool = found.spec.pool.name
        for device in found.spec.devices or ():
            draws = {
                (pool, consumed.counterSet, name): Quantity.parse(counter.value)
                for consumed in device.consumesCounters or ()
                for name, counter in consumed.counters.items()
            }
            if all(key in left and left[key] >= amount for key, amount in draws.items()):
                left |= {key: left[key] - amount for key, amount in draws.items()}
                chosen.append((pool, device))
    return chosen


@asynccontextmanager
async def _prepared(
    subject: Subject, devices: Sequence[tuple[str, str]]
) -> AsyncIterator[tuple[wire.Claim, wire.NodePrepareResourceResponse]]:
    """A claim of these devices, prepared within the block and gone afterwards. Raises CheckFailed."""
    claim = await subject.claim(devices)
    answer = (await subject.prepare([claim]))[claim.uid]
    try:
        _expect(not answer.error, f"prepare fails: {answer.error}")
        yield claim, answer
    finally:
        error = (await subject.unprepare([claim]))[claim.uid].error
        await subject.forget(claim)
    _expect(not error, f"unprepare fails: {error}")
