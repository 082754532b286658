"""Parts of drivers that serve no node: of several replicas one works, and all answer probes."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable

from drakkar.driver.command import lead
from tests.support.etcd import free_ports
from tests.support.eventually import eventually, memory_plane


def test_every_replica_answers_and_tells_whether_it_works() -> None:
    async def story() -> None:
        working: list[int] = []
        ports = free_ports(2)

        async def ask(port: int, path: str) -> str:
            def read() -> str:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                    return answer.read().decode()

            try:
                return await asyncio.to_thread(read)
            except OSError:
                # Not yet.
                return ""

        def work(number: int) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                working.append(number)
                await asyncio.Event().wait()

            return run

        async def at_work() -> list[int]:
            return working

        async with memory_plane() as client:
            tasks = [
                asyncio.create_task(lead("x", client, work(number), f"127.0.0.1:{port}"))
                for number, port in enumerate(ports)
            ]
            for port in ports:
                assert await eventually(lambda port=port: ask(port, "/readyz"), bool) == "ok"
            await eventually(at_work, bool)
            (leader,) = working
            for number, port in enumerate(ports):
                assert f"drakkar_leading {int(number == leader)}" in (await ask(port, "/metrics")).splitlines()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())
