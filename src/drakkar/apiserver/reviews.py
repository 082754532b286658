"""Questions about rights and identities: answered at once, never stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from drakkar.api.tree import children, texts
from drakkar.apiserver.admission.webhooks import user_info
from drakkar.apiserver.auth import Authenticator, User
from drakkar.apiserver.catalog import Served
from drakkar.apiserver.rbac import Authorizer, Rule
from drakkar.apiserver.routes import RequestInfo
from drakkar.apiserver.tokens import AUDIENCES, AccountTokens

Object = dict[str, Any]


def answer(
    served: Served,
    body: Object,
    user: User,
    authorizer: Authorizer,
    authenticator: Authenticator,
    accounts: AccountTokens,
) -> Object:
    """The review with its status filled in."""
    spec: Object = body.get("spec") or {}
    match served.plural:
        case "selfsubjectaccessreviews":
            verdict = _access(authorizer, user, spec)
        case "subjectaccessreviews" | "localsubjectaccessreviews":
            groups = tuple(spec.get("groups") or ())
            verdict = _access(authorizer, User(spec.get("user") or "", groups), spec)
        case "selfsubjectrulesreviews":
            verdict = _rules(authorizer.rules(user, spec.get("namespace") or ""))
        case "selfsubjectreviews":
            verdict = {"userInfo": user_info(user)}
        case _:
            verdict = _token(spec, authenticator, accounts)
    return {
        "kind": served.kind,
        "apiVersion": served.api_version,
        "metadata": body.get("metadata") or {},
        "spec": spec,
        "status": verdict,
    }


def _token(spec: Object, authenticator: Authenticator, accounts: AccountTokens) -> Object:
    """Whose a token is; one of an account may be for other audiences than this server."""
    token, wanted = spec.get("token") or "", tuple(spec.get("audiences") or AUDIENCES)
    user = accounts.user_of(token, wanted)
    good = [name for name in wanted if name in accounts.audiences_of(token)]
    if user is None and set(wanted) & set(AUDIENCES) and not accounts.audiences_of(token):
        user, good = authenticator.user_of(token), [name for name in wanted if name in AUDIENCES]
    if user is None:
        return {"user": {}, "error": "the token is not known"}
    return {"authenticated": True, "user": user_info(user), "audiences": good}


def _access(authorizer: Authorizer, user: User, spec: Object) -> Object:
    asked: Object | None = spec.get("resourceAttributes")
    if asked is not None:
        verb, group, resource, sub, namespace, name = (
            asked.get(field) or "" for field in ("verb", "group", "resource", "subresource", "namespace", "name")
        )
        info = RequestInfo(verb, "", group, "", resource or "*", namespace, name, sub)
        info.field_selector = _field_selector(asked.get("fieldSelector") or {})
    else:
        path: Object = spec.get("nonResourceAttributes") or {}
        info = RequestInfo(path.get("verb") or "", path.get("path") or "")
    allowed, why = authorizer.verdict(user, info)
    return {"allowed": allowed, "reason": why} if why else {"allowed": allowed}


def _field_selector(asked: Object) -> str:
    """The selector of a review; of its requirements those that demand one value, since only they narrow a node."""
    if asked.get("rawSelector"):
        return str(asked["rawSelector"])
    terms: list[str] = []
    for entry in children(asked, "requirements"):
        values = texts(entry, "values")
        if entry.get("operator") == "In" and len(values) == 1:
            value = re.sub(r"([\\,=])", r"\\\1", values[0])
            terms.append(f"{entry.get('key') or ''}={value}")
    return ",".join(terms)


def _rules(rules: Sequence[Rule]) -> Object:
    """What roles grant; ``system:masters`` may everything anyway, and the role cluster-admin says so."""
    resources: list[Object] = []
    paths: list[Object] = []
    for rule in rules:
        verbs = sorted(rule.verbs)
        if rule.paths:
            paths.append({"verbs": verbs, "nonResourceURLs": list(rule.paths)})
        else:
            names = {"resourceNames": sorted(rule.names)} if rule.names else {}
            groups, kinds = sorted(rule.groups), sorted(rule.resources)
            resources.append({"verbs": verbs, "apiGroups": groups, "resources": kinds, **names})
    return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}
