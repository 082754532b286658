"""Join texts that are whole, damaged, or made by somebody else."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.apiserver.publishing import advertised
from drakkar.node.agent.join import JOIN_PREFIX, read_join, write_join
from drakkar.node.agent.machine import address_towards

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
