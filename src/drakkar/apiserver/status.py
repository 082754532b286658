"""``metav1.Status``: how the server says no, in the words clients know.

Clients branch on ``code`` and ``reason`` and print ``message``, so each constructor follows
the wording of kube-apiserver. The functions return dicts; code that has to get out of deep
calls raises :class:`StatusError`, which the server renders as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from drakkar.api.errors import ApiError, FieldError

#: How each cause of ``FieldError.type`` reads inside a message.
_FAULT_WORDS = {
    "FieldValueNotFound": "Not found",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
    "InternalError": "Internal error",
}

#: Faults whose text does not repeat the value.
_WITHOUT_VALUE = frozenset({"FieldValueRequired", "FieldValueForbidden", "FieldValueTooLong", "InternalError"})


class StatusError(ApiError):
    """Raised inside the server; ``status`` is the answer to send."""


def status_error(
    code: int,
    reason: str,
    message: str,
    *,
    details: dict[str, Any] | None = None,
    retry_after: int | None = None,
) -> dict[str, Any]:
    """A Failure. ``retry_after`` is in seconds; ``details`` is left out when None."""
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
    }
    if reason:
        status["reason"] = reason
    if retry_after is not None:
        details = {**(details or {}), "retryAfterSeconds": retry_after}
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def success(details: dict[str, Any] | None = None, code: int | None = None) -> dict[str, Any]:
    """A Success, as answered to a completed delete (with ``details``) or a binding (with ``code``)."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code is not None:
        status["code"] = code
    return status


def qualified(group: str, word: str) -> str:
    """``pods`` or ``jobs.batch``: how messages name a resource or kind."""
    return f"{word}.{group}" if group else word


def _details(group: str, word: str, name: str = "") -> dict[str, Any]:
    """``details`` in the order upstream writes it; empty parts are absent."""
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if word:
        details["kind"] = word
    return details


def not_found(group: str, plural: str, name: str) -> dict[str, Any]:
    """404 for an object."""
    message = f"{qualified(group, plural)} {_quote(name)} not found"
    return status_error(404, "NotFound", message, details=_details(group, plural, name))


def unknown_resource() -> dict[str, Any]:
    """404 for a resource that the group and version do not have."""
    return status_error(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(group: str, plural: str, name: str) -> dict[str, Any]:
    """409: create of a name that is taken."""
    message = f"{qualified(group, plural)} {_quote(name)} already exists"
    return status_error(409, "AlreadyExists", message, details=_details(group, plural, name))


def conflict(group: str, plural: str, name: str, message: str | None = None) -> dict[str, Any]:
    """409; ``message`` defaults to the one about a stale resourceVersion."""
    why = message or "the object has been modified; please apply your changes to the latest version and try again"
    text = f"Operation cannot be fulfilled on {qualified(group, plural)} {_quote(name)}: {why}"
    return status_error(409, "Conflict", text, details=_details(group, plural, name))


def apply_conflict(conflicts: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """409 of server-side apply; ``conflicts`` are (who holds the field, path of the field)."""
    found = list(conflicts)
    if len(found) == 1:
        holder, path = found[0]
        message = f"Apply failed with 1 conflict: conflict with {holder}: {path}"
    else:
        lines: list[str] = []
        for holder in sorted({holder for holder, _ in found}):
            lines.append(f"conflicts with {holder}:")
            lines += [f"- {path}" for owner, path in found if owner == holder]
        message = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {holder}", "field": path}
        for holder, path in found
    ]
    return status_error(409, "Conflict", message, details={"causes": causes})


def _quote(text: str) -> str:
    """Double quotes as Go's %q writes them for the texts that occur here."""
    return json.dumps(text, ensure_ascii=False)


def fault_text(error: FieldError) -> str:
    """``Invalid value: "x": why``: a field error without its path."""
    text = _FAULT_WORDS.get(error.type, error.type)
    if error.type not in _WITHOUT_VALUE:
        value = error.value
        if isinstance(value, str):
            text += f": {_quote(value)}"
        else:
            text += ": " + json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if error.detail:
        text += f": {error.detail}"
    return text


def invalid(group: str, kind: str, name: str, errors: Iterable[FieldError]) -> dict[str, Any]:
    """422 with one cause per field error."""
    causes: list[dict[str, Any]] = []
    lines: dict[str, None] = {}
    for error in errors:
        text = fault_text(error)
        causes.append({"reason": error.type, "message": text, "field": error.field})
        # The message names equal faults once, the causes name them all.
        lines.setdefault(f"{error.field}: {text}")
    message = f"{qualified(group, kind)} {_quote(name)} is invalid"
    if lines:
        joined = ", ".join(lines)
        message += ": " + (joined if len(lines) == 1 else f"[{joined}]")
    details = _details(group, kind, name)
    if causes:
        details["causes"] = causes
    return status_error(422, "Invalid", message, details=details)


def bad_request(message: str) -> dict[str, Any]:
    """400."""
    return status_error(400, "BadRequest", message)


def unauthorized() -> dict[str, Any]:
    """401: no or wrong credentials."""
    return status_error(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, message: str) -> dict[str, Any]:
    """403; ``message`` is the part after ``is forbidden:``."""
    subject = f"{qualified(group, plural)} {_quote(name)}" if name else qualified(group, plural)
    text = f"{subject} is forbidden: {message}" if plural else f"forbidden: {message}"
    return status_error(403, "Forbidden", text, details=_details(group, plural, name))


def method_not_allowed() -> dict[str, Any]:
    """405 for a verb that the path does not take."""
    message = "the server does not allow this method on the requested resource"
    return status_error(405, "MethodNotAllowed", message, details={})


def not_acceptable(accepted: Iterable[str]) -> dict[str, Any]:
    """406; ``accepted`` lists the media types the server can answer with."""
    message = "406: Not Acceptable\n\nAvailable representations: " + ", ".join(accepted)
    return status_error(406, "NotAcceptable", message, details={})


def unsupported_media_type(accepted: Iterable[str]) -> dict[str, Any]:
    """415; ``accepted`` lists the media types a body may have."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return status_error(415, "UnsupportedMediaType", message)


def unsupported_patch_type() -> dict[str, Any]:
    """415 for a PATCH whose media type is no patch at all; upstream's text has no list here."""
    return status_error(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def expired(message: str = "The resourceVersion for the provided list is too old.") -> dict[str, Any]:
    """410: the asked revision is compacted away."""
    return status_error(410, "Expired", message)


def gone(message: str) -> dict[str, Any]:
    """410 with reason Gone."""
    return status_error(410, "Gone", message)


def too_large_resource_version(asked: int, current: int) -> dict[str, Any]:
    """504: the asked revision lies in the future."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return status_error(504, "Timeout", message, details={"causes": causes}, retry_after=1)


def timeout(message: str, retry_after: int | None = None) -> dict[str, Any]:
    """504; ``retry_after`` in seconds."""
    return status_error(504, "Timeout", f"Timeout: {message}", details={}, retry_after=retry_after)


def too_many_requests(message: str, retry_after: int = 1) -> dict[str, Any]:
    """429; ``retry_after`` in seconds."""
    return status_error(429, "TooManyRequests", message, retry_after=retry_after)


def entity_too_large(message: str) -> dict[str, Any]:
    """413: the body is larger than the server takes."""
    return status_error(413, "RequestEntityTooLarge", message)


def not_stored(why: str, *, full: bool, unclear: bool) -> dict[str, Any]:
    """The store could not do a write: 507 without room, 504 when it may have been done, else 500."""
    if full:
        return status_error(507, "InsufficientStorage", f"nothing was written: {why}")
    if unclear:
        return timeout(f"the request may or may not have been done: {why}")
    return internal(f"nothing was written: {why}")


def internal(message: str) -> dict[str, Any]:
    """500 with a cause."""
    text = f"Internal error occurred: {message}"
    return status_error(500, "InternalError", text, details={"causes": [{"message": message}]})


def rejected() -> dict[str, Any]:
    """422 for a JSON patch that cannot be applied: upstream says no more than this."""
    return status_error(422, "Invalid", "the server rejected our request due to an error in our request", details={})
