"""Kubernetes objects out of YAML or JSON text: the one reader for manifests, dumps and cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from drakkar.api.errors import UsageError
from drakkar.api.meta import Object


def documents(text: str, source: str) -> list[Any]:
    """All documents of a text; empty ones are left out. Raises UsageError naming ``source``."""
    if text.lstrip()[:1] == "{":
        # A file of one JSON object, as dumps are; much faster than to read it as YAML, which JSON is too.
        try:
            return [json.loads(text)]
        except ValueError:
            pass
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found: list[Any] = list(yaml.load_all(text, Loader=loader))
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not valid YAML: {error}") from error
    return [document for document in found if document is not None]


def parse_objects(text: str, source: str) -> list[Object]:
    """All objects of a text; ``List`` objects are unfolded. Raises UsageError naming source and document."""
    return list(_unfold(documents(text, source), source))


def _unfold(found: list[Any], source: str) -> Iterator[Object]:
    for number, document in enumerate(found, start=1):
        if not isinstance(document, dict):
            raise UsageError(f"{source}: document {number} is no Kubernetes object")
        obj = cast(Object, document)
        if not obj.get("kind") or not obj.get("apiVersion"):
            raise UsageError(f"{source}: document {number} is no Kubernetes object (apiVersion and kind are required)")
        if str(obj["kind"]).endswith("List") and isinstance(obj.get("items"), list):
            yield from _unfold(obj["items"], source)
        else:
            yield obj
