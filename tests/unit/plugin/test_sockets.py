"""Names of sockets, and which of them are left over."""

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from drakkar.plugin.sockets import LONGEST_PATH, SETTLED, dra_socket, registration_socket, remove_dead

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


def test_only_old_sockets_that_nobody_serves_are_left_over(root: Path) -> None:
    """As they are after a kill: bound, and nobody listens."""
    registry, plugin = root / "r", root / "p"
    registry.mkdir()
    plugin.mkdir()

    def bound(path: Path, *, age: float = 2 * SETTLED, served: bool = False) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(path))
        if served:
            made.listen()
        moment = path.stat().st_mtime - age
        os.utime(path, (moment, moment))
        return made

    dead = [registration_socket(registry, "d.example", UID), dra_socket(plugin, UID), dra_socket(plugin)]
    for path in dead:
        bound(path).close()
    young = registration_socket(registry, "d.example", "young")
    bound(young, age=0).close()
    foreign = registry / "e.example-reg.sock"
    bound(foreign).close()
    file = registry / "d.example-1-reg.sock"
    file.write_text("")
    os.utime(file, (0, 0))
    alive = registration_socket(registry, "d.example", "alive")
    with closing(bound(alive, served=True)):
        assert remove_dead(registry, plugin, "d.example") == sorted(dead)
        assert {*registry.iterdir(), *plugin.iterdir()} == {young, foreign, file, alive}
        assert remove_dead(registry, root / "absent", "d.example") == []
