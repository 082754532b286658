"""What a container's spec says of resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drakkar.node.agent.images import Image
from drakkar.node.agent.ocispec import User, build
from drakkar.node.agent.runtime import Plan


def resources(container: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    container = {"name": "c", "command": ["true"], **container}
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}, "status": status or {}}
    plan = Plan(pod, container, "id", Path("/folder"), Path("/pod"), Image("any"), {})
    return build(plan, User(0, 0), (), pause=["pause"])["linux"]["resources"]


LIMITED = {"resources": {"limits": {"cpu": "500m", "memory": "1Mi"}}}


def test_limits_and_shares() -> None:
    found = resources(LIMITED)
    assert (found["cpu"], found["memory"]) == ({"period": 100000, "quota": 50000, "shares": 512}, {"limit": 1 << 20})
    assert "quota" not in resources({})["cpu"]
    assert "memory" not in resources({})


@pytest.mark.parametrize(("user", "brings"), [("c", True), ("other", False)])
def test_what_devices_bring_is_added_to_the_limits(user: str, *, brings: bool) -> None:
    """`status.nodeAllocatableResourceClaimStatuses` of KEP-5517; shares stay those of the request."""
    entry = {
        "resourceClaimName": "claim",
        "containers": [user],
        "mapping": [{"name": "cpu", "quantity": "2"}, {"name": "memory", "quantity": "3Mi"}],
        "overhead": [{"name": "cpu", "perPod": "250m", "perContainer": "250m"}],
    }
    status = {"nodeAllocatableResourceClaimStatuses": [entry]}
    found = resources(LIMITED, status)
    assert found["cpu"] == {"period": 100000, "quota": 300000 if brings else 50000, "shares": 512}
    assert found["memory"] == {"limit": (4 if brings else 1) << 20}
    # Without a limit there is none to grow.
    assert "quota" not in resources({}, status)["cpu"]
