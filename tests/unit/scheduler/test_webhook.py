"""Which pods the webhook gates: the rule, and the configuration of the how-to behind an API server."""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from drakkar.api.kinds import NAMESPACE, POD, Kind
from drakkar.api.names import SCHEDULING_GATE
from drakkar.apiserver.tls import Pki, open_pki
from drakkar.cli import main
from drakkar.client import admission
from drakkar.scheduler.webhook import review
from tests.support.eventually import memory_plane
from tests.unit.scheduler.build import pod
from tests.unit.scheduler.test_plane import fresh

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "beside-kube-scheduler.md"
WEBHOOK = Kind(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
)
OURS = {"name": SCHEDULING_GATE}


def patch_of(obj: Any, operation: str = "CREATE") -> Any:
    asked = {"request": {"uid": "7", "operation": operation, "object": obj}}
    response = review("drakkar", asked)["response"]
    assert (response["uid"], response["allowed"]) == ("7", True)
    return msgspec.json.decode(base64.b64decode(response["patch"])) if "patch" in response else None


def test_pods_with_claims_are_gated() -> None:
    assert patch_of(pod("p", "c")) == [{"op": "add", "path": "/spec/schedulingGates", "value": [OURS]}]
    other = pod("p", "c", schedulingGates=[{"name": "example.com/quota"}])
    assert patch_of(other) == [{"op": "add", "path": "/spec/schedulingGates/-", "value": OURS}]


@pytest.mark.parametrize(
    "obj",
    [
        pod("p"),
        pod("p", "c", node="a"),
        pod("p", "c", schedulerName="drakkar"),
        pod("p", "c", schedulingGates=[OURS]),
        {"kind": "Pod"},
        {"kind": "Pod", "spec": None},
        {"kind": "PodTemplate", "spec": {"resourceClaims": [{}]}},
        None,
    ],
)
def test_other_objects_are_let_through_as_they_are(obj: Any) -> None:
    assert patch_of(obj) is None


def test_only_new_pods_are_gated() -> None:
    assert patch_of(pod("p", "c"), "UPDATE") is None


def documented(kind: str = WEBHOOK.kind) -> dict[str, Any]:
    """The configuration of this kind that the how-to gives."""
    blocks = [block.split("```", 1)[0] for block in HOW_TO.read_text().split("```yaml\n")[1:]]
    found = [obj for block in blocks for obj in yaml.safe_load_all(block) if obj.get("kind") == kind]
    assert len(found) == 1
    return found[0]


def test_behind_an_api_server(tmp_path: Path) -> None:
    pki = open_pki(tmp_path / "pki")
    certificate, key = pki.folder / "server.crt", pki.folder / "server.key"
    asked: list[str] = []

    def judge(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["request"]["namespace"])
        return review("drakkar", body)

    async def story() -> None:
        async with memory_plane() as client, admission.serving(judge, "127.0.0.1", 0, certificate, key) as port:
            configuration = documented()
            [hook] = configuration["webhooks"]
            authority = base64.b64encode((pki.folder / "ca.crt").read_bytes()).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/", "caBundle": authority}
            await client.create(WEBHOOK, configuration)
            labels = {"drakkar.dev/gate": "enabled"}
            for name, own in (("training", labels), ("other", {})):
                space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": own}}
                await client.create(NAMESPACE, space)

            async def gates(namespace: str, *claims: str, **spec: Any) -> list[str]:
                made = fresh(pod(f"p{len(asked)}-{len(claims)}", *claims, **spec))
                made["metadata"]["namespace"] = namespace
                stored = await client.create(POD, made, namespace)
                return [gate["name"] for gate in stored["spec"].get("schedulingGates") or []]

            assert await gates("training", "c") == [SCHEDULING_GATE]
            assert await gates("training", "c", schedulingGates=[{"name": "a.example.com/b"}]) == [
                "a.example.com/b",
                SCHEDULING_GATE,
            ]
            assert await gates("other", "c") == []
            assert await gates("training") == []
            # A pod without claims is not even asked about.
            assert asked == ["training", "training"]

    asyncio.run(story())


def test_what_the_webhook_needs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "--webhook", "127.0.0.1:0"]) == 2
    assert "--webhook, --tls-cert and --tls-key belong together" in capsys.readouterr().err
    assert main(["scheduler", "--guard-service", "a/b"]) == 2
    assert "--guard-service leads to the webhook, which is not served: add --webhook" in capsys.readouterr().err


def posting(pki: Pki) -> Callable[[int, str, bytes], Awaitable[tuple[int, str]]]:
    """Posts a body to a port and path; gives status and answer."""
    trust = ssl.create_default_context(cafile=str(pki.folder / "ca.crt"))

    def post(port: int, path: str, body: bytes) -> tuple[int, str]:
        asked = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=body, method="POST")
        try:
            with urllib.request.urlopen(asked, context=trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return lambda port, path, body: asyncio.to_thread(post, port, path, body)


def test_what_is_no_review_is_refused(tmp_path: Path) -> None:
    pki = open_pki(tmp_path / "pki")
    certificate, key = pki.folder / "server.crt", pki.folder / "server.key"
    post = posting(pki)

    async def story() -> list[int]:
        async with admission.serving(partial(review, "drakkar"), "127.0.0.1", 0, certificate, key) as port:
            bodies = (
                b"{",
                b"[]",
                b'{"request": 3}',
                b'{"request": {"operation": "CREATE", "object": 7}}',
                b'{"request": {}}',
            )
            return [(await post(port, "/", body))[0] for body in bodies]

    assert asyncio.run(story()) == [400, 400, 400, 400, 200]


def test_several_at_their_paths_and_none_that_cannot_judge(tmp_path: Path) -> None:
    pki = open_pki(tmp_path / "pki")
    certificate, key = pki.folder / "server.crt", pki.folder / "server.key"
    post, body = posting(pki), b'{"request": {"uid": "7"}}'

    async def waits(asked: Any) -> Any:
        await asyncio.sleep(0)
        return {"response": asked["request"]["uid"]}

    def elsewhere(asked: Any) -> Any:
        raise admission.NotHere("another one leads")

    async def story() -> None:
        reviews: dict[str, admission.Review] = {"/guard": waits, "/closed": elsewhere}
        async with admission.serving(reviews, "127.0.0.1", 0, certificate, key) as port:
            assert await post(port, "/guard", body) == (200, '{"response":"7"}')
            assert await post(port, "/closed", body) == (503, "another one leads")
            assert await post(port, "/", body) == (404, "no webhook at /; there are /guard, /closed")
        async with admission.serving({**reviews, "/": waits}, "127.0.0.1", 0, certificate, key) as port:
            assert (await post(port, "/anything", body))[0] == 200

    asyncio.run(story())
