"""explain and dump: from hand-written objects, from kubectl's List, from a live API and from a dump of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakkar.api.errors import UsageError
from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.cli import main
from drakkar.cli.plane import case_plane
from drakkar.insight.dump import DUMPED, collect, without_secrets
from drakkar.insight.explain import LINES, explain, lines
from tests.unit.scheduler.build import allocated, claim, device_class, node, node_slice, pod, requesting


def template(name: str, count: int) -> dict[str, Any]:
    made = claim("x", count)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": made["spec"]},
    }


WORLD = [node("a"), node("b"), device_class(), node_slice("a", 2), node_slice("b", 1)]


def test_a_pod_that_waits_for_devices() -> None:
    taken = [allocated(claim(f"t{i}"), "a", f"gpu-{i}") for i in range(2)]
    found = explain([*WORLD, *taken, claim("c", 2), pod("p", "c")], "p")
    assert (found.kind, found.state, found.reason) == ("Pod", "pending", "not-enough-devices")
    assert found.cure == "ask for fewer devices, or add devices"
    [request] = found.requests
    assert (request.claim, request.request, request.nodes, request.served) == ("default/c", "gpus", 2, 0)
    assert request.funnel == {"published": 3, "matching": 3, "large-enough": 3, "untainted": 3, "free": 1}
    assert request.by_node == {}
    text = "\n".join(lines(found))
    assert "0/2 nodes are available" in text
    assert "3 published > 3 matching > 3 large-enough > 3 untainted > 1 free" in text
    assert "to fix it: ask for fewer devices" in text


def test_who_holds_what_is_waited_for() -> None:
    taken = [allocated(claim(f"t{i}"), "a", f"gpu-{i}") for i in range(2)]
    taken[0]["status"]["reservedFor"] = [{"resource": "pods", "name": "owner", "uid": "u"}]
    elsewhere = allocated(claim("other"), "c", "gpu-0")
    found = explain([*WORLD, *taken, elsewhere, claim("c", 2), pod("p", "c")], "p")
    assert [(each.claim, each.devices, each.users) for each in found.held_by] == [
        ("default/t0", 1, ["owner"]),
        ("default/t1", 1, []),
    ]
    line = "held by: default/t0 (1 device; reserved for owner), default/t1 (1 device; reserved for nobody)"
    assert f"  {line}" in lines(found)
    # The same of a claim; nobody is to blame where no release would help.
    assert explain([*WORLD, *taken, claim("c", 2)], "c", kind="ResourceClaim").held_by == found.held_by
    alone = explain([node("a"), device_class(), claim("c", 2), *taken, pod("p", "c")], "p")
    assert alone.reason == "no-slice-of-driver"
    assert alone.held_by == []


def test_of_many_holders_a_few_are_named() -> None:
    world = [node("a"), device_class(), node_slice("a", 6)]
    taken = [allocated(claim(f"t{i}"), "a", f"gpu-{i}") for i in range(6)]
    found = explain([*world, *taken, claim("c"), pod("p", "c")], "p")
    assert len(found.held_by) == 6
    [line] = [line for line in lines(found) if "held by" in line]
    assert line.endswith("default/t2 (1 device; reserved for nobody) and 3 more claims")
    assert "default/t5" in "\n".join(lines(found, full=True))


def test_whoever_draws_on_the_same_counters_holds_them() -> None:
    counters = [{"name": "set", "counters": {"memory": {"value": "10Gi"}}}]
    draw = [{"counterSet": "set", "counters": {"memory": {"value": "10Gi"}}}]
    sets, devices = node_slice("a", 0), node_slice("a", 2)
    sets["metadata"]["name"] += "-counters"
    sets["spec"].pop("devices", None)
    sets["spec"]["sharedCounters"] = counters
    for device in devices["spec"]["devices"]:
        device["consumesCounters"] = draw
    for each in (sets, devices):
        each["spec"]["pool"]["resourceSliceCount"] = 2
    taken = allocated(claim("t"), "a", "gpu-1")
    found = explain([node("a"), device_class(), sets, devices, taken, claim("c"), pod("p", "c")], "p")
    assert found.reason == "counters-exhausted"
    assert [each.claim for each in found.held_by] == ["default/t"]


def test_in_full_every_node_is_told() -> None:
    found = explain([*WORLD, claim("c", 2), claim("d", 1), pod("p", "c", "d")], "p", full=True)
    assert found.reason == "not-enough-devices"
    by_node = {request.claim: request.by_node for request in found.requests}
    assert by_node["default/c"]["a"]["free"] == 2
    assert by_node["default/c"]["b"]["free"] == 1
    assert [request.served for request in found.requests] == [1, 2]
    text = "\n".join(lines(found, full=True))
    assert "default/d gpus on b: 1 published" in text


def test_what_is_in_the_way_on_each_node() -> None:
    world = [node("a", cpu="1"), node("b", taints=({"key": "broken", "effect": "NoSchedule"},))]
    found = explain([*world, requesting("p", cpu="2")], "p")
    assert found.reason == "node-unfit"
    assert found.by_node == {"a": "Insufficient cpu", "b": "node(s) had untolerated taint {broken: }"}
    assert "  node a: Insufficient cpu" in lines(found)


def test_states_of_a_pod() -> None:
    gated = pod("p", schedulingGates=[{"name": "example.com/wait"}])
    assert explain([*WORLD, gated], "p").state == "gated"
    # Our own gate waits for the decision that is explained here.
    ours = pod("p", "c", schedulingGates=[{"name": "drakkar.dev/allocation"}])
    assert explain([*WORLD, claim("c"), ours], "p").state == "fits"
    assert explain([*WORLD, {**pod("p"), "status": {"phase": "Succeeded"}}], "p").state == "done"
    running = explain([*WORLD, allocated(claim("c"), "a", "gpu-0", reserved=("p",)), pod("p", "c", node="a")], "p")
    assert (running.state, running.node, running.devices) == ("running", "a", ["c/gpus: gpu.example.com/a/gpu-0"])
    fits = explain([*WORLD, claim("c"), pod("p", "c")], "p")
    assert (fits.state, fits.node, fits.requests[0].served) == ("fits", "a", 2)


def test_a_pod_that_drakkars_own_gate_holds() -> None:
    gate = {"name": "drakkar.dev/allocation"}
    waits = explain([*WORLD, claim("c", 3), pod("p", "c", schedulingGates=[gate])], "p")
    assert (waits.state, waits.reason) == ("pending", "not-enough-devices")
    assert waits.notes == [
        "the pod is held by the scheduling gate drakkar.dev/allocation until Drakkar has devices for it"
    ]
    fits = explain([*WORLD, claim("c"), pod("p", "c", schedulingGates=[gate])], "p")
    assert (fits.state, fits.node) == ("fits", "a")
    other = pod("p", "c", schedulingGates=[gate, {"name": "example.com/wait"}])
    waits = explain([*WORLD, claim("c", 3), other], "p")
    assert (waits.state, waits.notes) == ("gated", ["Drakkar decides when drakkar.dev/allocation is the last of them"])


def test_the_name_of_a_job_leads_to_its_pods() -> None:
    made = [pod(f"train-{number}") for number in range(6)]
    for each in made:
        each["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train"}]
    with pytest.raises(
        UsageError, match=r"owns pods; name one of them: train-0, train-1, train-2, train-3 and 2 more$"
    ):
        explain([*WORLD, *made], "train")


def test_a_bound_pod_that_does_not_start() -> None:
    waiting = {"reason": "ErrImagePull", "message": 'image "x" is not on this node'}
    statuses = [{"name": "main", "state": {"waiting": waiting}}, {"name": "side", "state": {"running": {}}}]
    bound = {**pod("p", node="a"), "status": {"phase": "Pending", "containerStatuses": statuses}}
    found = explain([*WORLD, bound], "p")
    assert (found.state, found.node) == ("starting", "a")
    assert found.notes == ['container main waits (ErrImagePull): image "x" is not on this node']
    del waiting["message"]
    assert "kubectl describe pod p" in explain([*WORLD, bound], "p").notes[0]


def test_claims() -> None:
    held = allocated(claim("c"), "a", "gpu-0", reserved=("p",))
    found = explain([*WORLD, held, pod("p", "c", node="a")], "c")
    assert (found.kind, found.state) == ("ResourceClaim", "allocated")
    assert found.devices == ["c/gpus: gpu.example.com/a/gpu-0"]
    assert found.notes == ["pods that use it: p", "reserved for: p"]
    found = explain([*WORLD, claim("c")], "c")
    assert (found.state, found.node) == ("unallocated", "a")
    assert found.notes == ["no pod uses it"]
    found = explain([*WORLD, claim("c", 3)], "c")
    assert found.reason == "not-enough-devices"
    # A pod and a claim of one name: the pod, unless told.
    both = [*WORLD, claim("x"), pod("x", "x")]
    assert explain(both, "x").kind == "Pod"
    assert explain(both, "x", kind="ResourceClaim").kind == "ResourceClaim"


def test_manifests_that_no_server_has_seen() -> None:
    """No uid, no namespace, no defaults, an old version, claims yet to be made."""
    used = {"name": "gpu", "resourceClaimTemplateName": "three"}
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"resourceClaims": [used]}}
    plain["spec"]["containers"] = [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "1"}}}]
    old = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "three"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "deviceClassName": "gpu", "count": 3}]}}},
    }
    found = explain([*WORLD, old, plain], "p")
    assert found.reason == "not-enough-devices"
    assert found.requests[0].claim == "default/p-gpu"
    assert found.notes == ["not made yet, so taken from their templates: p-gpu"]
    assert explain([node("a", cpu="500m"), {**plain, "spec": {**plain["spec"], "resourceClaims": []}}], "p").by_node


def test_extended_resources() -> None:
    named = device_class()
    named["spec"]["extendedResourceName"] = "example.com/gpu"
    found = explain([node("a"), named, node_slice("a", 1), requesting("p", **{"example.com/gpu": "2"})], "p")
    assert found.reason == "not-enough-devices"
    assert found.requests[0].claim == "default/p-extended-resources"


def test_extended_resources_of_a_gated_pod() -> None:
    named = device_class()
    named["spec"]["extendedResourceName"] = "example.com/gpu"
    gated = requesting("p", **{"example.com/gpu": "1"})
    gated["spec"]["schedulingGates"] = [{"name": "drakkar.dev/allocation"}]
    found = explain([node("a"), named, node_slice("a", 1), gated], "p")
    assert (found.state, found.reason) == ("pending", "extended-resources")
    assert "remove the scheduling gate drakkar.dev/allocation" in found.message


def test_what_nobody_has_made_is_named() -> None:
    other = claim("c")
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpus"
    found = explain([*WORLD, other, pod("p", "c")], "p")
    assert (found.reason, "kubectl get deviceclasses" in found.cure) == ("class-missing", True)
    lacking = requesting("p", **{"example.com/gpu": "1", "cpu": "100"})
    assert explain([*WORLD, lacking], "p").notes == [
        "no node offers example.com/gpu, and no DeviceClass has it as extendedResourceName"
    ]
    waits = pod("p")
    waits["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    named = "there is no ResourceClaimTemplate one in namespace default: create it, or correct the pod"
    assert explain([*WORLD, waits], "p").notes == [named]
    assert named not in explain([*WORLD, template("one", 1), waits], "p").notes


def test_a_pod_that_fits_and_that_nobody_looks_at() -> None:
    known = pod("p", "c", schedulerName="drakar")
    known["metadata"]["uid"] = "u"
    world = [*WORLD, claim("c")]
    asked = "no scheduler has looked at the pod yet: is there one for schedulerName drakar?"
    assert explain([*world, known], "p").notes == [asked]
    looked = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    assert explain([*world, {**known, "status": {"conditions": [looked]}}], "p").notes == []
    # A gated one has the API server's condition from the beginning.
    known["spec"]["schedulingGates"] = [{"name": "drakkar.dev/allocation"}]
    told = {**looked, "message": "Scheduling is blocked due to non-empty scheduling gates"}
    [_, note] = explain([*world, {**known, "status": {"conditions": [told]}}], "p").notes
    assert note.startswith("Drakkar has not looked at the pod yet")
    assert len(explain([*world, {**known, "status": {"conditions": [looked]}}], "p").notes) == 1


def test_a_pod_whose_gate_is_lifted_waits_for_its_own_scheduler() -> None:
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    made = pod("p", "c", affinity={"nodeAffinity": required})
    made["metadata"]["annotations"] = {"drakkar.dev/allocated-node": "a"}
    looked = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "wants 2 devices"}
    made["status"] = {"conditions": [looked]}
    world = [*WORLD, allocated(claim("c"), "a", "gpu-0", reserved=("p",))]
    found = explain([*world, made], "p")
    assert (found.state, found.node) == ("fits", "a")
    assert found.notes == ["Drakkar has lifted its gate for node a: default-scheduler has to bind it there"]
    lost = {"type": "drakkar.dev/AllocationLost", "status": "True", "message": "node a is gone. Delete the pod"}
    made["status"]["conditions"].append(lost)
    assert explain([*world, made], "p").notes == ["node a is gone. Delete the pod"]


def test_a_gang_is_explained_as_one() -> None:
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
    group["spec"] = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    pods = [pod(f"p-{i}", f"c-{i}", schedulingGroup={"podGroupName": "g"}) for i in range(4)]
    claims = [claim(f"c-{i}", 2) for i in range(4)]
    found = explain([*WORLD, group, *claims, *pods], "p-0")
    assert (found.state, found.reason) == ("pending", "waiting-for-group")
    assert "podgroup g starts with 3 more pods or not at all; 1 fit" in found.message
    assert explain([*WORLD, group, *claims, *pods[:2]], "p-0").message.endswith("or more only.")
    # In gate mode the same: pods that only our gate holds are decided together.
    for each in pods:
        each["spec"]["schedulingGates"] = [{"name": "drakkar.dev/allocation"}]
    assert "1 fit" in explain([*WORLD, group, *claims, *pods], "p-0").message
    assert explain([*WORLD, group, *claims[:2], *pods[:2], pod("else")], "p-0").reason == "waiting-for-group"


def test_what_a_claim_prefers_is_told() -> None:
    wish = '[{"matchAttribute": "gpu.example.com/root", "weight": 3}]'
    wanted = claim("c", 2, annotations={"drakkar.dev/preferred-constraints": wish})
    gpus = node_slice("a", 2)
    for root, device in enumerate(gpus["spec"]["devices"]):
        device["attributes"] = {"root": {"int": root}}
    world = [node("a"), device_class(), gpus]
    line = "prefers matchAttribute gpu.example.com/root (weight 3): not fulfilled"
    assert line in explain([*world, wanted, pod("p", "c")], "p").notes
    held = allocated(wanted, "a", "gpu-0", "gpu-1", reserved=("p",))
    assert line in explain([*world, held], "c").notes
    assert line in explain([*world, held, pod("p", "c", node="a")], "p").notes
    gpus["spec"]["devices"][1]["attributes"] = {"root": {"int": 0}}
    assert "prefers matchAttribute gpu.example.com/root (weight 3): fulfilled" in explain([*world, held], "c").notes


def test_the_default_text_is_short() -> None:
    claims = [claim(f"c{i}", 9) for i in range(30)]
    found = explain([*WORLD, *claims, pod("p", *(f"c{i}" for i in range(30)))], "p")
    short = lines(found)
    assert len(short) == LINES
    assert "more lines with --full" in short[-1]
    assert len(lines(found, full=True)) > 30


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no pod or claim q in namespace team; other namespaces: default"):
        explain([pod("p")], "q", "team")
    broken = {**claim("c"), "spec": {"devices": {"requests": "many"}}}
    with pytest.raises(UsageError, match="ResourceClaim default/c"):
        explain([node("a"), broken, pod("p")], "p")
    with pytest.raises(UsageError, match="Pod default/p cannot be read"):
        explain([node("a"), pod("p", containers="none")], "p")
    with pytest.raises(UsageError, match="Node n cannot be read"):
        explain([{**node("n"), "status": {"allocatable": {"cpu": "lots"}}}, pod("p")], "p")
    with pytest.raises(UsageError, match="Pod without a name"):
        explain([{"apiVersion": "v1", "kind": "Pod", "metadata": []}], "p")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main([*args])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = tmp_path / "all.yaml"
    listed.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*WORLD, claim("c", 3), pod("p", "c")]})
    )
    code, out, _ = run(capsys, "explain", "pod/p", "-f", str(listed))
    assert code == 0
    assert out.startswith("Pod default/p: pending (not-enough-devices)\n")
    code, out, _ = run(capsys, "explain", "p", "-f", str(listed), "-o", "json")
    answer = json.loads(out)
    assert answer["reason"] == "not-enough-devices"
    assert answer["requests"][0]["funnel"]["published"] == 3
    # Objects from two files count together.
    more = tmp_path / "more.json"
    more.write_text(json.dumps(node_slice("b", 3)))
    code, out, _ = run(capsys, "explain", "p", "-f", str(listed), "-f", str(more))
    assert "fits on node b" in out
    code, _, err = run(capsys, "explain", "secret/p", "-f", str(listed))
    assert (code, "say pod/p or claim/p" in err) == (2, True)
    code, _, err = run(capsys, "explain", "p", "-f", str(tmp_path / "none.yaml"))
    assert code == 2


def test_live_and_from_a_dump() -> None:
    async def scenario() -> None:
        async with case_plane() as client:
            for kind, obj in (
                (NODE, node("a", cpu="4")),
                (DEVICECLASS, device_class()),
                (RESOURCESLICE, node_slice("a", 1)),
            ):
                await client.create(kind, _fresh(obj))
            await client.create(RESOURCECLAIM, _fresh(claim("c", 2)), "default")
            secret = pod("p", "c")
            secret["spec"]["containers"][0] |= {
                "env": [{"name": "TOKEN", "value": "hunter2"}],
                "command": ["run", "--password=hunter2"],
            }
            await client.create(POD, _fresh(secret), "default")
            live = explain(await collect(client, DUMPED), "p")
            dumped = [without_secrets(obj) for obj in await collect(client, DUMPED)]
        assert live.reason == "not-enough-devices"
        assert "hunter2" not in json.dumps(dumped)
        again = explain(json.loads(json.dumps(dumped)), "p")
        assert (again.reason, again.requests) == (live.reason, live.requests)

    asyncio.run(scenario())


def _fresh(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without what only a server gives."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**obj, "metadata": metadata}


def test_a_dump_holds_nothing_confidential() -> None:
    obj = claim("c")
    obj["spec"]["devices"]["config"] = [{"opaque": {"driver": "x", "parameters": {"key": "secret"}}}]
    obj["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "secret", "kept": "yes"}
    obj["metadata"]["managedFields"] = [{"manager": "secret"}]
    kept = without_secrets(obj)
    assert "secret" not in json.dumps(kept)
    assert kept["metadata"]["annotations"] == {"kept": "yes"}
    assert kept["spec"]["devices"]["config"][0]["opaque"]["driver"] == "x"


def test_a_fence_is_told_to_pods_of_another_scheduler() -> None:
    def fence(driver: str) -> dict[str, Any]:
        taint = {"key": "drakkar.dev/managed", "effect": "NoSchedule"}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": f"drakkar-fence-{driver}"},
            "spec": {"deviceSelector": {"driver": driver}, "taint": taint},
        }

    def told(*fences: dict[str, Any], **spec: Any) -> tuple[str, list[str]]:
        world = [node("a"), device_class(), node_slice("a", 1), claim("c"), pod("p", "c", **spec), *fences]
        found = explain(world, "p")
        return found.state, [note for note in found.notes if "devicetaintrule" in note]

    mine = fence("gpu.example.com")
    state, notes = told(mine, fence("other.example.com"))
    assert state == "fits"
    assert len(notes) == 1
    assert notes[0].startswith("devicetaintrule drakkar-fence-gpu.example.com leaves devices of driver gpu.example.com")
    assert told(mine, schedulerName="drakkar") == ("fits", [])
    assert told(mine, schedulingGates=[{"name": "drakkar.dev/allocation"}]) == ("fits", [])
    assert told(fence("other.example.com")) == ("fits", [])
