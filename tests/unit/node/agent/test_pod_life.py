"""Life of pods under the agent, as plain processes: order of containers, restarts, probes, grace, deadlines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import EVENT, POD
from drakkar.api.meta import Object
from drakkar.api.objects import condition_is
from drakkar.node.agent import shims
from tests.support.agents import Cluster, cluster
from tests.support.eventually import eventually
from tests.unit.node.agent.test_thin_path import gone, log


def play(tmp_path: Path, root: Path, scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await site.start_agent()
            await scene(site)

    asyncio.run(run())


def container(name: str, script: str, **more: Any) -> Object:
    return {"name": name, "image": "any", "command": ["sh", "-c", script], **more}


def pod(name: str, *containers: Object, **more: Any) -> Object:
    spec = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def phase(wanted: str) -> Callable[[Object], bool]:
    return lambda pod: pod["status"].get("phase") == wanted


def status_of(pod: Object, name: str) -> Object:
    every = [*pod["status"].get("containerStatuses", []), *pod["status"].get("initContainerStatuses", [])]
    return next((status for status in every if status["name"] == name), {})


def test_init_containers_come_first_and_sidecars_last_as_long(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        notes = tmp_path / "notes"
        stay = f"echo side >> {notes}; trap 'echo unside >> {notes}; exit 0' TERM; while :; do sleep 0.05; done"
        inits = [
            container("one", f"sleep 0.1; echo one >> {notes}"),
            container(
                "side", stay, restartPolicy="Always", startupProbe={"exec": {"command": ["test", "-e", str(notes)]}}
            ),
            container("two", f"echo two >> {notes}"),
        ]
        main = container("main", f"echo main >> {notes}")
        await site.client.create(POD, pod("p", main, initContainers=inits, restartPolicy="Never"))
        done = await eventually(lambda: site.pod("p"), phase("Succeeded"))
        assert notes.read_text().split() == ["one", "side", "two", "main", "unside"]
        assert status_of(done, "one")["state"]["terminated"]["exitCode"] == 0

    play(tmp_path, root, scene)


def test_an_init_container_that_fails_ends_a_pod_that_never_restarts(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        body = pod("p", container("main", "true"), initContainers=[container("i", "exit 2")], restartPolicy="Never")
        await site.client.create(POD, body)
        done = await eventually(lambda: site.pod("p"), phase("Failed"))
        assert status_of(done, "i")["state"]["terminated"]["exitCode"] == 2
        assert "waiting" in status_of(done, "main")["state"]

    play(tmp_path, root, scene)


def test_restarts_come_at_once_and_then_with_pauses(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        await site.client.create(POD, pod("p", container("main", "echo again; exit 1"), restartPolicy="OnFailure"))

        def pauses(pod: Object) -> bool:
            return status_of(pod, "main").get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"

        waiting = await eventually(lambda: site.pod("p"), pauses)
        status = status_of(waiting, "main")
        assert status["restartCount"] == 1
        assert status["lastState"]["terminated"]["exitCode"] == 1
        assert "back-off 10s restarting failed container=main" in status["state"]["waiting"]["message"]
        assert waiting["status"]["phase"] == "Running"
        response = await site.client.send("GET", "/api/v1/namespaces/default/pods/p/log", {"previous": "true"})
        assert response.stream is not None
        assert b"".join([piece async for piece in response.stream]) == b"again\n"

    play(tmp_path, root, scene)


def test_probes(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        ready, sick = tmp_path / "ready", tmp_path / "sick"
        probes = {
            "readinessProbe": {"exec": {"command": ["test", "-e", str(ready)]}, "periodSeconds": 1},
            "livenessProbe": {
                "exec": {"command": ["sh", "-c", f"! test -e {sick}"]},
                "periodSeconds": 1,
                "failureThreshold": 1,
            },
        }
        script = f"rm -f {sick}; trap 'exit 0' TERM; while :; do sleep 0.05; done"
        await site.client.create(POD, pod("p", container("main", script, **probes)))
        running = await eventually(lambda: site.pod("p"), phase("Running"))
        assert not condition_is(running, "Ready")
        ready.touch()
        await eventually(lambda: site.pod("p"), lambda p: condition_is(p, "Ready"))
        sick.touch()
        again = await eventually(lambda: site.pod("p"), lambda p: status_of(p, "main").get("restartCount") == 1)
        assert status_of(again, "main")["lastState"]["terminated"]["exitCode"] == 0
        reasons = {event["reason"] for event in (await site.client.list(EVENT)).items}
        assert {"Unhealthy", "Killing"} <= reasons

    play(tmp_path, root, scene)


def test_hooks_and_the_order_of_the_end(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        notes = tmp_path / "notes"

        def hook(word: str) -> Object:
            return {"exec": {"command": ["sh", "-c", f"echo {word} >> {notes}"]}}

        def noted(word: str) -> str:
            return f"trap 'echo {word} >> {notes}; exit 0' TERM; while :; do sleep 0.05; done"

        main = container(
            "main", noted("main-ends"), lifecycle={"postStart": hook("started"), "preStop": hook("before-stop")}
        )
        side = container("side", noted("side-ends"), restartPolicy="Always")
        body = pod("p", main, initContainers=[side], terminationGracePeriodSeconds=20)
        await site.client.create(POD, body)
        await eventually(lambda: asyncio.to_thread(notes.exists), bool)
        await site.client.delete(POD, "p", "default")
        await eventually(lambda: gone(site, "p"), bool)
        assert notes.read_text().split() == ["started", "before-stop", "main-ends", "side-ends"]

    play(tmp_path, root, scene)


def test_a_deaf_program_is_killed_when_its_grace_is_over(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        script = "trap '' TERM; echo here; while :; do sleep 0.05; done"
        await site.client.create(POD, pod("p", container("main", script)))
        await eventually(lambda: log(site, "p"), bool)
        await site.client.delete(POD, "p", "default")
        assert not await gone(site, "p")
        await eventually(lambda: gone(site, "p"), bool)

    play(tmp_path, root, scene)


def test_a_container_ends_with_its_monitor(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        body = pod("p", container("one", "sleep 1000"), container("two", "sleep 1000"), restartPolicy="Never")
        await site.client.create(POD, body)
        await eventually(lambda: site.pod("p"), phase("Running"), timeout=30)
        (file,) = await asyncio.to_thread(lambda: [*root.glob("pods/*/containers/one/0/state.json")])
        state = json.loads(await asyncio.to_thread(file.read_bytes))
        os.kill(state["shim"], signal.SIGKILL)
        found = await eventually(
            lambda: site.pod("p"), lambda p: "terminated" in status_of(p, "one")["state"], timeout=30
        )
        assert status_of(found, "one")["state"]["terminated"]["exitCode"] == 137
        # The pod goes on with the other one, so the end of the pod does not see to it.
        await eventually(lambda: asyncio.sleep(0, shims.start_time(state["pid"])), lambda begun: not begun, timeout=30)
        assert found["status"]["phase"] == "Running"
        await site.client.delete(POD, "p", "default")
        await eventually(lambda: asyncio.to_thread(os.listdir, root / "s"), lambda left: not left, timeout=30)

    play(tmp_path, root, scene)


def test_a_container_that_could_not_be_made_is_made_by_the_next_agent(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        program = tmp_path / "late"
        body = pod("p", {**container("one", ""), "command": [str(program)]}, restartPolicy="Never")
        await site.client.create(POD, body)

        def refused(found: Object) -> object:
            return (status_of(found, "one").get("state", {}).get("waiting") or {}).get(
                "reason"
            ) == "CreateContainerError"

        await eventually(lambda: site.pod("p"), refused, timeout=30)
        await site.stop("agent")
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        await site.start_agent()
        await eventually(lambda: site.pod("p"), phase("Succeeded"), timeout=30)

    play(tmp_path, root, scene)


def test_a_deadline_ends_the_pod(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        await site.client.create(POD, pod("p", container("main", "sleep 60"), activeDeadlineSeconds=3))
        done = await eventually(lambda: site.pod("p"), phase("Failed"))
        assert done["status"]["reason"] == "DeadlineExceeded"
        assert status_of(done, "main")["state"]["terminated"]["exitCode"] == 143

    play(tmp_path, root, scene)


def test_what_is_missing_is_said(tmp_path: Path, root: Path) -> None:
    async def scene(site: Cluster) -> None:
        env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "nothing", "key": "k"}}}]
        await site.client.create(POD, pod("env", container("main", "true", env=env)))
        volumes = [{"name": "v", "configMap": {"name": "nothing"}}]
        await site.client.create(POD, pod("volume", container("main", "true"), volumes=volumes))
        await site.client.create(POD, pod("command", {"name": "main", "image": "x"}))
        for name in ("env", "command"):
            waiting = await eventually(
                lambda n=name: site.pod(n),
                lambda p: (
                    status_of(p, "main").get("state", {}).get("waiting", {}).get("reason")
                    == "CreateContainerConfigError"
                ),
            )
            assert status_of(waiting, "main")["state"]["waiting"]["message"]

        async def mounts() -> list[str]:
            return [e["message"] for e in (await site.client.list(EVENT)).items if e["reason"] == "FailedMount"]

        assert 'volume "v": configmap "nothing" not found' in await eventually(
            mounts, lambda said: any("configmap" in words for words in said)
        )

    play(tmp_path, root, scene)
