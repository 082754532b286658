"""Questions about rights and identities: answered at once, never stored."""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.auth import Authenticator, User
from drakkar.apiserver.catalog import Served
from drakkar.apiserver.rbac import Authorizer, Rule

Object = dict[str, Any]


def answer(served: Served, body: Object, user: User, authorizer: Authorizer, authenticator: Authenticator) -> Object:
    """The review with its status filled in."""
    spec: Object = body.get("spec") or {}
    match served.plural:
        case "selfsubjectaccessreviews":
            verdict = _access(authorizer, user, spec)
        case "subjectaccessreviews" | "localsubjectaccessreviews":
            groups = tuple(spec.get("groups") or ())
            verdict = _access(authorizer, User(spec.get("user") or "", groups), spec)
        case "selfsubjectrulesreviews":
            verdict = _rules(authorizer.rules(user, spec.get("namespace") or ""), authorizer.unlimited(user))
        case "selfsubjectreviews":
            verdict = {"userInfo": _user_info(user)}
        case _:
            found = authenticator.user_of(spec.get("token") or "")
            if found is None:
                verdict = {"user": {}, "error": "the token is not known"}
            else:
                verdict = {"authenticated": True, "user": _user_info(found)}
    return {
        "kind": served.kind,
        "apiVersion": served.api_version,
        "metadata": body.get("metadata") or {},
        "spec": spec,
        "status": verdict,
    }


def _access(authorizer: Authorizer, user: User, spec: Object) -> Object:
    asked: Object | None = spec.get("resourceAttributes")
    if asked is not None:
        allowed = authorizer.allows(
            user,
            asked.get("verb") or "",
            asked.get("group") or "",
            asked.get("resource") or "",
            asked.get("subresource") or "",
            asked.get("namespace") or "",
            asked.get("name") or "",
        )
    else:
        path: Object = spec.get("nonResourceAttributes") or {}
        allowed = authorizer.allows_path(user, path.get("verb") or "", path.get("path") or "")
    return {"allowed": allowed}


def _rules(rules: Any, unlimited: bool) -> Object:
    resources: list[Object] = []
    paths: list[Object] = []
    if unlimited:
        resources.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
        paths.append({"verbs": ["*"], "nonResourceURLs": ["*"]})
    rule: Rule
    for rule in rules:
        verbs = sorted(rule.verbs)
        if rule.paths:
            paths.append({"verbs": verbs, "nonResourceURLs": list(rule.paths)})
        else:
            names = {"resourceNames": sorted(rule.names)} if rule.names else {}
            groups, kinds = sorted(rule.groups), sorted(rule.resources)
            resources.append({"verbs": verbs, "apiGroups": groups, "resources": kinds, **names})
    return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}


def _user_info(user: User) -> Object:
    found: Object = {"username": user.name}
    if user.uid:
        found["uid"] = user.uid
    if user.groups:
        found["groups"] = list(user.groups)
    if user.extra:
        found["extra"] = {key: list(values) for key, values in user.extra}
    return found
