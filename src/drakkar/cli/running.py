"""Where this user's running ``drakkar up`` can be found by other commands.

Each instance writes one small file under the state folder and removes it at the end;
files of dead processes are ignored and swept.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def state_folder() -> Path:
    """``$XDG_STATE_HOME/drakkar`` or ``~/.local/state/drakkar``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "drakkar"


@contextmanager
def announced(kubeconfig: Path) -> Iterator[None]:
    """Announce this process' plane as long as the block runs; without a writable home, nothing is announced."""
    folder = state_folder() / "running"
    entry = folder / f"{os.getpid()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry.write_text(json.dumps({"pid": os.getpid(), "kubeconfig": str(kubeconfig)}))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        entry.unlink(missing_ok=True)


def newest_kubeconfig() -> Path | None:
    """Kubeconfig of the most recently started plane that is still alive."""
    folder = state_folder() / "running"
    if not folder.is_dir():
        return None
    entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for entry in entries:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(entry.read_text())
            kubeconfig = Path(data["kubeconfig"])
            if _alive(int(data["pid"])) and kubeconfig.exists():
                return kubeconfig
        entry.unlink(missing_ok=True)
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
