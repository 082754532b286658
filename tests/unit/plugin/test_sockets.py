"""Names of sockets."""

from pathlib import Path

import pytest

from drakkar.plugin.sockets import LONGEST_PATH, dra_socket, registration_socket

UID = "0f7a3c1e-8a55-4a55-9d3f-3f5f0c9f2a11"


def test_names() -> None:
    registry = Path("/var/lib/kubelet/plugins_registry")
    assert registration_socket(registry, "d.example") == registry / "d.example-reg.sock"
    assert registration_socket(registry, "d.example", UID).name == f"d.example-{UID}-reg.sock"
    middle = registration_socket(registry, "d" * 40, UID).name
    assert middle.startswith("d" * 40 + "-")
    assert UID not in middle
    short = registration_socket(registry, "d" * 63, UID)
    assert short.name.startswith("dra-")
    assert short != registration_socket(registry, "e" * 63, UID)
    assert len(str(short)) <= LONGEST_PATH
    with pytest.raises(ValueError, match="shorter folder"):
        registration_socket(Path("/" + "x" * 90), "d.example", UID)
    assert dra_socket(Path("/p"), UID) == Path(f"/p/dra-{UID}.sock")
    assert dra_socket(Path("/p")) == Path("/p/dra.sock")
