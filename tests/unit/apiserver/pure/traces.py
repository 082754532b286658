"""Reading the recorded exchanges with a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.shared import shared_path


def entries(name: str) -> list[dict[str, Any]]:
    """The recorded commands of one file."""
    return json.loads(shared_path(f"spec/apiserver-traces/{name}.json").read_text())


def exchanges(*names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All requests of the files, with the name of their command."""
    for name in names:
        for entry in entries(name):
            for request in entry.get("requests") or []:
                yield entry.get("name") or "", request


def exchange(name: str, file: str = "raw") -> dict[str, Any]:
    """The first refused request of the command with that name, or its first one."""
    found = [request for command, request in exchanges(file) if command == name]
    return next((request for request in found if request["status"] >= 400), found[0])


def objects(*names: str) -> list[dict[str, Any]]:
    """Every complete stored object that occurs in an answer, once."""
    found: dict[str, dict[str, Any]] = {}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            meta = value.get("metadata")
            if "apiVersion" in value and "kind" in value and isinstance(meta, dict) and meta.get("uid"):
                text = json.dumps(value, sort_keys=True)
                if " more" not in text and value["kind"] != "PartialObjectMetadata":
                    found[text] = value
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    for _, request in exchanges(*names):
        collect(request.get("responseBody"))
    return list(found.values())
