"""What expressions of admission policies may ask of an authorizer.

``authorizer.group("").resource("pods").namespace("a").check("create").allowed()`` builds an
:class:`AccessQuery` step by step and hands it to the function that the server gave. Expressions
that have no variable ``authorizer`` compile these functions, too, but find nothing to call them on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from drakkar.cel.errors import EvaluationError, no_overload


@dataclass(frozen=True, slots=True)
class AccessQuery:
    """One question: may the user do ``verb`` to a path or a resource.

    ``service_account`` is (namespace, name) when the question is about that account instead of the user of the
    request. Selectors are texts as written; one that does not parse restricts nothing, the server has to see to that.
    """

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""
    service_account: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer: allowed or not, why, and what went wrong while deciding, if anything did."""

    allowed: bool
    reason: str = ""
    error: str | None = None
    cel_type: str = field(default="kubernetes.authorization.Decision", init=False)


Decide = Callable[[AccessQuery], AccessDecision]


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The value of the variable ``authorizer``."""

    decide: Decide
    service_account: tuple[str, str] | None = None
    cel_type: str = field(default="kubernetes.authorization.Authorizer", init=False)


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    """A question about a resource that still lacks its verb; also the variable ``authorizer.requestResource``."""

    decide: Decide
    query: AccessQuery
    cel_type: str = field(default="kubernetes.authorization.ResourceCheck", init=False)


@dataclass(frozen=True, slots=True)
class _PathCheck:
    decide: Decide
    query: AccessQuery
    cel_type: str = field(default="kubernetes.authorization.PathCheck", init=False)


@dataclass(frozen=True, slots=True)
class _GroupCheck:
    decide: Decide
    query: AccessQuery
    cel_type: str = field(default="kubernetes.authorization.GroupCheck", init=False)


_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


def _text(function: str, receiver: object, kind: type, *texts: Any) -> None:
    if type(receiver) is not kind or any(type(text) is not str for text in texts):
        raise no_overload(function, receiver, *texts)


def _path(authorizer: Any, path: Any) -> _PathCheck:
    _text("path", authorizer, Authorizer, path)
    if not path.strip():
        raise EvaluationError("invalid-argument", "path must not be empty")
    return _PathCheck(authorizer.decide, AccessQuery(path=path, service_account=authorizer.service_account))


def _group(authorizer: Any, group: Any) -> _GroupCheck:
    _text("group", authorizer, Authorizer, group)
    return _GroupCheck(authorizer.decide, AccessQuery(group=group, service_account=authorizer.service_account))


def _service_account(authorizer: Any, namespace: Any, name: Any) -> Authorizer:
    _text("serviceAccount", authorizer, Authorizer, namespace, name)
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        raise EvaluationError("invalid-argument", "Invalid service account name")
    if len(namespace) > 63 or not _LABEL.fullmatch(namespace):
        raise EvaluationError("invalid-argument", "Invalid service account namespace")
    return Authorizer(authorizer.decide, (namespace, name))


def _resource(group: Any, resource: Any) -> ResourceCheck:
    _text("resource", group, _GroupCheck, resource)
    if not resource.strip():
        raise EvaluationError("invalid-argument", "resource must not be empty")
    return ResourceCheck(group.decide, replace(group.query, resource=resource))


def _narrowed(function: str, part: str) -> Callable[[Any, Any], ResourceCheck]:
    def call(check: Any, text: Any) -> ResourceCheck:
        _text(function, check, ResourceCheck, text)
        return ResourceCheck(check.decide, replace(check.query, **{part: text}))

    return call


def _check(check: Any, verb: Any) -> AccessDecision:
    if type(check) not in (ResourceCheck, _PathCheck) or type(verb) is not str:
        raise no_overload("check", check, verb)
    return check.decide(replace(check.query, verb=verb))


def _of_decision(function: str, get: Callable[[AccessDecision], Any]) -> Callable[[Any], Any]:
    def call(decision: Any) -> Any:
        if type(decision) is not AccessDecision:
            raise no_overload(function, decision)
        return get(decision)

    return call


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "path": _path, "group": _group, "serviceAccount": _service_account, "resource": _resource,
    "subresource": _narrowed("subresource", "subresource"), "namespace": _narrowed("namespace", "namespace"),
    "name": _narrowed("name", "name"), "fieldSelector": _narrowed("fieldSelector", "field_selector"),
    "labelSelector": _narrowed("labelSelector", "label_selector"), "check": _check,
    "allowed": _of_decision("allowed", lambda decision: decision.allowed),
    "reason": _of_decision("reason", lambda decision: decision.reason),
    "errored": _of_decision("errored", lambda decision: decision.error is not None),
    "error": _of_decision("error", lambda decision: decision.error or ""),
}  # fmt: skip
