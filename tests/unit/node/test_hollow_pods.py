"""What a hollow node writes about a pod, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api.meta import ObjectMeta
from drakkar.api.resource import v1
from drakkar.client.writes import After, Delete, Patch, Write
from drakkar.node.hollow_pods import Place, claims_problem, pod_step, ready_again

NOW = 1_000_000.0
PLACE = Place("172.16.0.1", "10.0.0.2")


def pod(**annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": dict(annotations)},
        "spec": {
            "nodeName": "host",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "i"}],
            "resourceClaims": [{"name": "c", "resourceClaimName": "claim"}],
        },
        "status": {"phase": "Pending"},
    }


def claim(*, allocated: bool = True, consumer: str = "u") -> v1.ResourceClaim:
    return v1.ResourceClaim(
        metadata=ObjectMeta(name="claim", namespace="n"),
        status=v1.ResourceClaimStatus(
            allocation=v1.AllocationResult() if allocated else None,
            reservedFor=[v1.ResourceClaimConsumerReference(resource="pods", name="p", uid=consumer)],
        ),
    )


def step(
    obj: dict[str, Any], now: float = NOW, found: v1.ResourceClaim | None = None, started: float | None = None
) -> list[Write]:
    """Takes the step and puts what it says about the status into the pod."""
    writes = pod_step(obj, PLACE, lambda namespace, name: found, now, started)
    for write in writes:
        if isinstance(write, Patch):
            assert write.subresource == "status"
            assert write.body["metadata"] == {"uid": "u"}
            conditions = {c["type"]: c for c in obj["status"].get("conditions", [])}
            conditions |= {c["type"]: c for c in write.body["status"].get("conditions", [])}
            obj["status"] |= write.body["status"] | {"conditions": [*conditions.values()]}
    return writes


def running(**annotations: str) -> dict[str, Any]:
    obj = pod(**annotations)
    step(obj, found=claim())
    assert obj["status"]["phase"] == "Running"
    return obj


def condition(obj: dict[str, Any], kind: str) -> str:
    return next(c["status"] for c in obj["status"]["conditions"] if c["type"] == kind)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "does not exist"),
        (claim(allocated=False), "is not allocated"),
        (claim(consumer="other"), "is not reserved for the pod"),
    ],
)
def test_a_pod_waits_for_its_claims_and_says_so_once(found: v1.ResourceClaim | None, words: str):
    obj = pod()
    assert len(step(obj, found=found)) == 1
    assert words in obj["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert obj["status"]["phase"] == "Pending"
    assert step(obj, found=found) == []


def test_a_claim_of_a_template_is_waited_for():
    obj = pod()
    obj["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "t"}]
    assert "has not been made" in claims_problem(obj, lambda namespace, name: None)


def test_a_pod_group_may_hold_the_claim():
    obj = pod()
    obj["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    reference = v1.ResourceClaimConsumerReference(
        apiGroup="scheduling.k8s.io", resource="podgroups", name="g", uid="group"
    )
    found = v1.ResourceClaim(status=v1.ResourceClaimStatus(allocation=v1.AllocationResult(), reservedFor=[reference]))
    assert claims_problem(obj, lambda namespace, name: found) == ""


def test_a_started_pod_is_ready_and_has_addresses():
    obj = running()
    status = obj["status"]
    assert (status["podIP"], status["hostIP"]) == ("10.0.0.2", "172.16.0.1")
    assert condition(obj, "Ready") == condition(obj, "ContainersReady") == condition(obj, "Initialized") == "True"
    (main,) = status["containerStatuses"]
    assert main["ready"]
    assert main["started"]
    assert main["state"]["running"]["startedAt"] == status["startTime"] == "1970-01-12T13:46:40Z"
    assert step(obj, found=claim()) == []


def test_a_pod_that_was_said_not_to_be_ready_says_that_it_is():
    """Node controllers say so of the pods of a silent node, and nobody but the node takes it back."""
    obj = running()
    assert ready_again(obj, NOW) == []
    (ready,) = [entry for entry in obj["status"]["conditions"] if entry["type"] == "Ready"]
    ready |= {"status": "False", "reason": "NodeUnreachable", "message": "m"}
    (write,) = ready_again(obj, NOW + 60)
    assert isinstance(write, Patch)
    (entry,) = write.body["status"]["conditions"]
    stamp = "1970-01-12T13:47:40Z"
    assert entry == {"type": "Ready", "status": "True", "lastTransitionTime": stamp, "reason": None, "message": None}
    obj["status"]["containerStatuses"][0]["ready"] = False
    assert ready_again(obj, NOW + 60) == []


def test_init_containers_have_run_and_sidecars_run():
    obj = pod()
    obj["spec"]["initContainers"] = [{"name": "setup"}, {"name": "side", "restartPolicy": "Always"}]
    step(obj, found=claim())
    setup, side = obj["status"]["initContainerStatuses"]
    assert setup["state"]["terminated"]["reason"] == "Completed"
    assert "running" in side["state"]


@pytest.mark.parametrize(("code", "phase", "reason"), [("0", "Succeeded", "Completed"), ("3", "Failed", "Error")])
def test_a_finite_pod_ends_with_its_exit_code(code: str, phase: str, reason: str):
    annotations = {"drakkar.dev/run-seconds": "5", "drakkar.dev/exit-code": code}
    obj = pod(**annotations)
    assert step(obj, found=claim())[-1] == After(5.0)
    assert step(obj, now=NOW + 4.5, started=NOW) == [After(0.5)]
    step(obj, now=NOW + 5, started=NOW)
    terminated = obj["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (obj["status"]["phase"], terminated["reason"], terminated["exitCode"]) == (phase, reason, int(code))
    assert terminated["finishedAt"] == "1970-01-12T13:46:45Z"
    assert condition(obj, "Ready") == "False"
    assert step(obj, now=NOW + 100) == []


def test_an_adopted_pod_ends_by_the_time_in_its_status():
    obj = running(**{"drakkar.dev/run-seconds": "5"})
    assert step(obj, now=NOW + 2) == [After(3.0)]


def test_a_failing_container_is_restarted_after_a_pause_that_doubles():
    obj = running(**{"drakkar.dev/run-seconds": "5", "drakkar.dev/exit-code": "1"})
    obj["spec"]["restartPolicy"] = "OnFailure"
    assert step(obj, now=NOW + 5)[-1] == After(10.0)
    assert obj["status"]["phase"] == "Running"
    assert condition(obj, "Ready") == "False"
    assert step(obj, now=NOW + 6) == [After(9.0)]
    step(obj, now=NOW + 15)
    (main,) = obj["status"]["containerStatuses"]
    assert main["restartCount"] == 1
    assert main["lastState"]["terminated"]["exitCode"] == 1
    assert condition(obj, "Ready") == "True"
    assert step(obj, now=NOW + 20)[-1] == After(20.0)


def test_on_failure_lets_success_be():
    obj = running(**{"drakkar.dev/run-seconds": "5"})
    obj["spec"]["restartPolicy"] = "OnFailure"
    step(obj, now=NOW + 5)
    assert obj["status"]["phase"] == "Succeeded"


def test_a_deadline_ends_the_pod():
    obj = running()
    obj["spec"]["activeDeadlineSeconds"] = 30
    assert step(obj, now=NOW + 10) == [After(20.0)]
    step(obj, now=NOW + 30)
    assert (obj["status"]["phase"], obj["status"]["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_deleted_pod_ends_and_is_let_go():
    obj = running()
    obj["metadata"] |= {"deletionTimestamp": "1970-01-12T13:47:00Z", "deletionGracePeriodSeconds": 30}
    patch, delete = step(obj, now=NOW + 5)
    assert isinstance(patch, Patch)
    assert obj["status"]["phase"] == "Failed"
    assert obj["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert isinstance(delete, Delete)
    assert (delete.uid, delete.grace) == ("u", 0)


def test_a_pod_that_a_finalizer_keeps_is_not_deleted_again():
    obj = running()
    obj["metadata"] |= {"deletionTimestamp": "1970-01-12T13:47:00Z", "deletionGracePeriodSeconds": 0}
    (patch,) = step(obj)
    assert isinstance(patch, Patch)
    assert step(obj) == []


def test_a_deleted_pod_that_never_started_goes():
    obj = pod()
    obj["metadata"] |= {"deletionTimestamp": "1970-01-12T13:47:00Z", "deletionGracePeriodSeconds": 30}
    assert isinstance(step(obj)[-1], Delete)
