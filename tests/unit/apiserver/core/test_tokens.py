"""Tokens: signed ones of service accounts, and those of a file."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.wire import Request
from drakkar.apiserver import open_pki
from drakkar.apiserver.auth import static_tokens
from drakkar.apiserver.tokens import signing_key
from drakkar.store import MemoryBackend
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import PODS, play, pod, refused

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


async def token(api: Api, **spec: Any) -> str:
    return (await api.post(f"{ACCOUNTS}/robot/token", {"spec": spec}))["status"]["token"]


async def who(api: Api, token: str) -> Object:
    return (await Api(api.server, api.clock, token).post(WHO, {}))["status"]["userInfo"]


async def code_of(api: Api, token: str) -> int:
    return (await refused(Api(api.server, api.clock, token).post(WHO, {}))).code


def claims(token: str) -> Object:
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def test_a_token_says_whose_it_is_and_ends_with_what_it_is_bound_to() -> None:
    async def scene(api: Api) -> None:
        account = await api.post(ACCOUNTS, {"metadata": {"name": "robot"}})
        made = await api.post(PODS, pod("p"))
        await api.post("/api/v1/nodes", {"metadata": {"name": "n"}})
        await api.post(f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n"}})
        bound = await token(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})
        about = claims(bound)["kubernetes.io"]
        assert about["serviceaccount"] == {"name": "robot", "uid": account["metadata"]["uid"]}
        assert about["pod"] == {"name": "p", "uid": made["metadata"]["uid"]}
        assert about["node"]["name"] == "n"
        extra = (await who(api, bound))["extra"]
        assert extra["authentication.kubernetes.io/node-name"] == ["n"]
        assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
        free = await token(api)
        wrong = {"kind": "Pod", "name": "p", "uid": "other"}
        assert (await refused(api.post(f"{ACCOUNTS}/robot/token", {"spec": {"boundObjectRef": wrong}}))).code == 409
        await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
        assert await code_of(api, bound) == 401
        assert (await who(api, free))["username"] == "system:serviceaccount:default:robot"
        # Another account of the same name is another account.
        await api.delete(f"{ACCOUNTS}/robot")
        await api.post(ACCOUNTS, {"metadata": {"name": "robot"}})
        assert await code_of(api, free) == 401

    play(scene)


def test_tokens_for_others_and_forged_ones() -> None:
    async def scene(api: Api) -> None:
        await api.post(ACCOUNTS, {"metadata": {"name": "robot"}})
        vault = await token(api, audiences=["vault"])
        assert await code_of(api, vault) == 401
        told = (await api.post(REVIEWS, {"spec": {"token": vault, "audiences": ["vault", "x"]}}))["status"]
        assert (told["authenticated"], told["audiences"]) == (True, ["vault"])
        assert "authenticated" not in (await api.post(REVIEWS, {"spec": {"token": vault}}))["status"]
        good = await token(api)
        head, body, mark = good.split(".")
        richer = {**claims(good), "sub": "system:serviceaccount:kube-system:root"}
        other = base64.urlsafe_b64encode(json.dumps(richer).encode()).rstrip(b"=").decode()
        none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        for bad in (
            f"{head}.{other}.{mark}",
            f"{none}.{body}.",
            f"{head}.{body}.AAAA",
            "a.b.c",
            "...",
            good + "x" * 9000,
            f"{head}.{body}.{'é' * 10}",
        ):
            assert await code_of(api, bad) == 401, bad

    play(scene)


def test_tokens_outlive_the_process_and_can_be_verified_by_others(tmp_path: Path) -> None:
    key = open_pki(tmp_path).folder / "ca.key"

    async def run() -> None:
        backend = MemoryBackend()
        api = await Api.start(backend)
        api.server.accounts.key = signing_key(key)
        await api.post(ACCOUNTS, {"metadata": {"name": "robot"}})
        made = await token(api)
        await api.close()
        again = await Api.start(backend)
        assert await code_of(again, made) == 401
        again.server.accounts.key = signing_key(key)
        assert (await who(again, made))["username"] == "system:serviceaccount:default:robot"
        page = await again.ask(Request("GET", "/.well-known/openid-configuration"))
        assert json.loads(page.body)["issuer"] == claims(made)["iss"]
        page = await again.ask(Request("GET", "/openid/v1/jwks"))
        (found,) = json.loads(page.body)["keys"]
        head = json.loads(base64.urlsafe_b64decode(made.split(".")[0] + "=="))
        assert (found["kty"], found["alg"], found["kid"]) == ("EC", "ES256", head["kid"])
        await again.close()

    asyncio.run(run())


def test_tokens_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text('abc,alice,1,"dev, ops"\n\nxyz,bob,2\n')

    async def scene(api: Api) -> None:
        api.server.authenticator.sources.append(static_tokens(path))
        info = await who(api, "abc")
        assert (info["username"], info["uid"]) == ("alice", "1")
        assert info["groups"] == ["dev", "ops", "system:authenticated"]
        assert (await who(api, "xyz"))["username"] == "bob"
        assert await code_of(api, "ab") == 401

    play(scene)


@pytest.mark.parametrize(
    ("content", "said"), [("abc,alice", "line 1 needs"), ("a,b,c\na,d,e", "line 2 repeats a token")]
)
def test_bad_files_of_tokens(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        static_tokens(path)
    assert said in str(caught.value)
