"""Checks of what a driver tells everybody: its slices, and the health of its devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import aclosing

from drakkar.api.kinds import NODE, RESOURCESLICE
from drakkar.api.objects import uid_of
from drakkar.api.resource import v1
from drakkar.driver.check.calls import expect
from drakkar.driver.check.rules import complete, described, differences, judge_health, judge_slices
from drakkar.driver.check.subject import CheckFailed, NotApplicable, Subject
from drakkar.plugin import wire
from drakkar.plugin.grpc_client import PluginError

#: Seconds for a pool to become complete, for a lost slice to come back (Go drivers look again after 30 s), for the
#: first report of health, and for which a stream is watched.
SETTLES, RESTORED, REPORTED, STAYS = 10.0, 45.0, 10.0, 1.0
#: Seconds after which a kubelet takes a device without news for Unknown, unless the report says otherwise.
HEALTH_TIMEOUT = 30
_HEALTH = (wire.HEALTH_V1, wire.HEALTH_V1ALPHA1)


async def slices(subject: Subject) -> None:
    try:
        found = await subject.published()
    except NotApplicable:
        if await subject.slices() and not subject.refusals():
            subject.remark("the pools of this node have no device, so nothing can be tried on one")
        elif subject.refusals() == [] and not await _slices_of_anybody(subject):
            subject.remark(f"{await _why_nothing(subject)}\nit has not tried to")
            return
        else:
            raise CheckFailed(await _why_nothing(subject)) from None
    found = await _settled(subject)
    assert subject.client is not None
    problems = judge_slices(found, uid_of(await subject.client.get(NODE, subject.node_name)))
    subject.first_problems = problems
    subject.first_described = described(found)
    expect(not problems, "\n".join(problems))


async def _settled(subject: Subject, devices: Collection[tuple[str, str]] = ()) -> list[v1.ResourceSlice]:
    """The slices, once all pools are complete and have these devices, or it has been waited for in vain."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLES
    while True:
        found = await subject.slices()
        if (complete(found) and described(found).keys() >= {*devices}) or loop.time() > deadline:
            return found
        await asyncio.sleep(0.1)


async def _why_nothing(subject: Subject) -> str:
    found = await subject.all_slices()
    lines = [f"no slice with devices of driver {subject.name} was published for node {subject.node_name}"]
    refusals = subject.refusals() or ()
    lines += [f"the API server refused: {words}" for words in dict.fromkeys(refusals[-3:])]
    places = sorted({s.spec.nodeName or "a selection of nodes" for s in found})
    if places:
        lines.append(f"its slices are for {', '.join(places)}; NODE_NAME says which node it serves")
    else:
        others = {s.spec.driver for s in await _slices_of_anybody(subject)}
        if subject.command and others:
            lines.append(f"there are slices of {', '.join(sorted(others))}: the name in GetInfo must be that of slices")
        elif not refusals:
            lines.append("where another program publishes for the whole cluster, let it run and name its API by --api")
    return "\n".join(lines)


async def _slices_of_anybody(subject: Subject) -> list[v1.ResourceSlice]:
    assert subject.client is not None
    return (await subject.client.list(RESOURCESLICE)).items


async def health(subject: Subject) -> None:
    offered = [version for version in _HEALTH if version in subject.info.supported_versions]
    if not offered:
        raise NotApplicable("the driver offers no health service")
    devices = None
    if subject.client is not None and not subject.unpublished:
        devices = {(s.spec.pool.name, d.name) for s in await subject.published() for d in s.spec.devices or ()}
    for version in offered:
        report = await _first(subject, version)
        problems, remarks = judge_health(report, devices)
        subject.remarks += remarks
        expect(not problems, f"{version}: " + "\n".join(problems))


async def _first(subject: Subject, version: str) -> wire.NodeWatchResourcesResponse:
    try:
        async with (
            subject.connect() as client,
            aclosing(client.watch_health(version)) as stream,
            asyncio.timeout(REPORTED),
        ):
            return await anext(stream)
    except TimeoutError:
        raise CheckFailed(f"{version}: no report within {REPORTED:.0f} s of the opening of the stream") from None
    except StopAsyncIteration:
        raise CheckFailed(f"{version}: the stream ends without a report") from None
    except PluginError as error:
        expect(not error.unknown, f"{version} is offered, and a call of it fails: {error}")
        raise


async def health_stream(subject: Subject) -> None:
    """The stream stays, beside another one and beside calls."""
    version = next((version for version in _HEALTH if version in subject.info.supported_versions), None)
    if version is None:
        raise NotApplicable("the driver offers no health service")
    watched = subject.watched = HealthWatch(subject, version)
    try:
        await watched.opened(REPORTED)
        await _beside(subject, version)
        await asyncio.sleep(STAYS)
        expect(watched.open, f"the stream ended after {watched.reports} reports: a kubelet forgets all health then")
    except (CheckFailed, PluginError):
        await watched.close()  # What comes next is tried without it.
        raise


async def _beside(subject: Subject, version: str) -> None:
    """Beside an open stream calls are answered, and a kubelet that starts anew opens a second one."""
    claim = wire.Claim("default", "33333333-3333-3333-3333-333333333333", "drakkar-check-nobody")
    threads = "serve streams and calls from more than one thread"
    try:
        async with subject.connect() as client:
            await client.unprepare(subject.dra_version, [claim], REPORTED)
    except PluginError as error:
        if not error.late:
            raise
        raise CheckFailed("while a health stream is open, no call is answered", threads) from None
    try:
        await _first(subject, version)
    except CheckFailed as failed:
        raise CheckFailed(f"while a health stream is open, a second one fails: {failed}", threads) from None


async def health_repeats(subject: Subject) -> None:
    watched = subject.watched
    if watched is None or not watched.open or not watched.reports:
        raise NotApplicable("no stream of health is open")
    limit = min(HEALTH_TIMEOUT, watched.timeout)
    try:
        while watched.reports < 2 and (left := watched.since + limit - time.monotonic()) > 0:
            await asyncio.sleep(min(0.1, left))
        if watched.reports < 2 and watched.timeout > limit:
            raise NotApplicable(f"the driver asks for {watched.timeout} s between reports, which is too long to wait")
        expect(
            watched.reports >= 2,
            f"no second report within {limit} s: a kubelet takes every device for Unknown then",
        )
    finally:
        await watched.close()


class HealthWatch:
    """A stream of health that is listened to while other things are tried."""

    def __init__(self, subject: Subject, version: str) -> None:
        self.reports = 0
        self.open = True
        #: Seconds after which a kubelet wants news, as the first report says.
        self.timeout = HEALTH_TIMEOUT
        self.since = time.monotonic()
        self._task = asyncio.ensure_future(self._listen(subject, version))

    async def opened(self, patience: float) -> None:
        """Wait for the first report."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while self.open and not self.reports and loop.time() < deadline:
            await asyncio.sleep(0.02)
        expect(self.reports, f"no report within {patience:.0f} s of the opening of the stream")

    async def close(self) -> None:
        """Listen no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self, subject: Subject, version: str) -> None:
        try:
            async with subject.connect() as client, aclosing(client.watch_health(version)) as stream:
                async for report in stream:
                    if not self.reports:
                        self.since = time.monotonic()
                        given = [d.health_check_timeout_seconds for d in report.devices]
                        self.timeout = min((each if each > 0 else HEALTH_TIMEOUT for each in given), default=0) or (
                            HEALTH_TIMEOUT
                        )
                    self.reports += 1
        except PluginError:
            return  # Somebody has ended the driver, or it ended the stream: `open` says so.
        finally:
            self.open = False


async def slices_restored(subject: Subject) -> None:
    """A kubelet deletes the slices of its node when it starts."""
    found = [s for s in await subject.published() if s.spec.nodeName == subject.node_name]
    if not found:
        raise NotApplicable("no slice belongs to this node, so no kubelet deletes any")
    before = described(found)
    assert subject.client is not None
    for each in found:
        subject.history.deleted(each.metadata.uid)
        await subject.client.delete(RESOURCESLICE, each.metadata.name)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RESTORED
    while True:
        now = await subject.slices()
        if described(now).keys() >= before.keys() and len(now) >= len(found):
            return
        if loop.time() > deadline:
            subject.unpublished = not any(s.spec.devices for s in now)
            raise CheckFailed(f"slices that were deleted are not back after {RESTORED:.0f} s")
        await asyncio.sleep(0.05)


async def slices_steady(subject: Subject) -> None:
    """After all that, what is published is as sound as at first, and says the same; and how it came to that."""
    if not subject.first_described:
        raise NotApplicable("nothing was published at first")
    try:
        await subject.published()
    except NotApplicable:
        raise CheckFailed(await _why_nothing(subject)) from None
    found = await _settled(subject, subject.first_described)
    assert subject.client is not None
    problems = judge_slices(found, uid_of(await subject.client.get(NODE, subject.node_name)))
    problems = [problem for problem in problems if problem not in subject.first_problems]
    problems += subject.history.problems()
    subject.remarks += subject.history.remarks()
    changes = differences(subject.first_described, described(found))
    harmless = [change for change in changes if ": attributes " in change]
    subject.remarks += harmless
    problems += [change for change in changes if change not in harmless]
    expect(not problems, "\n".join(problems))
