"""Custom resources: served as soon as they are defined, gone with their definition."""

from __future__ import annotations

import asyncio

from drakkar.store import MemoryBackend
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import play, refused

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/demo.example.com/v1/namespaces/default/widgets"


def definition() -> Object:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        },
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
    }
    names = {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]}
    return {
        "metadata": {"name": "widgets.demo.example.com"},
        "spec": {"group": "demo.example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def test_a_definition_is_served_at_once_and_takes_its_objects_along() -> None:
    async def scene(api: Api) -> None:
        made = await api.post(DEFINITIONS, definition())
        conditions = {entry["type"]: entry["status"] for entry in made["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
        (resource, *_) = (await api.get("/apis/demo.example.com/v1"))["resources"]
        assert (resource["name"], resource["shortNames"]) == ("widgets", ["wd"])
        widget = await api.post(WIDGETS, {"metadata": {"name": "w"}, "spec": {"size": 3}})
        assert widget["kind"] == "Widget"
        assert widget["spec"] == {"size": 3, "color": "red"}
        assert widget["metadata"]["generation"] == 1
        patched = await api.patch(f"{WIDGETS}/w", {"spec": {"size": 4}})
        assert patched["metadata"]["generation"] == 2
        table = await api.get(WIDGETS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
        assert table["rows"][0]["cells"][:2] == ["w", 4]
        applied = {"apiVersion": "demo.example.com/v1", "kind": "Widget", "metadata": {"name": "x"}}
        await api.patch(f"{WIDGETS}/x?fieldManager=m", {**applied, "spec": {"size": 1}}, "apply")
        watch = await api.watch(f"{WIDGETS}?resourceVersion={api.server.state.revision}")
        assert await watch.quiet()
        await api.delete(f"{DEFINITIONS}/widgets.demo.example.com")
        assert await watch.take(2) == [("DELETED", "w"), ("DELETED", "x")]
        names = [group["name"] for group in (await api.get("/apis"))["groups"]]
        assert "demo.example.com" not in names

    play(scene)


def test_values_are_checked_against_the_schema() -> None:
    async def scene(api: Api) -> None:
        await api.post(DEFINITIONS, definition())
        wrong_specs = (
            ({"size": 0}, "greater than or equal to 1"),
            ({}, "Required"),
            ({"size": 1, "color": "x"}, "Unsupported"),
        )
        for spec, word in wrong_specs:
            error = await refused(api.post(WIDGETS, {"metadata": {"name": "w"}, "spec": spec}))
            assert error.code == 422
            assert word in str(error)
        unknown = {"metadata": {"name": "w"}, "spec": {"size": 1, "x": 1}}
        strict = await refused(api.post(f"{WIDGETS}?fieldValidation=Strict", unknown))
        assert 'unknown field "spec.x"' in str(strict)
        strategic = await refused(api.patch(f"{WIDGETS}/w", {}, "strategic-merge"))
        assert strategic.code == 415
        wrong = definition()
        wrong["metadata"]["name"] = "other"
        assert (await refused(api.post(DEFINITIONS, wrong))).code == 422

    play(scene)


def test_objects_of_a_definition_that_serves_nothing_go_with_it() -> None:
    async def scene(api: Api) -> None:
        await api.post(DEFINITIONS, definition())
        await api.post(WIDGETS, {"metadata": {"name": "w"}, "spec": {"size": 3}})
        path = f"{DEFINITIONS}/widgets.demo.example.com"
        silent = await api.get(path)
        silent["spec"]["versions"][0]["served"] = False
        await api.put(path, silent)
        await api.delete(path)
        await api.post(DEFINITIONS, definition())
        assert (await api.get(WIDGETS))["items"] == []
        await asyncio.wait_for(api.post(WIDGETS, {"metadata": {"name": "w"}, "spec": {"size": 3}}), 60)

    play(scene)


def test_custom_objects_survive_a_restart() -> None:
    async def run() -> None:
        backend = MemoryBackend()
        api = await Api.start(backend)
        await api.post(DEFINITIONS, definition())
        made = await api.post(WIDGETS, {"metadata": {"name": "w"}, "spec": {"size": 3}})
        await api.close()
        again = await Api.start(backend)
        assert await again.get(f"{WIDGETS}/w") == made
        assert (await again.get("/openapi/v3/apis/demo.example.com/v1"))["components"]
        await again.close()

    asyncio.run(run())
