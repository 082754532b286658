"""Options of requests: what stands in the query, checked the way kube-apiserver checks it."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from drakkar.api.errors import FieldError, ParseError
from drakkar.api.selectors import FieldSelector, LabelSelector
from drakkar.apiserver import status
from drakkar.apiserver.status import StatusError

TRUE = ("true", "1", "True", "TRUE", "t", "T")


def _invalid(kind: str, errors: list[FieldError]) -> StatusError:
    return StatusError(status.invalid("meta.k8s.io", kind, "", errors))


def _forbidden(field: str, detail: str) -> FieldError:
    return FieldError(type="FieldValueForbidden", field=field, detail=detail)


def _unsupported(field: str, value: str, known: str) -> FieldError:
    return FieldError(type="FieldValueNotSupported", field=field, value=value, detail=f"supported values: {known}")


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of list, watch and deletecollection."""

    labels: LabelSelector
    fields: FieldSelector
    resource_version: str = ""
    match: str = ""
    limit: int = 0
    token: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool = False
    timeout: int | None = None
    include_object: str = "Metadata"

    @property
    def filtered(self) -> bool:
        """Whether a selector narrows the result."""
        return bool(self.labels.requirements or self.fields.requirements)


def revision(text: str) -> int:
    """A resourceVersion as a number; StatusError 400 in upstream's words."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise StatusError(
            status.bad_request(
                f"invalid resource version: resourceVersion: Invalid value: {json.dumps(text)}: "
                f"strconv.ParseUint: parsing {json.dumps(text)}: invalid syntax"
            )
        )
    if len(text) > _DIGITS:
        raise StatusError(status.bad_request(f"invalid resource version: {text[:_DIGITS]}...: value out of range"))
    return int(text)


_INTEGER = re.compile("[+-]?[0-9]+")
#: Longest number that is read at all: a uint64 has 20 digits, one more is room for a sign.
_DIGITS = 21


def _number(query: Mapping[str, str], key: str) -> int:
    text = query.get(key, "")
    if not text:
        return 0
    fault = "invalid syntax"
    if _INTEGER.fullmatch(text):
        if len(text) <= _DIGITS and -(1 << 63) <= int(text) < 1 << 63:
            return int(text)
        fault = "value out of range"
    message = f"{key}: strconv.ParseInt: parsing {json.dumps(text[:100])}: {fault}"
    raise StatusError(status.bad_request(message))


def list_options(query: Mapping[str, str], *, watch: bool) -> ListOptions:
    """Reads and checks; StatusError 400 or 422."""
    try:
        labels = LabelSelector.parse(query.get("labelSelector", ""))
        fields = FieldSelector.parse(query.get("fieldSelector", ""))
    except ParseError as error:
        raise StatusError(status.bad_request(str(error))) from None
    match = query.get("resourceVersionMatch", "")
    version = query.get("resourceVersion", "")
    token = query.get("continue", "")
    initial = query.get("sendInitialEvents")
    errors: list[FieldError] = []
    if watch:
        if initial is not None:
            if match != "NotOlderThan":
                text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                errors.append(_forbidden("resourceVersionMatch", text))
        elif match:
            text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            errors.append(_forbidden("resourceVersionMatch", text))
    else:
        if initial is not None:
            errors.append(_forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
        if match:
            if not version:
                text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
                errors.append(_forbidden("resourceVersionMatch", text))
            if token:
                text = "resourceVersionMatch is forbidden when continue is provided"
                errors.append(_forbidden("resourceVersionMatch", text))
            if match not in ("Exact", "NotOlderThan"):
                known = '"Exact", "NotOlderThan", ""'
                errors.append(_unsupported("resourceVersionMatch", match, known))
            if match == "Exact" and version == "0":
                text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
                errors.append(_forbidden("resourceVersionMatch", text))
    if errors:
        raise _invalid("ListOptions", errors)
    seconds = query.get("timeoutSeconds", "")
    return ListOptions(
        labels=labels,
        fields=fields,
        resource_version=version,
        match=match,
        limit=_number(query, "limit"),
        token=token,
        watch=watch,
        bookmarks=query.get("allowWatchBookmarks") in TRUE,
        initial_events=initial in TRUE,
        timeout=_number(query, "timeoutSeconds") if seconds else None,
        include_object=query.get("includeObject") or "Metadata",
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of create, update and patch."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False
    #: First part of the client's User-Agent.
    agent: str = ""

    @property
    def manager(self) -> str:
        """Under which name changes of fields are kept."""
        return self.field_manager or self.agent or "unknown"


def write_options(query: Mapping[str, str], kind: str, user_agent: str = "") -> WriteOptions:
    """Reads and checks; ``kind`` (CreateOptions ...) is named in the answer 422."""
    agent = user_agent.partition("/")[0]
    if not query:
        return WriteOptions(agent=agent)
    validation = query.get("fieldValidation") or "Warn"
    dry_run = query.get("dryRun", "")
    errors: list[FieldError] = []
    if validation not in ("Strict", "Warn", "Ignore"):
        known = '"", "Ignore", "Strict", "Warn"'
        errors.append(_unsupported("fieldValidation", validation, known))
    if dry_run not in ("", "All"):
        errors.append(_unsupported("dryRun", dry_run, '"All"'))
    if errors:
        raise _invalid(kind, errors)
    return WriteOptions(dry_run == "All", query.get("fieldManager", ""), validation, query.get("force") in TRUE, agent)


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of delete and deletecollection, from the body or the query."""

    grace: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str = ""
    dry_run: bool = False


class _Preconditions(msgspec.Struct):
    uid: str | None = None
    resourceVersion: str | None = None


class _DeleteBody(msgspec.Struct):
    gracePeriodSeconds: int | None = None
    preconditions: _Preconditions | None = None
    propagationPolicy: str | None = None
    orphanDependents: bool | None = None
    dryRun: list[str] | None = None


def delete_options(body: dict[str, object] | None, query: Mapping[str, str]) -> DeleteOptions:
    """Reads and checks; options in the body win over those of the query."""
    try:
        if body:
            found = msgspec.convert(body, _DeleteBody)
        else:
            grace = query.get("gracePeriodSeconds")
            orphan = query.get("orphanDependents")
            found = _DeleteBody(
                gracePeriodSeconds=int(grace) if grace else None,
                propagationPolicy=query.get("propagationPolicy"),
                orphanDependents=None if orphan is None else orphan in TRUE,
                dryRun=[query["dryRun"]] if query.get("dryRun") else None,
            )
    except (msgspec.ValidationError, ValueError) as error:
        raise StatusError(status.bad_request(f"invalid DeleteOptions: {error}")) from None
    policy = found.propagationPolicy or ""
    errors: list[FieldError] = []
    if policy and found.orphanDependents is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(FieldError(type="FieldValueInvalid", field="propagationPolicy", value=policy, detail=text))
    if policy not in ("", "Foreground", "Background", "Orphan"):
        known = '"Background", "Foreground", "Orphan", "nil"'
        errors.append(_unsupported("propagationPolicy", policy, known))
    if found.dryRun and found.dryRun != ["All"]:
        errors.append(_unsupported("dryRun", str(found.dryRun[0]), '"All"'))
    if errors:
        raise _invalid("DeleteOptions", errors)
    if not policy and found.orphanDependents is not None:
        policy = "Orphan" if found.orphanDependents else "Background"
    preconditions = found.preconditions or _Preconditions()
    grace_seconds = found.gracePeriodSeconds
    return DeleteOptions(
        grace=None if grace_seconds is None else max(grace_seconds, 0) if grace_seconds != -1 else 1,
        uid=preconditions.uid,
        resource_version=preconditions.resourceVersion,
        propagation=policy,
        dry_run=bool(found.dryRun),
    )


def encode_token(revision_: int, last_key: str) -> str:
    """The ``continue`` token of upstream's form: revision and the key to go on from."""
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": revision_, "start": last_key + "\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[int, str]:
    """Revision (-1: whatever is current) and the last key of the page before; StatusError 400."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        found = json.loads(raw)
        if found["v"] != "meta.k8s.io/v1":
            raise StatusError(
                status.bad_request(
                    f"continue key is not valid: server does not recognize this encoded version {found['v']!r}"
                )
            )
        return int(found["rv"]), str(found["start"]).removesuffix("\0")
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        text = f"invalid continue token: continue key is not valid: {_go_json_error(token, error)}"
        raise StatusError(status.bad_request(text)) from None


def _go_json_error(token: str, error: Exception) -> str:
    """Go's words for the usual fault: something that is not JSON at its first byte."""
    try:
        first = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[:1]
    except (binascii.Error, ValueError):
        return "illegal base64 data at input byte 0"
    if first and first not in b"{":
        return f"invalid character '{first.decode('latin-1')}' looking for beginning of value"
    return str(error)
