"""The Helm chart, and the plain manifests that are made of it: ``python -m tests.support.chart`` writes them anew."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.support.kubectl import helm_binary

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "drakkar"
MANIFESTS = ROOT / "deploy"
NAMESPACE = "drakkar-system"
DRIVERS = ("tpu", "gpu", "nic", "cpu", "computedomain", "example")

_HEAD = (
    "# Made from charts/drakkar by `./do manifests`; do not edit. docs/how-to/on-a-cluster.md tells how to use it.\n"
)
#: What only helm has a use for.
_OF_HELM = re.compile(r"^ +(?:app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n|^# Source: .*\n", re.MULTILINE)
_OFF = ("scheduler.enabled=false", "controllers.enabled=false")


def all_on() -> list[str]:
    """Settings with which everything is rendered."""
    drivers = [f"drivers.{name}.enabled=true" for name in DRIVERS]
    return [
        *drivers,
        "scheduler.webhook.enabled=true",
        r"scheduler.webhook.annotations.cert-manager\.io/inject-ca-from=drakkar-system/drakkar-gate",
        "scheduler.guard.enabled=true",
        "scheduler.guard.drivers={gpu.example.com}",
        "fence.drivers={gpu.example.com}",
        "fence.classes={gpu,mig}",
        "serviceMonitor.enabled=true",
        "networkPolicy.dns=true",
        "controllers.only={tainteviction,node-loss,claims,poolstatus}",
    ]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run helm to its end in a home of its own, without any cluster."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home, "KUBECONFIG": f"{home}/none"}
        return subprocess.run(
            [str(helm_binary()), *words], env=env, capture_output=True, text=True, timeout=120, check=False
        )


def template(*settings: str, crds: bool = False) -> str:
    """What the chart gives for ``--set`` settings."""
    sets = [word for setting in settings for word in ("--set", setting)]
    done = helm(
        "template", "drakkar", str(CHART), "--namespace", NAMESPACE, *sets, *(["--include-crds"] if crds else [])
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return [obj for obj in yaml.safe_load_all(text) if obj]


def manifests() -> dict[str, str]:
    """Name to content of every file in ``deploy/`` but the namespace's."""
    made = {
        "scheduler.yaml": template("controllers.enabled=false"),
        "controllers.yaml": template("scheduler.enabled=false"),
    }
    for name in DRIVERS:
        made[f"driver-{name}.yaml"] = template(*_OFF, f"drivers.{name}.enabled=true", crds=name == "computedomain")
    return {name: _HEAD + _OF_HELM.sub("", text) for name, text in made.items()}


def main() -> None:
    """Write ``deploy/``."""
    MANIFESTS.mkdir(exist_ok=True)
    for name, text in manifests().items():
        (MANIFESTS / name).write_text(text)


if __name__ == "__main__":
    main()
