"""The rules, in the order in which they make sense, and the run over all of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from drakkar.api.errors import ApiError
from drakkar.client.transport import Unreachable
from drakkar.driver.check import calls, published, survival
from drakkar.driver.check.report import Finding, Report, Status
from drakkar.driver.check.subject import CheckFailed, NotApplicable, Subject
from drakkar.plugin.cdi import CdiError
from drakkar.plugin.grpc_client import PluginError

#: Checks with calls that got no answer after which no more are made.
_HANGS = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, what usually helps where it is broken, and how it is tried.

    `needs` names what the kit must have been given.
    """

    name: str
    rule: str
    cure: str
    run: Callable[[Subject], Awaitable[None]]
    needs: frozenset[str] = frozenset()


async def run_checks(
    subject: Subject, only: Sequence[str] = (), found: Callable[[Finding], None] = lambda _: None
) -> Report:
    """Run all checks (or those named in `only`); a broken one does not stop the others. `found` hears of each."""
    findings: list[Finding] = []
    have = {name for name, given in (("api", subject.client), ("command", subject.command)) if given}
    hangs = 0
    try:
        for check in CHECKS:
            if only and check.name not in only and check.name != "registration":
                continue
            before = subject.hung
            if hangs < _HANGS:
                findings.append(await _run(check, subject, have))
            else:
                message = f"calls got no answer in {hangs} checks, so there is no use in more"
                findings.append(Finding(check=check.name, rule=check.rule, status="not run", message=message))
            hangs += subject.hung > before
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
    subject.remarks.clear()
    subject.notes.clear()
    status: Status = "ok"
    message = cure = ""
    try:
        await check.run(subject)
        status = "warning" if subject.remarks else "ok"
        message = "\n".join([*subject.remarks, *subject.notes])
    except NotApplicable as reason:
        return Finding(check=check.name, rule=check.rule, status="not run", message=str(reason))
    except (CheckFailed, PluginError, CdiError, ApiError, Unreachable, TimeoutError, OSError) as error:
        status, message = "failed", "\n".join([str(error) or type(error).__name__, *subject.remarks])
        cure = error.cure if isinstance(error, CheckFailed) else ""
    seconds = time.monotonic() - begin
    if status == "failed" and check.run is not calls.registration:
        if died := await subject.revive():
            message = f"{died}\n{message}"
        await subject.tidy()
    cure = (cure or check.cure) if status != "ok" else ""
    return Finding(check=check.name, rule=check.rule, status=status, message=message, cure=cure, seconds=seconds)


_API, _COMMAND, _ALL = frozenset(("api",)), frozenset(("command",)), frozenset(("api", "command"))

CHECKS: tuple[Check, ...] = (
    Check(
        "registration",
        "GetInfo tells type, name, endpoint and versions, every time the same",
        "answer GetInfo with type DRAPlugin, the driver's name, the absolute path of the DRA socket, and v1.DRAPlugin "
        "or v1beta1.DRAPlugin among supported_versions",
        calls.registration,
    ),
    Check(
        "listens-first",
        "the DRA socket listens before the registration socket does",
        "open the DRA socket first, the registration socket last",
        calls.listens_first,
    ),
    Check(
        "offered-services",
        "every version that is offered can be called",
        "serve k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin for v1.DRAPlugin, likewise v1beta1; offer what is served",
        calls.offered_services,
    ),
    Check(
        "empty-call",
        "a call without claims answers an empty map",
        "answer what was asked: an entry per claim, none for none",
        calls.empty_call,
    ),
    Check(
        "unknown-claims",
        "unprepare of an unknown claim succeeds, prepare fails",
        "unprepare says that nothing is prepared, which is so; prepare reads the claim before it does anything",
        calls.unknown_claims,
    ),
    Check(
        "slices",
        "complete pools, consistent counters, owned by the Node",
        "write all slices of a pool with one generation and their number in resourceSliceCount, at most 128 devices "
        "each, nodeName set and the Node as owner; delete the others",
        published.slices,
        _API,
    ),
    Check(
        "health",
        "a complete report of known states when the stream opens",
        "send all published devices at once, by pool and name, and again on every change",
        published.health,
    ),
    Check(
        "health-stream",
        "the health stream stays open, beside other calls",
        "keep the stream until the kubelet closes it",
        published.health_stream,
    ),
    Check(
        "advertised-delivered",
        "every published device can be prepared, with CDI devices that a runtime can use",
        "answer with pool and device of the claim's allocation, its main request, and ids of CDI files "
        "that are written before the answer",
        calls.advertised_is_delivered,
        _API,
    ),
    Check(
        "several-requests",
        "devices are told apart by request",
        "answer every result of the driver, with the part before the slash of its request in request_names",
        calls.several_requests,
        _API,
    ),
    Check(
        "idempotent",
        "repeated calls answer the same and leave nothing behind",
        "keep a record per claim UID; unprepare of what is not prepared (any more) succeeds",
        calls.idempotent,
        _API,
    ),
    Check(
        "cdi-names",
        "the name of a CDI device never means something else",
        "put the claim's UID into the name: runtimes remember devices",
        calls.cdi_names,
        _API,
    ),
    Check(
        "metadata-files",
        "files that describe devices are there and can be read",
        "write the file before the answer to prepare, as KEP-5304 says",
        calls.metadata_files,
        _API,
    ),
    Check(
        "both-versions",
        "v1 and v1beta1 answer alike",
        "let both services call the same code, or offer one",
        calls.both_versions,
        _API,
    ),
    Check(
        "one-bad-claim",
        "what is wrong with one claim does not touch another",
        "put what is wrong with a claim into the field error of its answer, and go on with the next",
        calls.one_bad_claim,
        _API,
    ),
    Check(
        "batch",
        "several claims of one call each get their own answer",
        "answer claim by claim, under its UID, with its own devices",
        calls.batch,
        _API,
    ),
    Check(
        "replaced-claim",
        "a claim with another UID is refused",
        "compare metadata.uid with the UID of the call, and keep records by UID, not by name",
        calls.replaced_claim,
        _API,
    ),
    Check(
        "lost-claim",
        "unprepare works once the claim is deleted",
        "keep on disk what unprepare needs; it is not allowed to read the claim",
        calls.lost_claim,
        _API,
    ),
    Check(
        "bad-config",
        "unknown opaque parameters are refused, for their claim alone",
        "decode parameters strictly by apiVersion and kind, before anything is done, and put what is wrong into the "
        "claim's error",
        calls.bad_config,
        _API,
    ),
    Check(
        "parameters",
        "parameters of the driver are taken, and refused with a fault in them",
        "refuse unknown fields, wrong types and unknown versions",
        calls.parameters,
        _API,
    ),
    Check(
        "other-drivers",
        "results, parameters and status of other drivers are left alone",
        "look only at results and configs whose driver is yours",
        calls.other_drivers,
        _API,
    ),
    Check(
        "device-in-use",
        "a device is not prepared for a second claim",
        "look into the records, under one lock with writing the new one, and refuse what another claim has",
        calls.device_in_use,
        _API,
    ),
    Check(
        "shared-device",
        "a device that may be shared is prepared for several claims",
        "tell shares apart by shareID, and do not refuse a result that has one",
        calls.shared_device,
        _API,
    ),
    Check(
        "admin-access",
        "admin access neither waits for a device nor takes it",
        "neither refuse nor record results with adminAccess as use of the device",
        calls.admin_access,
        _API,
    ),
    Check(
        "parallel-claims",
        f"{calls.PARALLEL} claims at once, repeated",
        "lock by claim, in one order, and never wait for the kubelet with a lock held",
        calls.parallel_claims,
        _API,
    ),
    Check(
        "growth",
        "many calls cost neither memory nor open files",
        "keep nothing per call",
        survival.growth,
        _ALL,
    ),
    Check(
        "health-repeats",
        "health is told again before the kubelet takes devices for Unknown",
        "send the complete report again within health_check_timeout_seconds, also when nothing has changed",
        published.health_repeats,
    ),
    Check(
        "slices-restored",
        "slices that a kubelet deleted come back",
        "watch the slices and write again what is missing: a kubelet deletes those of its node when it starts",
        published.slices_restored,
        _ALL,
    ),
    Check(
        "stale-sockets",
        "a killed driver starts again where its sockets are left",
        "remove a socket file that is left before listening",
        survival.stale_sockets,
        _COMMAND,
    ),
    Check(
        "crash-restart",
        "after SIGKILL the same answers, and the same devices in use",
        "write the record of a claim to disk before the answer, and read it after a start",
        survival.crash_and_restart,
        _ALL,
    ),
    Check(
        "crash-between",
        "SIGKILL within prepare and unprepare is taken up again",
        "write a record before the first step and remove it after the last; make every step repeatable",
        survival.crash_in_between,
        _ALL,
    ),
    Check(
        "reboot",
        "after a reboot claims are prepared anew",
        "keep the boot id (/proc/sys/kernel/random/boot_id) with each record; one of another boot is not prepared",
        survival.reboot,
        _ALL,
    ),
    Check(
        "torn-files",
        "a driver comes back where a power cut has torn its files",
        "write to one side, fsync and rename; take a record that cannot be read for a half prepared claim",
        survival.torn_files,
        _ALL,
    ),
    Check(
        "two-instances",
        "an upgrade hands over without a gap",
        "put POD_UID into the names of both sockets (Go: kubeletplugin.RollingUpdate), and keep records "
        "where both read them",
        survival.two_instances,
        _ALL,
    ),
    Check(
        "slices-steady",
        "restarts and upgrades leave the slices as they were, without a gap",
        "compare what stands in the API with what should, and write only differences, with the next generation where "
        "more than one slice changes; never delete slices to write them again",
        published.slices_steady,
        _ALL,
    ),
    Check(
        "orderly-stop",
        "SIGTERM removes the registration socket",
        "remove the sockets on SIGTERM, then end",
        survival.orderly_stop,
        _COMMAND,
    ),
)
