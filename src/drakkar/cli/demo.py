"""``drakkar demo tpu``: the 64-chip story, unattended.

The plane runs in this process, or is that of a kubeconfig, on which the user has started the parts. Manifests are
applied and the host is killed over TLS with the kubeconfig, as kubectl would. A second process watches and alone
decides whether the story was told (`drakkar.cli.observer`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from drakkar.api import kinds, names
from drakkar.api.errors import ApiError, DrakkarError, UsageError
from drakkar.api.meta import Object
from drakkar.cli.manifests import apply, read_objects
from drakkar.cli.outputs import check_writable
from drakkar.cli.picture import grid, timeline
from drakkar.cli.plane import Plane, PlaneOptions, data_folder
from drakkar.cli.target import connect, kubeconfig_of
from drakkar.client import Client
from drakkar.insight.story import AFTER, BEFORE, TITLES, claim_hosts

#: The node that runs in a process of its own where that process is to be stopped; in the first slice.
STOPPED = "host-0"
MANIFESTS = ("deviceclass.yaml", "claim.yaml", "job.yaml", "second-job.yaml", "whole-pod-job.yaml")
#: Where the story plays on somebody else's cluster, unless told otherwise.
NAMESPACE = "drakkar-demo"
#: Label of that namespace: it may be deleted.
DEMO = "drakkar.dev/demo"
#: Value of ``spec.schedulerName`` by which ``drakkar scheduler`` knows its pods.
SCHEDULER_NAME = "drakkar"
#: Which part of a cluster each step takes, by the fact that shows it; ``SCHEDULER`` stands for ours in the demo's mode.
NEEDED = {
    "nodes-ready": "hollow nodes: `drakkar node hollow --fleet tpu-16`",
    "devices-published": "the driver: `drakkar driver run tpu`",
    "claim-allocated": "SCHEDULER, and a claim controller (kube-controller-manager)",
    "job-running": "whoever binds the pods: kube-scheduler, or with --mode own `drakkar scheduler`",
    "other-job-running": "the same as the first job, and free hosts",
    "large-job-waits": "SCHEDULER",
    "node-lost": "a node controller (kube-controller-manager waits 50 s), and --patience",
    "devices-tainted": "the driver: `drakkar driver run tpu`",
    "pods-evicted": "`drakkar controllers --only eviction,node-loss`, or kube-controller-manager",
    "pods-gone": "`drakkar controllers --only eviction,node-loss`, with --node-grace no more than the cluster's own",
    "claim-freed": "a claim controller (kube-controller-manager)",
    "claim-reallocated": "SCHEDULER, a Job controller (kube-controller-manager waits 10 s), and --patience",
    "job-recovered": "whoever binds the pods, and --patience",
}
#: Seconds that the end of the pods, and of the namespace, is waited for.
CLEARING = 60


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where the story plays, and how its pods are asked for.

    ``mode`` is empty where our scheduler has all pods, else that of ``drakkar scheduler``.
    """

    client: Client
    kubeconfig: Path
    context: str | None = None
    namespace: str = "default"
    mode: str = ""
    plane: Plane | None = None

    def of_stage(self, obj: Object) -> Object:
        """A manifest as it is applied here."""
        if obj["kind"] not in ("Job", "ResourceClaim"):
            return obj
        obj = {**obj, "metadata": {**obj["metadata"], "namespace": self.namespace}}
        if obj["kind"] == "Job" and self.mode:
            template = obj["spec"]["template"]
            ours: Object = {"schedulerName": SCHEDULER_NAME}
            if self.mode == "gate":
                ours = {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}
            obj["spec"] = {**obj["spec"], "template": {**template, "spec": {**template["spec"], **ours}}}
        return obj


@dataclass
class _Seen:
    """What the observer has told so far."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    verdict: dict[str, Any] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, *names: str) -> None:
        """Until all these facts were told, or the observer has given its verdict."""
        while self.verdict is None and not all(name in self.facts for name in names):
            self.changed.clear()
            await self.changed.wait()


def run(args: argparse.Namespace) -> int:
    """Tell the story; 0 only if the observer saw every step."""
    check_writable("--json", args.json)
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    started = time.time()
    if args.kubeconfig:
        return await _on_cluster(args, started)
    with data_folder(args.data) as data:
        own_process = (STOPPED,) if args.fault == "sigstop" else ()
        options = PlaneOptions.of(args, data, "tpu-16", own_process)
        _tell(started, "starting the control plane and 16 hollow nodes")
        async with Plane(options) as plane, connect(plane.kubeconfig) as client:
            _tell(started, f"API server ready at {plane.url}")
            return await _play(_Stage(client, plane.kubeconfig, plane=plane), args, started)


async def _on_cluster(args: argparse.Namespace, started: float) -> int:
    """The story on a cluster on which hollow nodes, driver, scheduler and controllers run already."""
    if args.fault == "sigstop":
        raise UsageError("--fault sigstop stops a process of the demo's own plane; with --kubeconfig use annotation")
    path = kubeconfig_of(args)
    async with connect(path, args.context) as client:
        stage = _Stage(client, path, args.context, args.namespace or NAMESPACE, args.mode)
        if await _namespace(stage) is not None:
            # Left of an earlier run; its pods would hold the slices.
            await _clear(stage, started)
        metadata: Object = {"name": stage.namespace, "labels": {DEMO: "true"}}
        await client.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        _tell(started, f"playing in namespace {stage.namespace}; waiting for the hollow nodes and the driver's devices")
        try:
            return await _play(stage, args, started)
        finally:
            await _clear(stage, started)


def needed(facts: Container[str], mode: str) -> str:
    """What the first step takes that was not seen on a cluster of the user's; empty where all were seen."""
    ours = "`drakkar scheduler`" + (", which must not run with --mode own" if mode == "gate" else "")
    for name in (*BEFORE, *AFTER):
        if name not in facts:
            return f"{TITLES[name]}: that takes {NEEDED[name].replace('SCHEDULER', ours)}"
    return ""


async def _namespace(stage: _Stage) -> Object | None:
    """The namespace of an earlier run. Raises UsageError where it is somebody else's: the demo deletes its own."""
    try:
        found: Object = await stage.client.get(kinds.NAMESPACE, stage.namespace)
    except ApiError as error:
        if error.code == 404:
            return None
        raise
    if (found["metadata"].get("labels") or {}).get(DEMO) != "true":
        raise UsageError(
            f"namespace {stage.namespace} is there and not of this demo, which deletes its namespace: name another one "
            "with --namespace"
        )
    return found


async def _clear(stage: _Stage, started: float) -> None:
    """Revives hosts and removes the namespace with all that the story made.

    Jobs go first: kube-controller-manager keeps the last failed pod of an index until it has made the next one, which
    it cannot in a namespace that is on its way out.
    """
    client, namespace = stage.client, stage.namespace
    for node in (await client.list(kinds.NODE)).items:
        if names.HOLLOW in (node["metadata"].get("annotations") or {}):
            await _mark(client, node["metadata"]["name"], None)
    for job in (await client.list(kinds.JOB, namespace)).items:
        await client.delete(kinds.JOB, job["metadata"]["name"], namespace, propagation="Background")

    async def pods_gone() -> bool:
        return not (await client.list(kinds.POD, namespace)).items

    async def namespace_gone() -> bool:
        return await _namespace(stage) is None

    await _within(CLEARING, pods_gone, f"pods of namespace {namespace} are not gone")
    await client.delete(kinds.NAMESPACE, namespace)
    await _within(CLEARING, namespace_gone, f"namespace {namespace} is not gone; kubectl describe tells why")
    _tell(started, f"namespace {namespace} is gone, hosts are alive again")


async def _within(seconds: int, holds: Callable[[], Awaitable[bool]], problem: str) -> None:
    for _ in range(2 * seconds):
        if await holds():
            return
        await asyncio.sleep(0.5)
    raise DrakkarError(f"{problem} after {seconds} s")


async def _play(stage: _Stage, args: argparse.Namespace, started: float) -> int:
    async with _observer(stage, args) as (process, seen):
        reading = asyncio.create_task(_read(process, seen, started), name="observer-lines")
        killed = await _direct(stage, seen, args.fault, started)
        await reading
        code = await process.wait()
    failed = _report(seen, killed, started, code, args.json)
    if failed and stage.plane is None and (lacking := needed(seen.facts, stage.mode)):
        print(f"  {lacking}")
    return failed


async def _direct(stage: _Stage, seen: _Seen, fault: str, started: float) -> float:
    """Apply the manifests, kill a host of the first slice; returns the time of death (0 = never got there)."""
    client, plane = stage.client, stage.plane
    await seen.wait("nodes-ready", "devices-published")
    folder = files("drakkar.sim") / "stories" / "tpu"
    # Each is applied when the one before has settled, so that the story is the same every time.
    for manifest, fact in zip(
        MANIFESTS, (None, None, "job-running", "other-job-running", "large-job-waits"), strict=True
    ):
        if seen.verdict is not None:
            return 0.0
        for obj in read_objects(Path(str(folder / manifest))):
            await apply(client, stage.of_stage(obj))
            _tell(started, f"applied {obj['kind'].lower()}/{obj['metadata']['name']}")
        if fact:
            await seen.wait(fact)
    if seen.verdict is not None:
        return 0.0
    claim = await client.get(kinds.RESOURCECLAIM, "slice", stage.namespace)
    hosts = sorted(claim_hosts(claim))
    victim = STOPPED if plane is not None and fault == "sigstop" else hosts[0]
    if victim not in hosts:
        raise DrakkarError(f"{victim} runs in a process of its own, but the job was not placed on it")
    killed = time.time()
    if plane is not None and fault == "sigstop":
        os.kill(plane.own_process(victim), signal.SIGSTOP)
        _tell(started, f"{victim}: its process is stopped (SIGSTOP)")
    else:
        await _mark(client, victim, "failed")
        _tell(started, f"{victim} dies: its heartbeat stops, nothing else is told")
    if fault == "flap":
        await seen.wait("pods-evicted")
        await _mark(client, victim, None)
        _tell(started, f"{victim} comes back in the middle of the recovery")
    await seen.wait("job-recovered")
    if plane is not None and fault == "sigstop":
        os.kill(plane.own_process(victim), signal.SIGCONT)
    return killed


async def _mark(client: Client, node: str, value: str | None) -> None:
    await client.patch(kinds.NODE, node, None, {"metadata": {"annotations": {names.HOLLOW: value}}})


@contextlib.asynccontextmanager
async def _observer(stage: _Stage, args: argparse.Namespace) -> AsyncIterator[tuple[asyncio.subprocess.Process, _Seen]]:
    command = [sys.executable, "-m", "drakkar.cli.observer", "--kubeconfig", str(stage.kubeconfig)]
    command += ["--timeout", str(args.patience), "--namespace", stage.namespace]
    if stage.context:
        command += ["--context", stage.context]
    if args.fault == "flap":
        command.append("--may-return")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield process, _Seen()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(process: asyncio.subprocess.Process, seen: _Seen, started: float) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        message = json.loads(line)
        if "fact" in message:
            seen.facts[message["fact"]] = message
            _tell(started, f"seen: {message['title']} ({message['detail']})", message["time"])
        elif "verdict" in message:
            seen.verdict = message
        seen.changed.set()
    if seen.verdict is None:
        seen.verdict = {"verdict": ["the observer ended without a verdict"]}
        seen.changed.set()


def _report(seen: _Seen, killed: float, started: float, code: int, json_file: str | None) -> int:
    verdict = seen.verdict or {}
    faults: list[str] = list(verdict.get("verdict", ()))
    figures = _figures(seen, killed, started)
    if verdict.get("first"):
        print("\n" + grid("before", verdict["first"], verdict["other"], ""), end="")
        print(grid("after", verdict["now"], verdict["other"], verdict["lost"]))
    print(
        timeline(
            [(TITLES[name], seen.facts[name]["time"]) for name in (*BEFORE, *AFTER) if name in seen.facts],
            started,
            killed,
        )
    )
    for name, seconds in figures.items():
        print(f"{name}: {seconds:.2f} s")
    if json_file:
        document = {"facts": list(seen.facts.values()), "killed": killed, "figures": figures, **verdict}
        Path(json_file).write_text(json.dumps(document, indent=2) + "\n")
    if faults or code:
        print("\nthe story was NOT told:")
        for fault in faults or [f"the observer ended with exit code {code}"]:
            print(f"  {fault}")
        return 1
    print("\nevery step was seen through the API; verify found nothing")
    return 0


def _figures(seen: _Seen, killed: float, started: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    if "job-recovered" in seen.facts and "node-lost" in seen.facts and killed:
        recovered = seen.facts["job-recovered"]["time"]
        figures["from death to recovery"] = recovered - killed
        figures["from NotReady to the last pod Running"] = recovered - seen.facts["node-lost"]["time"]
    figures["whole demo"] = time.time() - started
    return figures


def _tell(started: float, text: str, moment: float | None = None) -> None:
    print(f"{(moment or time.time()) - started:6.2f} s  {text}", flush=True)
