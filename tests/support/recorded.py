"""Commands that were run against a real API server, with what they printed (``spec/apiserver-traces``)."""

from __future__ import annotations

import copy
import json
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.normal import normal
from tests.support.shared import shared_path

#: The recorder cut longer outputs.
LIMIT = 4000
#: Commands that change nothing.
READS = ("get", "describe", "events")

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class Recorded:
    """One command: its words (without the program's name), what went in, what came out."""

    name: str
    words: tuple[str, ...]
    stdin: str
    code: int
    stdout: str
    stderr: str
    requests: tuple[dict[str, Any], ...]


def commands(*names: str) -> list[Recorded]:
    """The commands of the files, in the order in which they were run."""
    found: list[Recorded] = []
    for name in names:
        for entry in json.loads(shared_path(f"spec/apiserver-traces/{name}.json").read_text()):
            found.append(
                Recorded(
                    entry["name"],
                    tuple(shlex.split(entry["command"])[1:]),
                    entry["stdin"] or "",
                    entry["exit"],
                    entry["stdout"],
                    entry["stderr"],
                    tuple(entry["requests"] or ()),
                )
            )
    return found


def manifests(recorded: list[Recorded]) -> dict[str, dict[str, Any]]:
    """The files that the commands name, made again from the bodies that were sent for them."""
    found: dict[str, dict[str, Any]] = {}
    for command in recorded:
        for word in command.words:
            if not word.endswith(".yaml") or word in found:
                continue
            for body in _whole_objects(command):
                obj = copy.deepcopy(body)
                meta = obj["metadata"]
                annotations = meta.get("annotations", {})
                annotations.pop(_LAST_APPLIED, None)
                if not annotations:
                    meta.pop("annotations", None)
                if meta.get("namespace") in ("default", "nope"):
                    meta.pop("namespace")
                meta.pop("resourceVersion", None)
                found[word] = obj
                break
    return found


def _whole_objects(command: Recorded) -> Iterator[dict[str, Any]]:
    for request in command.requests:
        body = request["requestBody"]
        if isinstance(body, dict) and "apiVersion" in body and "kind" in body:
            yield body


def soon(differences: Callable[[], list[str]], patience: float = 30) -> list[str]:
    """What a command that only reads prints otherwise than expected; asked again for a while as long as it does.

    What is left to do for controllers when the command before it has returned shows a moment later.
    """
    deadline = time.monotonic() + patience
    while (found := differences()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def lines(text: str) -> list[str]:
    """Normal lines; neighbours whose order hangs on a random name come sorted."""
    found: list[str] = []
    group: list[str] = []
    for line in normal(text).splitlines():
        if "<random>" in line or "<hash>" in line:
            group.append(line)
            continue
        found += [*sorted(group), line]
        group.clear()
    return found + sorted(group)
