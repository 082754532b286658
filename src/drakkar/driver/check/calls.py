"""Checks of registration and of the DRA service's calls. Each undoes what it made; after a failure the kit does."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.driver.check.claims import OTHER_DRIVER, Wish, same_answer, shown
from drakkar.driver.check.rules import judge_mounts, judge_specs
from drakkar.driver.check.subject import CheckFailed, NotApplicable, Subject
from drakkar.driver.publication import name_problems
from drakkar.plugin import cdi, wire
from drakkar.plugin.grpc_client import PluginError, SocketClient

#: Claims that are prepared at once, devices that are tried one by one at least, and seconds for the others.
PARALLEL, TRIED, TRYING = 16, 4, 12.0
#: Seconds that all calls at once may take where a driver does one after the other: less than a kubelet waits.
_TOGETHER = 20.0
#: Parameters that no driver can know.
NONSENSE: Object = {"apiVersion": "check.drakkar.dev/v1", "kind": "Nonsense", "level": -1}

Found = tuple[str, v1.Device]


def expect(holds: object, message: str, cure: str = "") -> None:
    """Raise CheckFailed where something does not hold."""
    if not holds:
        raise CheckFailed(message, cure)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """How prepare failed; `whole`: the call did, and not only the claim."""

    words: str
    whole: bool


async def refusal(subject: Subject, claim: wire.Claim) -> _Refusal | None:
    """How the driver refuses the claim; None: it does not. Raises PluginError when it does not answer at all."""
    try:
        error = (await subject.prepare([claim]))[claim.uid].error
    except PluginError as failed:
        if failed.unreachable or failed.late:
            raise
        return _Refusal(str(failed), True)
    return _Refusal(error, False) if error else None


async def registration(subject: Subject) -> None:
    if subject.command:
        await subject.start()
    sockets = subject.sockets()
    expect(sockets, f"there is no registration socket in {subject.registry}")
    async with SocketClient(sockets[-1]) as client:
        info = subject.info = await client.get_info()
    subject.listened = subject.listens()
    expect(info.type == wire.DRA_PLUGIN, f"GetInfo says type {info.type!r}, a DRA driver says {wire.DRA_PLUGIN!r}")
    wrong = name_problems(info.name)
    expect(
        not wrong,
        f"GetInfo says name {info.name!r}, which is no driver name: {wrong}",
        "give the DNS name that stands in the driver's slices (spec.driver)",
    )
    if info.name != info.name.lower():
        subject.remark(f"GetInfo says name {info.name!r}: names of drivers should be in lower case")
    expect(
        info.endpoint.startswith("/"),
        f"GetInfo says endpoint {info.endpoint!r}, it must be an absolute path",
        "give the absolute path of the DRA socket, without unix://",
    )
    again = await subject.register()
    expect(again == info, f"GetInfo says something else the second time: {again}, not {info}")
    subject.follow()


async def listens_first(subject: Subject) -> None:
    """Found out by :func:`registration`, at the first moment."""
    expect(
        subject.listened,
        f"when GetInfo was answered, nobody listened at {subject.info.endpoint}: the first calls of a kubelet fail",
    )


async def offered_services(subject: Subject) -> None:
    offered = subject.info.supported_versions
    for version in (wire.DRA_V1, wire.DRA_V1BETA1):
        if version not in offered:
            continue
        try:
            await subject.unprepare([], version)
        except PluginError as error:
            expect(not error.unknown, f"{version} is offered, and a call of it fails: {error}")
            raise
    known = (wire.DRA_V1, wire.DRA_V1BETA1, wire.HEALTH_V1, wire.HEALTH_V1ALPHA1)
    if strange := [version for version in offered if version not in known]:
        subject.remark(f"no kubelet knows {', '.join(strange)} among the offered versions")


async def empty_call(subject: Subject) -> None:
    expect(await subject.prepare([]) == {}, "prepare of no claims does not answer an empty map")
    expect(await subject.unprepare([]) == {}, "unprepare of no claims does not answer an empty map")


async def unknown_claims(subject: Subject) -> None:
    claim = wire.Claim("default", "00000000-0000-0000-0000-000000000000", "drakkar-check-nobody")
    answer = (await subject.unprepare([claim]))[claim.uid]
    expect(not answer.error, f"unprepare of a claim that was never prepared fails: {answer.error}")
    # A Go driver fails the whole call, which a kubelet takes as well.
    expect(await refusal(subject, claim), "prepare of a claim that does not exist succeeds")


async def advertised_is_delivered(subject: Subject) -> None:
    found = await subject.devices()
    # First and last, then ever finer between them, as far as time goes.
    bits = len(found).bit_length()
    halves = sorted(range(len(found) - 1), key=lambda place: f"{place:0{bits}b}"[::-1])
    order = [found[-1], *(found[place] for place in halves)]
    begin, tried = time.monotonic(), 0
    before = subject.spec_files().keys()
    problems: list[str] = []
    for pool, device in order:
        if tried >= TRIED and time.monotonic() - begin > TRYING:
            break
        tried += 1
        claim = await subject.claim((pool, device.name))
        try:
            answer = await subject.prepared(claim)
            subject.verify(claim, answer)
            problems += judge_mounts(subject.edits(answer.devices), subject.kubelet_root)
            if subject.command and tried == 1:
                problems += judge_specs(subject.spec_files(), before, subject.cdi_folder)
        except CheckFailed as failed:
            problems.append(f"device {pool}/{device.name}: {failed}")
        await subject.undone(claim)
        if len(problems) > 2:
            break
    expect(not problems, "\n".join(problems))
    if tried < len(found):
        subject.note(f"{tried} of {len(found)} devices were tried, within {TRYING:.0f} s")


async def several_requests(subject: Subject) -> None:
    found = await _together(subject, 2)
    (pool, device), (other_pool, other) = found[:2]
    cases = {
        "two requests": [Wish(pool, device.name), Wish(other_pool, other.name)],
        "two devices of one request": [Wish(pool, device.name, "r0"), Wish(other_pool, other.name, "r0")],
        "an alternative of a request": [Wish(pool, device.name, "r0/first"), Wish(other_pool, other.name, "r1")],
    }
    problems: list[str] = []
    for what, wishes in cases.items():
        try:
            claim = await subject.claims.make(wishes)
        except ApiError as refused:
            subject.note(f"{what}: not tried, the API server refuses the claim: {refused}")
            continue
        try:
            subject.verify(claim, await subject.prepared(claim))
        except CheckFailed as failed:
            problems += [f"{what}: {line}" for line in str(failed).splitlines()]
        await subject.undone(claim)
    expect(not problems, "\n".join(problems))


async def idempotent(subject: Subject) -> None:
    before = subject.spec_files().keys()
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name))
    answer = await subject.prepared(claim)
    again = (await subject.prepare([claim]))[claim.uid]
    expect(
        same_answer(again, answer),
        f"prepare answers {shown(again)} the second time, {shown(answer)} the first",
        "keep the answer with the claim's UID and give it again: a kubelet asks until it has heard it",
    )
    for attempt in (1, 2):
        error = (await subject.unprepare([claim]))[claim.uid].error
        expect(not error, f"unprepare fails the {attempt}. time: {error}")
    nothing_left(subject, claim, "after unprepare")
    await subject.claims.forget(claim)
    # Files that name no claim are found by their number: of two rounds the second leaves no more than the first.
    once = subject.spec_files().keys() - before
    await _free(subject, pool, device, "after unprepare")
    more = subject.spec_files().keys() - before - once
    expect(not more or not subject.command, f"every claim leaves CDI files: {', '.join(sorted(more))}", _REMOVE)


_REMOVE = "remove the claim's CDI file in unprepare, before the record that tells of it"


def nothing_left(subject: Subject, claim: wire.Claim, when: str) -> None:
    """No file speaks of the claim any more. Raises CheckFailed."""
    left = subject.leftovers(claim)
    expect(not left, f"{when} files of the claim are left: {', '.join(left)}", _REMOVE)


async def cdi_names(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    seen: dict[str, tuple[str, cdi.ContainerEdits]] = {}
    for _ in range(2):
        claim = await subject.claim((pool, device.name))
        for one in (await subject.prepared(claim)).devices:
            for name in one.cdi_device_ids:
                edits = subject.resolve([name])[-1]
                owner, before = seen.setdefault(name, (claim.uid, edits))
                expect(before == edits, f"CDI device {name} means one thing for claim {owner}, another for {claim.uid}")
        await subject.undone(claim)


async def both_versions(subject: Subject) -> None:
    offered = [v for v in (wire.DRA_V1, wire.DRA_V1BETA1) if v in subject.info.supported_versions]
    if len(offered) < 2:
        raise NotApplicable(f"the driver offers only {', '.join(offered)}")
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name))
    answer = wire.without_share_ids(wire.NodePrepareResourcesResponse({"": await subject.prepared(claim)})).claims[""]
    older = await subject.prepared(claim, wire.DRA_V1BETA1)
    expect(same_answer(answer, older), f"v1beta1 answers {shown(older)}, v1 {shown(answer)}")
    await subject.undone(claim)


async def one_bad_claim(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    good = await subject.claim((pool, device.name))
    bad = await subject.claims.make([], allocated=False)
    try:
        answers = await subject.prepare([bad, good])
        expect(answers[bad.uid].error, "prepare of a claim that is not allocated succeeds")
        expect(not answers[good.uid].error, f"one bad claim spoils another: {answers[good.uid].error}")
    except PluginError as error:
        if error.unreachable or error.late:
            raise
        # The whole call failed, as with the Go helper: allowed, but then nothing of the batch may stay prepared alone.
        answer = (await subject.prepare([good]))[good.uid]
        expect(not answer.error, f"after a failed batch the good claim cannot be prepared: {answer.error}")
    for claim in (bad, good):
        await subject.undone(claim)


async def batch(subject: Subject) -> None:
    found = await _together(subject, 2)
    claims = [await subject.claim((pool, device.name)) for pool, device in found[:3]]
    answers = await subject.prepare(claims)
    for claim in claims:
        expect(
            not answers[claim.uid].error, f"of {len(claims)} claims in one call one fails: {answers[claim.uid].error}"
        )
        subject.verify(claim, answers[claim.uid])
    stranger = wire.Claim("default", "22222222-2222-2222-2222-222222222222", "drakkar-check-nobody")
    undone = await subject.unprepare([stranger, *claims])
    for uid, answer in undone.items():
        expect(not answer.error, f"unprepare of several claims fails for {uid}: {answer.error}")
    for claim in claims:
        nothing_left(subject, claim, "after unprepare of several claims")
        await subject.claims.forget(claim)


async def replaced_claim(subject: Subject) -> None:
    found = await subject.devices()
    pool, device = found[0]
    claim = await subject.claim((pool, device.name))
    other = wire.Claim(claim.namespace, "11111111-1111-1111-1111-111111111111", claim.name)
    subject.claims.wanted[other] = {}
    for prepared in (False, True):
        if prepared:
            await subject.prepared(claim)
        expect(
            await refusal(subject, other),
            "prepare with another UID than the claim has succeeds: the claim was deleted and made anew",
        )
    # The same name again, for a claim with another device: what was known of the first does not count.
    await subject.unprepare([other])
    await subject.undone(claim)
    await subject.claims.forget(other)
    pool, device = found[-1]
    again = await subject.claims.make([Wish(pool, device.name)], name=claim.name)
    subject.verify(again, await subject.prepared(again))
    await subject.undone(again)


async def lost_claim(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name))
    await subject.prepared(claim)
    await subject.claims.forget(claim)
    error = (await subject.unprepare([claim]))[claim.uid].error
    expect(not error, f"unprepare fails once the claim is deleted: {error}")
    nothing_left(subject, claim, "after unprepare of a deleted claim")
    await _free(subject, pool, device, "after unprepare of a deleted claim")


async def _free(subject: Subject, pool: str, device: v1.Device, when: str) -> None:
    """The device can be prepared for somebody else."""
    claim = await subject.claim((pool, device.name))
    error = (await subject.prepare([claim]))[claim.uid].error
    expect(not error, f"{when} device {pool}/{device.name} cannot be prepared for another claim: {error}")
    await subject.undone(claim)


async def bad_config(subject: Subject) -> None:
    found = await subject.devices()
    pool, device = found[0]
    claim = await subject.claim((pool, device.name), config=NONSENSE)
    refused = await refusal(subject, claim)
    expect(refused, "parameters that the driver cannot know are ignored; it must refuse them")
    undone = (await subject.unprepare([claim]))[claim.uid].error
    expect(not undone, f"after refused parameters unprepare fails: {undone}")
    nothing_left(subject, claim, "after refused parameters and unprepare")
    await subject.claims.forget(claim)
    await _free(subject, pool, device, "after refused parameters and unprepare")
    await _others_beside(subject, found)


async def _others_beside(subject: Subject, found: list[Found]) -> None:
    """Parameters are the business of the claim that has them, and not of its neighbours in the call."""
    pool, device = found[-1]
    bad = await subject.claim((found[0][0], found[0][1].name), config=NONSENSE)
    good = await subject.claim((pool, device.name)) if len(found) > 1 else None
    try:
        answers = await subject.prepare([bad, *([good] if good else [])])
    except PluginError as error:
        if error.unreachable or error.late:
            raise
        raise CheckFailed(
            f"refused parameters of one claim fail the whole call: {error}",
            "put the words into the field error of that claim's answer; a failed call is void for every claim in it",
        ) from None
    if good is not None:
        expect(not answers[good.uid].error, f"refused parameters of one claim spoil another: {answers[good.uid].error}")
        await subject.undone(good)
    await subject.undone(bad)


async def parameters(subject: Subject) -> None:
    if subject.parameters is None:
        raise NotApplicable("needs --parameters: a file with parameters that the driver takes")
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name), config=subject.parameters)
    await subject.prepared(claim)
    await subject.undone(claim)
    known = {"apiVersion", "kind"}
    wrong: dict[str, Object] = {"an unknown field": {**subject.parameters, "drakkarCheckUnknown": 1}}
    for name in subject.parameters.keys() - known:
        wrong[f"field {name} of another type"] = {**subject.parameters, name: [[{"drakkar": None}]]}
    for name in known & subject.parameters.keys():
        wrong[f"another {name}"] = {**subject.parameters, name: "check.drakkar.dev/v9"}
    taken: list[str] = []
    for what, config in wrong.items():
        claim = await subject.claim((pool, device.name), config=config)
        if not await refusal(subject, claim):
            taken.append(what)
        await subject.undone(claim)
    expect(not taken, f"parameters are taken with {', '.join(sorted(taken))}")


async def other_drivers(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    theirs = Wish(pool, device.name, "theirs", OTHER_DRIVER)
    claim = await subject.claims.make([theirs, Wish(pool, device.name, "ours")], foreign=NONSENSE)
    status = {"driver": OTHER_DRIVER, "pool": pool, "device": device.name, "data": {"check": "theirs"}}
    await subject.claims.client.patch(
        RESOURCECLAIM, claim.name, claim.namespace, {"status": {"devices": [status]}}, subresource="status"
    )
    subject.verify(claim, await subject.prepared(claim))
    entries = (await subject.claims.client.get(RESOURCECLAIM, claim.name, claim.namespace)).status.devices or []
    kept = [msgspec.to_builtins(entry) for entry in entries if entry.driver == OTHER_DRIVER]
    expect(
        [entry.get("data") for entry in kept] == [status["data"]],
        f"after prepare the other driver's entry in status.devices is {kept}, it was {status}",
        "write only entries of your own driver, by server-side apply with a field manager of your own",
    )
    await subject.undone(claim)


async def device_in_use(subject: Subject) -> None:
    pool, device = await _exclusive(subject)
    claim = await subject.claim((pool, device.name))
    await subject.prepared(claim)
    await refused_in_use(subject, pool, device)
    await subject.undone(claim)
    # Two at the same moment: one has it.
    for _ in range(3):
        claims = [await subject.claim((pool, device.name)) for _ in range(2)]
        answers = await asyncio.gather(*(subject.prepare([one]) for one in claims), return_exceptions=True)
        got = [
            one.uid for one, answer in zip(claims, answers, strict=True)
            if isinstance(answer, dict) and not answer[one.uid].error
        ]  # fmt: skip
        expect(len(got) < 2, f"device {pool}/{device.name} is prepared for two claims that ask at the same moment")
        for one in claims:
            await subject.undone(one)


async def _exclusive(subject: Subject) -> Found:
    found = [each for each in await subject.devices() if not each[1].allowMultipleAllocations]
    if not found:
        raise NotApplicable("every device may be shared")
    return found[0]


async def refused_in_use(subject: Subject, pool: str, device: v1.Device, endpoint: str = "", when: str = "") -> None:
    """A device that a claim has is not prepared for a second one."""
    second = await subject.claim((pool, device.name))
    try:
        error = (await subject.prepare([second], endpoint=endpoint))[second.uid].error
    except PluginError as failed:
        if failed.unreachable or failed.late:
            raise
        error = str(failed)
    expect(error, f"device {pool}/{device.name} is prepared for two claims at once{when}")
    await subject.unprepare([second], endpoint=endpoint)
    await subject.claims.forget(second)


async def admin_access(subject: Subject) -> None:
    pool, device = await _exclusive(subject)
    claim = await subject.claim((pool, device.name))
    await subject.prepared(claim)
    admin = await subject.claims.make([Wish(pool, device.name, admin=True)])
    made = (await subject.claims.client.get(RESOURCECLAIM, admin.name, admin.namespace)).status.allocation
    if made is None or not any(result.adminAccess for result in made.devices.results or ()):
        for each in (admin, claim):
            await subject.undone(each)
        raise NotApplicable("the API server knows no admin access")
    refused = await refusal(subject, admin)
    if refused:
        subject.remark(f"a claim with admin access cannot have a device that is in use: {refused.words}")
    await subject.undone(admin)
    again = (await subject.prepare([claim]))[claim.uid]
    expect(not again.error, f"after a claim with admin access is undone, the other one is not prepared: {again.error}")
    subject.edits(again.devices)
    await subject.undone(claim)


async def shared_device(subject: Subject) -> None:
    found = [each for each in await subject.devices() if each[1].allowMultipleAllocations]
    if not found:
        raise NotApplicable("no device may be shared")
    pool, device = found[0]
    claims = [await subject.claim((pool, device.name)) for _ in range(2)]
    for claim in claims:
        answer = await subject.prepared(claim)
        if wire.DRA_V1 in subject.info.supported_versions:
            subject.verify(claim, answer)
    await subject.undone(claims[0])
    again = (await subject.prepare([claims[1]]))[claims[1].uid]
    expect(not again.error, f"when one share is given back, the other is not prepared: {again.error}")
    subject.edits(again.devices)
    await subject.undone(claims[1])


async def parallel_claims(subject: Subject) -> None:
    found = await _together(subject, 1)
    begin = time.monotonic()
    claim = await subject.claim((found[0][0], found[0][1].name))
    await subject.prepared(claim)
    alone = time.monotonic() - begin
    await subject.undone(claim)
    # Where a driver does one after the other, as many as it can do before a kubelet loses patience.
    found = found[: max(2, min(PARALLEL, int(_TOGETHER / alone)))]
    claims = [await subject.claim((pool, device.name)) for pool, device in found]
    answers: list[dict[str, wire.NodePrepareResourceResponse]] = []
    for _ in range(2):
        answers = await asyncio.gather(*(subject.prepare([claim]) for claim in claims))
        for claim, answer in zip(claims, answers, strict=True):
            expect(not answer[claim.uid].error, answer[claim.uid].error)
    for claim, answer in zip(claims, answers, strict=True):
        subject.verify(claim, answer[claim.uid])
    ids = [name for answer in answers for one in answer.values() for d in one.devices for name in d.cdi_device_ids]
    per_claim = [name for name in ids if any(claim.uid in name for claim in claims)]
    expect(len(set(per_claim)) == len(per_claim), "two claims got the same CDI device")
    done = await asyncio.gather(*(subject.unprepare([claim]) for claim in claims))
    for claim, answer in zip(claims, done, strict=True):
        expect(not answer[claim.uid].error, answer[claim.uid].error)
        await subject.claims.forget(claim)


async def _together(subject: Subject, least: int) -> list[Found]:
    """Devices that can be had at the same time: in order, as far as the counters of their pool go."""
    slices = await subject.published()
    usable = {(pool, device.name) for pool, device in await subject.devices()}
    left: dict[tuple[str, str, str], Quantity] = {}
    for found in slices:
        for counters in found.spec.sharedCounters or ():
            for name, counter in counters.counters.items():
                left[found.spec.pool.name, counters.name, name] = Quantity.parse(counter.value)
    chosen: list[Found] = []
    for found in slices:
        pool = found.spec.pool.name
        for device in found.spec.devices or ():
            draws = {
                (pool, consumed.counterSet, name): Quantity.parse(counter.value)
                for consumed in device.consumesCounters or ()
                for name, counter in consumed.counters.items()
            }
            fits = all(key in left and left[key] >= amount for key, amount in draws.items())
            if fits and (pool, device.name) in usable:
                left |= {key: left[key] - amount for key, amount in draws.items()}
                chosen.append((pool, device))
    if len(chosen) < least:
        raise NotApplicable(f"no {least} devices can be had at once")
    return chosen


async def metadata_files(subject: Subject) -> None:
    pool, device = (await subject.devices())[0]
    claim = await subject.claim((pool, device.name))
    answer = await subject.prepared(claim)
    kind = f"{subject.name}/metadata"
    ids = [name for d in answer.devices for name in d.cdi_device_ids if cdi.parse_device_id(name)[0] == kind]
    if not ids:
        await subject.undone(claim)
        raise NotApplicable("the driver describes its devices in no file (KEP-5304)")
    edits = subject.edits(answer.devices)
    expect(any(edit.mounts for edit in edits), f"CDI device {ids[0]} mounts no file")
    problems = judge_mounts(edits, Path("/"))
    await subject.undone(claim)
    expect(not problems, "\n".join(problems))
