"""Columns as recorded, cells as kubectl users know them."""

from __future__ import annotations

import json

import pytest

from drakkar.apiserver import printers, schema
from drakkar.apiserver.discovery import resources
from drakkar.apiserver.printers.table import _PRINTERS
from drakkar.apiserver.printers.text import epoch, human_duration, label_selector
from tests.support.shared import shared_path
from tests.unit.apiserver.pure.traces import entries, exchanges, objects

T0 = "2026-01-01T00:00:00Z"
NOW = epoch(T0) + 300.0


def test_columns_equal_recorded():
    """All of the listable resources."""
    recorded = json.loads(shared_path("spec/apiserver-traces/table-columns.json").read_text())
    assert len(recorded) > 80
    for path, entry in recorded.items():
        parts = path.split("/")
        group = parts[0] if len(parts) == 3 else ""
        mine = [
            {key: column[key] for key in ("name", "type", "format", "priority")}
            for column in printers.columns(group, entry["kind"])
        ]
        assert mine == entry["columns"], path


@pytest.mark.parametrize(("group", "kind"), sorted(_PRINTERS))
def test_every_printer_takes_an_object_of_defaults(group, kind):
    """As many cells as columns, whatever is missing."""
    versions = [resource.version for resource in resources() if (resource.group, resource.kind) == (group, kind)]
    obj = {"metadata": {"name": "x"}}
    assert len(printers.row_cells(group, kind, obj, NOW)) == len(printers.columns(group, kind))
    node = schema.schemas().for_kind(group, versions[0], kind)
    assert node is not None
    schema.apply_schema_defaults(obj, node)
    assert len(printers.row_cells(group, kind, obj, NOW)) == len(printers.columns(group, kind))


def kubectl_rows(stdout):
    """Rows of a kubectl table by the positions of its headers."""
    lines = stdout.splitlines()
    starts = [0]
    header = lines[0]
    for index in range(3, len(header)):
        if header[index] != " " and header[index - 3 : index] == "   ":
            starts.append(index)
    ends = [*starts[1:], None]
    return [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines[1:] if line.strip()]


@pytest.mark.parametrize(
    ("file", "command", "group", "kind"),
    [
        ("read", "kubectl get pods -o wide", "", "Pod"),
        ("node", "kubectl get pod dra-real -o wide", "", "Pod"),
        ("read", "kubectl get nodes -o wide", "", "Node"),
        ("read", "kubectl get jobs -o wide", "batch", "Job"),
        ("read", "kubectl get resourceclaims", "resource.k8s.io", "ResourceClaim"),
        ("read", "kubectl get resourceslices", "resource.k8s.io", "ResourceSlice"),
        ("read", "kubectl get devicetaintrules", "resource.k8s.io", "DeviceTaintRule"),
    ],
)
def test_cells_equal_what_kubectl_printed(file, command, group, kind):
    """Rows of recorded objects equal the recorded output, ages and durations aside."""
    entry = next(item for item in entries(file) if item.get("command") == command)
    columns = printers.columns(group, kind)
    wide = "wide" in command
    shown = [i for i, column in enumerate(columns) if wide or column["priority"] == 0]
    timed = {"Age", "Duration", "TimeAdded"}
    expected = {row[0]: row for row in kubectl_rows(entry["stdout"])}
    compared = 0
    for obj in objects("read", "write", "node"):
        name = obj["metadata"]["name"]
        if obj["kind"] != kind or name not in expected:
            continue
        cells = printers.row_cells(group, kind, obj, NOW)
        mine = [str(cells[i]) for i in shown]
        row = expected[name]
        # The object was recorded at another moment than the table: compare it when its state agrees.
        keep = [i for i, at in enumerate(shown) if columns[at]["name"] not in timed]
        if [mine[i] for i in keep] == [row[i] for i in keep]:
            compared += 1
    assert compared, expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"),
        (600, "10m"), (10799, "179m"), (10800, "3h"), (11100, "3h5m"), (28800, "8h"), (172799, "47h"),
        (172800, "2d"), (180000, "2d2h"), (691200, "8d"), (86400 * 729, "729d"), (86400 * 731, "2y1d"),
        (86400 * 365 * 9, "9y"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert human_duration(seconds) == text


def pod(status=None, spec=None, **meta):
    containers = {"containers": [{"name": "a"}, {"name": "b"}]}
    return {
        "metadata": {"name": "p", "creationTimestamp": T0, **meta},
        "spec": {**containers, **(spec or {})},
        "status": status or {},
    }


def container(name="a", ready=False, restarts=0, last=None, **state):
    item = {"name": name, "ready": ready, "restartCount": restarts, "state": state}
    if last:
        item["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": last}}
    return item


SIDECAR = {"initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (pod({"phase": "Pending"}), ["0/2", "Pending", "0"]),
        (pod({"phase": "Failed", "reason": "Evicted"}), ["0/2", "Evicted", "0"]),
        (
            pod(
                {
                    "phase": "Pending",
                    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
                }
            ),
            ["0/2", "SchedulingGated", "0"],
        ),
        (
            pod({"phase": "Running", "containerStatuses": [container(ready=True, running={}), container("b")]}),
            ["1/2", "Running", "0"],
        ),
        (
            pod(
                {
                    "phase": "Running",
                    "containerStatuses": [
                        container(restarts=3, last="2026-01-01T00:04:00Z", waiting={"reason": "CrashLoopBackOff"}),
                        container("b", True, running={}),
                    ],
                }
            ),
            ["1/2", "CrashLoopBackOff", "3 (60s ago)"],
        ),
        (
            pod({"phase": "Succeeded", "containerStatuses": [container(terminated={"reason": "Completed"})]}),
            ["0/2", "Completed", "0"],
        ),
        (
            pod({"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]}),
            ["0/2", "ExitCode:3", "0"],
        ),
        (
            pod({"phase": "Failed", "containerStatuses": [container(terminated={"signal": 9, "exitCode": 137})]}),
            ["0/2", "Signal:9", "0"],
        ),
        (
            pod(
                {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [
                        container(terminated={"reason": "Completed"}),
                        container("b", True, running={}),
                    ],
                }
            ),
            ["1/2", "Running", "0"],
        ),
        (
            pod({"phase": "Pending", "initContainerStatuses": [container("i", running={})]}, SIDECAR),
            ["0/3", "Init:0/2", "0"],
        ),
        (
            pod(
                {
                    "phase": "Pending",
                    "initContainerStatuses": [container("i", restarts=2, terminated={"exitCode": 1, "reason": "E"})],
                },
                SIDECAR,
            ),
            ["0/3", "Init:E", "2"],
        ),
        (
            pod(
                {
                    "phase": "Running",
                    "initContainerStatuses": [
                        container("i", restarts=5, terminated={"exitCode": 0}),
                        container("s", True, 1, running={}) | {"started": True},
                    ],
                    "containerStatuses": [container(ready=True, running={}), container("b", True, running={})],
                },
                SIDECAR,
            ),
            ["3/3", "Running", "1"],
        ),
        (pod({"phase": "Running"}, deletionTimestamp=T0), ["0/2", "Terminating", "0"]),
        (pod({"phase": "Succeeded"}, deletionTimestamp=T0), ["0/2", "Succeeded", "0"]),
        (pod({"phase": "Running", "reason": "NodeLost"}, deletionTimestamp=T0), ["0/2", "Unknown", "0"]),
    ],
)  # fmt: skip
def test_pod_states(obj, expected):
    cells = printers.row_cells("", "Pod", obj, NOW)
    assert cells[1:5] == [*expected, "5m"]
    assert cells[5:] == ["<none>", "<none>", "<none>", "<none>"]


def test_pod_wide():
    obj = pod(
        {
            "phase": "Running",
            "podIPs": [{"ip": "10.0.0.1"}],
            "nominatedNodeName": "m",
            "conditions": [{"type": "g1", "status": "True"}],
        },
        {"nodeName": "n", "readinessGates": [{"conditionType": "g1"}, {"conditionType": "g2"}]},
    )
    assert printers.row_cells("", "Pod", obj, NOW)[5:] == ["10.0.0.1", "n", "m", "1/2"]


def test_node():
    obj = {
        "metadata": {
            "name": "n",
            "creationTimestamp": T0,
            "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": ""},
        },
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}], "nodeInfo": {"kubeletVersion": "v1"}},
    }
    cells = printers.row_cells("", "Node", obj, NOW)
    assert cells[:5] == ["n", "NotReady,SchedulingDisabled", "control-plane,worker", "5m", "v1"]


def test_jobs():
    def cells(spec, status):
        return printers.row_cells(
            "batch", "Job", {"metadata": {"name": "j", "creationTimestamp": T0}, "spec": spec, "status": status}, NOW
        )

    assert cells({"completions": 4}, {"succeeded": 1, "startTime": T0})[1:4] == ["Running", "1/4", "5m"]
    done = {"succeeded": 4, "startTime": T0, "completionTime": "2026-01-01T00:01:00Z"}
    complete = [{"type": "Complete", "status": "True"}]
    assert cells({"completions": 4}, {**done, "conditions": complete})[1:4] == ["Complete", "4/4", "60s"]
    assert cells({"parallelism": 3}, {})[1:4] == ["Running", "0/1 of 3", ""]


def test_events_of_both_groups():
    core = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"},
        "type": "Warning",
        "reason": "R",
        "message": " m\n",
        "source": {"component": "c", "host": "h"},
        "firstTimestamp": T0,
        "lastTimestamp": "2026-01-01T00:04:30Z",
        "count": 3,
    }
    assert printers.row_cells("", "Event", core, NOW) == [
        "30s", "Warning", "R", "pod/p", "spec", "c, h", "m", "5m", 3, "e",
    ]  # fmt: skip
    new = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p"},
        "type": "Normal",
        "reason": "R",
        "note": "m",
        "reportingController": "c",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    assert printers.row_cells("events.k8s.io", "Event", new, NOW)[:4] == ["5m", "Normal", "R", "pod/p"]


def test_claims():
    def state(status, **meta):
        return printers.row_cells("resource.k8s.io", "ResourceClaim", {"metadata": {"name": "c", **meta}, **status}, 0)[
            1
        ]

    assert state({}) == "pending"
    assert state({"status": {"allocation": {}}}) == "allocated"
    assert state({"status": {"allocation": {}, "reservedFor": [{}]}}) == "allocated,reserved"
    assert state({"status": {"allocation": {}}}, deletionTimestamp=T0) == "deleted,allocated"


def test_tables():
    obj = {
        "kind": "DeviceClass",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": "c", "creationTimestamp": T0},
    }
    made = printers.table("resource.k8s.io", "DeviceClass", [obj], NOW, {"resourceVersion": "7"})
    assert made["metadata"] == {"resourceVersion": "7"}
    assert made["rows"][0]["cells"] == ["c", "5m"]
    assert made["rows"][0]["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }
    assert printers.table("", "X", [obj], NOW, {}, "None", False)["rows"][0]["object"] is None
    assert printers.table("", "X", [obj], NOW, {}, "None", False)["columnDefinitions"] == []
    assert printers.table("", "X", [obj], NOW, {}, "Object")["rows"][0]["object"] is obj


def test_recorded_table_members():
    for _, request in exchanges("raw"):
        body = request["responseBody"]
        if isinstance(body, dict) and body.get("kind") == "Table":
            made = printers.table("", "Pod", [], NOW, {})
            assert set(made) == set(body)
            assert set(printers.table("", "Pod", [pod()], NOW, {})["rows"][0]) == set(body["rows"][0])


def test_custom_columns():
    printer = printers.custom_printer(
        [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
            {"name": "First", "type": "string", "jsonPath": ".spec.list[0]"},
            {"name": "All", "type": "string", "jsonPath": ".spec.list[*]", "priority": 1},
            {"name": "Label", "type": "string", "jsonPath": r".metadata.labels.a\.b/c"},
            {"name": "Gone", "type": "string", "jsonPath": ".spec.gone"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ]
    )
    obj = {
        "metadata": {"name": "w", "creationTimestamp": T0, "labels": {"a.b/c": "x"}},
        "spec": {"size": 3, "list": ["p", "q"]},
        "status": {"conditions": [{"type": "Other", "status": "No"}, {"type": "Ready", "status": "True"}]},
    }
    assert printer.cells(obj, NOW) == ["w", 3, "True", "p", "p q", "x", None, "5m"]
    assert printers.table("g", "W", [obj], NOW, {}, printer=printer)["columnDefinitions"][4]["priority"] == 1
    assert [column["name"] for column in printers.custom_printer(None).columns] == ["Name", "Age"]


def test_selectors_as_text():
    selector = {
        "matchLabels": {"b": "1"},
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]},
            {"key": "c", "operator": "DoesNotExist"},
        ],
    }
    assert label_selector(selector) == "a in (x,y),b=1,!c"
    assert label_selector(None) == "<none>"


@pytest.mark.parametrize(
    ("group", "kind", "obj", "cells"),
    [
        ("", "ResourceQuota", {"status": {"hard": {"pods": "4", "limits.cpu": "2"}, "used": {"pods": "1"}}},
         ["pods: 1/4", "limits.cpu: 0/2"]),
        ("", "Endpoints",
         {"subsets": [{"addresses": [{"ip": f"10.0.0.{i}"} for i in range(5)], "ports": [{"port": 80}]}]},
         ["10.0.0.0:80,10.0.0.1:80,10.0.0.2:80 + 2 more..."]),
        ("discovery.k8s.io", "EndpointSlice",
         {"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}]},
         ["IPv4", "80", "10.0.0.1"]),
        ("autoscaling", "HorizontalPodAutoscaler",
         {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3, "metrics": [
             {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}]},
          "status": {"currentReplicas": 1, "currentMetrics": [
              {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 12}}}]}},
         ["Deployment/d", "cpu: 12%/80%", "<unset>", 3, 1]),
        ("certificates.k8s.io", "CertificateSigningRequest",
         {"spec": {"signerName": "s", "username": "u", "expirationSeconds": 3600},
          "status": {"conditions": [{"type": "Approved"}], "certificate": "x"}},
         ["5m", "s", "u", "60m", "Approved,Issued"]),
        ("apps", "ControllerRevision", {"revision": 2}, ["<none>", 2]),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding",
         {"spec": {"policyName": "p", "paramRef": {"name": "x"}}}, ["p", "*/x"]),
        ("networking.k8s.io", "Ingress", {"spec": {"rules": [{"host": "a.b"}], "tls": [{}]}},
         ["<none>", "a.b", "", "80, 443"]),
        ("storage.k8s.io", "CSINode", {"spec": {"drivers": [{}, {}]}}, [2]),
        ("scheduling.k8s.io", "PodGroup",
         {"spec": {"schedulingPolicy": {"gang": {}}, "workloadRef": {"workloadName": "w"}},
          "status": {"conditions": [{"type": "PodGroupInitiallyScheduled", "status": "True"}]}},
         ["Gang", "w", "Scheduled"]),
        ("rbac.authorization.k8s.io", "RoleBinding",
         {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
             {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]},
         ["Role/r", "5m", "u", "", "n/s"]),
        ("", "Service", {"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [
            {"port": 80, "nodePort": 30000}], "selector": {"a": "b"}}},
         ["LoadBalancer", "10.0.0.1", "<pending>", "80:30000/TCP"]),
        ("apps", "DaemonSet", {"status": {"desiredNumberScheduled": 3, "numberReady": 2}}, [3, 0, 2, 0, 0, "<none>"]),
    ],
)  # fmt: skip
def test_other_cells(group, kind, obj, cells):
    full = {"metadata": {"name": "x", "creationTimestamp": T0}, **obj}
    assert printers.row_cells(group, kind, full, NOW)[1 : len(cells) + 1] == cells
