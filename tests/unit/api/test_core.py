"""Pods, jobs, nodes, namespaces, leases: defaults, strategies, validation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from drakkar.api.core.defaults import pull_policy
from drakkar.api.faults import describe
from drakkar.api.registry import ValidationContext, defaults_for, strategy_for, validator_for

Object = dict[str, Any]
Change = Callable[[Object], Any]
NOW = "2026-01-01T00:00:00Z"
GROUPS = {"Job": "batch", "Lease": "coordination.k8s.io"}

INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
DUPLICATE, NOT_FOUND, NOT_SUPPORTED = "FieldValueDuplicate", "FieldValueNotFound", "FieldValueNotSupported"


def created(kind: str, obj: Object) -> Object:
    """What the server would store, validation aside."""
    obj = copy.deepcopy(obj)
    defaults = defaults_for(kind, "v1")
    strategy = strategy_for(GROUPS.get(kind, ""), kind)
    assert defaults is not None
    assert strategy is not None
    defaults(obj)
    strategy.prepare_create(obj, NOW)
    once = copy.deepcopy(obj)
    defaults(once)
    assert once == obj, "defaults are idempotent"
    return obj


def faults(kind: str, obj: Object, old: Object | None = None, subresource: str | None = None) -> list[tuple[str, str]]:
    validate = validator_for(GROUPS.get(kind, ""), kind)
    assert validate is not None
    return [(error.field, error.type) for error in validate(obj, old, subresource, ValidationContext())]


def updated(kind: str, new: Object, old: Object, subresource: str | None = None) -> Object:
    strategy = strategy_for(GROUPS.get(kind, ""), kind)
    assert strategy is not None
    strategy.prepare_update(new, old, subresource, NOW)
    return new


def make_pod(**spec: Any) -> Object:
    container = {"name": "main", "image": "busybox"}
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [container], **spec}}


def container(**members: Any) -> Object:
    return {"name": "main", "image": "busybox", **members}


C = "spec.containers[0]"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, []),
        ({"containers": []}, [("spec.containers", REQUIRED)]),
        ({"containers": [{}]}, [(f"{C}.name", REQUIRED), (f"{C}.image", REQUIRED)]),
        ({"containers": [container(), container()]}, [("spec.containers[1].name", DUPLICATE)]),
        ({"containers": [container(name="A")]}, [(f"{C}.name", INVALID)]),
        ({"containers": [container(image=" x")]}, [(f"{C}.image", INVALID)]),
        ({"containers": [container(imagePullPolicy="Now")]}, [(f"{C}.imagePullPolicy", NOT_SUPPORTED)]),
        ({"restartPolicy": "Sometimes"}, [("spec.restartPolicy", NOT_SUPPORTED)]),
        ({"dnsPolicy": "Guess"}, [("spec.dnsPolicy", NOT_SUPPORTED)]),
        ({"terminationGracePeriodSeconds": -1}, [("spec.terminationGracePeriodSeconds", INVALID)]),
        ({"activeDeadlineSeconds": 0}, [("spec.activeDeadlineSeconds", INVALID)]),
        ({"containers": [container(resources={"requests": {"cpu": "x"}})]},
         [(f"{C}.resources.requests[cpu]", INVALID)]),
        ({"containers": [container(resources={"requests": {"cpu": "-1"}})]},
         [(f"{C}.resources.requests[cpu]", INVALID)]),
        ({"containers": [container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})]},
         [(f"{C}.resources.requests", INVALID)]),
        ({"containers": [container(resources={"limits": {"example.com/gpu": "1"}})]}, []),
        ({"containers": [container(resources={"limits": {"example.com/gpu": "500m"}})]},
         [(f"{C}.resources.limits[example.com/gpu]", INVALID), (f"{C}.resources.requests[example.com/gpu]", INVALID)]),
        ({"containers": [container(resources={"requests": {"example.com/gpu": "1"}})]},
         [(f"{C}.resources.limits", REQUIRED)]),
        ({"containers": [container(resources={"limits": {"gpu": "1"}})]},
         [(f"{C}.resources.limits[gpu]", INVALID), (f"{C}.resources.requests[gpu]", INVALID)]),
        ({"containers": [container(resources={"claims": [{"name": "no"}]})]},
         [(f"{C}.resources.claims[0]", NOT_FOUND)]),
        ({"containers": [container(resources={"claims": [{"name": "c"}, {"name": "c", "request": "r"}]})],
          "resourceClaims": [{"name": "c", "resourceClaimName": "x"}]}, [(f"{C}.resources.claims[1]", DUPLICATE)]),
        ({"containers": [container(resources={"claims": [{"name": "c", "request": r} for r in "ab"]})],
          "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "x"}]}, []),
        ({"resourceClaims": [{"name": "c"}]}, [("spec.resourceClaims[0]", INVALID)]),
        ({"resourceClaims": [{"name": "c", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]},
         [("spec.resourceClaims[0]", INVALID)]),
        ({"resourceClaims": [{"name": n, "resourceClaimName": "a"} for n in "cc"]},
         [("spec.resourceClaims[1].name", DUPLICATE)]),
        ({"resources": {"claims": [{"name": "c"}]}}, [("spec.resources.claims", FORBIDDEN)]),
        ({"volumes": [{"name": "v"}], "containers": [container(volumeMounts=[{"name": "v", "mountPath": "/x"},
          {"name": "w", "mountPath": "/x"}])]},
         [(f"{C}.volumeMounts[1].name", NOT_FOUND), (f"{C}.volumeMounts[1].mountPath", INVALID)]),
        ({"tolerations": [{"key": "a", "value": "b"}, {"operator": "Exists"}]}, []),
        ({"tolerations": [{"value": "b"}]}, [("spec.tolerations[0].operator", INVALID)]),
        ({"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 3}]},
         [("spec.tolerations[0].effect", INVALID)]),
        ({"tolerations": [{"key": "a", "operator": "Like", "effect": "None"}]},
         [("spec.tolerations[0].operator", NOT_SUPPORTED), ("spec.tolerations[0].effect", NOT_SUPPORTED)]),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "In"}]}]}}}},
         [("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
           ".matchExpressions[0].values", REQUIRED)]),
        ({"schedulingGates": [{"name": "drakkar.dev/allocation"}, {"name": "drakkar.dev/allocation"}]},
         [("spec.schedulingGates[1].name", DUPLICATE)]),
        ({"schedulingGroup": {}}, [("spec.schedulingGroup", REQUIRED)]),
        ({"initContainers": [container(name="i", restartPolicy="Always")]}, []),
        ({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "X"}]},
         [("spec.topologySpreadConstraints[0].maxSkew", INVALID),
          ("spec.topologySpreadConstraints[0].topologyKey", REQUIRED),
          ("spec.topologySpreadConstraints[0].whenUnsatisfiable", NOT_SUPPORTED)]),
    ],
)  # fmt: skip
def test_pods(spec: Object, expected: list[tuple[str, str]]) -> None:
    assert faults("Pod", created("Pod", make_pod(**spec))) == expected


def test_pod_defaults() -> None:
    probe = {"httpGet": {"port": 80}}
    pod = created(
        "Pod",
        make_pod(
            containers=[container(image="a:1", livenessProbe=probe, ports=[{"containerPort": 80}],
                                  resources={"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})],
            volumes=[{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}],
            serviceAccount="robot",
            schedulingGates=[{"name": "drakkar.dev/allocation"}],
        ),
    )  # fmt: skip
    main = pod["spec"]["containers"][0]
    assert main["livenessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
    }  # fmt: skip
    assert main["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    assert main["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert main["imagePullPolicy"] == "IfNotPresent"
    assert pod["spec"]["volumes"] == [
        {"name": "v", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
    ]
    assert pod["spec"]["serviceAccountName"] == "robot"
    assert pod["status"]["qosClass"] == "Burstable"
    assert pod["status"]["conditions"][0]["reason"] == "SchedulingGated"


@pytest.mark.parametrize(
    ("image", "policy"),
    [("a", "Always"), ("a:latest", "Always"), ("r:5000/a", "Always"), ("r:5000/a:1", "IfNotPresent"),
     ("a@sha256:00", "IfNotPresent")],
)  # fmt: skip
def test_pull_policy(image: str, policy: str) -> None:
    assert pull_policy(image) == policy


def pod_change(**spec: Any) -> Change:
    return lambda pod: pod["spec"].update(spec)


@pytest.mark.parametrize(
    ("old", "change", "expected"),
    [
        ({}, lambda pod: pod["spec"]["containers"][0].update(image="new"), []),
        ({}, pod_change(activeDeadlineSeconds=5), []),
        ({"activeDeadlineSeconds": 3}, pod_change(activeDeadlineSeconds=5), [("spec.activeDeadlineSeconds", INVALID)]),
        ({}, pod_change(tolerations=[{"operator": "Exists"}]), []),
        ({"tolerations": [{"operator": "Exists"}]}, pod_change(tolerations=[]), [("spec", FORBIDDEN)]),
        ({}, pod_change(hostNetwork=True), [("spec", FORBIDDEN)]),
        ({}, pod_change(nodeName="n1"), [("spec", FORBIDDEN)]),
        ({}, pod_change(nodeSelector={"a": "b"}), [("spec", FORBIDDEN)]),
        ({}, pod_change(schedulingGates=[{"name": "a"}]), [("spec.schedulingGates", FORBIDDEN)]),
        ({"schedulingGates": [{"name": "a"}]}, pod_change(schedulingGates=[]), []),
        ({"schedulingGates": [{"name": "a"}]}, pod_change(schedulingGates=[], nodeSelector={"a": "b"}), []),
        ({"schedulingGates": [{"name": "a"}]},
         pod_change(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
             "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}}),
         []),
        ({"schedulingGates": [{"name": "a"}], "nodeSelector": {"a": "b"}}, pod_change(nodeSelector={}),
         [("spec", FORBIDDEN)]),
        ({}, pod_change(containers=[]), [("spec.containers", FORBIDDEN)]),
    ],
)  # fmt: skip
def test_pod_updates(old: Object, change: Change, expected: list[tuple[str, str]]) -> None:
    before = created("Pod", make_pod(**old))
    after = copy.deepcopy(before)
    change(after)
    assert faults("Pod", updated("Pod", after, before), before) == expected


def test_pod_status_endpoint_changes_status_only() -> None:
    old = created("Pod", make_pod())
    new = copy.deepcopy(old)
    new["spec"] = {}
    new["status"] = {"phase": "Running", "qosClass": "Guaranteed"}
    new["metadata"]["annotations"] = {"a": "b"}
    updated("Pod", new, old, "status")
    assert new["spec"] == old["spec"]
    assert new["status"] == {"phase": "Running", "qosClass": "BestEffort"}
    assert new["metadata"]["annotations"] == {"a": "b"}
    main = updated("Pod", {**copy.deepcopy(old), "status": {"phase": "Lost"}}, old)
    assert main["status"]["phase"] == "Pending"
    assert main["metadata"]["generation"] == 1


def test_lifting_the_last_gate_takes_its_condition_away() -> None:
    old = created("Pod", make_pod(schedulingGates=[{"name": "a"}]))
    new = copy.deepcopy(old)
    del new["spec"]["schedulingGates"]
    updated("Pod", new, old)
    assert "conditions" not in new["status"]
    assert old["status"]["conditions"]
    assert new["metadata"]["generation"] == 2


def make_job(**spec: Any) -> Object:
    template = {"spec": {"containers": [container()], "restartPolicy": "Never"}}
    return {"metadata": {"name": "j", "namespace": "default", "uid": "u1"}, "spec": {"template": template, **spec}}


EXIT = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, []),
        ({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}, []),
        ({"parallelism": -1}, [("spec.parallelism", INVALID)]),
        ({"completionMode": "Indexed", "parallelism": 1}, [("spec.completions", REQUIRED)]),
        ({"completionMode": "Odd"}, [("spec.completionMode", NOT_SUPPORTED)]),
        ({"backoffLimitPerIndex": 1}, [("spec.backoffLimitPerIndex", INVALID)]),
        ({"backoffLimit": -1, "ttlSecondsAfterFinished": -1},
         [("spec.backoffLimit", INVALID), ("spec.ttlSecondsAfterFinished", INVALID)]),
        ({"manualSelector": True}, [("spec.selector", REQUIRED)]),
        ({"manualSelector": True, "selector": {"matchLabels": {"a": "b"}}},
         [("spec.template.metadata.labels", INVALID)]),
        ({"podReplacementPolicy": "Later"}, [("spec.podReplacementPolicy", NOT_SUPPORTED)]),
        ({"podFailurePolicy": {"rules": [EXIT]}}, []),
        ({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}},
         []),
        ({"podFailurePolicy": {"rules": [{**EXIT, "action": "Explode"}]}},
         [("spec.podFailurePolicy.rules[0].action", NOT_SUPPORTED)]),
        ({"podFailurePolicy": {"rules": [{"action": "Count"}]}}, [("spec.podFailurePolicy.rules[0]", INVALID)]),
        ({"podFailurePolicy": {"rules": [{"action": "Count", "onExitCodes": {
            "operator": "In", "containerName": "no", "values": [3, 0, 3]}}]}},
         [("spec.podFailurePolicy.rules[0].onExitCodes.containerName", INVALID),
          ("spec.podFailurePolicy.rules[0].onExitCodes.values[1]", INVALID),
          ("spec.podFailurePolicy.rules[0].onExitCodes.values[2]", DUPLICATE),
          ("spec.podFailurePolicy.rules[0].onExitCodes.values", INVALID)]),
        ({"completionMode": "Indexed", "completions": 4, "successPolicy": {"rules": [
            {"succeededIndexes": "0,2-3", "succeededCount": 4}, {"succeededIndexes": "3-1"}, {}]}},
         [("spec.successPolicy.rules[0].succeededCount", INVALID),
          ("spec.successPolicy.rules[1].succeededIndexes", INVALID), ("spec.successPolicy.rules[2]", REQUIRED)]),
        ({"managedBy": "me"}, [("spec.managedBy", INVALID)]),
        ({"template": {"spec": {"containers": [container()]}}}, [("spec.template.spec.restartPolicy", NOT_SUPPORTED)]),
        ({"template": {"spec": {"containers": [{}], "restartPolicy": "Never"}}},
         [("spec.template.spec.containers[0].name", REQUIRED), ("spec.template.spec.containers[0].image", REQUIRED)]),
    ],
)  # fmt: skip
def test_jobs(spec: Object, expected: list[tuple[str, str]]) -> None:
    assert faults("Job", created("Job", make_job(**spec))) == expected


@pytest.mark.parametrize(
    ("old", "change", "expected"),
    [
        ({}, {"parallelism": 3}, []),
        ({"completions": 2}, {"completions": 3}, [("spec.completions", INVALID)]),
        ({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}, {"completions": 3, "parallelism": 3}, []),
        ({}, {"suspend": True}, []),
        ({"completions": 2}, {"completionMode": "Indexed"}, [("spec.completionMode", INVALID)]),
    ],
)
def test_job_updates(old: Object, change: Object, expected: list[tuple[str, str]]) -> None:
    before = created("Job", make_job(**old))
    after = copy.deepcopy(before)
    after["spec"].update(change)
    assert faults("Job", updated("Job", after, before), before) == expected
    assert after["metadata"]["generation"] == 2


def test_job_template_may_be_steered_before_the_start() -> None:
    for suspended, expected in ((True, []), (False, [("spec.template", INVALID)])):
        before = created("Job", make_job(suspend=suspended))
        after = copy.deepcopy(before)
        after["spec"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
        assert faults("Job", updated("Job", after, before), before) == expected
        after["spec"]["template"]["spec"]["nodeSelector"] = {}
        after["spec"]["template"]["spec"]["hostNetwork"] = True
        assert faults("Job", updated("Job", after, before), before) == [("spec.template", INVALID)]


def test_job_status() -> None:
    old = created("Job", make_job())
    new = {**copy.deepcopy(old), "spec": {}, "status": {"active": -1, "completionTime": NOW}}
    updated("Job", new, old, "status")
    assert new["spec"] == old["spec"]
    assert faults("Job", new, old, "status") == [("status.active", INVALID), ("status.completionTime", INVALID)]


def test_nodes() -> None:
    node = created("Node", {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "8", "pods": "110"}}})
    assert node["status"]["allocatable"] == {"cpu": "8", "pods": "110"}
    assert "generation" not in node["metadata"]
    assert faults("Node", node) == []
    node["spec"]["taints"] = [{"key": "a", "effect": "NoSchedule"}] * 2 + [{"key": "", "effect": "None"}]
    assert faults("Node", node) == [
        ("spec.taints[1]", DUPLICATE),
        ("spec.taints[2].key", INVALID),
        ("spec.taints[2].key", INVALID),
        ("spec.taints[2].effect", NOT_SUPPORTED),
    ]
    status = {**copy.deepcopy(node), "status": {"capacity": {"cpu": "-1"}}}
    assert faults("Node", updated("Node", status, node, "status"), node, "status") == [
        ("status.capacity[cpu]", INVALID)
    ]
    node["spec"] = {"providerID": "x"}
    moved = {**copy.deepcopy(node), "spec": {"providerID": "y"}}
    assert faults("Node", updated("Node", moved, node), node) == [("spec.providerID", FORBIDDEN)]


def test_namespaces() -> None:
    namespace = created("Namespace", {"metadata": {"name": "team"}})
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    assert namespace["spec"] == {"finalizers": ["kubernetes"]}
    assert namespace["status"] == {"phase": "Active"}
    assert faults("Namespace", namespace) == []
    assert faults("Namespace", created("Namespace", {"metadata": {"name": "a.b"}})) == [("metadata.name", INVALID)]
    emptied = {**copy.deepcopy(namespace), "spec": {"finalizers": []}}
    assert updated("Namespace", copy.deepcopy(emptied), namespace)["spec"] == {"finalizers": ["kubernetes"]}
    assert updated("Namespace", emptied, namespace, "finalize")["spec"] == {"finalizers": []}


def test_leases() -> None:
    lease = created("Lease", {"metadata": {"name": "n1", "namespace": "kube-node-lease"}})
    assert lease["spec"] == {}
    lease["spec"] = {"leaseDurationSeconds": 0, "leaseTransitions": -1, "preferredHolder": "me"}
    assert faults("Lease", lease) == [
        ("spec.leaseDurationSeconds", INVALID),
        ("spec.leaseTransitions", INVALID),
        ("spec.preferredHolder", FORBIDDEN),
    ]


def test_message_of_a_forbidden_pod_update() -> None:
    old = created("Pod", make_pod())
    new = copy.deepcopy(old)
    new["spec"]["hostNetwork"] = True
    validate = validator_for("", "Pod")
    assert validate is not None
    (error,) = validate(new, old, None, ValidationContext())
    assert describe(error).startswith(
        "Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
    )


@pytest.mark.parametrize(
    ("kind", "version", "expected"),
    [
        ("ReplicaSet", "v1", {"replicas": 1}),
        ("StatefulSet", "v1", {"podManagementPolicy": "OrderedReady"}),
        ("DaemonSet", "v1", {"updateStrategy": {"type": "RollingUpdate",
                                                "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}),
        ("CronJob", "v1", {"concurrencyPolicy": "Allow", "failedJobsHistoryLimit": 1}),
        ("PodGroup", "v1beta1", {"disruptionMode": {"single": {}}}),
    ],
)  # fmt: skip
def test_defaults_of_other_workloads(kind: str, version: str, expected: Object) -> None:
    obj: Object = {"metadata": {"name": "x"}}
    defaults = defaults_for(kind, version)
    assert defaults is not None
    defaults(obj)
    assert {field: obj["spec"][field] for field in expected} == expected
    again = copy.deepcopy(obj)
    defaults(again)
    assert again == obj


def debugged(**members: Any) -> Object:
    pod = created("Pod", make_pod())
    pod["spec"]["ephemeralContainers"] = [{"name": "dbg", "image": "i", "imagePullPolicy": "Always", **members}]
    return pod


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({}, []),
        ({"targetContainerName": "main"}, []),
        ({"targetContainerName": "other"}, [("spec.ephemeralContainers[0].targetContainerName", NOT_FOUND)]),
        ({"image": ""}, [("spec.ephemeralContainers[0].image", REQUIRED)]),
        ({"name": "main"}, [("spec.ephemeralContainers[0].name", DUPLICATE)]),
        ({"ports": [{"containerPort": 1}]}, [("spec.ephemeralContainers[0].ports", FORBIDDEN)]),
        ({"env": [{"name": "a=b"}]}, [("spec.ephemeralContainers[0].env[0].name", INVALID)]),
        ({"volumeMounts": [{"name": "no", "mountPath": "/a"}]},
         [("spec.ephemeralContainers[0].volumeMounts[0].name", NOT_FOUND)]),
    ],
)  # fmt: skip
def test_ephemeral_containers_are_added_through_their_subresource(
    members: Object, found: list[tuple[str, str]]
) -> None:
    old = created("Pod", make_pod())
    old["metadata"]["uid"] = "u"
    new = debugged(**members)
    new["metadata"] = copy.deepcopy(old["metadata"])
    new["spec"]["nodeName"] = "elsewhere"
    new = updated("Pod", new, old, "ephemeralcontainers")
    assert "nodeName" not in new["spec"]
    assert len(new["spec"]["ephemeralContainers"]) == 1
    assert faults("Pod", new, old, "ephemeralcontainers") == found
    assert ("spec", FORBIDDEN) in faults("Pod", new, old)


def test_ephemeral_containers_stay_as_they_are() -> None:
    old = debugged()
    for change in (lambda items: items.clear(), lambda items: items[0].update(image="other")):
        new = copy.deepcopy(old)
        change(new["spec"]["ephemeralContainers"])
        assert faults("Pod", new, old, "ephemeralcontainers") == [("spec.ephemeralContainers", FORBIDDEN)]
    assert ("spec.ephemeralContainers", FORBIDDEN) in faults("Pod", old)
