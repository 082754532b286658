"""The witness of the demo: a process that holds only a kubeconfig and watches.

Prints one JSON line per fact as it is seen, and a last line with the verdict. Run as
``python -m drakkar.cli.observer``; `drakkar demo` starts it and reads its lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from drakkar.api import kinds
from drakkar.cli.target import connect
from drakkar.client import Caches, Client
from drakkar.insight.story import AFTER, BEFORE, TITLES, Cast, Fact, Story
from drakkar.insight.verify import PASSING, Finding, collect, verify


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _tell(fact: Fact) -> None:
    _say(
        {
            "fact": fact.name,
            "title": TITLES[fact.name],
            "time": fact.time,
            "revision": fact.revision,
            "detail": fact.detail,
        }
    )


async def audit(client: Client, patience: float = 10.0) -> list[Finding]:
    """What `verify` finds; what passes by itself, only if it does not do so within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        findings = verify(await collect(client))
        passing = all(finding.rule in PASSING for finding in findings)
        if not findings or not passing or time.monotonic() > deadline:
            return findings
        await asyncio.sleep(0.1)


async def observe(kubeconfig: Path, cast: Cast, timeout: float, context: str | None = None) -> int:
    """Watch until every fact was seen or ``timeout`` seconds have passed; 0 only if the story is whole."""
    story = Story(cast, time.time, _tell)
    async with connect(kubeconfig, context) as client:
        caches = Caches(client)
        for kind, feed in (
            (kinds.NODE, story.node),
            (kinds.RESOURCESLICE, story.slice),
            (kinds.RESOURCECLAIM, story.claim),
            (kinds.POD, story.pod),
            (kinds.JOB, story.job),
        ):
            caches.of(kind).subscribe(lambda event, old, new, feed=feed: feed(event, new if new is not None else old))
        await caches.start()
        _say({"watching": True})
        deadline = time.monotonic() + timeout
        while not story.seen((*BEFORE, *AFTER)) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        # A moment for late damage: a second eviction, a charge to the job's backoff.
        await asyncio.sleep(0.3)
        await caches.stop()
        faults = story.faults()
        findings = await audit(client)
    faults += [f"verify: {finding.rule}: {finding.object}: {finding.message}" for finding in findings]
    _say({"verdict": faults, "first": sorted(story.first_hosts), "now": sorted(story.hosts(cast.claim)),
          "other": sorted(story.hosts(cast.other_claim)), "lost": story.lost_node})  # fmt: skip
    return 1 if faults else 0


def main() -> int:
    """Parse the arguments and observe."""
    parser = argparse.ArgumentParser(prog="drakkar-observer", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, type=Path, metavar="FILE", help="the cluster to watch")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument("--namespace", default="default", metavar="NS", help="where the story plays")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="give up after so many seconds")
    parser.add_argument(
        "--may-return", action="store_true", help="the dead host may come back before the job has recovered"
    )
    args = parser.parse_args()
    try:
        cast = Cast(namespace=args.namespace, may_return=args.may_return)
        return asyncio.run(observe(args.kubeconfig, cast, args.timeout, args.context))
    except KeyboardInterrupt:  # a terminal sends Ctrl-C to the demo and to us
        return 130


if __name__ == "__main__":
    sys.exit(main())
