"""The figures of the 64-chip story: start of ``up``, memory, one decision, recovery.

Wall times depend on the machine; they are printed with the processor time next to them.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from drakkar.api.manifests import parse_objects
from drakkar.drivers.tpu.driver import host_of
from drakkar.drivers.tpu.shapes import tpu_pool
from drakkar.sim.fleets import load_fleet

ROOT = Path(__file__).resolve().parents[1]


def start_of_up() -> dict[str, float]:
    """Seconds from exec until ``up`` says that it is ready, and resident memory in MB when its 16 nodes are up."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "drakkar.cli", "up", "--fleet", "tpu-16", "--data", folder],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "Ctrl-C" in line:
                break
        ready = time.monotonic() - started
        time.sleep(4)
        status = Path(f"/proc/{process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        process.terminate()
        process.wait()
        return {"ready_s": ready, "rss_mb": int(match.group(1)) / 1024 if match else 0.0}


def one_decision(repetitions: int) -> dict[str, float]:
    """Processor time in µs of the scheduler's decision for the first pod of the job, everything warm."""
    import msgspec

    from drakkar.api.resource import v1
    from drakkar.scheduler.cluster import Cluster
    from drakkar.scheduler.decide import Placement, decide
    from drakkar.scheduler.pods import PodView

    cluster = Cluster()
    hosts: dict[str, list[Any]] = {}
    for node in load_fleet("tpu-16").nodes():
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        cluster.set_node(node)
        place = host_of(node)
        assert place is not None
        hosts.setdefault(place[0], []).append(place[1])
    for pod, members in hosts.items():
        pool = tpu_pool(pod, members)
        for number, item in enumerate(pool.slices):
            cluster.set_slice(_published(v1, pod, number, len(pool.slices), item))
    for name in ("deviceclass", "claim"):
        (obj,) = parse_objects((ROOT / f"examples/tpu/{name}.yaml").read_text(), name)
        obj["metadata"].update(namespace="default", uid=name)
        if obj["kind"] == "DeviceClass":
            cluster.set_class(msgspec.convert(obj, v1.DeviceClass))
        else:
            obj["spec"]["devices"]["requests"][0]["exactly"] |= {"allocationMode": "ExactCount", "count": 1}
            cluster.set_claim(msgspec.convert(obj, v1.ResourceClaim))
    (job,) = parse_objects((ROOT / "examples/tpu/job.yaml").read_text(), "job")
    pods = []
    for index in range(4):
        pod = {
            "metadata": {"name": f"p{index}", "namespace": "default", "uid": f"p{index}"},
            "spec": job["spec"]["template"]["spec"],
        }
        cluster.set_pod(pod)
        pods.append(PodView.of(pod))
    first = decide(cluster, pods[0])
    assert isinstance(first, Placement), first
    spent = []
    for _ in range(repetitions):
        before = time.process_time_ns()
        decide(cluster, pods[0])
        spent.append((time.process_time_ns() - before) / 1000)
    return {"decision_us_median": statistics.median(spent), "decision_us_max": max(spent)}


def _published(v1: Any, pod: str, number: int, count: int, item: Any) -> Any:
    spec = v1.ResourceSliceSpec(
        driver="tpu.drakkar.dev",
        pool=v1.ResourcePool(name=pod, generation=1, resourceSliceCount=count),
        devices=list(item.devices) or None,
        sharedCounters=list(item.shared_counters) or None,
        perDeviceNodeSelection=True,
    )
    from drakkar.api.meta import ObjectMeta

    return v1.ResourceSlice(metadata=ObjectMeta(name=f"{number:05d}"), spec=spec)


def recovery() -> dict[str, float]:
    """The demo's own figures, as its observer saw them, and the processor time of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "demo.json"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "drakkar.cli", "demo", "tpu", "--json", str(result)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures: dict[str, float] = json.loads(result.read_text())["figures"]
        figures["processor time of the demo"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="starts of up (default 5)")
    args = parser.parse_args()
    starts = [start_of_up() for _ in range(args.repetitions)]
    figures: dict[str, float] = {key: statistics.median(start[key] for start in starts) for key in starts[0]}
    figures |= one_decision(200)
    figures |= recovery()
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
