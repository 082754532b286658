"""What stands on disk of one pod, so that a new agent goes on where the old one stopped.

``pod.json`` is the pod, since the API may not know it any more; ``containers/NAME/NUMBER`` has the files of an attempt,
``last-NAME.json`` says how the one before ended; ``volumes`` is the business of `drakkar.node.agent.volumes`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from drakkar.api.meta import Object
from drakkar.node.agent.shims import Exit
from drakkar.plugin.files import write_atomically

#: Bytes of a container's last words that the status shows.
_LONGEST_MESSAGE = 4096


class LastAttempt(msgspec.Struct, frozen=True):
    """How the attempt before the current one ended, and its name in the pod's status."""

    exit: Exit
    identity: str


class PodFolder:
    """The folder of one pod."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def volumes(self) -> Path:
        """Where the volumes are."""
        return self.path / "volumes"

    def write_pod(self, pod: Object) -> None:
        """Keep the pod. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "pod.json", msgspec.json.encode(pod), 0o600)

    def read_pod(self) -> Object | None:
        """The pod as it was kept; None when it was not, or a power cut has spoilt it."""
        try:
            return msgspec.json.decode((self.path / "pod.json").read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def attempt(self, container: str, number: int) -> Path:
        """The folder of an attempt."""
        return self.path / "containers" / container / str(number)

    def newest(self, container: str) -> int | None:
        """The number of the newest attempt, None when there was none."""
        folder = self.path / "containers" / container
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
        return max(numbers, default=None)

    def write_last(self, container: str, last: LastAttempt) -> None:
        """Keep how an attempt ended, whose files go. Raises OSError."""
        write_atomically(self._last(container), msgspec.json.encode(last))

    def read_last(self, container: str) -> LastAttempt | None:
        """How the attempt before the newest one ended, where that is known."""
        try:
            return msgspec.json.decode(self._last(container).read_bytes(), type=LastAttempt)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _last(self, container: str) -> Path:
        return self.path / f"last-{container}.json"


def last_words(attempt: Path) -> str:
    """What the container of an attempt wrote to its termination log (``terminationMessagePath``)."""
    try:
        with (attempt / "termination-log").open("rb") as file:
            return file.read(_LONGEST_MESSAGE).decode("utf-8", "replace")
    except OSError:
        return ""
