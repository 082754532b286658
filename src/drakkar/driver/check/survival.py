"""Checks that start, kill and upgrade the driver, and what it costs over many calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

from drakkar.driver.check.calls import expect, nothing_left, refused_in_use
from drakkar.driver.check.claims import same_answer, shown
from drakkar.driver.check.process import Cost
from drakkar.driver.check.subject import CheckFailed, NotApplicable, Subject
from drakkar.plugin import wire
from drakkar.plugin.grpc_client import PluginError

#: Crashes within prepare and as many within unprepare, and seconds after which there are no more of them.
CRASHES, CRASHING = 6, 30.0
#: Calls of each kind over which the driver's cost is measured, seconds for all of them, and how few are too few.
CALLS, CALLING, TOO_FEW = 150, 3.0, 20
#: Growth that counts: KiB of memory in both halves, open files per call.
MEMORY, FILES = 4096, 0.5
#: Seconds for two instances to come to rest side by side, and for which nothing may be written then.
RESTS, QUIET = 1.5, 0.7
#: Writes to slices in that time that may merely be late.
LATE = 2
#: Pods of two instances.
FIRST, SECOND = "11111111-aaaa-4aaa-8aaa-111111111111", "22222222-bbbb-4bbb-8bbb-222222222222"


async def growth(subject: Subject) -> None:
    """Memory and open files over many calls: measured once things are warm, then over two equal parts."""
    pool, device = (await subject.devices())[0]
    nobody = wire.Claim("default", "44444444-4444-4444-4444-444444444444", "drakkar-check-nobody")
    claim = await subject.claim((pool, device.name))

    async def round_() -> None:
        await subject.unprepare([nobody])
        await subject.prepare([claim])
        await subject.prepare([claim])
        await subject.unprepare([claim])

    begin = time.monotonic()
    await round_()
    alone = time.monotonic() - begin
    rounds = min(CALLS // 3, int(CALLING / 3 / alone))
    if rounds * 3 < TOO_FEW:
        await subject.undone(claim)
        raise NotApplicable(f"calls take too long ({alone / 4:.1f} s each) to make many")
    costs: list[Cost] = []
    for _ in range(3):
        for _ in range(rounds):
            await round_()
        found = subject.cost()
        assert found is not None
        costs.append(found)
    await subject.undone(claim)
    steps = [(after.memory - before.memory, after.files - before.files) for before, after in pairwise(costs)]
    calls = rounds * 4
    expect(
        min(files for _, files in steps) < FILES * calls / 4,
        f"open files grow with every call: {', '.join(str(each.files) for each in costs)} {calls} calls apart",
        "close what a call opens",
    )
    expect(
        min(memory for memory, _ in steps) < MEMORY,
        f"memory grows with every call: {', '.join(f'{each.memory >> 10} MiB' for each in costs)}, {calls} calls apart",
        "forget claims when they are unprepared, and keep nothing per call",
    )


async def stale_sockets(subject: Subject) -> None:
    """A killed driver leaves its socket files."""
    subject.sweeps = True  # Unless it can do without.
    await subject.crash()
    left = [path.name for path in subject.sockets()]
    try:
        await subject.start()
    except CheckFailed as failed:
        raise CheckFailed(f"beside the sockets that its killed instance left ({', '.join(left)}) {failed}") from None
    await subject.register()
    subject.sweeps = False


async def crash_and_restart(subject: Subject) -> None:
    found = await subject.devices()
    pool, device = found[0]
    claim = await subject.claim((pool, device.name))
    answer = await subject.prepared(claim)
    await subject.restart()
    again = (await subject.prepare([claim]))[claim.uid]
    expect(same_answer(again, answer), f"after a crash prepare answers {shown(again)}, before it {shown(answer)}")
    subject.edits(again.devices)
    await subject.restart()
    if not device.allowMultipleAllocations:
        await refused_in_use(subject, pool, device, when=": the driver was killed since the first")
    error = (await subject.unprepare([claim]))[claim.uid].error
    expect(not error, f"after a crash unprepare fails: {error}")
    nothing_left(subject, claim, "after a crash and unprepare")
    await subject.claims.forget(claim)


async def crash_in_between(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    begin = time.monotonic()
    preparing, unpreparing = await _durations(subject, (pool, device.name))
    for attempt in range(CRASHES):
        if attempt >= 2 and time.monotonic() - begin > CRASHING:
            subject.note(f"{attempt} of {CRASHES} crashes within calls were tried, for lack of time")
            break
        part = attempt / (CRASHES - 1)
        claim = await subject.claim((pool, device.name))
        await _crash_within(subject, lambda claim=claim: subject.prepare([claim]), preparing * part)
        if attempt % 2 == 0:  # The pod may also be deleted meanwhile.
            again = (await subject.prepare([claim]))[claim.uid]
            expect(not again.error, f"after a crash within prepare: {again.error}")
            subject.edits(again.devices)
            await _crash_within(subject, lambda claim=claim: subject.unprepare([claim]), unpreparing * part)
        error = (await subject.unprepare([claim]))[claim.uid].error
        what = "unprepare" if attempt % 2 == 0 else "prepare"
        expect(not error, f"after a crash within {what} unprepare fails: {error}")
        nothing_left(subject, claim, f"after a crash within {what}, and unprepare,")
        await subject.claims.forget(claim)
        other = await subject.claim((pool, device.name))
        await subject.prepared(other)
        await subject.undone(other)


async def _durations(subject: Subject, device: tuple[str, str]) -> tuple[float, float]:
    """Seconds of a prepare and of an unprepare."""
    claim = await subject.claim(device)
    begin = time.monotonic()
    await subject.prepared(claim)
    middle = time.monotonic()
    await subject.undone(claim)
    return middle - begin, time.monotonic() - middle


async def _crash_within(subject: Subject, call: Callable[[], Awaitable[object]], after: float) -> None:
    task = asyncio.ensure_future(call())
    await asyncio.sleep(after)
    await subject.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await subject.restart()


async def reboot(subject: Subject) -> None:
    """The machine starts anew: processes are killed, CDI files gone, the kernel has another boot id."""
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name))
    answer = await subject.prepared(claim)
    if not subject.edits(answer.devices):
        await subject.undone(claim)
        raise NotApplicable("the driver hands out no CDI devices")
    told = await subject.new_boot()
    await _power_cut(subject)
    again = (await subject.prepare([claim]))[claim.uid]
    try:
        expect(not again.error, f"after a reboot prepare fails: {again.error}")
        subject.edits(again.devices)
    except CheckFailed as failed:
        if told:
            raise CheckFailed(f"after a reboot: {failed}") from None
        subject.remark(
            f"without the files of its CDI folder: {failed}; it may do better after a reboot, "
            "whose new boot id cannot be shown to it here, where no mount namespace can be made"
        )
    await _power_cut(subject)
    error = (await subject.unprepare([claim]))[claim.uid].error
    expect(not error, f"after a reboot unprepare fails: {error}")
    nothing_left(subject, claim, "after a reboot and unprepare")
    await subject.claims.forget(claim)


async def _power_cut(subject: Subject) -> None:
    await subject.crash()
    for name in subject.spec_files():
        (subject.cdi_folder / name).unlink(missing_ok=True)
    await subject.restart()


async def torn_files(subject: Subject) -> None:
    """What a power cut may leave of a file that is not written to one side and renamed."""
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name))
    await subject.prepared(claim)
    await subject.crash()
    torn = [
        path for path in sorted(subject.data_folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 1
    ] if subject.data_folder.is_dir() else []  # fmt: skip
    if not torn:
        await subject.restart()
        await subject.undone(claim)
        raise NotApplicable(f"the driver keeps no files in {subject.data_folder}")
    whole = {path: path.read_bytes() for path in torn}
    for path, content in whole.items():
        path.write_bytes(content[: len(content) // 2])
    names = ", ".join(str(path.relative_to(subject.data_folder)) for path in torn[:3])
    try:
        await subject.restart()
        words = (await subject.unprepare([claim]))[claim.uid].error
    except (CheckFailed, PluginError) as failed:
        words = str(failed)
        await subject.crash()
    if words:
        # It says so, and a person can look: no rule forbids that. To go on, it gets its files back.
        subject.remark(f"with its files torn ({names}), as by a power cut: {words}")
        await subject.crash()
        for path, content in whole.items():
            path.write_bytes(content)
        await subject.restart()
        await subject.undone(claim)
        return
    left = subject.leftovers(claim)
    await subject.claims.forget(claim)
    if left:
        subject.remark(f"with its files torn ({names}), unprepare leaves {', '.join(left)}")
        for name in left:
            (subject.cdi_folder / name).unlink(missing_ok=True)
    other = await subject.claim((pool, device.name))
    answer = (await subject.prepare([other]))[other.uid]
    expect(not answer.error, f"with its files torn ({names}), no claim can be prepared any more: {answer.error}")
    subject.edits(answer.devices)
    await subject.undone(other)


async def two_instances(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    await subject.end()
    await subject.start(FIRST)
    first = await subject.register()
    marks = subject.marks()
    claim = await subject.claim((pool, device.name))
    answer = await subject.prepared(claim)
    try:
        await subject.start(SECOND)
    except CheckFailed as failed:
        subject.remark(f"a second instance does not start beside the first: {failed}; every upgrade has a gap")
        await subject.undone(claim)
        await _alone_again(subject)
        return
    second = await subject.register()
    if not set(subject.marks()) - set(marks):
        await _shared_sockets(subject, claim, answer)
        return
    expect(second.endpoint != first.endpoint, f"both instances listen at {first.endpoint}")
    await asyncio.sleep(RESTS)
    quiet = time.monotonic()
    if not device.allowMultipleAllocations:
        await refused_in_use(subject, pool, device, when=": the first by the other instance")
    for endpoint in (first.endpoint, second.endpoint):
        again = (await subject.prepare([claim], endpoint=endpoint))[claim.uid]
        expect(
            same_answer(again, answer), f"the instance at {endpoint} answers {shown(again)}, at first {shown(answer)}"
        )
    await asyncio.sleep(QUIET)
    expect(
        (count := subject.history.count(quiet)) <= LATE,
        f"two instances side by side do not come to rest: {count} writes to slices in {QUIET:.1f} s",
        "let both write the same slices, by names that do not depend on the instance",
    )
    await subject.end(FIRST)
    expect(subject.listens(), "the end of the first instance took the socket of the second away")
    expect(subject.sockets(), "the end of the first instance took the registration socket of the second away")
    again = (await subject.prepare([claim]))[claim.uid]
    expect(same_answer(again, answer), f"the second instance answers {shown(again)}, the first {shown(answer)}")
    error = (await subject.unprepare([claim]))[claim.uid].error
    expect(not error, f"the second instance cannot unprepare: {error}")
    nothing_left(subject, claim, "after unprepare by the second instance")
    await subject.claims.forget(claim)
    expect(any(s.spec.devices for s in await subject.slices()), "the slices are gone after the upgrade")
    await _alone_again(subject)


async def _shared_sockets(subject: Subject, claim: wire.Claim, answer: wire.NodePrepareResourceResponse) -> None:
    """The driver is not made for two instances: that is allowed, where its pods are replaced one after the other."""
    subject.remark("both instances use the same sockets, whatever POD_UID says: an upgrade has a gap")
    await subject.end(FIRST)
    if subject.sockets() and subject.listens():
        again = (await subject.prepare([claim]))[claim.uid]
        expect(same_answer(again, answer), f"the second instance answers {shown(again)}, the first {shown(answer)}")
    else:
        subject.remark(
            "the end of the first took the sockets of the second away: should they ever meet, it runs and no kubelet "
            "knows"
        )
        await subject.end_all()
        await subject.start()
        await subject.register()
    await subject.undone(claim)
    await _alone_again(subject)


async def _alone_again(subject: Subject) -> None:
    await subject.end_all()
    await subject.start()
    await subject.register()


async def orderly_stop(subject: Subject) -> None:
    sockets = subject.sockets()
    endpoint = subject.info.endpoint
    await subject.end()
    left = [str(path) for path in sockets[-1:] if path.exists()]
    expect(not left, f"after SIGTERM the registration socket {', '.join(left)} is left")
    if subject.endpoint_exists(endpoint):
        subject.remark(f"after SIGTERM the socket {endpoint} is left")
