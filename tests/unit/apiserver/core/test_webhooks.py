"""Webhooks: asked over TLS, in order, and no write is lost or doubled while they think."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from drakkar.apiserver import Pki, open_pki
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, PODS, claim, play, pod, refused

Answer = Callable[[Object], Awaitable[Object | bytes]]
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return open_pki(tmp_path_factory.mktemp("pki"), ["127.0.0.1", "hook.default.svc"])


class Hook:
    """A webhook that remembers what it was asked."""

    def __init__(self, pki: Pki, answer: Answer, port: int):
        self.answer = answer
        self.asked: list[Object] = []
        self.port = port
        self.bundle = base64.b64encode(Path(pki.folder / "ca.crt").read_bytes()).decode()

    def client(self, path: str = "") -> Object:
        return {"url": f"https://127.0.0.1:{self.port}/{path}", "caBundle": self.bundle}


@asynccontextmanager
async def hook(pki: Pki, answer: Answer) -> AsyncIterator[Hook]:
    async def handle(request: web.Request) -> web.Response:
        review = json.loads(await request.read())
        made.asked.append(review["request"])
        found = await made.answer(review["request"])
        if isinstance(found, bytes):
            return web.Response(body=found)
        response = {"uid": review["request"]["uid"], "allowed": True, **found}
        return web.json_response({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=pki.server_context())
    await site.start()
    port = runner.addresses[0][1]
    made = Hook(pki, answer, port)
    try:
        yield made
    finally:
        await runner.cleanup()


def entry(name: str, client: Object, resource: str = "configmaps", **more: Any) -> Object:
    return {
        "name": name,
        "clientConfig": client,
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }


def config(name: str, *hooks: Object) -> Object:
    return {"metadata": {"name": name}, "webhooks": list(hooks)}


def patch(*operations: Object) -> Object:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


def add(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


async def allow(request: Object) -> Object:
    return {}


def test_a_webhook_changes_refuses_and_warns(pki: Pki) -> None:
    async def answer(request: Object) -> Object:
        if request["operation"] == "CREATE":
            return {**patch(add("/data", {"by": "hook"})), "warnings": ["mind the hook"]}
        return {"allowed": False, "status": {"message": "no", "code": 418, "reason": "Teapot"}}

    async def scene(api: Api) -> None:
        async with hook(pki, answer) as made:
            await api.post(MUTATING, config("m", entry("m.example.com", made.client())))
            stored = await api.post(f"{CONFIGMAPS}?fieldManager=me", {"metadata": {"name": "c"}})
            assert stored["data"] == {"by": "hook"}
            (request,) = made.asked
            assert request["operation"] == "CREATE"
            assert request["kind"] == request["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
            assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
            assert (request["name"], request["namespace"], request["dryRun"]) == ("c", "default", False)
            assert request["userInfo"]["username"] == "admin"
            assert "system:masters" in request["userInfo"]["groups"]
            assert request["options"]["fieldManager"] == "me"
            assert request["object"]["metadata"]["name"] == "c"
            assert request["oldObject"] is None
            error = await refused(api.patch(f"{CONFIGMAPS}/c", {"data": {"by": "me"}}))
            assert (error.code, error.reason) == (418, "Teapot")
            assert str(error) == 'admission webhook "m.example.com" denied the request: no'
            assert made.asked[-1]["oldObject"]["data"] == {"by": "hook"}
            assert (await api.get(f"{CONFIGMAPS}/c"))["data"] == {"by": "hook"}
            assert "denied the request" in str(await refused(api.delete(f"{CONFIGMAPS}/c")))

    play(scene)


def test_validating_webhooks_see_the_final_object_and_deletes(pki: Pki) -> None:
    async def mutate(request: Object) -> Object:
        return patch(add("/metadata/labels", {"color": "red"})) if request["object"] else {}

    async def judge(request: Object) -> Object:
        labels = (request["object"] or request["oldObject"])["metadata"].get("labels") or {}
        return {"allowed": labels == {"color": "red"} and request["operation"] != "DELETE"}

    async def scene(api: Api) -> None:
        async with hook(pki, mutate) as changing, hook(pki, judge) as judging:
            await api.post(MUTATING, config("m", entry("m.example.com", changing.client())))
            await api.post(VALIDATING, config("v", entry("v.example.com", judging.client())))
            await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
            error = await refused(api.delete(f"{CONFIGMAPS}/c"))
            assert (error.code, str(error)) == (
                400,
                'admission webhook "v.example.com" denied the request without explanation',
            )
            assert judging.asked[-1]["object"] is None
            error = await refused(api.delete(CONFIGMAPS))
            assert error.code == 400
            await api.delete(f"{VALIDATING}/v")
            await api.delete(f"{CONFIGMAPS}/c")

    play(scene)


def test_the_status_of_a_claim_is_shown_in_the_version_that_the_webhook_knows(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async with hook(pki, allow) as made:
            rule = {
                "operations": ["UPDATE"],
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1beta1"],
                "resources": ["resourceclaims/status"],
            }
            await api.post(VALIDATING, config("v", {**entry("v.example.com", made.client()), "rules": [rule]}))
            await api.post(CLAIMS, claim("c"))
            await api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"x": "y"}}})
            assert made.asked == []
            result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}
            status = {"status": {"allocation": {"devices": {"results": [result]}}}}
            await api.patch(f"{CLAIMS}/c/status", status)
            (request,) = made.asked
            assert request["subResource"] == request["requestSubResource"] == "status"
            assert request["kind"]["version"] == "v1beta1"
            assert request["requestKind"]["version"] == "v1"
            shown = request["object"]
            assert shown["apiVersion"] == "resource.k8s.io/v1beta1"
            assert shown["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu.example.com"
            assert shown["status"]["allocation"]["devices"]["results"] == [result]
            assert "allocation" not in (request["oldObject"].get("status") or {})

    play(scene)


def test_a_change_in_an_old_version_comes_back_into_the_stored_one(pki: Pki) -> None:
    async def answer(request: Object) -> Object:
        return patch(add("/spec/devices/requests/0/adminAccess", False))

    async def scene(api: Api) -> None:
        async with hook(pki, answer) as made:
            hooked = entry("m.example.com", made.client(), "resourceclaims")
            hooked["rules"][0]["apiVersions"] = ["v1beta1"]
            await api.post(MUTATING, config("m", hooked))
            stored = await api.post(CLAIMS, claim("c"))
            assert stored["apiVersion"] == "resource.k8s.io/v1"
            assert stored["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] is False
            exact = {**hooked, "matchPolicy": "Exact"}
            await api.put(
                f"{MUTATING}/m", {**config("m", exact), "metadata": (await api.get(f"{MUTATING}/m"))["metadata"]}
            )
            await api.post(CLAIMS, claim("d"))
            assert len(made.asked) == 1

    play(scene)


def test_order_and_a_second_look(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async def first(request: Object) -> Object:
            order = (request["object"].get("data") or {}).get("order", "")
            return patch(add("/data", {"order": order + "1"}))

        async def second(request: Object) -> Object:
            return patch(add("/data/order", request["object"]["data"]["order"] + "2"))

        async with hook(pki, first) as one, hook(pki, second) as two:
            await api.post(MUTATING, config("b", entry("second.example.com", two.client())))
            again = entry("first.example.com", one.client(), reinvocationPolicy="IfNeeded")
            await api.post(MUTATING, config("a", again))
            stored = await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
            assert stored["data"]["order"] == "121"

    play(scene)


def test_selectors_conditions_and_exempt_kinds(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async with hook(pki, allow) as made:
            condition = {
                "name": "big",
                "expression": "object.data.size == 'big' && request.userInfo.username == 'admin'",
            }
            chosen = entry(
                "v.example.com",
                made.client(),
                "*",
                objectSelector={"matchLabels": {"judge": "yes"}},
                namespaceSelector={"matchExpressions": [{"key": "quiet", "operator": "DoesNotExist"}]},
                matchConditions=[condition],
                failurePolicy="Ignore",
            )
            await api.post(VALIDATING, config("v", chosen))
            await api.post("/api/v1/namespaces", {"metadata": {"name": "calm", "labels": {"quiet": ""}}})
            labels = {"judge": "yes"}
            wanted = {"metadata": {"name": "c", "labels": labels}, "data": {"size": "big"}}
            await api.post("/api/v1/namespaces/calm/configmaps", wanted)
            await api.post(CONFIGMAPS, {"metadata": {"name": "no-label"}, "data": {"size": "big"}})
            await api.post(CONFIGMAPS, {"metadata": {"name": "small", "labels": labels}, "data": {"size": "small"}})
            await api.post(VALIDATING, {**config("w"), "metadata": {"name": "w", "labels": labels}})
            assert made.asked == []
            await api.post(CONFIGMAPS, wanted)
            assert len(made.asked) == 1
            # No data at all: the condition fails to say, and this webhook is one that may be passed over.
            await api.post(CONFIGMAPS, {"metadata": {"name": "none", "labels": labels}})
            assert len(made.asked) == 1

    play(scene)


def test_rehearsals(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async with hook(pki, allow) as made:
            await api.post(VALIDATING, config("v", entry("v.example.com", made.client(), sideEffects="Some")))
            error = await refused(api.post(f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "c"}}))
            assert (error.code, str(error)) == (400, 'admission webhook "v.example.com" does not support dry run')
            found = await api.get(f"{VALIDATING}/v")
            found["webhooks"][0]["sideEffects"] = "NoneOnDryRun"
            await api.put(f"{VALIDATING}/v", found)
            await api.post(f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "c"}})
            assert made.asked[0]["dryRun"] is True

    play(scene)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"nothing", "the answer is no AdmissionReview"),
        (
            b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
            "expected webhook response to have a response",
        ),
        (b'{"kind":"Status","apiVersion":"v1"}', "expected webhook response of admission.k8s.io/v1"),
        ({"uid": "other"}, 'expected response.uid="'),
        ({"patch": "e30="}, "validating webhook may not return response.patch"),
    ],
)
def test_answers_that_are_none(pki: Pki, answer: Object | bytes, said: str) -> None:
    async def scene(api: Api) -> None:
        async def reply(request: Object) -> Object | bytes:
            return answer

        async with hook(pki, reply) as made:
            await api.post(VALIDATING, config("v", entry("v.example.com", made.client())))
            error = await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))
            assert error.code == 500
            assert str(error).startswith('Internal error occurred: failed calling webhook "v.example.com": ')
            assert said in str(error)
            found = await api.get(f"{VALIDATING}/v")
            found["webhooks"][0]["failurePolicy"] = "Ignore"
            await api.put(f"{VALIDATING}/v", found)
            await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})

    play(scene)


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([add("/nowhere/at/all", 1)], "the patch cannot be applied"),
        ([add("/metadata/name", "other")], "metadata.name may not be changed"),
        ([add("/data", 7)], "the patch cannot be applied"),
        ([add("/kind", "Secret")], "kind and apiVersion of the object may not be changed"),
    ],
)
def test_patches_that_do_not_fit(pki: Pki, operations: list[Object], said: str) -> None:
    async def scene(api: Api) -> None:
        async def reply(request: Object) -> Object:
            return patch(*operations)

        async with hook(pki, reply) as made:
            await api.post(MUTATING, config("m", entry("m.example.com", made.client())))
            error = await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))
            assert error.code == 500
            assert said in str(error)

    play(scene)


def test_nobody_answers_a_wrong_authority_and_a_slow_one(pki: Pki, tmp_path: Path) -> None:
    async def slow(request: Object) -> Object:
        await asyncio.sleep(30)
        return {}

    async def scene(api: Api) -> None:
        async with hook(pki, slow) as made:
            stranger = base64.b64encode((open_pki(tmp_path).folder / "ca.crt").read_bytes()).decode()
            cases = [
                ({"url": "https://127.0.0.1:1/"}, "Cannot connect to host 127.0.0.1:1"),
                ({**made.client(), "caBundle": stranger}, "certificate"),
                ({**made.client(), "caBundle": "AAAA"}, "caBundle holds no certificates"),
                (made.client(), "no answer within 1 seconds"),
                ({"service": {"namespace": "default", "name": "none"}}, 'service "none" not found'),
            ]
            for client, said in cases:
                hooked = entry("v.example.com", client, timeoutSeconds=1)
                await api.post(VALIDATING, config("v", hooked))
                error = await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))
                assert (error.code, said in str(error)) == (500, True), str(error)
                await api.delete(f"{VALIDATING}/v")

    play(scene)


def test_a_service_is_followed_to_its_ready_pod(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async with hook(pki, allow) as made:
            service = {
                "metadata": {"name": "hook"},
                "spec": {"selector": {"app": "hook"}, "ports": [{"port": 443, "targetPort": "https"}]},
            }
            await api.post("/api/v1/namespaces/default/services", service)
            hooked = entry(
                "v.example.com",
                {"service": {"namespace": "default", "name": "hook", "path": "judge"}, "caBundle": made.bundle},
            )
            await api.post(VALIDATING, config("v", hooked))
            error = await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))
            assert 'no endpoints available for service "hook"' in str(error)
            running = pod("p")
            running["metadata"]["labels"] = {"app": "hook"}
            running["spec"]["containers"][0]["ports"] = [{"name": "https", "containerPort": made.port}]
            await api.post(PODS, running)
            ready = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
            await api.patch(f"{PODS}/p/status", {"status": ready})
            await api.post(CONFIGMAPS, {"metadata": {"name": "c"}})
            assert len(made.asked) == 1

    play(scene)


def test_what_changes_while_a_webhook_thinks_is_decided_anew(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async def meddle(request: Object) -> Object:
            # Another write comes first; it is not judged, since only this user's writes are.
            if len(made.asked) == 1:
                await api.as_user("other", "system:masters").patch(f"{CONFIGMAPS}/c", {"data": {"other": "1"}})
            return {}

        await api.post(CONFIGMAPS, {"metadata": {"name": "c"}, "data": {"a": "0"}})
        async with hook(pki, meddle) as made:
            mine = {"name": "mine", "expression": "request.userInfo.username == 'admin'"}
            await api.post(VALIDATING, config("v", entry("v.example.com", made.client(), matchConditions=[mine])))
            # A patch is applied to the newer state.
            after = await api.patch(f"{CONFIGMAPS}/c", {"data": {"a": "1"}})
            assert after["data"] == {"a": "1", "other": "1"}
            assert len(made.asked) == 2
            # A PUT of a known revision is refused.
            made.asked.clear()
            stale = await api.get(f"{CONFIGMAPS}/c")
            await api.as_user("other", "system:masters").patch(f"{CONFIGMAPS}/c", {"data": {"other": "0"}})
            assert (await refused(api.put(f"{CONFIGMAPS}/c", stale))).code == 409

    play(scene)


def test_a_name_that_is_taken_meanwhile(pki: Pki) -> None:
    async def scene(api: Api) -> None:
        async def meddle(request: Object) -> Object:
            other = api.as_user("other", "system:masters")
            if request["name"] == "c":
                await other.post(CONFIGMAPS, {"metadata": {"name": "c"}})
            else:
                await other.delete("/api/v1/namespaces/brief")
            return {}

        async with hook(pki, meddle) as made:
            mine = {"name": "mine", "expression": "request.userInfo.username == 'admin'"}
            await api.post(VALIDATING, config("v", entry("v.example.com", made.client(), matchConditions=[mine])))
            assert (await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))).reason == "AlreadyExists"
            await api.post("/api/v1/namespaces", {"metadata": {"name": "brief"}})
            error = await refused(api.post("/api/v1/namespaces/brief/configmaps", {"metadata": {"name": "d"}}))
            assert "being terminated" in str(error)

    play(scene)


def test_subresources_with_bodies_of_their_own(pki: Pki) -> None:
    async def answer(request: Object) -> Object:
        return {"allowed": request["kind"]["kind"] != "Binding"}

    async def scene(api: Api) -> None:
        async with hook(pki, answer) as made:
            await api.post(PODS, pod("p"))
            deployment = {
                "metadata": {"name": "d"},
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]},
                },
            }
            await api.post("/apis/apps/v1/namespaces/default/deployments", deployment)
            await api.post(VALIDATING, config("v", entry("v.example.com", made.client(), "*/*")))
            error = await refused(api.post(f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n"}}))
            assert "denied the request" in str(error)
            assert "nodeName" not in (await api.get(f"{PODS}/p"))["spec"]
            await api.patch("/apis/apps/v1/namespaces/default/deployments/d/scale", {"spec": {"replicas": 3}})
            request = made.asked[-1]
            assert (request["subResource"], request["kind"]["kind"]) == ("scale", "Scale")
            assert (request["object"]["spec"], request["oldObject"]["spec"]) == ({"replicas": 3}, {"replicas": 1})

    play(scene)
