"""Real kubectl 1.37 talks to containers: logs, exec, attach, cp and port-forward, over WebSocket and over SPDY."""

from __future__ import annotations

import contextlib
import http.server
import os
import pty
import re
import select
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl
from tests.support.streams import Site, in_thread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with in_thread(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture(params=["websocket", "spdy"])
def kubectl(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Kubectl:
    made = Kubectl(site.kubeconfig, tmp_path)
    on = "true" if request.param == "websocket" else "false"
    made.env |= {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": on, "KUBECTL_PORT_FORWARD_WEBSOCKETS": on}
    return made


def test_logs(site: Site, tmp_path: Path) -> None:
    kubectl = Kubectl(site.kubeconfig, tmp_path)
    assert kubectl.run("logs", "web") == "".join(f"line {n}\n" for n in range(5))
    assert kubectl.run("logs", "web", "--tail=2", "--timestamps") == (
        "2026-01-01T00:00:03Z line 3\n2026-01-01T00:00:04Z line 4\n"
    )
    assert kubectl.run("logs", "web", "--since-time=2026-01-01T00:00:04Z", "-f") == "line 4\nlater\n"
    assert kubectl.run("logs", "web", "--limit-bytes=9") == "line 0\nli"
    assert "previous terminated container" in kubectl.run("logs", "web", "-p", ok=False)
    assert "container nope is not valid for pod web" in kubectl.run("logs", "web", "-c", "nope", ok=False)
    assert kubectl.run("logs", "homeless") == ""


def test_exec(kubectl: Kubectl) -> None:
    assert kubectl.run("exec", "web", "--", "sh", "-c", "echo out; echo err >&2") in ("out\nerr\n", "err\nout\n")
    assert kubectl.run("exec", "-i", "web", "--", "tr", "a-z", "A-Z", stdin="hello\n") == "HELLO\n"
    assert "exit code 3" in kubectl.run("exec", "web", "--", "sh", "-c", "exit 3", ok=False)
    assert "cannot start 'nothing-of-the-kind'" in kubectl.run("exec", "web", "--", "nothing-of-the-kind", ok=False)
    assert 'pods "nobody" not found' in kubectl.run("exec", "nobody", "--", "true", ok=False)
    assert "does not have a host assigned" in kubectl.run("exec", "homeless", "--", "true", ok=False)


def test_much_output_arrives_whole(kubectl: Kubectl) -> None:
    command = "head -c 3000000 /dev/zero | tr '\\0' x"
    assert kubectl.run("exec", "web", "--", "sh", "-c", command) == "x" * 3_000_000


def test_attach(kubectl: Kubectl) -> None:
    assert "hello there" in kubectl.run("attach", "-i", "web", stdin="hello there\n")


def test_copy(kubectl: Kubectl, site: Site, tmp_path: Path) -> None:
    content = os.urandom(400_000)
    (tmp_path / "up").write_bytes(content)
    kubectl.run("cp", str(tmp_path / "up"), f"web:{site.host.folder}/copied")
    assert (site.host.folder / "copied").read_bytes() == content
    kubectl.run("cp", f"web:{site.host.folder}/copied", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content


def test_terminal(kubectl: Kubectl) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(kubectl.binary), "exec", "-it", "web", "--", "sh"],
        env=kubectl.env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        os.write(master, b"stty size; test -t 0 && echo is-a-$((1+1))-terminal; exit 7\n")
        seen = b""
        with contextlib.suppress(OSError):
            while select.select([master], [], [], 90)[0]:
                seen += os.read(master, 4096)
        assert b"is-a-2-terminal" in seen, seen
        assert re.search(rb"\d+ \d+\r\n", seen), seen
        assert process.wait(90) == 7
    finally:
        process.kill()
        process.wait()
        os.close(master)


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.path.encode() * 20_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def test_port_forward(kubectl: Kubectl, site: Site) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site.host.port = server.server_address[1]
    process = kubectl.start("port-forward", "web", ":80")
    try:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+) -> 80", process.stdout.readline())
        assert found
        for word in ("/one", "/two", "/three"):
            with urllib.request.urlopen(f"http://127.0.0.1:{found.group(1)}{word}", timeout=90) as answer:
                assert answer.read() == word.encode() * 20_000
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()
