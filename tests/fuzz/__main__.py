"""The long mode: ``./do fuzz --seconds 600``. Every run has another seed, which is printed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.fuzz.engine import Fuzzer


def main() -> int:
    parser = argparse.ArgumentParser(prog="./do fuzz", description="Random requests to the API server.")
    parser.add_argument("--seconds", type=float, default=300, help="processor time to spend (default 300)")
    parser.add_argument("--seed", type=int, help="repeat the run with this seed")
    parser.add_argument("--kind", action="append", default=[], help="only this kind (repeatable)")
    arguments = parser.parse_args()
    end = time.process_time() + arguments.seconds
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    faults = requests = 0
    while time.process_time() < end:
        print(f"seed {seed}", flush=True)
        report = asyncio.run(Fuzzer(seed, tuple(arguments.kind)).run(400, end))
        requests += report.requests
        for fault in report.faults:
            print(f"--- seed {seed}\n{fault}", flush=True)
        faults += len(report.faults)
        print(
            f"{report.requests} requests, slowest {report.slowest * 1000:.0f} ms ({report.slowest_request[:120]}), "
            f"{report.memory:.0f} MiB, answers {dict(sorted(report.answers.items()))}",
            flush=True,
        )
        seed += 1
    print(f"{requests} requests, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
