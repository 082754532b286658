"""A claim over several hosts heals although nobody taints its device: its driver never does, and is dead by then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.eventually import until
from tests.support.kubectl import Kubectl
from tests.support.plane import Part, Up
from tests.support.silent import Watched, slice_file, workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: A grace that a busy machine survives; seconds.
BEATS = ("--lease-duration", "2", "--lease-period", "0.5", "--node-grace", "8")
SLICES = {name: [f"host-{number}" for number in range(first, first + 4)] for name, first in (("a", 0), ("b", 4))}


def test_the_job_moves_as_a_whole_and_its_old_slice_comes_back_with_its_host(tmp_path: Path) -> None:
    fleet, recorded = tmp_path / "fleet.yaml", tmp_path / "slices.json"
    recorded.write_text(slice_file(SLICES))
    groups = [{"name": "host-{index}", "count": 8, "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"}}]
    made = {"apiVersion": "drakkar.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "eight"}}
    fleet.write_text(json.dumps({**made, "spec": {"nodeGroups": groups}}))
    with Up(tmp_path / "data", "--fleet", str(fleet), *BEATS) as running:
        job = Watched(Kubectl(running.kubeconfig, tmp_path), "training", "default")
        command = ("driver", "run", "replay", "--cluster", "--slices", str(recorded))
        with Part(*command, "--kubeconfig", str(running.kubeconfig)):
            job.kubectl.run("apply", "-f", "-", stdin=workload("training"))
            first = until(job.hosts)
            old = job.device()
            assert sorted(first.values()) == SLICES[old]
        lost = first["2"]
        job.silence(lost)
        second = until(job.hosts, lambda hosts: bool(hosts) and lost not in hosts.values(), timeout=120)
        new = job.device()
        assert new != old
        assert sorted(second.values()) == SLICES[new]
        assert job.rules() == [old]
        assert job.failed() == 0
        events = until(lambda: job.get("events", "--field-selector", "reason=HostLost")["items"])
        assert [event["involvedObject"]["kind"] for event in events] == ["ResourceClaim"]
        assert f"lost host {lost} of device {old}" in events[0]["message"]

        job.revive(lost)
        until(job.rules, lambda rules: not rules, timeout=120)
        assert job.hosts() == second
