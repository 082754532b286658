"""exec, attach, logs, port-forward: who may, what is refused in which words, that both sides show who they are."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from drakkar.api.meta import Object
from drakkar.api.wire import Request
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.streaming.targets import container_of, endpoint, exec_target, log_path
from drakkar.node.agent.endpoint import API_SERVER
from drakkar.streaming import channels
from tests.support.streams import Site, client_context, site


def _pod(*containers: str, init: tuple[str, ...] = ()) -> Object:
    spec = {"containers": [{"name": name} for name in containers], "initContainers": [{"name": name} for name in init]}
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}


def _words(call: Callable[[], Any]) -> str:
    with pytest.raises(StatusError) as caught:
        call()
    return caught.value.status["message"]


def test_which_container() -> None:
    assert container_of(_pod("a"), "") == "a"
    assert container_of(_pod("a", "b", init=("i",)), "i") == "i"
    assert _words(lambda: container_of(_pod("a", "b", init=("i",)), "")) == (
        "a container name must be specified for pod web, choose one of: [a b] or one of the init containers: [i]"
    )
    assert _words(lambda: container_of(_pod("a"), "z")) == "container z is not valid for pod web"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"tailLines": "-1"}, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"sinceSeconds": "0"}, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ({"limitBytes": "0"}, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "1", "sinceTime": "2026-01-01T00:00:00Z"}, "at most one of `sinceTime` or `sinceSeconds`"),
        ({"stream": "Both"}, "stream: Unsupported value"),
        ({"tailLines": "many"}, "tailLines: 'many' is not a whole number"),
    ],
)
def test_log_options_are_checked(query: dict[str, str], words: str) -> None:
    assert words in _words(lambda: log_path(_pod("a"), list(query.items())))


def test_paths_of_the_agent() -> None:
    asked = [("tailLines", "3"), ("follow", "true"), ("container", "a")]
    assert log_path(_pod("a", "b"), asked) == "/containerLogs/default/web/a?tailLines=3&follow=true"
    query = [("command", "ls"), ("command", "/a b"), ("stdout", "true"), ("stderr", "true"), ("tty", "true")]
    target = exec_target(_pod("a"), query, "https://n:1", attach=False)
    assert target.url == "https://n:1/exec/default/web/a?output=1&tty=1&command=ls&command=%2Fa+b"
    assert not target.stderr
    assert "at least 1 of stdin" in _words(lambda: exec_target(_pod("a"), [("command", "ls")], "", attach=False))
    assert "a command must" in _words(lambda: exec_target(_pod("a"), [("stdout", "1")], "", attach=False))


def test_the_address_of_a_node() -> None:
    addresses = [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "fd00::1"}]
    status = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}
    assert endpoint({"metadata": {"name": "n"}, "status": status}) == "https://[fd00::1]:10250"
    assert "daemonEndpoints" in _words(lambda: endpoint({"metadata": {"name": "n"}, "status": {}}))


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("10.0.0.1:10250/exec/default/victim/main?command=id#", 10250),
        ("user@10.0.0.1", 10250),
        ("fd00::1]:1/exec?x=", 10250),
        ("fe80::1%x]:1/exec", 10250),
        ("n1/..", 10250),
        ("n1 ", 10250),
        ("n1", "10250/exec"),
        ("n1", 0),
        ("n1", True),
    ],
)
def test_a_node_leads_the_server_to_no_other_place(host: str, port: Any) -> None:
    addresses = [{"type": "Hostname", "address": host}]
    status = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
    words = _words(lambda: endpoint({"metadata": {"name": "n"}, "status": status}))
    assert "is not the address of an agent" in words or "is not set" in words


def test_an_agent_sends_the_server_to_no_other_agent(tmp_path: Path) -> None:
    """What one agent answers must not become a request to another, which would take it for the server's own."""
    from aiohttp import web

    async def test(running: Site) -> None:
        asked: list[str] = []

        async def answer(request: web.Request) -> web.Response:
            asked.append(request.path)
            where = request.path.replace("/web/", "/victim/")
            return web.Response(status=302, headers={"location": f"https://127.0.0.1:{running.endpoint.port}{where}"})

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        hostile = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=running.pki.agent_context("hostile", ["127.0.0.1"]))
        await hostile.start()
        port: int = runner.addresses[0][1]
        agents = running.server.agents
        assert agents is not None
        base = f"https://127.0.0.1:{port}"
        target = exec_target(_pod("main"), [("command", "id"), ("stdout", "1")], base, attach=False)
        for work in (agents.logs(base + log_path(_pod("main"), [])), agents.converse(target)):
            with pytest.raises(StatusError) as refused:
                await work
            assert "redirects are not followed" in refused.value.status["message"]
        assert asked == ["/containerLogs/default/web/main", "/exec/default/web/main"]
        await runner.cleanup()

    _run(tmp_path, test)


def _run(tmp_path: Path, test: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        async with site(tmp_path) as running:
            await test(running)

    asyncio.run(run())


def test_an_agent_lets_in_nobody_but_the_api_server(tmp_path: Path) -> None:
    async def test(running: Site) -> None:
        url = f"https://127.0.0.1:{running.endpoint.port}/pods"
        nobody = ssl.create_default_context(cadata=running.pki.ca_certificate.decode())
        user = client_context(running.pki, tmp_path, "mallory", "developers")
        server = client_context(running.pki, tmp_path, API_SERVER)
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientError):
                await http.get(url, ssl=nobody)
            async with http.get(url, ssl=user) as answer:
                assert answer.status == 403
                assert "mallory may not use" in await answer.text()
            async with http.get(url, ssl=server) as answer:
                assert (answer.status, (await answer.json())["kind"]) == (200, "PodList")

    _run(tmp_path, test)


def test_the_server_talks_to_no_agent_of_another_authority(tmp_path: Path) -> None:
    from drakkar.apiserver import open_pki
    from drakkar.apiserver.streaming.agents import Agents

    async def test(running: Site) -> None:
        stranger = open_pki(tmp_path / "other")
        running.server.agents = Agents(stranger.agents_context())
        token = running.server.token("admin", "system:masters")
        path = "/api/v1/namespaces/default/pods/web/log"
        answer = await running.server.handle(Request("GET", path, headers={"authorization": f"Bearer {token}"}))
        assert answer.status == 500
        assert b"error dialing backend" in answer.body

    _run(tmp_path, test)


def test_a_websocket_needs_the_right_to_create(tmp_path: Path) -> None:
    async def test(running: Site) -> None:
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        admin = {"authorization": f"Bearer {running.server.token('admin', 'system:masters')}"}
        role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}]}
        binding = {
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}],
        }
        import json

        for plural, obj in (("roles", role), ("rolebindings", binding)):
            answer = await running.server.handle(
                Request("POST", f"{rbac}/{plural}", headers=admin, body=json.dumps(obj).encode())
            )
            assert answer.status == 201, answer.body
        headers = {"authorization": f"Bearer {running.server.token('reader')}", "upgrade": "websocket"}
        query = (("command", "true"), ("stdout", "true"))
        path = "/api/v1/namespaces/default/pods/web/exec"
        answer = await running.server.handle(Request("GET", path, query, headers))
        assert answer.status == 403
        assert b'cannot create resource \\"pods/exec\\"' in answer.body
        answer = await running.server.handle(Request("GET", path, query, {**admin, "upgrade": "websocket"}))
        assert answer.status == 101
        answer = await running.server.handle(Request("POST", path, query, admin))
        assert (answer.status, b"Upgrade request required" in answer.body) == (400, True)

    _run(tmp_path, test)


def test_clients_of_both_versions(tmp_path: Path) -> None:
    async def test(running: Site) -> None:
        tls = client_context(running.pki, tmp_path, "admin", "system:masters")
        base = f"{running.serving.url}/api/v1/namespaces/default/pods/web"
        script = "cat; echo err >&2; exit 4"
        query = {"stdin": "true", "stdout": "true", "stderr": "true", "container": "main"}
        url = f"{base}/exec?command=sh&command=-c"
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(
                url, params={**query, "command": script}, protocols=(channels.V5,), ssl=tls
            ) as socket:
                pass  # A client that leaves at once harms nobody.
            full = f"{url}&command={script.replace(' ', '%20').replace(';', '%3B').replace('>&', '%3E%26')}"
            async with http.ws_connect(
                full + "".join(f"&{key}={value}" for key, value in query.items()), protocols=(channels.V5,), ssl=tls
            ) as socket:
                assert socket.protocol == channels.V5
                await socket.send_bytes(bytes([channels.STDIN]) + b"in")
                await socket.send_bytes(b"")
                await socket.send_bytes(bytes([77]) + b"no such channel")
                await socket.send_bytes(bytes([channels.RESIZE]) + b"{")
                await socket.send_bytes(bytes([channels.CLOSE, channels.STDIN]))
                seen = {1: b"", 2: b"", 3: b""}
                async for message in socket:
                    seen[message.data[0]] += message.data[1:]
            assert seen == {1: b"in", 2: b"err\n", 3: channels.exit_status(4)}
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await http.ws_connect(full + "&stdout=1", protocols=("v9",), ssl=tls)
            assert caught.value.status == 400
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await http.ws_connect(f"{running.serving.url}/api/v1/pods?watch=1", ssl=tls)
            assert caught.value.status == 400

    _run(tmp_path, test)


def test_broken_conversations_harm_nobody(tmp_path: Path) -> None:
    async def test(running: Site) -> None:
        tls = client_context(running.pki, tmp_path, "admin", "system:masters")
        rng = random.Random(3)
        path = "/api/v1/namespaces/default/pods/web"
        asked = [
            f"{path}/exec?command=cat&stdin=1&stdout=1",
            f"{path}/portforward",
            "/api/v1/namespaces/default/pods",
            f"{path}/exec",
            f"{path}/log",
            f"{path}/exec?command=x&stdout=1&container=nobody",
        ]
        answers: list[bytes] = []
        for target in asked:
            for version in ("v4.channel.k8s.io", "portforward.k8s.io", "nonsense"):
                reader, writer = await asyncio.open_connection("127.0.0.1", running.serving.port, ssl=tls)
                head = f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
                writer.write(f"{head}X-Stream-Protocol-Version: {version}\r\nContent-Length: 0\r\n\r\n".encode())
                answers.append(await asyncio.wait_for(reader.readline(), 60))
                writer.write(rng.randbytes(200))
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                writer.close()
        assert {answer.split()[1] for answer in answers} == {b"101", b"400", b"403", b"405"}
        async with aiohttp.ClientSession() as http:
            base = f"{running.serving.url}{path}"
            for _ in range(4):
                url = f"{base}/exec?command=cat&stdin=1&stdout=1"
                async with http.ws_connect(url, protocols=(channels.V5,), ssl=tls) as socket:
                    for _ in range(5):
                        await socket.send_bytes(rng.randbytes(rng.randrange(40)))
                async with http.ws_connect(f"{base}/portforward", protocols=(channels.TUNNEL,), ssl=tls) as socket:
                    await socket.send_bytes(rng.randbytes(100))
            async with http.ws_connect(
                f"{base}/exec?command=echo&command=still&stdout=1", protocols=(channels.V4,), ssl=tls
            ) as socket:
                assert (await socket.receive_bytes())[1:] == b"still\n"

    _run(tmp_path, test)
