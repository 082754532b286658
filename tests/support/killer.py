"""The kill loop: the story is told while the control plane is killed before and after its writes.

A round starts ``drakkar up`` with a failpoint set, restarts it with the next one whenever it
has killed itself, and goes on until the job runs again on a healthy slice. ``./do kill``
runs many rounds; ``tests/e2e/test_kill.py`` the few that CI has time for.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drakkar.api import kinds, names
from drakkar.api.errors import ApiError
from drakkar.api.objects import pod_node
from drakkar.cli.manifests import apply, read_objects
from drakkar.cli.target import connect
from drakkar.client import Client, Unreachable
from drakkar.insight.story import claim_hosts
from drakkar.insight.verify import collect, verify
from tests.support.plane import FAST, Up
from tests.support.shared import ROOT

#: Kinds of writes of the story, in the order in which they happen before and after the death of the host.
BEFORE_DEATH = ("store-commit", "claim-allocation", "binding", "reservation")
AFTER_DEATH = ("store-commit", "taint", "eviction", "deallocation", "claim-allocation", "binding", "reservation")
POINTS = tuple(dict.fromkeys(BEFORE_DEATH + AFTER_DEATH))
#: Longest time in seconds from one kill to the next, or to the end of the phase.
PHASE = 120.0
LOST = (ApiError, Unreachable, OSError, asyncio.TimeoutError)


@dataclass(frozen=True)
class Spec:
    """Kill ``side`` ("before" or "after") of the ``nth`` write of a kind."""

    point: str
    nth: int
    side: str

    def __str__(self) -> str:
        return f"{self.point}:{self.nth}:{self.side}"


def plan(seed: int) -> tuple[list[Spec], list[Spec]]:
    """The kills of a round: each kind of write before and after, the number of the write by the seed."""
    rng = random.Random(seed)

    def specs(points: tuple[str, ...]) -> list[Spec]:
        made = []
        for point in points:
            for side in ("before", "after"):
                most = {"store-commit": 12, "eviction": 3}.get(point, 1)
                made.append(Spec(point, rng.randint(1, most), side))
        return made

    return specs(BEFORE_DEATH), specs(AFTER_DEATH)


@dataclass
class Round:
    """One story with kills; ``kills`` counts what really happened, by point and side."""

    seed: int
    folder: Path
    say: Callable[[str], None] = lambda text: None
    kills: Counter[str] = field(default_factory=Counter[str])
    queue: list[Spec] = field(default_factory=list[Spec])
    acknowledged: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def run(self) -> None:
        """Tell the story; raises AssertionError when it does not come to its end or an invariant breaks."""
        before, after = plan(self.seed)
        self.queue = before
        self.up = Up(self.folder / "data", "--fleet", "tpu-16", *FAST)
        self.current: Spec | None = None
        self._start()
        try:
            asyncio.run(self._story(after))
            assert self.up.stop() == 0, self.up.output
        finally:
            self.up.kill()

    def _start(self) -> None:
        while True:
            self.current = self.queue.pop(0) if self.queue else None
            self.up.env["DRAKKAR_FAILPOINTS"] = str(self.current) if self.current else ""
            self.up.spawn()
            deadline = time.monotonic() + 90
            while "Ctrl-C" not in self.up.output:
                if self.up.wait_dead(0.02) is not None:
                    break
                assert time.monotonic() < deadline, f"drakkar up hangs:\n{self.up.output}"
            else:
                return
            self._count()

    def _count(self) -> None:
        assert self.up.process is not None
        assert self.up.process.returncode == -signal.SIGKILL, (
            f"drakkar up ended with {self.up.process.returncode} under {self.current}:\n{self.up.output}"
        )
        spec = self.current
        assert spec is not None, f"killed without a failpoint:\n{self.up.output}"
        self.kills[f"{spec.point} {spec.side}"] += 1
        self.say(f"  killed {spec}")

    async def _until(self, what: str, step: Callable[[Client], Awaitable[Any]]) -> Any:
        """Repeat ``step`` until it gives something and no kills are left, restarting the plane when it dies."""
        deadline = time.monotonic() + PHASE
        while True:
            try:
                async with asyncio.timeout(5), connect(self.up.kubeconfig) as client:
                    result = await step(client)
                    while not result and self.up.wait_dead(0.05) is None:
                        result = await step(client)
                    if result:
                        return result
            except LOST:
                pass
            if self.up.wait_dead(0.1) is not None:
                self._count()
                self._start()
                deadline = time.monotonic() + PHASE
            assert time.monotonic() < deadline, (
                f"seed {self.seed}: never {what} (failpoint {self.current}):\n{self.up.output}"
            )

    async def _story(self, after: list[Spec]) -> None:
        for manifest in ("deviceclass.yaml", "claim.yaml", "job.yaml"):
            for obj in read_objects(ROOT / "examples" / "tpu" / manifest):
                await self._until(f"applied {manifest}", lambda client, obj=obj: self._apply(client, obj))
        await self._settle("running", lambda client: self._running(client, ""))
        hosts = await self._until("running", lambda client: self._running(client, ""))
        victim = random.Random(self.seed).choice(sorted(hosts))
        self.queue = after
        self._restart_with_next()
        await self._until("host dead", lambda client: self._fail(client, victim))
        self.say(f"  {victim} dies")
        await self._settle("running again", lambda client: self._running(client, victim))
        await self._until("clean", self._clean)
        await self._until("complete", self._nothing_lost)

    async def _settle(self, what: str, step: Callable[[Client], Awaitable[Any]]) -> None:
        """Reach a state; kills that can no longer happen in it are dropped, one by one, and said."""
        await self._until(what, step)
        while self.current is not None:
            self.say(f"  not reached: {self.current}")
            self._restart_with_next()
            await self._until(what, step)

    def _restart_with_next(self) -> None:
        self.up.kill()
        self._start()

    async def _apply(self, client: Client, obj: dict[str, Any]) -> bool:
        await apply(client, obj)
        self.acknowledged.add((obj["kind"], obj["metadata"]["name"]))
        return True

    async def _fail(self, client: Client, victim: str) -> bool:
        await client.patch(kinds.NODE, victim, None, {"metadata": {"annotations": {names.HOLLOW: "failed"}}})
        return True

    async def _running(self, client: Client, dead: str) -> frozenset[str]:
        """Hosts of the job when all its pods run on its slice, one each; checks the invariants on the way."""
        pods = (await client.list(kinds.POD, "default")).items
        claims = (await client.list(kinds.RESOURCECLAIM, "default")).items
        taken: Counter[str] = Counter()
        for claim in claims:
            taken.update(claim_hosts(claim))
        double = [host for host, count in taken.items() if count > 1]
        assert not double, f"chips of {double} allocated twice"
        claim = next((claim for claim in claims if claim.metadata.name == "slice"), None)
        hosts = claim_hosts(claim) if claim is not None else frozenset()
        live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        running = [pod_node(pod) for pod in live if pod.get("status", {}).get("phase") == "Running"]
        whole = len(running) == len(set(running)) == 4 and set(running) == hosts and dead not in hosts
        return hosts if whole and len(live) == 4 else frozenset()

    async def _clean(self, client: Client) -> bool:
        findings = verify(await collect(client))
        job = await client.get(kinds.JOB, "training", "default")
        assert not job["status"].get("failed"), f"evictions were charged to the job: {job['status']}"
        return not findings

    async def _nothing_lost(self, client: Client) -> bool:
        for kind in (kinds.DEVICECLASS, kinds.RESOURCECLAIM, kinds.JOB):
            wanted = {name for known, name in self.acknowledged if known == kind.kind}
            found = {_name(obj) for obj in (await client.list(kind)).items}
            assert wanted <= found, f"lost after it was acknowledged: {wanted - found}"
        return True


def _name(obj: Any) -> str:
    return obj["metadata"]["name"] if isinstance(obj, dict) else obj.metadata.name


def run_rounds(seeds: range, say: Callable[[str], None]) -> Counter[str]:
    """Run rounds in folders of their own and count the kills by point and side."""
    total: Counter[str] = Counter()
    for seed in seeds:
        say(f"round with seed {seed}")
        with tempfile.TemporaryDirectory(prefix="drakkar-kill-") as folder:
            attempt = Round(seed, Path(folder), say)
            try:
                attempt.run()
            finally:
                total += attempt.kills
    return total


def report(kills: Counter[str]) -> str:
    """A table of kills by point."""
    lines = [
        f"  {point:<18} before {kills[point + ' before']:>3}   after {kills[point + ' after']:>3}" for point in POINTS
    ]
    return "\n".join([*lines, f"  {'all':<18} {sum(kills.values())} kills"])


def main() -> int:
    """Run many rounds and print the report."""
    parser = argparse.ArgumentParser(description="kill the control plane at every kind of write of the story")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="how many stories (default 10)")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the first; a failing round names its own"
    )
    args = parser.parse_args()
    kills = run_rounds(range(args.seed, args.seed + args.rounds), lambda text: print(text, flush=True))
    print(report(kills))
    return 0


if __name__ == "__main__":
    sys.exit(main())
