"""The subresource ``pods/resize``."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import PODS, play, refused

WORKER = {
    "name": "w",
    "image": "x",
    "resources": {
        "requests": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"},
        "limits": {"example.com/gpu": "1"},
    },
}
ONCE = {"name": "once", "image": "x", "resources": {"requests": {"cpu": "1"}}}
RESTARTED = {**ONCE, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}
SIDECAR = {**RESTARTED, "name": "side", "restartPolicy": "Always"}


async def make(api: Api, **meta: object) -> Object:
    body = {"metadata": {"name": "p", **meta}, "spec": {"containers": [WORKER], "initContainers": [RESTARTED, SIDECAR]}}
    return await api.post(PODS, body)


def test_cpu_and_memory_of_containers_and_sidecars_change_and_nothing_else_does() -> None:
    async def scene(api: Api) -> None:
        pod = await make(api)
        wanted = copy.deepcopy(pod)
        wanted["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "2", "memory": "512Mi"}
        wanted["spec"]["containers"][0]["resources"]["limits"] |= {"cpu": "3"}
        wanted["spec"]["initContainers"][1]["resources"]["requests"]["cpu"] = "1500m"
        wanted["spec"]["containers"][0]["image"] = "another"
        wanted["spec"]["nodeName"] = "n1"
        wanted["metadata"]["labels"] = {"a": "b"}
        wanted["status"] = {"phase": "Failed"}
        got = await api.put(f"{PODS}/p/resize", wanted)
        expected = copy.deepcopy(pod)
        expected["spec"]["containers"][0]["resources"] = wanted["spec"]["containers"][0]["resources"]
        expected["spec"]["initContainers"][1]["resources"] = wanted["spec"]["initContainers"][1]["resources"]
        expected["metadata"] |= {"generation": 2, "resourceVersion": got["metadata"]["resourceVersion"]}
        assert got == expected
        # The main endpoint goes on refusing it.
        spec: Any = {"containers": [{"name": "w", "resources": {"requests": {"cpu": "4"}}}]}
        assert (await refused(api.patch(f"{PODS}/p", {"spec": spec}, "strategic-merge"))).code == 422
        spec["containers"][0]["resources"]["limits"] = {"cpu": "4"}
        got = await api.patch(f"{PODS}/p/resize", {"spec": spec}, "strategic-merge")
        assert got["spec"]["containers"][0]["resources"]["requests"] == {
            "cpu": "4",
            "memory": "512Mi",
            "example.com/gpu": "1",
        }
        assert await api.get(f"{PODS}/p/resize") == await api.get(f"{PODS}/p")

    play(scene)


GPU = {"example.com/gpu": "1"}
USUAL = {"cpu": "1", "memory": "1Gi", **GPU}


@pytest.mark.parametrize(
    ("container", "resources", "said"),
    [
        (0, {"requests": USUAL | {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}}, "only cpu and memory"),
        (0, {"requests": {"cpu": "1", **GPU}, "limits": GPU}, "resource requests cannot be removed"),
        (0, {"requests": USUAL, "limits": {"cpu": "500m", **GPU}}, "must be less than or equal to cpu limit of 500m"),
        (0, {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {}}, "resource limits cannot be removed"),
        (0, {"requests": USUAL | {"cpu": "-1"}, "limits": GPU}, "must be greater than or equal to 0"),
        (0, {"requests": USUAL, "limits": GPU, "claims": [{"name": "c"}]}, "only cpu and memory"),
        ("once", {"requests": {"cpu": "2"}}, "with a resize policy of RestartContainer cannot be resized"),
        ("once", {"requests": {"cpu": "1", "ephemeral-storage": "1"}}, "resources for init or sidecar containers are"),
    ],
)
def test_what_is_refused(container: int | str, resources: Object, said: str) -> None:
    async def scene(api: Api) -> None:
        pod = await make(api)
        field = "containers" if container == 0 else "initContainers"
        pod["spec"][field][0]["resources"] = resources
        error = await refused(api.put(f"{PODS}/p/resize", pod))
        assert (error.code, error.reason) == (422, "Invalid")
        assert said in str(error)
        assert (await api.get(f"{PODS}/p"))["metadata"]["generation"] == 1

    play(scene)


def test_pods_that_cannot_be_resized() -> None:
    async def scene(api: Api) -> None:
        pod = await make(api)
        pod["spec"]["containers"].append({**WORKER, "name": "more"})
        assert "spec.containers: Forbidden: containers may not be added or removed on resize" in str(
            await refused(api.put(f"{PODS}/p/resize", pod))
        )
        patch: Object = {"spec": {"resources": {"limits": {"cpu": "5"}}}}
        said = str(await refused(api.patch(f"{PODS}/p/resize", patch)))
        assert "spec.resources: Forbidden: this server does not resize pod-level resources" in said
        # The class of a pod stays: this one would become Guaranteed.
        half = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
        body = {"metadata": {"name": "q"}, "spec": {"containers": [{"name": "w", "image": "x", "resources": half}]}}
        await api.post(PODS, body)
        patch = {"spec": {"containers": [{"name": "w", "resources": {"limits": {"cpu": "1"}}}]}}
        said = str(await refused(api.patch(f"{PODS}/q/resize", patch, "strategic-merge")))
        assert 'spec: Invalid value: "Guaranteed": Pod QOS Class may not change as a result of resizing' in said
        # A node whose agent says nothing of what containers have cannot change it.
        patch = {"spec": {"containers": [{"name": "w", "resources": {"limits": {"cpu": "3"}}}]}}
        running: Object = {"name": "w", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "image": "x"}
        running |= {"imageID": "", "ready": True, "restartCount": 0}
        await api.patch(f"{PODS}/q/status", {"status": {"containerStatuses": [running]}})
        said = str(await refused(api.patch(f"{PODS}/q/resize", patch, "strategic-merge")))
        assert "spec: Forbidden: Pod running on node without support for resize" in said
        await api.patch(f"{PODS}/q/status", {"status": {"containerStatuses": [{**running, "resources": half}]}})
        got = await api.patch(f"{PODS}/q/resize", patch, "strategic-merge")
        assert got["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "3"
        await make(api, name="static", annotations={"kubernetes.io/config.mirror": "x"})
        said = str(await refused(api.patch(f"{PODS}/static/resize", patch, "strategic-merge")))
        assert "static pods cannot be resized" in said

    play(scene)
