"""Containers as plain processes: what their image means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.node.agent.runtime import Plan
from tests.support.eventually import eventually


@pytest.mark.parametrize("name", ["pause", "registry:5000/pause:3.10", "registry.k8s.io/pause@sha256:00"])
def test_any_image_of_that_name_is_pause(name: str) -> None:
    assert asyncio.run(ProcessRuntime().image(name)).pause


def test_pause_waits_and_ends_well(tmp_path: Path) -> None:
    async def run() -> None:
        runtime = ProcessRuntime()
        image = await runtime.image("registry.k8s.io/pause:3.10")
        made = await runtime.make(
            Plan(
                pod={},
                container={"name": "main"},
                identity="i",
                folder=tmp_path,
                pod_folder=tmp_path,
                image=image,
                env={},
            )
        )
        process = await asyncio.create_subprocess_exec(*made.argv, env=made.env)
        name = Path(f"/proc/{process.pid}/comm")
        await eventually(lambda: asyncio.to_thread(name.read_text), lambda text: text == "pause\n")
        process.terminate()
        # Not as a failure: an init container of this image must be able to end.
        assert await process.wait() == 0

    asyncio.run(run())
