"""The audit log: who did what when, one JSON event a line, as a policy wants it.

Level and stages of a request come from the first rule of the policy that fits. Secrets and
tokens are told of at level ``Metadata`` at most, unless a rule names their resource: a rule for
everything is not meant to put passwords into a file.

A log that cannot be written loses events and says so; requests are answered all the same.

Source: audit.k8s.io/v1 Policy and Event.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import yaml

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.times import timestamp
from drakkar.api.tree import child, children, text, texts
from drakkar.api.wire import Request, Response
from drakkar.apiserver.admission.webhooks import user_info
from drakkar.apiserver.auth import User
from drakkar.apiserver.exchange import Exchange
from drakkar.apiserver.limits import Releasing
from drakkar.apiserver.routes import RequestInfo

_log = logging.getLogger(__name__)
Object = dict[str, Any]

LEVELS = ("None", "Metadata", "Request", "RequestResponse")
RECEIVED, STARTED, COMPLETE = "RequestReceived", "ResponseStarted", "ResponseComplete"
STAGES = (RECEIVED, STARTED, COMPLETE, "Panic")
#: What is told of in full only by rules that name it: (group, resource, subresource).
_CONFIDENTIAL = (
    ("", "secrets", ""),
    ("", "serviceaccounts", "token"),
    ("authentication.k8s.io", "tokenreviews", ""),
)
#: Size of a file in MiB before it is put aside, and how many such files are kept.
MAX_SIZE, MAX_BACKUPS = 100, 10
#: Bodies beyond this many bytes are left out of events.
_MAX_BODY = 1 << 20


@dataclass(frozen=True, slots=True)
class _Rule:
    level: str
    users: frozenset[str]
    groups: frozenset[str]
    verbs: frozenset[str]
    namespaces: frozenset[str]
    resources: tuple[tuple[str, frozenset[str], frozenset[str]], ...]
    paths: tuple[str, ...]
    omitted: frozenset[str]

    @staticmethod
    def of(rule: Object, omitted: frozenset[str]) -> _Rule:
        return _Rule(
            text(rule, "level"),
            frozenset(texts(rule, "users")),
            frozenset(texts(rule, "userGroups")),
            frozenset(texts(rule, "verbs")),
            frozenset(texts(rule, "namespaces")),
            tuple(
                (text(entry, "group"), frozenset(texts(entry, "resources")), frozenset(texts(entry, "resourceNames")))
                for entry in children(rule, "resources")
            ),
            tuple(texts(rule, "nonResourceURLs")),
            omitted | frozenset(texts(rule, "omitStages")),
        )

    def fits(self, user: User | None, info: RequestInfo) -> bool:
        if self.users and (user is None or user.name not in self.users):
            return False
        if self.groups and (user is None or self.groups.isdisjoint(user.groups)):
            return False
        if self.verbs and info.verb not in self.verbs and "*" not in self.verbs:
            return False
        if info.is_resource:
            if self.namespaces and info.namespace not in self.namespaces:
                return False
            if self.resources:
                return any(_names(entry, info) for entry in self.resources)
            return not self.paths
        if self.namespaces or self.resources:
            return False
        return not self.paths or any(
            path in ("*", info.path) or (path.endswith("*") and info.path.startswith(path[:-1])) for path in self.paths
        )

    def explicit(self, info: RequestInfo) -> bool:
        """Whether the rule names the resource itself."""
        own = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        return any(own in names for _, names, _ in self.resources)


def _names(entry: tuple[str, frozenset[str], frozenset[str]], info: RequestInfo) -> bool:
    group, names, objects = entry
    if group != info.group or (objects and info.name not in objects):
        return False
    if not names or "*" in names:
        return not names or not info.subresource or "*" in names
    if not info.subresource:
        return info.resource in names
    return bool(names & {f"{info.resource}/{info.subresource}", f"{info.resource}/*", f"*/{info.subresource}"})


class Policy:
    """Which events are written; without rules of its own everything at level Metadata, once it is complete."""

    def __init__(self, obj: Object | None = None):
        obj = obj or {"rules": [{"level": "Metadata"}], "omitStages": [RECEIVED]}
        omitted = frozenset(texts(obj, "omitStages"))
        self._rules = tuple(_Rule.of(rule, omitted) for rule in children(obj, "rules"))

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Policy:
        """From a file; raises UsageError that names the fault."""
        try:
            obj = yaml.safe_load(Path(path).read_text())
        except OSError as error:
            raise UsageError(f"--audit-policy {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"--audit-policy {path}: no YAML: {error}") from None
        fault = _fault(obj)
        if fault:
            raise UsageError(f"--audit-policy {path}: {fault}")
        return Policy(obj)

    def judge(self, user: User | None, info: RequestInfo) -> tuple[str, frozenset[str]]:
        """Level and left out stages of a request."""
        for rule in self._rules:
            if rule.fits(user, info):
                level = rule.level
                confidential = (info.group, info.resource, info.subresource) in _CONFIDENTIAL
                if confidential and LEVELS.index(level) > 1 and not rule.explicit(info):
                    level = "Metadata"
                return level, rule.omitted
        return "None", frozenset()


def _fault(obj: Any) -> str:
    if not isinstance(obj, dict):
        return "the file holds no object; it needs apiVersion: audit.k8s.io/v1, kind: Policy and rules"
    if (obj.get("apiVersion"), obj.get("kind")) != ("audit.k8s.io/v1", "Policy"):
        return f"apiVersion and kind are {obj.get('apiVersion')} {obj.get('kind')}, not audit.k8s.io/v1 Policy"
    rules = obj.get("rules")
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        return "rules: at least one rule is required"
    for index, rule in enumerate(rules):
        if rule.get("level") not in LEVELS:
            return f"rules[{index}].level: {rule.get('level')!r} is none of {', '.join(LEVELS)}"
        if rule.get("nonResourceURLs") and (rule.get("resources") or rule.get("namespaces")):
            return f"rules[{index}]: nonResourceURLs cannot stand beside resources or namespaces"
    for holder, path in ((obj, "omitStages"), *((rule, f"rules[{i}].omitStages") for i, rule in enumerate(rules))):
        for stage in holder.get("omitStages") or ():
            if stage not in STAGES:
                return f"{path}: {stage!r} is none of {', '.join(STAGES)}"
    return ""


class AuditLog:
    """Writes events to a file, which is put aside when it is full."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: Policy,
        now: Callable[[], float],
        *,
        max_size: int = MAX_SIZE,
        max_backups: int = MAX_BACKUPS,
    ):
        """``max_size`` in MiB; raises EnvironmentProblem when the file cannot be opened."""
        self._path = Path(path)
        self._policy = policy
        self._now = now
        self._limit = max_size << 20
        self._backups = max_backups
        self.written = self.lost = 0
        try:
            self._open()
        except OSError as error:
            raise EnvironmentProblem(f"--audit-log {path}: cannot write to it: {error.strerror}") from None

    def _open(self) -> None:
        # Only its owner may read what others wrote.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(handle, "ab", buffering=0)
        self._size = os.fstat(handle).st_size

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def received(self, exchange: Exchange) -> None:
        """A request has come and it is known who asks."""
        level, omitted = self._level(exchange)
        if level != "None" and RECEIVED not in omitted:
            self._write(self._event(exchange, "Metadata", RECEIVED))

    def answered(self, exchange: Exchange, response: Response) -> Response:
        """A request is answered; the end of a stream is told of when it comes."""
        level, omitted = self._level(exchange)
        if level == "None":
            return response
        if response.stream is None or response.whole:
            if COMPLETE not in omitted:
                self._write(self._event(exchange, level, COMPLETE, response))
            return response
        if STARTED not in omitted:
            self._write(self._event(exchange, level, STARTED, response))
        if COMPLETE not in omitted:
            # What there is to say is said now; only the time of the end is not known yet.
            event = self._event(exchange, level, COMPLETE, response)

            def ended() -> None:
                self._write({**event, "stageTimestamp": timestamp(self._now(), micro=True)})

            response.stream = Releasing(response.stream, ended)
        return response

    def _level(self, exchange: Exchange) -> tuple[str, frozenset[str]]:
        if exchange.info is None:
            return "None", frozenset()
        return self._policy.judge(exchange.impersonated or exchange.user, exchange.info)

    def _event(self, exchange: Exchange, level: str, stage: str, response: Response | None = None) -> Object:
        info, request = exchange.info, exchange.request
        assert info is not None
        event: Object = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": level,
            "auditID": exchange.id,
            "stage": stage,
            "requestURI": _uri(request),
            "verb": info.verb,
            "user": user_info(exchange.user) if exchange.user is not None else {},
        }
        if exchange.impersonated is not None:
            event["impersonatedUser"] = user_info(exchange.impersonated)
        if request.source:
            event["sourceIPs"] = [request.source]
        if request.headers.get("user-agent"):
            event["userAgent"] = request.headers["user-agent"]
        if info.is_resource:
            event["objectRef"] = _reference(info)
        if response is not None:
            event["responseStatus"] = _status(response)
            if level in ("Request", "RequestResponse"):
                sent = _raw(request.body, request.headers.get("content-type", ""))
                if sent is not None:
                    event["requestObject"] = sent
            if level == "RequestResponse" and response.stream is None:
                answer = _raw(response.body, response.headers.get("content-type", ""))
                if answer is not None:
                    event["responseObject"] = answer
        event["requestReceivedTimestamp"] = timestamp(exchange.received, micro=True)
        event["stageTimestamp"] = timestamp(self._now(), micro=True)
        if exchange.annotations:
            event["annotations"] = dict(exchange.annotations)
        return event

    def _write(self, event: Object) -> None:
        line = msgspec.json.encode(event) + b"\n"
        try:
            if self._size and self._size + len(line) > self._limit:
                self._rotate()
            self._file.write(line)
            self._size += len(line)
            self.written += 1
        except OSError as error:
            if not self.lost:
                _log.error("the audit log %s loses events: %s", self._path, error.strerror)
            self.lost += 1

    def _rotate(self) -> None:
        """``audit.log`` becomes ``audit-<time>.log``; the oldest of those go."""
        self._file.close()
        stem, suffix = self._path.stem, self._path.suffix
        stamp = timestamp(self._now(), micro=True).replace(":", "-").removesuffix("Z")
        os.replace(self._path, self._path.with_name(f"{stem}-{stamp}{suffix}"))
        self._open()
        kept = sorted(self._path.parent.glob(f"{stem}-*{suffix}"))
        for old in kept[: max(0, len(kept) - self._backups)]:
            old.unlink(missing_ok=True)


def _uri(request: Request) -> str:
    path = quote(request.path, safe="/%:@!$&'()*+,;=-._~")
    return f"{path}?{urlencode(request.query)}" if request.query else path


def _reference(info: RequestInfo) -> Object:
    found: Object = {"resource": info.resource}
    if info.namespace:
        found["namespace"] = info.namespace
    if info.name:
        found["name"] = info.name
    if info.group:
        found["apiGroup"] = info.group
    found["apiVersion"] = info.version
    if info.subresource:
        found["subresource"] = info.subresource
    return found


def _status(response: Response) -> Object:
    found: Object = {"metadata": {}, "code": response.status}
    if response.status >= 400:
        try:
            said = msgspec.json.decode(response.body)
        except msgspec.DecodeError:
            return found
        if isinstance(said, dict):
            for field in ("status", "message", "reason", "details"):
                if field in said:
                    found[field] = child(said, field) if field == "details" else said[field]
    return found


def _raw(body: bytes, media: str) -> Any:
    """A body to be put into an event: JSON as it is, other forms as they decode, nothing where they do not."""
    if not body or len(body) > _MAX_BODY:
        return None
    if "protobuf" in media:
        from drakkar.apiserver import protobuf
        from drakkar.apiserver.status import StatusError

        try:
            return protobuf.decode(body)
        except StatusError:
            return None
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        try:
            return yaml.safe_load(body) if "yaml" in media else None
        except yaml.YAMLError:
            return None
