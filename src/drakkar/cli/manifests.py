"""Manifests in YAML or JSON, read from files and applied through the API as kubectl would."""

from __future__ import annotations

import json
from pathlib import Path

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import KINDS, Kind
from drakkar.api.manifests import parse_objects
from drakkar.api.meta import Object
from drakkar.client import Client

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_BY_NAME: dict[tuple[str, str], Kind] = {(kind.api_version, kind.kind): kind for kind in KINDS}


def read_objects(path: Path) -> list[Object]:
    """All objects of a file. Raises UsageError naming file and document."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    return parse_objects(text, str(path))


async def apply(client: Client, obj: Object) -> str:
    """Create the object, or patch it when it exists; returns ``created`` or ``configured``.

    Raises ApiError with the server's Status, UsageError for a kind that the server does not have.
    """
    version, word = obj["apiVersion"], obj["kind"]
    kind = _BY_NAME.get((version, word))
    if kind is None:
        from drakkar.controllers.discovery import find_kind  # takes all controllers with it

        kind = await find_kind(client, version, word)
    if kind is None:
        raise UsageError(f"the server has no {word} in {version}; is its CustomResourceDefinition applied?")
    namespace = obj["metadata"].get("namespace", "default") if kind.namespaced else None
    written = json.dumps(obj, separators=(",", ":"))
    metadata = {**obj["metadata"], "annotations": {**(obj["metadata"].get("annotations") or {}), LAST_APPLIED: written}}
    if namespace:
        metadata["namespace"] = namespace
    body = {**obj, "metadata": metadata}
    try:
        await client.create(kind, body, namespace=namespace)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        await client.patch(kind, obj["metadata"]["name"], namespace, body, type="merge")
        return "configured"
    return "created"
