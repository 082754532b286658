"""Media types: in which form a client sends its body, and in which it wants the answer.

Answers are JSON (YAML on request): every client of Kubernetes that prefers protobuf lists
JSON or ``*/*`` behind it. Bodies may be JSON, YAML or protobuf. CBOR is refused with 415, on
which clients fall back to JSON for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from drakkar.apiserver import status
from drakkar.apiserver.status import StatusError

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

BODY_TYPES = (JSON, YAML, PROTOBUF)
PATCH_TYPES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer looks: ``kind`` is object, table or metadata; ``version`` that of meta.k8s.io."""

    kind: str = "object"
    version: str = "v1"
    yaml: bool = False


PLAIN = Form()
_AS = {"Table": "table", "PartialObjectMetadata": "metadata", "PartialObjectMetadataList": "metadata"}


@lru_cache(maxsize=256)
def answer_form(accept: str, *, transforms: bool = True) -> Form:
    """The first form in an ``Accept`` header that we can give; StatusError 406 when there is none."""
    if not accept or accept in ("*/*", JSON):
        return PLAIN
    for part in accept.split(","):
        media, *rest = (piece.strip() for piece in part.split(";"))
        parameters = dict(piece.split("=", 1) for piece in rest if "=" in piece)
        yaml = media == YAML
        if media not in (JSON, YAML, "application/*", "*/*"):
            continue
        wanted = parameters.get("as", "")
        if not wanted:
            return Form(yaml=True) if yaml else PLAIN
        known = _AS.get(wanted)
        if not transforms or known is None or parameters.get("g") != "meta.k8s.io":
            continue
        if parameters.get("v", "v1") in ("v1", "v1beta1"):
            return Form(known, parameters.get("v", "v1"), yaml)
    raise StatusError(status.not_acceptable(BODY_TYPES))


def body_type(content_type: str) -> str:
    """json, yaml or protobuf; a body without a type counts as JSON; StatusError 415."""
    media = content_type.partition(";")[0].strip().lower()
    if media in ("", JSON):
        return "json"
    if media == YAML:
        return "yaml"
    if media == PROTOBUF:
        return "protobuf"
    raise StatusError(status.unsupported_media_type(BODY_TYPES))


def patch_type(content_type: str, *, strategic: bool = True) -> str:
    """json, merge, strategic or apply; StatusError 415. ``strategic`` is false for custom resources."""
    media = content_type.partition(";")[0].strip().lower()
    found = PATCH_TYPES.get(media)
    if found is None:
        raise StatusError(status.unsupported_patch_type())
    if found == "strategic" and not strategic:
        raise StatusError(
            status.unsupported_media_type(name for name, kind in PATCH_TYPES.items() if kind != "strategic")
        )
    return found
