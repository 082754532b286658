"""The life of one pod on its node: claims, volumes, init containers, containers, probes, end.

A worker looks at its pod again whenever something happens (the API, a container that ends, a probe, a time that has
come), does what is possible now and writes the status. Everything it has to remember lies in the pod's folder, so that
a new agent goes on where the old one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import POD
from drakkar.api.meta import Object
from drakkar.api.objects import is_deleting, is_sidecar, key_of, name_of, namespace_of, pod_is_done, uid_of
from drakkar.api.tree import at, child, children, text
from drakkar.client.clock import parse_timestamp
from drakkar.client.transport import Unreachable
from drakkar.node.agent import mounts, shims
from drakkar.node.agent.backoff import BackOff
from drakkar.node.agent.claims import ClaimProblem
from drakkar.node.agent.context import Context
from drakkar.node.agent.env import Configs, environment
from drakkar.node.agent.network import Attachment
from drakkar.node.agent.podfolder import LastAttempt, PodFolder, last_words
from drakkar.node.agent.podstatus import BACK_OFF, INIT, MAIN, SIDECAR, Slot, Where, patch_of, status_of
from drakkar.node.agent.probes import Probes
from drakkar.node.agent.runtime import ContainerProblem, Plan, identity_of
from drakkar.node.agent.shims import Attempt
from drakkar.node.agent.streams import Session, StreamProblem, Wanted
from drakkar.node.agent.volumes import VolumeProblem, Volumes
from drakkar.plugin.cdi import CdiError
from drakkar.plugin.failpoints import hit

logger = logging.getLogger(__name__)

#: Seconds before claims, volumes or the API are tried again: first, and longest.
_RETRY, _LONGEST_RETRY = 0.5, 15.0
#: Seconds between two looks at a pod to which nothing happens: content of volumes is brought up to date then.
_LOOK = 60.0
#: Seconds of grace for a pod that vanished from the API, and for one that says nothing of it.
_VANISHED_GRACE, _USUAL_GRACE = 2.0, 30.0
#: Seconds that a hook after the start may take.
_LONGEST_HOOK = 60.0


class Worker:
    """One pod. ``gone`` is called when nothing of it is left on the node."""

    def __init__(self, context: Context, pod: Object, gone: Callable[[Worker], None]):
        self.pod = pod
        self.uid = uid_of(pod)
        self.vanished = False
        #: Whether it waits for its claims.
        self.waiting = False
        #: Set once no container of the pod runs any more.
        self.quiet = asyncio.Event()
        self._context = context
        self._gone = gone
        self._folder = PodFolder(context.paths.pod(self.uid))
        runtime = context.runtime
        self._volumes = Volumes(
            context.client, self._folder.volumes, context.facts, runtime.tmpfs, isolates=runtime.isolates
        )
        self._wake = asyncio.Event()
        self._slots = [
            *(Slot(spec, SIDECAR if is_sidecar(spec) else INIT) for spec in children(pod, "spec", "initContainers")),
            *(Slot(spec, MAIN) for spec in children(pod, "spec", "containers")),
        ]
        self._attempts: dict[str, Attempt] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._backoffs = {slot.name: BackOff() for slot in self._slots}
        self._where = Where(context.host_ip, text(pod, "status", "podIP"))
        self._attached: Attachment | None = None
        self._sandbox = False
        self._refreshed = 0.0
        self._retry = _RETRY
        self._stopping: float | None = None
        #: Containers that were asked to end.
        self._asked: set[str] = set()
        self._works: set[asyncio.Future[None]] = set()
        self._failure: Object | None = None
        self._over = False
        self._cleaned = False
        self._said: set[tuple[str, str]] = set()

    # What others may do.

    def update(self, pod: Object) -> None:
        """The API has a newer state of the pod."""
        self.pod = pod
        self._wake.set()

    def vanish(self) -> None:
        """The API does not know the pod any more."""
        self.vanished = True
        self._wake.set()

    def wake(self) -> None:
        """Look again: devices' health may have changed."""
        self._wake.set()

    async def exec(self, container: str, command: Sequence[str], wanted: Wanted) -> Session:
        """A command in a running container. Raises StreamProblem."""
        attempt = self._running(container)
        return await self._context.runtime.exec(attempt.state.identity, attempt.folder, command, wanted)

    async def attach(self, container: str) -> Session:
        """The streams of a running container. Raises StreamProblem."""
        return await self._running(container).attach()

    def network_path(self) -> Path | None:
        """Network namespace of the pod, None for that of the host."""
        return self._attached.namespace if self._attached is not None else None

    def address(self) -> str:
        """Address of the pod."""
        return self._where.pod_ip or self._context.host_ip

    def slot(self, container: str) -> Slot:
        """Raises StreamProblem 404."""
        found = next((slot for slot in self._slots if slot.name == container), None)
        if found is None:
            raise StreamProblem(404, f'container "{container}" not found in pod "{name_of(self.pod)}"')
        return found

    def current(self) -> Object:
        """The pod with the status that this node gives it."""
        return {**self.pod, "status": {**child(self.pod, "status"), **self._status()}}

    def _running(self, container: str) -> Attempt:
        self.slot(container)
        attempt = self._attempts.get(container)
        if attempt is None or not attempt.running:
            raise StreamProblem(400, f'container "{container}" in pod "{name_of(self.pod)}" does not run')
        return attempt

    # The loop.

    async def run(self) -> None:
        """Until nothing of the pod is left, or cancelled: then containers go on."""
        try:
            await asyncio.to_thread(self._folder.write_pod, self.pod)
            await self._adopt()
            while True:
                self._wake.clear()
                pause = await self._step()
                if self._cleaned and self.vanished:
                    break
                await self._write_status()
                if self._cleaned and is_deleting(self.pod):
                    await self._delete()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            for task in (*self._probes.values(), *self._works):
                task.cancel()
            for attempt in self._attempts.values():
                attempt.release()
        await asyncio.to_thread(mounts.discard, self._folder.path)
        self._gone(self)

    async def _step(self) -> float:
        """Do what can be done now; seconds until the next look."""
        if self._cleaned:
            return _LOOK
        if self._stopping is None and (reason := self._why_stop()) is not None:
            self._begin_stop(reason)
        try:
            if self._stopping is not None:
                return await self._stop()
            if not self._sandbox and self._ended_before():
                return 0.0
            if not self._sandbox or self._context.clock.monotonic() - self._refreshed > _LOOK:
                await self._make_sandbox()
            self._retry, self.waiting = _RETRY, False
            return await self._run_containers()
        except ClaimProblem as problem:
            self.waiting = True
            what = "FailedUnprepareDynamicResources" if self._stopping is not None else "FailedPrepareDynamicResources"
            await self._say("Warning", what, f"{problem}")
        except VolumeProblem as problem:
            await self._say("Warning", "FailedMount", str(problem))
        except ContainerProblem as problem:
            await self._say("Warning", "FailedCreatePodSandBox", str(problem))
        except (ApiError, Unreachable) as error:
            logger.info("pod %s: %s", key_of(self.pod), error)
        except Exception as error:
            # A full disk, a broken runtime: whatever it is, a pod must not be left alone because of it.
            logger.exception("pod %s: cannot go on", key_of(self.pod))
            await self._say("Warning", "FailedSync", f"the node cannot go on with the pod: {error}")
        self._retry = min(self._retry * 2, _LONGEST_RETRY)
        return self._retry

    def _why_stop(self) -> str | None:
        """Why the pod ends now, None when it goes on."""
        if self.vanished or is_deleting(self.pod) or pod_is_done(self.pod):
            return ""
        if text(self.pod, "status", "startTime") and self._left() <= 0:
            return "DeadlineExceeded"
        return None

    def _left(self) -> float:
        """Seconds that the pod may still be active; one that is not known to have started has them all."""
        deadline = at(self.pod, "spec", "activeDeadlineSeconds")
        if deadline is None:
            return float("inf")
        started, now = text(self.pod, "status", "startTime"), self._context.clock.time()
        return (parse_timestamp(started) if started else now) + deadline - now

    def _ended_before(self) -> bool:
        """Whether an earlier agent has seen all of it but the end: then nothing is prepared again."""
        mains = [slot for slot in self._slots if slot.kind == MAIN]
        if any(slot.exit is None or self._starts_again(slot) for slot in mains):
            return False
        self._over = True
        self._begin_stop("")
        return True

    # Claims, volumes, network.

    async def _make_sandbox(self) -> None:
        context = self._context
        if not self._sandbox:
            await context.claims.prepare(self.pod)
            self._attached = await context.network.attach(self.pod)
            self._where = Where(context.host_ip, self._attached.address)
        status = {**child(self.pod, "status"), "podIP": self._where.pod_ip, "hostIP": self._where.host_ip}
        await self._volumes.make({**self.pod, "status": status})
        hit("volumes-made")
        self._refreshed = context.clock.monotonic()
        self._sandbox = True

    # Containers.

    async def _run_containers(self) -> float:
        pauses = [_LOOK, max(0.01, self._left())]
        self._look_at_devices()
        for slot in self._slots:
            if slot.kind == MAIN:
                continue
            wait = await self._keep(slot)
            if self._stopping is not None:
                return 0.0
            if wait is not None:
                pauses.append(wait)
                if slot.kind == INIT or not slot.started:
                    return min(pauses)
            elif (slot.kind == SIDECAR and not slot.started) or (slot.kind == INIT and slot.running):
                return min(pauses)
        mains = [slot for slot in self._slots if slot.kind == MAIN]
        for slot in mains:
            wait = await self._keep(slot)
            if wait is not None:
                pauses.append(wait)
        if mains and all(slot.exit is not None and not self._starts_again(slot) for slot in mains):
            self._over = True
            self._begin_stop("")
            return 0.0
        return min(pauses)

    async def _keep(self, slot: Slot) -> float | None:
        """Start a container when it is time; seconds until then, None when there is nothing to wait for."""
        if slot.running:
            return None
        if slot.exit is not None:
            if slot.kind == INIT and slot.exit.exitCode == 0:
                return None
            if not self._starts_again(slot):
                if slot.kind == INIT:
                    self._over = True
                    self._begin_stop("")
                return None
        backoff = self._backoffs[slot.name]
        wait = backoff.left(self._context.clock.monotonic())
        if wait > 0:
            if slot.exit is not None:
                where = f"container={slot.name} pod={name_of(self.pod)}_{namespace_of(self.pod)}({self.uid})"
                slot.waiting = (BACK_OFF, f"back-off {backoff.pause:g}s restarting failed {where}")
            return wait
        if slot.exit is not None:
            await self._clear(slot)
        try:
            async with self._context.starting:
                await self._start(slot)
        except ContainerProblem as problem:
            slot.waiting = (problem.reason, str(problem))
            await self._say("Warning", "Failed", f"Error: {problem}")
            now = self._context.clock.monotonic()
            backoff.ended(now)
            return backoff.left(now)
        finally:
            self._volumes.mounted(slot.spec)
        return None

    def _starts_again(self, slot: Slot) -> bool:
        policy = text(self.pod, "spec", "restartPolicy") or "Always"
        assert slot.exit is not None
        if slot.kind == SIDECAR:
            return not self._over
        if slot.kind == INIT:
            return policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and slot.exit.exitCode != 0)

    async def _start(self, slot: Slot) -> None:
        """Raises ContainerProblem."""
        context = self._context
        image = await context.runtime.image(slot.spec.get("image") or "")
        folder = self._attempt_folder(slot)
        identity = self._identity(slot)
        # What a crash in the middle of a start has left.
        await self._erase(identity, folder)
        await asyncio.to_thread(shutil.rmtree, folder, True)
        folder.mkdir(parents=True)
        pod = self.current()
        configs = Configs(context.client, namespace_of(pod))
        attached = self._attached
        assert attached is not None
        facts = replace(context.facts, api_host=attached.api)
        env = await environment(pod, slot.spec, configs, facts, image.env)
        try:
            edits = context.specs.resolve(context.claims.cdi_ids(self.pod, slot.spec))
        except CdiError as error:
            raise ContainerProblem("CreateContainerError", str(error)) from None
        plan = Plan(
            pod=pod,
            container=slot.spec,
            identity=identity,
            folder=folder,
            pod_folder=self._folder.path,
            image=image,
            env=env,
            mounts=tuple(self._volumes.mounts(pod, slot.spec)),
            edits=tuple(edits),
            network=attached.namespace,
            hostname=env["HOSTNAME"],
            hosts=attached.hosts,
        )
        made = await context.runtime.make(plan)
        hit("container-made")
        attempt = await shims.start(
            identity,
            folder,
            context.paths.logs(self.uid, slot.name) / f"{slot.number}.log",
            made,
            context.paths.sockets,
            tty=bool(slot.spec.get("tty")),
            stdin=bool(slot.spec.get("stdin")),
            stdin_once=bool(slot.spec.get("stdinOnce")),
            longest_log=context.longest_log,
            keep_logs=context.keep_logs,
        )
        hit("container-created")
        await context.runtime.started(identity, folder)
        hit("container-started")
        slot.image = image.digest
        self._follow(slot, attempt)
        if at(slot.spec, "lifecycle", "postStart"):
            self._do(self._after_start(slot, attempt))
        await self._say("Normal", "Started", f"Container started: {slot.name}", again=True)

    def _follow(self, slot: Slot, attempt: Attempt) -> None:
        """A container runs: wait for its end, and probe it meanwhile."""
        self._attempts[slot.name] = attempt
        slot.identity = f"{self._context.runtime.name}://{attempt.state.identity}"
        slot.started_at, slot.exit, slot.ready, slot.started = attempt.state.startedAt, None, False, False
        attempt.ended.add_done_callback(lambda _: self._ended(slot, attempt))
        if slot.kind == INIT or not attempt.running:
            return

        probes = self._probes_of(slot, attempt)
        self._probes[slot.name] = asyncio.create_task(probes.run(), name=f"probes-{slot.name}")

    def _probes_of(self, slot: Slot, attempt: Attempt) -> Probes:
        def found(kind: str, well: bool, words: str) -> None:
            self._probed(slot, attempt, kind, well, words)

        async def command(words: Sequence[str], wanted: Wanted) -> Session:
            return await self.exec(slot.name, words, wanted)

        return Probes(slot.spec, self.address(), command, self._context.clock, found)

    async def _hook(self, slot: Slot, attempt: Attempt, name: str, seconds: float) -> str:
        """Run a lifecycle hook of the container, if it has one; what is wrong, empty when nothing is."""
        hook = at(slot.spec, "lifecycle", name)
        if not hook:
            return ""
        if hook.get("sleep"):
            await asyncio.sleep(min(hook["sleep"]["seconds"], seconds))
            return ""
        return await self._probes_of(slot, attempt).once({**hook, "timeoutSeconds": seconds})

    async def _after_start(self, slot: Slot, attempt: Attempt) -> None:
        problem = await self._hook(slot, attempt, "postStart", _LONGEST_HOOK)
        if problem:
            await self._say("Warning", "FailedPostStartHook", f"PostStartHook of {slot.name} failed: {problem}")
            await self._signal(attempt, signal.SIGKILL)

    async def _terminate(self, slot: Slot, attempt: Attempt, seconds: float) -> None:
        """Ask a container to end, after its hook."""
        problem = await self._hook(slot, attempt, "preStop", seconds)
        if problem:
            await self._say("Warning", "FailedPreStopHook", f"PreStopHook of {slot.name} failed: {problem}")
        await self._signal(attempt, signal.SIGTERM)

    def _probed(self, slot: Slot, attempt: Attempt, kind: str, well: bool, words: str) -> None:
        if kind == "startup" and well:
            slot.started = True
        elif kind == "readiness":
            slot.ready = well
        if not well and attempt.running:
            self._do(self._say("Warning", "Unhealthy", f"{kind.capitalize()} probe failed: {words}"))
            if kind != "readiness":
                self._do(self._kill_unhealthy(slot, attempt, kind))
        self._wake.set()

    async def _kill_unhealthy(self, slot: Slot, attempt: Attempt, kind: str) -> None:
        message = f"Container {slot.name} failed {kind} probe, will be restarted"
        await self._say("Normal", "Killing", message)
        grace = at(slot.spec, f"{kind}Probe", "terminationGracePeriodSeconds")
        seconds = self._grace() if grace is None else float(grace)
        self._do(self._terminate(slot, attempt, seconds))
        await asyncio.wait([attempt.ended], timeout=seconds)
        if attempt.running:
            await self._signal(attempt, signal.SIGKILL)

    def _ended(self, slot: Slot, attempt: Attempt) -> None:
        if attempt.ended.cancelled() or self._attempts.get(slot.name) is not attempt:
            return
        task = self._probes.pop(slot.name, None)
        if task is not None:
            task.cancel()
        slot.exit, slot.ready, slot.started = attempt.ended.result(), False, False
        if attempt.orphaned():
            # Its monitor died. The status says that it has ended, so it must not go on beside the pod's others.
            self._do(self._signal(attempt, signal.SIGKILL))
        if slot.exit.exitCode != 0 and self._context.runtime.out_of_memory(attempt.state.identity):
            slot.exit = msgspec.structs.replace(slot.exit, outOfMemory=True)
        slot.message = last_words(attempt.folder)
        ran = slot.exit.finishedAt - slot.exit.startedAt
        self._backoffs[slot.name].ended(self._context.clock.monotonic(), ran)
        self._wake.set()

    async def _clear(self, slot: Slot) -> None:
        """Make room for the next attempt."""
        attempt = self._attempts.pop(slot.name, None)
        if attempt is not None:
            await self._remove(attempt)
        else:
            await self._erase(self._identity(slot), self._attempt_folder(slot))
        assert slot.exit is not None
        self._folder.write_last(slot.name, LastAttempt(slot.exit, slot.identity))
        slot.last, slot.last_identity, slot.exit, slot.started_at = slot.exit, slot.identity, None, None
        slot.number += 1
        slot.waiting = ("ContainerCreating", "")

    async def _remove(self, attempt: Attempt) -> None:
        if attempt.orphaned():
            await self._signal(attempt, signal.SIGKILL)
        attempt.release()
        await self._erase(attempt.state.identity, attempt.folder)

    async def _erase(self, identity: str, folder: Path) -> None:
        """Nothing of an attempt is left but its folder; may be done again."""
        await self._context.runtime.remove(identity, folder)
        shims.forget(folder, self._context.paths.sockets)

    async def _signal(self, attempt: Attempt, number: int) -> None:
        if shims.start_time(attempt.state.pid) == attempt.state.pidStart:
            await self._context.runtime.signal(attempt.state.identity, attempt.state.pid, number)

    def _look_at_devices(self) -> None:
        context = self._context
        for slot in self._slots:
            slot.devices = context.healths.status(context.claims.of_container(self.pod, slot.spec))

    # The end.

    def _begin_stop(self, reason: str) -> None:
        grace = at(self.pod, "metadata", "deletionGracePeriodSeconds")
        seconds = _VANISHED_GRACE if self.vanished else self._grace() if grace is None else float(grace)
        self._stopping = self._context.clock.monotonic() + seconds
        if reason == "DeadlineExceeded":
            message = "Pod was active on the node longer than the specified deadline"
            self._failure = {"phase": "Failed", "reason": reason, "message": message}
        for task in self._probes.values():
            task.cancel()
        self._probes.clear()
        for slot in self._slots:
            # Whatever has ended does not start again.
            slot.waiting = ("ContainerCreating", "")

    def _grace(self) -> float:
        """Seconds that the pod gives its containers to end."""
        grace = at(self.pod, "spec", "terminationGracePeriodSeconds")
        return _USUAL_GRACE if grace is None else float(grace)

    async def _stop(self) -> float:
        """Ask the containers to end, kill them when their time is over, then undo everything. Raises ClaimProblem."""
        context = self._context
        assert self._stopping is not None
        alive = [attempt for attempt in self._attempts.values() if attempt.running]
        if alive:
            grace = at(self.pod, "metadata", "deletionGracePeriodSeconds")
            if grace is not None:
                # Whoever deletes again may shorten the time, but not stretch it.
                self._stopping = min(self._stopping, context.clock.monotonic() + grace)
            left = self._stopping - context.clock.monotonic()
            if left <= 0:
                for attempt in alive:
                    await self._signal(attempt, signal.SIGKILL)
                return 1.0
            for slot in self._next_to_end():
                if slot.name not in self._asked:
                    self._asked.add(slot.name)
                    self._do(self._terminate(slot, self._attempts[slot.name], left))
            return left
        for attempt in list(self._attempts.values()):
            await self._remove(attempt)
        for slot in self._slots:
            folder = self._attempt_folder(slot)
            if slot.name not in self._attempts and await asyncio.to_thread(folder.exists):
                # Half made when the agent before this one stopped.
                await self._erase(self._identity(slot), folder)
        self.quiet.set()
        hit("containers-gone")
        await context.claims.unprepare(self.uid)
        await context.network.detach(self.uid)
        await asyncio.to_thread(mounts.discard, self._folder.volumes)
        self._over = self._cleaned = True
        hit("cleaned")
        return 0.0 if self.vanished else _LOOK

    def _next_to_end(self) -> list[Slot]:
        """Sidecars serve the others until these have ended; then the last one goes first."""
        alive = [slot for slot in self._slots if slot.name in self._attempts and self._attempts[slot.name].running]
        others = [slot for slot in alive if slot.kind != SIDECAR]
        return others or alive[-1:]

    def _do(self, work: Coroutine[None, None, None]) -> None:
        """Let something run beside the loop; it ends with the worker."""
        task = asyncio.ensure_future(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    async def _delete(self) -> None:
        """Let the API forget the pod."""
        meta = self.pod["metadata"]
        try:
            await self._context.client.delete(POD, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
            hit("pod-deleted")
        except ApiError as error:
            if error.code not in (404, 409):
                logger.info("pod %s: cannot be deleted: %s", key_of(self.pod), error)
        except Unreachable as error:
            logger.info("pod %s: cannot be deleted: %s", key_of(self.pod), error)

    # Status and words.

    def _status(self) -> Object:
        extra = self._failure if self._cleaned else None
        over = self._over and self._cleaned
        return status_of(
            self.pod,
            self._slots,
            self._where,
            self._context.clock.time(),
            over=over,
            sandbox=self._sandbox,
            extra=extra,
        )

    async def _write_status(self) -> None:
        if self.vanished or (pod_is_done(self.pod) and not is_deleting(self.pod)):
            return
        patch = patch_of(self.pod, self._status())
        if patch is None:
            return
        try:
            written = await self._context.client.patch(
                POD, patch.name, patch.namespace, patch.body, type="strategic", subresource="status"
            )
        except ApiError as error:
            if error.code not in (404, 409):
                logger.warning("pod %s: status not written: %s", key_of(self.pod), error)
        except Unreachable as error:
            logger.info("pod %s: status not written: %s", key_of(self.pod), error)
            asyncio.get_running_loop().call_later(1.0, self._wake.set)
        else:
            hit("status-written")
            if not is_deleting(self.pod) or is_deleting(written):
                self.pod = written

    async def _say(self, kind: str, reason: str, message: str, *, again: bool = False) -> None:
        """An event about the pod, each once."""
        if not again and (reason, message) in self._said:
            return
        self._said.add((reason, message))
        logger.log(logging.INFO if kind == "Normal" else logging.WARNING, "pod %s: %s", key_of(self.pod), message)
        with contextlib.suppress(Unreachable):
            await self._context.recorder.record(POD, self.pod, kind, reason, message)

    # Crashes.

    async def _adopt(self) -> None:
        """Take over what an earlier agent left running. A container that could not be made is made anew."""
        for slot in self._slots:
            newest = self._folder.newest(slot.name)
            if newest is None:
                continue
            slot.number = newest
            last = self._folder.read_last(slot.name)
            if last is not None:
                slot.last, slot.last_identity = last.exit, last.identity
            found = await shims.find(self._attempt_folder(slot))
            if isinstance(found, Attempt):
                with contextlib.suppress(ContainerProblem):
                    # The agent may have died between making the container and starting it.
                    await self._context.runtime.started(found.state.identity, found.folder)
                self._follow(slot, found)
            elif found is not None and not found.error:
                slot.started_at, slot.exit = found.startedAt, found
                slot.message = last_words(self._attempt_folder(slot))

    def _identity(self, slot: Slot) -> str:
        return identity_of(self.uid, slot.name, slot.number)

    def _attempt_folder(self, slot: Slot) -> Path:
        return self._folder.attempt(slot.name, slot.number)
