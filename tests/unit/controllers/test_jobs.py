"""Jobs: counting, indexes, policies, ends; and all of it over stale caches and crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.api.kinds import JOB, POD
from drakkar.client.writes import Delete
from drakkar.controllers.jobindexes import format_indexes, parse_indexes
from drakkar.controllers.jobpolicy import judge, success_rule_met
from drakkar.controllers.jobs import Jobs
from tests.unit.controllers.objects import job
from tests.unit.controllers.world import Harness, World

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
IGNORE_DISRUPTION = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


def build(world: World) -> list[Any]:
    return [Jobs(world, world.clock)]  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


def status(world: World) -> dict[str, Any]:
    return world.read(JOB, "j")["status"]


def conditions(world: World) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status(world).get("conditions") or ()}


def live(world: World) -> list[dict[str, Any]]:
    return [
        pod
        for pod in world.all(POD)
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        and not pod["metadata"].get("deletionTimestamp")
    ]


def bind(world: World) -> None:
    for pod in live(world):
        world.update(POD, pod["metadata"]["name"], "default", _run)


def _is_create(write: Any) -> bool:
    return type(write).__name__ == "Create"


def _run(pod: dict[str, Any]) -> None:
    pod["spec"]["nodeName"] = "n"
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def end(world: World, pod: dict[str, Any], phase: str, code: int = 0, disrupted: bool = False) -> None:
    def change(obj: dict[str, Any]) -> None:
        from drakkar.client.clock import timestamp

        done = {"exitCode": code, "finishedAt": timestamp(world.clock.now)}
        obj["status"] = {"phase": phase, "containerStatuses": [{"name": "c", "state": {"terminated": done}}]}
        if disrupted:
            obj["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]

    world.update(POD, pod["metadata"]["name"], "default", change)


def test_indexed_pods_have_names_labels_owner_and_finalizer(world: World) -> None:
    made = world.create(JOB, job(completionMode="Indexed", parallelism=2, completions=2))
    Harness(world, build).rest()
    assert len(world.all(POD)) == 2
    for index, pod in enumerate(sorted(world.all(POD), key=lambda p: p["metadata"]["labels"][INDEX])):
        meta = pod["metadata"]
        assert meta["name"].startswith(f"j-{index}-")
        assert meta["generateName"] == f"j-{index}-"
        assert meta["annotations"][INDEX] == meta["labels"][INDEX] == str(index)
        assert meta["labels"]["job-name"] == meta["labels"]["batch.kubernetes.io/job-name"] == "j"
        assert meta["labels"]["controller-uid"] == made["metadata"]["uid"]
        assert meta["finalizers"] == [TRACKING]
        assert meta["ownerReferences"][0]["controller"] is True
        assert pod["spec"]["hostname"] == f"j-{index}"
        assert pod["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    assert status(world)["active"] == 2
    assert status(world)["startTime"]
    assert [event.reason for event in world.events] == ["SuccessfulCreate"] * 2


def test_numbers_alone_wait_for_company(world: World) -> None:
    world.create(JOB, job())
    harness = Harness(world, build)
    harness.settle()
    assert status(world)["active"] == 0
    harness.rest()
    assert status(world)["active"] == 1


def test_old_copy_of_the_job_repeats_no_index(world: World) -> None:
    world.create(JOB, job(completionMode="Indexed", parallelism=1, completions=2))
    harness = Harness(world, build)
    harness.rest()
    end(world, live(world)[0], "Succeeded")
    pods, jobs = (POD.group, POD.plural), (JOB.group, JOB.plural)
    world.deliver(pods)
    for write in harness.reconcile(0, "job:default/j")[:2]:
        world.execute(write)
    world.deliver(pods)  # the pod is seen untracked, the status that counts it is not seen
    harness.start()
    world.caches.known[jobs].objects["default", "j"]["status"].pop("completedIndexes")
    creates = [write.obj["metadata"]["name"] for write in harness.reconcile(0, "job:default/j") if _is_create(write)]
    assert [name[:4] for name in creates] == ["j-1-"]


def test_runs_to_completion(world: World) -> None:
    world.create(JOB, job(completionMode="Indexed", parallelism=2, completions=3))
    harness = Harness(world, build)
    for _ in range(2):
        harness.rest()
        bind(world)
        harness.rest()
        assert status(world)["ready"] == len(live(world))
        for pod in live(world):
            end(world, pod, "Succeeded")
    harness.rest()
    assert status(world)["completedIndexes"] == "0-2"
    assert status(world)["succeeded"] == 3
    assert conditions(world) == {"SuccessCriteriaMet": "True", "Complete": "True"}
    assert status(world)["completionTime"]
    assert all("finalizers" not in pod["metadata"] for pod in world.all(POD))
    assert [event.reason for event in world.events][-1] == "Completed"


def test_non_indexed_counts_by_uid(world: World) -> None:
    world.create(JOB, job(parallelism=3, completions=5))
    harness = Harness(world, build)
    ended = 0
    while ended < 5:
        harness.rest()
        bind(world)
        end(world, live(world)[0], "Succeeded")
        ended += 1
    harness.rest()
    assert status(world)["succeeded"] == 5
    assert status(world)["uncountedTerminatedPods"] == {}
    assert conditions(world)["Complete"] == "True"
    assert len(world.all(POD)) == 5


def test_work_queue_job_ends_with_its_pods(world: World) -> None:
    world.create(JOB, job(parallelism=2, completions=None))
    harness = Harness(world, build)
    harness.rest()
    first, second = live(world)
    end(world, first, "Succeeded")
    harness.rest()
    assert len(world.all(POD)) == 2
    end(world, second, "Succeeded")
    harness.rest()
    assert conditions(world)["Complete"] == "True"
    assert status(world)["succeeded"] == 2


def test_failures_pause_and_double_until_the_limit(world: World) -> None:
    world.create(JOB, job(backoffLimit=2))
    harness = Harness(world, build)
    harness.rest()
    for pause in (10, 20):
        end(world, live(world)[0], "Failed", code=1)
        harness.advance(pause - 1)
        assert live(world) == []
        harness.advance(1.5)
        assert len(live(world)) == 1
    end(world, live(world)[0], "Failed", code=1)
    harness.advance(1)
    assert conditions(world) == {"FailureTarget": "True", "Failed": "True"}
    assert status(world)["failed"] == 3
    assert [event.reason for event in world.events][-1] == "BackoffLimitExceeded"


def test_ignored_disruption_is_replaced_at_once_and_counts_for_nothing(world: World) -> None:
    world.create(
        JOB,
        job(completionMode="Indexed", parallelism=4, completions=4, backoffLimit=0, podFailurePolicy=IGNORE_DISRUPTION),
    )
    harness = Harness(world, build)
    harness.rest()
    bind(world)
    victims = live(world)
    for pod in victims:
        world.delete(Delete(POD, "default", pod["metadata"]["name"]))
    harness.rest()
    assert live(world) == []  # podFailurePolicy: wait for the terminal phase
    assert status(world)["terminating"] == 4
    for pod in victims:
        end(world, pod, "Failed", code=137, disrupted=True)
        world.delete(Delete(POD, "default", pod["metadata"]["name"], grace=0))
    harness.rest()
    assert len(live(world)) == 4
    assert status(world).get("failed", 0) == 0
    assert conditions(world) == {}


def test_terminating_pods_are_replaced_at_once_by_default(world: World) -> None:
    world.create(JOB, job())
    harness = Harness(world, build)
    harness.rest()
    bind(world)
    (pod,) = live(world)
    world.delete(Delete(POD, "default", pod["metadata"]["name"]))
    harness.rest()
    assert len(live(world)) == 1
    assert status(world)["failed"] == 1
    assert status(world)["terminating"] == 1


def test_replacement_policy_failed_waits(world: World) -> None:
    world.create(JOB, job(podReplacementPolicy="Failed"))
    harness = Harness(world, build)
    harness.rest()
    bind(world)
    (pod,) = live(world)
    world.delete(Delete(POD, "default", pod["metadata"]["name"]))
    harness.rest()
    assert live(world) == []
    end(world, pod, "Failed", code=1)
    harness.rest()
    assert len(live(world)) == 1


def test_pod_deleted_before_it_had_a_node_is_replaced(world: World) -> None:
    world.create(JOB, job(podReplacementPolicy="Failed"))
    harness = Harness(world, build)
    harness.rest()
    (pod,) = live(world)
    world.delete(Delete(POD, "default", pod["metadata"]["name"]))
    harness.rest()
    assert len(live(world)) == 1


def test_fail_job_rule(world: World) -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    world.create(JOB, job(parallelism=2, completions=2, podFailurePolicy={"rules": rules}))
    harness = Harness(world, build)
    harness.rest()
    bind(world)
    first, second = live(world)
    end(world, first, "Failed", code=42)
    harness.rest()
    assert conditions(world) == {"FailureTarget": "True"}
    end(world, second, "Failed", code=137)
    harness.rest()
    assert conditions(world)["Failed"] == "True"
    failed = next(entry for entry in status(world)["conditions"] if entry["type"] == "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert "exit code 42" in failed["message"]


def test_active_deadline(world: World) -> None:
    world.create(JOB, job(activeDeadlineSeconds=30))
    harness = Harness(world, build)
    harness.advance(29)
    assert conditions(world) == {}
    harness.advance(2)
    assert conditions(world)["FailureTarget"] == "True"
    assert live(world) == []


def test_suspend_and_resume(world: World) -> None:
    world.create(JOB, job(suspend=True))
    harness = Harness(world, build)
    harness.rest()
    assert world.all(POD) == []
    assert conditions(world) == {"Suspended": "True"}
    assert "startTime" not in status(world)
    world.update(JOB, "j", "default", lambda j: j["spec"].update(suspend=False))
    harness.rest()
    assert len(live(world)) == 1
    assert conditions(world) == {"Suspended": "False"}
    world.update(JOB, "j", "default", lambda j: j["spec"].update(suspend=True))
    harness.rest()
    assert live(world) == []
    assert status(world)["failed"] == 0
    said = [event.reason for event in world.events if event.reason in ("Suspended", "Resumed")]
    assert said == ["Suspended", "Resumed", "Suspended"]


def test_scaling_down_fails_nobody(world: World) -> None:
    world.create(JOB, job(parallelism=3, completions=5))
    harness = Harness(world, build)
    harness.rest()
    world.update(JOB, "j", "default", lambda j: j["spec"].update(parallelism=1))
    harness.rest()
    assert len(live(world)) == 1
    assert status(world)["failed"] == 0


def test_time_to_live(world: World) -> None:
    world.create(JOB, job(ttlSecondsAfterFinished=60))
    harness = Harness(world, build)
    harness.rest()
    end(world, live(world)[0], "Succeeded")
    harness.advance(59)
    assert not world.read(JOB, "j")["metadata"].get("deletionTimestamp")
    harness.advance(2)
    assert world.read(JOB, "j")["metadata"]["finalizers"] == ["foregroundDeletion"]


def test_backoff_limit_per_index(world: World) -> None:
    world.create(
        JOB, job(completionMode="Indexed", parallelism=2, completions=2, backoffLimit=None, backoffLimitPerIndex=1)
    )
    harness = Harness(world, build)
    harness.rest()

    def of(index: str) -> dict[str, Any]:
        return next(pod for pod in live(world) if pod["metadata"]["labels"][INDEX] == index)

    end(world, of("0"), "Failed", code=1)
    end(world, of("1"), "Succeeded")
    harness.rest()
    held = [pod for pod in world.all(POD) if pod["status"].get("phase") == "Failed"]
    assert held[0]["metadata"]["finalizers"] == [TRACKING]  # it carries the count until it has a successor
    harness.advance(11)
    assert of("0")["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] == "1"
    end(world, of("0"), "Failed", code=1)
    harness.rest()
    assert status(world)["failedIndexes"] == "0"
    assert status(world)["completedIndexes"] == "1"
    failed = next(entry for entry in status(world)["conditions"] if entry["type"] == "Failed")
    assert failed["reason"] == "FailedIndexes"
    assert status(world)["failed"] == 2


def test_success_policy(world: World) -> None:
    rules = {"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]}
    world.create(JOB, job(completionMode="Indexed", parallelism=3, completions=3, successPolicy=rules))
    harness = Harness(world, build)
    harness.rest()
    first = next(pod for pod in live(world) if pod["metadata"]["labels"][INDEX] == "1")
    end(world, first, "Succeeded")
    harness.rest()
    assert conditions(world)["Complete"] == "True"
    assert live(world) == []


def test_orphaned_pod_is_let_go(world: World) -> None:
    world.create(JOB, job())
    harness = Harness(world, build)
    harness.rest()
    bind(world)
    harness.rest()
    world.delete(Delete(JOB, "default", "j"))
    harness.rest()
    (pod,) = world.all(POD)
    assert "finalizers" not in pod["metadata"]


def test_deleted_job_lets_its_deleted_pods_go(world: World) -> None:
    world.create(JOB, job())
    harness = Harness(world, build)
    harness.rest()
    world.delete(Delete(JOB, "default", "j", propagation="Foreground"))
    world.delete(Delete(POD, "default", world.all(POD)[0]["metadata"]["name"]))
    harness.rest()
    assert world.all(POD) == []


def test_foreign_manager_is_respected(world: World) -> None:
    world.create(JOB, job(managedBy="kueue.x-k8s.io/multikueue"))
    Harness(world, build).settle()
    assert world.all(POD) == []


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({"onExitCodes": {"operator": "In", "values": [3]}}, True),
        ({"onExitCodes": {"operator": "NotIn", "values": [3]}}, False),
        ({"onExitCodes": {"operator": "NotIn", "values": [4]}}, True),
        ({"onExitCodes": {"operator": "In", "values": [3], "containerName": "other"}}, False),
        ({"onPodConditions": [{"type": "DisruptionTarget"}]}, True),
        ({"onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}, False),
    ],
)
def test_policy_rules(rule: dict[str, Any], matches: bool) -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n"},
        "status": {
            "phase": "Failed",
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 3}}}],
        },
    }
    verdict = judge({"spec": {"podFailurePolicy": {"rules": [{"action": "Ignore", **rule}]}}}, pod)
    assert verdict.action == ("Ignore" if matches else "Count")


def test_success_rules() -> None:
    policy = {"spec": {"successPolicy": {"rules": [{"succeededIndexes": "0,2"}, {"succeededCount": 3}]}}}
    assert success_rule_met(policy, {0, 1}, 5) is None
    assert success_rule_met(policy, {0, 2}, 5) == "Matched rules at index 0"
    assert success_rule_met(policy, {1, 3, 4}, 5) == "Matched rules at index 1"


@given(st.sets(st.integers(0, 60)))
def test_indexes_round_trip(indexes: set[int]) -> None:
    assert parse_indexes(format_indexes(indexes), 61) == indexes


def test_index_spelling() -> None:
    assert format_indexes([1, 3, 4, 5, 7, 8]) == "1,3-5,7,8"
    assert parse_indexes("1,x,3-5", 5) == {1, 3, 4}


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_any_order_any_crash_nothing_twice_nothing_lost(seed: int, indexed: bool) -> None:
    """Pods succeed and fail at random; the numbers in the status are those of the pods."""
    rng = random.Random(seed)
    world = World()
    mode = {"completionMode": "Indexed"} if indexed else {}
    world.create(JOB, job(parallelism=3, completions=6, backoffLimit=1000, **mode))
    harness = Harness(world, build)
    failed = 0
    succeeded: list[str] = []
    most = 0
    for _ in range(200):
        harness.advance(rng.choice([0, 0.2, 700]), settle=lambda: harness.settle_chaos(rng, crashes=2))
        running = live(world)
        most = max(most, len(running))
        if not running:
            if "Complete" in conditions(world):
                break
            continue
        for pod in rng.sample(running, rng.randint(1, len(running))):
            if rng.random() < 0.6:
                end(world, pod, "Succeeded")
                succeeded.append(pod["metadata"].get("labels", {}).get(INDEX, pod["metadata"]["uid"]))
            else:
                end(world, pod, "Failed", code=1)
                failed += 1
    assert conditions(world)["Complete"] == "True"
    assert most <= 3
    assert status(world)["succeeded"] == len(succeeded) == 6
    assert status(world)["failed"] == failed
    if indexed:
        assert sorted(succeeded) == list("012345")
        assert status(world)["completedIndexes"] == "0-5"
    assert len(world.all(POD)) == 6 + failed
