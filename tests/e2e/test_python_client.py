"""The official Python client: typed lists and watches, patches, the dynamic client, custom objects, leader election."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes.client as k
import pytest
from kubernetes import config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ConflictError
from kubernetes.stream import stream

from tests.support.plane import Up
from tests.support.streams import in_thread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAMESPACE = "default"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("python")
    with Up(folder / "data", "--sync", "normal") as running:
        yield running


@pytest.fixture(scope="module")
def api(up: Up) -> k.ApiClient:
    return config.new_client_from_config(str(up.kubeconfig))


def _claim(name: str, **labels: str) -> k.ResourceV1ResourceClaim:
    exactly = k.V1ExactDeviceRequest(device_class_name="gpu.example.com")
    devices = k.V1DeviceClaim(requests=[k.V1DeviceRequest(name="r", exactly=exactly)])
    return k.ResourceV1ResourceClaim(
        metadata=k.V1ObjectMeta(name=name, labels=labels or None), spec=k.V1ResourceClaimSpec(devices=devices)
    )


def test_typed_objects(api: k.ApiClient) -> None:
    claims = k.ResourceV1Api(api)
    made = claims.create_namespaced_resource_claim(NAMESPACE, _claim("typed", app="x"))
    assert made.spec.devices.requests[0].exactly.count == 1
    found = claims.list_namespaced_resource_claim(NAMESPACE, label_selector="app=x", limit=1)
    assert [item.metadata.name for item in found.items] == ["typed"]
    patched = claims.patch_namespaced_resource_claim("typed", NAMESPACE, {"metadata": {"labels": {"b": "c"}}})
    assert patched.metadata.labels == {"app": "x", "b": "c"}
    status = {"status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "d.example.com", "pool": "p", "device": "d"}
    ]}}}}  # fmt: skip
    written = claims.patch_namespaced_resource_claim_status("typed", NAMESPACE, status)
    assert written.status.allocation.devices.results[0].device == "d"
    made.metadata.resource_version = "1"
    with pytest.raises(ApiException) as stale:
        claims.replace_namespaced_resource_claim("typed", NAMESPACE, made)
    assert (stale.value.status, stale.value.reason) == (409, "Conflict")
    with pytest.raises(ApiException) as invalid:
        claims.create_namespaced_resource_claim(NAMESPACE, _claim("Bad_Name"))
    assert invalid.value.status == 422
    assert '"reason":"FieldValueInvalid"' in invalid.value.body
    old = k.ResourceV1beta1Api(api).read_namespaced_resource_claim("typed", NAMESPACE)
    assert old.spec.devices.requests[0].device_class_name == "gpu.example.com"


def test_watch_goes_on_where_it_ended(api: k.ApiClient) -> None:
    core = k.CoreV1Api(api)
    core.create_namespaced_config_map(NAMESPACE, k.V1ConfigMap(metadata=k.V1ObjectMeta(name="seen")))
    listed = core.list_namespaced_config_map(NAMESPACE)
    version = listed.metadata.resource_version
    core.patch_namespaced_config_map("seen", NAMESPACE, {"data": {"a": "1"}})
    core.delete_namespaced_config_map("seen", NAMESPACE)
    seen: list[tuple[str, str]] = []
    watcher = watch.Watch()
    for event in watcher.stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=version, timeout_seconds=60
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watcher.stop()
    assert seen == [("MODIFIED", "seen"), ("DELETED", "seen")]


def test_dynamic_client_applies(api: k.ApiClient) -> None:
    client = dynamic.DynamicClient(api)
    maps = client.resources.get(api_version="v1", kind="ConfigMap")
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dyn"}, "data": {"a": "1"}}
    maps.server_side_apply(body=body, namespace=NAMESPACE, field_manager="one")
    body["data"]["a"] = "2"
    with pytest.raises(ConflictError) as conflict:
        maps.server_side_apply(body=body, namespace=NAMESPACE, field_manager="two")
    assert 'conflict with \\"one\\": .data.a' in conflict.value.body
    forced = maps.server_side_apply(body=body, namespace=NAMESPACE, field_manager="two", force_conflicts=True)
    assert forced.data.a == "2"
    for event in maps.watch(namespace=NAMESPACE, field_selector="metadata.name=dyn", timeout=60):
        assert (event["type"], event["object"].data.a) == ("ADDED", "2")
        break
    maps.delete(name="dyn", namespace=NAMESPACE)


def test_custom_objects(api: k.ApiClient) -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    definition = {
        "metadata": {"name": "gizmos.py.example.com"},
        "spec": {
            "group": "py.example.com",
            "scope": "Namespaced",
            "names": {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    made = k.ApiextensionsV1Api(api).create_custom_resource_definition(definition)
    assert made.metadata.name == "gizmos.py.example.com"
    custom = k.CustomObjectsApi(api)
    where = ("py.example.com", "v1", NAMESPACE, "gizmos")
    body = {"apiVersion": "py.example.com/v1", "kind": "Gizmo", "metadata": {"name": "g"}, "spec": {"size": 1}}
    custom.create_namespaced_custom_object(*where, body)
    assert custom.patch_namespaced_custom_object(*where, "g", {"spec": {"size": 2}})["spec"] == {"size": 2}
    with pytest.raises(ApiException) as invalid:
        custom.patch_namespaced_custom_object(*where, "g", {"spec": {"size": "x"}})
    assert invalid.value.status == 422
    assert [item["metadata"]["name"] for item in custom.list_namespaced_custom_object(*where)["items"]] == ["g"]
    custom.delete_namespaced_custom_object(*where, "g")


_CANDIDATE = """
import sys, time
from kubernetes import config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

config.load_kube_config(sys.argv[1])
def lead():
    print("leading", flush=True)
    time.sleep(3600)
lock = LeaseLock("python", "default", sys.argv[2])
settings = electionconfig.Config(
    lock, lease_duration=3, renew_deadline=2, retry_period=1, onstarted_leading=lead, onstopped_leading=None
)
leaderelection.LeaderElection(settings).run()
"""


def test_leader_election_hands_over(up: Up, api: k.ApiClient) -> None:
    def candidate(identity: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _CANDIDATE, str(up.kubeconfig), identity],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def holder() -> str:
        return k.CoordinationV1Api(api).read_namespaced_lease("python", NAMESPACE).spec.holder_identity

    with candidate("one") as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline() == "leading\n"
            assert holder() == "one"
        finally:
            one.kill()
    with candidate("two") as two:
        try:
            assert two.stdout is not None
            assert two.stdout.readline() == "leading\n"
            assert holder() == "two"
        finally:
            two.kill()


def test_exec_over_its_websocket_client(tmp_path: Path) -> None:
    with in_thread(tmp_path) as site:
        core = k.CoreV1Api(config.new_client_from_config(str(site.kubeconfig)))
        options = {"stderr": True, "stdin": False, "stdout": True, "tty": False}
        plain = stream(core.connect_get_namespaced_pod_exec, "web", NAMESPACE, command=["echo", "hello"], **options)
        assert plain == "hello\n"
        options["stdin"] = True
        command = ["sh", "-c", "read line; echo got $line; echo err >&2; exit 3"]
        held = stream(
            core.connect_get_namespaced_pod_exec, "web", NAMESPACE, command=command, _preload_content=False, **options
        )
        held.write_stdin("words\n")
        held.run_forever(timeout=60)
        assert held.read_stdout() == "got words\n"
        assert held.read_stderr() == "err\n"
        assert held.returncode == 3
        assert core.read_namespaced_pod_log("web", NAMESPACE, tail_lines=1) in ("line 4\n", "later\n")
        with pytest.raises(ApiException) as nobody:
            stream(core.connect_get_namespaced_pod_exec, "nobody", NAMESPACE, command=["true"], **options)
        assert nobody.value.status == 0
        assert "404" in nobody.value.reason
