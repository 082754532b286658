"""Join texts that are whole, damaged, or made by somebody else."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.apiserver.publishing import advertised
from drakkar.client.client import Client
from drakkar.node.agent.join import CSR, JOIN_PREFIX, read_join, signed, write_join
from drakkar.node.agent.machine import address_towards
from tests.unit.controllers.world import Clock

WHOLE: dict[str, Any] = {"server": "https://10.0.0.1:6443", "ca": "PEM", "token": "abcdef.0123456789abcdef"}


def _text(content: object) -> str:
    return JOIN_PREFIX + base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def test_a_text_or_a_file_with_one(tmp_path: Path) -> None:
    text = write_join(WHOLE["server"], b"PEM", WHOLE["token"])
    (tmp_path / "join").write_text(text + "\n")
    for given in (text, str(tmp_path / "join")):
        found = read_join(given)
        assert (found.server, found.ca, found.token) == (WHOLE["server"], b"PEM", WHOLE["token"])


@pytest.mark.parametrize(
    "text",
    [
        _text(WHOLE)[:-9],
        _text([1]),
        _text({**WHOLE, "server": 5}),
        _text({**WHOLE, "server": "http://10.0.0.1"}),
        _text({**WHOLE, "server": "https://"}),
        _text({**WHOLE, "server": "https://[::1"}),
        _text({**WHOLE, "ca": None}),
        _text({**WHOLE, "token": ["a"]}),
        JOIN_PREFIX + "ü",
    ],
)
def test_what_is_damaged_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="the text is damaged"):
        read_join(text)


def test_an_agent_on_the_servers_machine_has_the_loopback_address() -> None:
    for server in ("https://127.0.0.1:6443", f"https://{advertised('0.0.0.0')}:6443"):
        assert address_towards(server) == "127.0.0.1"


class _Signer(Client):
    """Signs the request after so many looks."""

    def __init__(self, looks: int):
        self.looks = looks

    async def get(self, kind: Kind, name: str, namespace: str | None = None, subresource: str | None = None) -> Object:
        assert (kind, name) == (CSR, "csr-1")
        self.looks -= 1
        return {"status": {"certificate": base64.b64encode(b"PEM").decode()}} if self.looks < 0 else {}


def test_who_waits_for_a_signature_says_what_to_approve(caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(signed(_Signer(3), Clock(), "csr-1")) == b"PEM"
    assert not caplog.messages
    assert asyncio.run(signed(_Signer(1000), Clock(), "csr-1")) == b"PEM"
    assert [message for message in caplog.messages if "kubectl certificate approve csr-1" in message] == caplog.messages
    assert len(caplog.messages) == 1
    with pytest.raises(EnvironmentProblem, match="nobody signed certificate request csr-1 within 900 s"):
        asyncio.run(signed(_Signer(10**6), Clock(), "csr-1"))
