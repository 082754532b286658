"""The audit log and the numbers of a server, from real requests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.features import Features
from drakkar.api.wire import Request
from drakkar.apiserver import ApiServer
from drakkar.apiserver.audit import AuditLog, Policy
from drakkar.store import MemoryBackend
from tests.unit.apiserver.core.serving import Api, Object, StoppedClock
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, SLICES, play, refused

SECRETS = "/api/v1/namespaces/default/secrets"


def policy(tmp_path: Path, *rules: Object, **more: Any) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": list(rules), **more}))
    return Policy.read(path)


def events(path: Path) -> list[Object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def audited(api: Api, path: Path, chosen: Policy | None = None, **more: int) -> AuditLog:
    api.server.audit = AuditLog(path, chosen or Policy(), api.clock.time, **more)
    return api.server.audit


def test_an_event_says_who_did_what(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def scene(api: Api) -> None:
        audited(api, path)
        body = json.dumps({"metadata": {"name": "c"}}).encode()
        headers = {"user-agent": "kubectl/v1.37", "authorization": f"Bearer {api.token}"}
        query = (("fieldManager", "me"),)
        answer = await api.server.handle(Request("POST", CONFIGMAPS, query, headers, body, source="10.0.0.9"))
        await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))
        await refused(api.as_user("eve").get(f"{CONFIGMAPS}/c"))
        one, two, three = events(path)
        assert one == {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": answer.headers["audit-id"],
            "stage": "ResponseComplete",
            "requestURI": f"{CONFIGMAPS}?fieldManager=me",
            "verb": "create",
            "user": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
            "sourceIPs": ["10.0.0.9"],
            "userAgent": "kubectl/v1.37",
            "objectRef": {"resource": "configmaps", "namespace": "default", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 201},
            "requestReceivedTimestamp": "2027-01-15T08:00:00.000000Z",
            "stageTimestamp": "2027-01-15T08:00:00.000000Z",
        }
        assert (two["responseStatus"]["code"], two["responseStatus"]["reason"]) == (409, "AlreadyExists")
        assert (three["user"]["username"], three["responseStatus"]["code"]) == ("eve", 403)
        assert three["objectRef"]["name"] == "c"
        assert path.stat().st_mode & 0o777 == 0o600

    play(scene)


def test_levels_stages_and_the_first_rule_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    chosen = policy(
        tmp_path,
        {"level": "None", "verbs": ["get"]},
        {
            "level": "Request",
            "resources": [{"group": "", "resources": ["configmaps"]}],
            "omitStages": ["RequestReceived"],
        },
        {"level": "None", "nonResourceURLs": ["/version"]},
        {"level": "RequestResponse"},
    )

    async def scene(api: Api) -> None:
        audited(api, path, chosen)
        await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
        await api.get(f"{CONFIGMAPS}/c")
        (event,) = events(path)
        assert event["requestObject"] == {"metadata": {"name": "c"}}
        assert "responseObject" not in event
        path.write_text("")
        await api.get("/version")
        made = await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
        received, complete = events(path)
        assert (received["stage"], received["level"], "responseStatus" in received) == (
            "RequestReceived",
            "Metadata",
            False,
        )
        assert complete["responseObject"] == made
        path.write_text("")
        watch = await api.watch("/api/v1/namespaces")
        await watch.next()
        assert [event["stage"] for event in events(path)] == ["RequestReceived", "ResponseStarted"]
        api.server.end_watches()
        while await watch.next() is not None:
            pass
        assert events(path)[-1]["stage"] == "ResponseComplete"

    play(scene)


def test_secrets_are_told_of_in_full_only_where_they_are_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}

    async def scene(api: Api) -> None:
        audited(api, path, policy(tmp_path, {"level": "RequestResponse"}))
        await api.post(SECRETS, secret)
        await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "a"}})
        await api.post("/api/v1/namespaces/default/serviceaccounts/a/token", {"spec": {"audiences": ["x"]}})
        assert "hunter2" not in path.read_text()
        assert {event["level"] for event in events(path) if event["objectRef"].get("subresource") == "token"} == {
            "Metadata"
        }
        named = {"level": "Request", "resources": [{"group": "", "resources": ["secrets"]}]}
        audited(api, path, policy(tmp_path, named))
        await api.patch(f"{SECRETS}/s", {"stringData": {"password": "hunter3"}})
        assert "hunter3" in path.read_text()

    play(scene)


def test_what_policies_and_webhooks_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def scene(api: Api) -> None:
        group = "/apis/admissionregistration.k8s.io/v1"
        rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps"]}
        spec = {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "no"}],
            "auditAnnotations": [{"key": "who", "valueExpression": "request.userInfo.username"}],
        }
        await api.post(f"{group}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": spec})
        bound = {"policyName": "p", "validationActions": ["Audit"]}
        await api.post(f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": bound})
        audited(api, path)
        await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
        annotations = events(path)[0]["annotations"]
        assert annotations["p/who"] == "admin"
        (failure,) = json.loads(annotations["validation.policy.admission.k8s.io/validation_failure"])
        assert (failure["message"], failure["policy"], failure["validationActions"]) == ("no", "p", ["Audit"])

    play(scene)


def test_a_full_log_is_put_aside_and_a_broken_one_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def scene(api: Api) -> None:
        log = audited(api, path, policy(tmp_path, {"level": "RequestResponse"}), max_size=1, max_backups=2)
        big = "x" * 400_000
        for index in range(9):
            api.clock.now += 1
            await api.post(CONFIGMAPS, {"metadata": {"name": f"c{index}"}, "data": {"big": big}})
        assert len(os.listdir(tmp_path)) == 4  # the policy, the log, and two that were put aside
        assert os.stat(path).st_size < 1 << 20
        log._file.close()
        log._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        await api.post(CONFIGMAPS, {"metadata": {"name": "last"}})
        assert log.lost == 2

    play(scene)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "holds no object"),
        ("{", "no YAML"),
        ("apiVersion: v1\nkind: Policy", "not audit.k8s.io/v1 Policy"),
        ("apiVersion: audit.k8s.io/v1\nkind: Policy", "at least one rule"),
        ("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]", "rules[0].level: 'All' is none of"),
        ("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]\nomitStages: [End]", "omitStages: 'End'"),
    ],
)
def test_bad_policies(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        Policy.read(path)
    assert said in str(caught.value)


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem):
        AuditLog(tmp_path / "none" / "audit.log", Policy(), StoppedClock().time)


def test_metrics_count_requests_streams_and_gates() -> None:
    async def scene(api: Api) -> None:
        await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
        await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))
        await api.get(CONFIGMAPS)
        watch = await api.watch("/api/v1/pods")
        assert await watch.quiet()
        text = (await api.ask(Request("GET", "/metrics"))).body.decode()
        lines = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
        labels = 'group="",resource="configmaps",scope="namespace",subresource="",verb="POST",version="v1"'
        assert lines[f'apiserver_request_total{{code="201",component="apiserver",{labels}}}'] == "1"
        assert lines[f'apiserver_request_total{{code="409",component="apiserver",{labels}}}'] == "1"
        assert lines[f'apiserver_request_duration_seconds_count{{component="apiserver",{labels}}}'] == "2"
        assert lines[f'apiserver_request_duration_seconds_bucket{{component="apiserver",{labels},le="+Inf"}}'] == "2"
        pods = 'group="",resource="pods",verb="WATCH",version="v1"'
        assert lines[f'apiserver_longrunning_requests{{component="apiserver",{pods}}}'] == "1"
        assert lines['apiserver_storage_objects{resource="configmaps"}'] == "1"
        assert lines['kubernetes_feature_enabled{name="DRADeviceTaints",stage=""}'] == "1"
        assert lines['apiserver_current_inflight_requests{request_kind="mutating"}'] == "0"

    play(scene)


def test_what_clients_make_up_is_counted_together() -> None:
    async def scene(api: Api) -> None:
        for index in range(50):
            await api.ask(Request(f"VERB{index}", f"/api/v1/things{index}"))
            await api.ask(Request("GET", f"/apis/group{index}.example.com/v1/things"))
            await api.ask(Request("GET", f"/path{index}"))
            await api.server.handle(Request("GET", f"/api/v1/secrets/none{index}", (), {}, b""))
        text = (await api.ask(Request("GET", "/metrics"))).body.decode()
        lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total")]
        assert len(lines) < 12

    play(scene)


def test_health_by_check() -> None:
    async def scene(api: Api) -> None:
        async def ask(path: str, *query: tuple[str, str]) -> tuple[int, str]:
            answer = await api.server.handle(Request("GET", path, query))
            return answer.status, answer.body.decode()

        for root in ("/healthz", "/livez", "/readyz"):
            assert await ask(root) == (200, "ok")
            assert (await ask(f"{root}/ping"))[0] == 200
            assert (await ask(f"{root}/nothing"))[0] == 404
        assert await ask("/readyz", ("verbose", "")) == (
            200,
            "[+]ping ok\n[+]store ok\n[+]loaded ok\n[+]shutdown ok\nreadyz check passed\n",
        )
        api.server.end_watches()
        assert (await ask("/readyz"))[0] == 500
        assert (await ask("/readyz", ("exclude", "shutdown")))[0] == 200
        assert (await ask("/livez"))[0] == 200

    play(scene)


async def closed(text: str) -> Api:
    clock = StoppedClock()
    server = ApiServer(MemoryBackend(), clock=clock, features=Features.from_flag(text))
    await server.start()
    return Api(server, clock, server.token("admin", "system:masters"))


def test_fields_of_closed_gates_are_dropped_with_a_warning() -> None:
    async def scene(_: Api) -> None:
        api = await closed("DRADeviceTaints=false,DRAConsumableCapacity=false")
        devices = [{"name": "d", "taints": [{"key": "a", "effect": "NoSchedule"}], "allowMultipleAllocations": True}]
        spec = {
            "driver": "d.example.com",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        }
        body = json.dumps({"metadata": {"name": "s"}, "spec": spec}).encode()
        answer = await api.ask(Request("POST", SLICES, (), {}, body))
        assert json.loads(answer.body)["spec"]["devices"] == [{"name": "d"}]
        assert (
            'field \\"taints\\" was dropped, because feature gate DRADeviceTaints is off' in answer.headers["warning"]
        )
        assert "allowMultipleAllocations" in answer.headers["warning"]
        request = {"name": "r", "exactly": {"deviceClassName": "c", "tolerations": [{"operator": "Exists"}]}}
        claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
        answer = await api.ask(Request("POST", CLAIMS, (), {}, json.dumps(claim).encode()))
        assert "tolerations" in answer.headers["warning"]
        text = (await api.ask(Request("GET", "/metrics"))).body.decode()
        assert 'kubernetes_feature_enabled{name="DRADeviceTaints",stage=""} 0' in text
        await api.close()

    play(scene)
