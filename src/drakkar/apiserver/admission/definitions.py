"""Validation of webhook configurations, admission policies and their bindings.

Paths and causes are kube-apiserver's; expressions are compiled here, so that a policy that is
stored can be evaluated.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from drakkar.api import formats
from drakkar.api.errors import FieldError, ParseError
from drakkar.api.faults import Faults
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, child, children, text, texts
from drakkar.apiserver.expressions import MAX_TEXT, as_upstream

Object = dict[str, Any]

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized")
_ACTIONS = ("Audit", "Deny", "Warn")
_MAX_CONDITIONS = 64
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def definition_faults(kind: str, obj: Object) -> list[FieldError]:
    """Faults of an object of admissionregistration.k8s.io beyond its metadata."""
    faults = Faults()
    if _text_of(obj) > MAX_TEXT:
        faults.forbidden("", f"all expressions of an object together may not have more than {MAX_TEXT} characters")
        return faults.found
    match kind:
        case "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration":
            _webhooks(faults, obj, mutating=kind.startswith("Mutating"))
        case "ValidatingAdmissionPolicy":
            _policy(faults, child(obj, "spec"))
        case "ValidatingAdmissionPolicyBinding":
            _binding(faults, child(obj, "spec"))
        case _:
            pass
    return faults.found


def _text_of(value: Any) -> int:
    """Characters of all expressions anywhere in an object."""
    if isinstance(value, list):
        return sum(_text_of(item) for item in value)
    if not isinstance(value, dict):
        return 0
    return sum(
        len(item) if name.lower().endswith("expression") and isinstance(item, str) else _text_of(item)
        for name, item in value.items()
    )


def _webhooks(faults: Faults, obj: Object, *, mutating: bool) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(children(obj, "webhooks")):
        path, name = f"webhooks[{index}]", text(entry, "name")
        if not name:
            faults.required(f"{path}.name")
        elif faults.check(f"{path}.name", name, formats.dns_subdomain) and name.count(".") < 2:
            faults.invalid(f"{path}.name", name, "should be a domain with at least three segments separated by dots")
        if name in seen:
            faults.duplicate(f"{path}.name", name)
        seen.add(name)
        versions = texts(entry, "admissionReviewVersions")
        if not versions:
            faults.required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        elif not {"v1", "v1beta1"} & set(versions):
            faults.invalid(f"{path}.admissionReviewVersions", versions, "must include at least one of v1, v1beta1")
        effects = text(entry, "sideEffects")
        if not effects:
            faults.required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
        elif effects not in ("None", "NoneOnDryRun", "Some", "Unknown"):
            faults.not_supported(f"{path}.sideEffects", effects, ("None", "NoneOnDryRun"))
        _one_of(faults, f"{path}.failurePolicy", text(entry, "failurePolicy"), ("Fail", "Ignore"))
        _one_of(faults, f"{path}.matchPolicy", text(entry, "matchPolicy"), ("Equivalent", "Exact"))
        if mutating:
            _one_of(faults, f"{path}.reinvocationPolicy", text(entry, "reinvocationPolicy"), ("IfNeeded", "Never"))
        seconds = at(entry, "timeoutSeconds")
        if seconds is not None and not 1 <= seconds <= 30:
            faults.invalid(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
        for position, rule in enumerate(children(entry, "rules")):
            _rule(faults, f"{path}.rules[{position}]", rule)
        _selectors(faults, path, entry)
        _client(faults, f"{path}.clientConfig", child(entry, "clientConfig"))
        _conditions(faults, f"{path}.matchConditions", children(entry, "matchConditions"), params=False)


def _one_of(faults: Faults, path: str, value: str, known: tuple[str, ...]) -> None:
    if value and value not in known:
        faults.not_supported(path, value, known)


def _client(faults: Faults, path: str, client: Object) -> None:
    url, service = text(client, "url"), client.get("service")
    if bool(url) == bool(service):
        faults.required(path, "exactly one of url or service is required")
        return
    if url:
        try:
            parts = urlsplit(url)
            host, problem = parts.hostname, ""
        except ValueError as error:
            faults.invalid(f"{path}.url", url, f"url must be a valid URL: {error}")
            return
        if parts.scheme != "https":
            problem = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
        elif not host:
            problem = "host must be specified; desired format: https://host[/path]"
        elif parts.username is not None:
            problem = "user information is not permitted in the URL"
        elif parts.fragment:
            problem = "fragments are not permitted in the URL"
        elif parts.query:
            problem = "query parameters are not permitted in the URL"
        if problem:
            faults.invalid(f"{path}.url", url, problem)
        return
    for field in ("namespace", "name"):
        if not text(client, "service", field):
            faults.required(f"{path}.service.{field}", f"service {field} is required")
    port = at(client, "service", "port")
    if port is not None and not 1 <= port <= 65535:
        faults.invalid(f"{path}.service.port", port, "port is not valid: must be between 1 and 65535, inclusive")


def _rule(faults: Faults, path: str, rule: Object) -> None:
    for field in ("operations", "apiGroups", "apiVersions", "resources"):
        values = texts(rule, field)
        if not values:
            faults.required(f"{path}.{field}")
        if field in ("apiGroups", "apiVersions", "operations") and "*" in values and len(values) > 1:
            faults.invalid(f"{path}.{field}", values, "if '*' is present, must not specify other values")
    for index, name in enumerate(texts(rule, "operations")):
        _one_of(faults, f"{path}.operations[{index}]", name, _OPERATIONS)
    for index, version in enumerate(texts(rule, "apiVersions")):
        if not version:
            faults.required(f"{path}.apiVersions[{index}]")
    for index, name in enumerate(texts(rule, "resources")):
        if not name:
            faults.required(f"{path}.resources[{index}]")
    _one_of(faults, f"{path}.scope", text(rule, "scope"), ("*", "Cluster", "Namespaced"))


def _selectors(faults: Faults, path: str, holder: Object) -> None:
    for field in ("namespaceSelector", "objectSelector"):
        try:
            LabelSelector.from_object(child(holder, field))
        except (ParseError, KeyError) as error:
            faults.invalid(f"{path}.{field}", holder[field], f"invalid label selector: {error}")


def _conditions(faults: Faults, path: str, conditions: list[Object], *, params: bool) -> None:
    if not faults.fits(path, conditions, _MAX_CONDITIONS):
        return
    from drakkar.cel.admission import variables

    declared = variables(params=params, authorizer=True)
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        name = text(condition, "name")
        if not name:
            faults.required(f"{path}[{index}].name")
        else:
            faults.check(f"{path}[{index}].name", name, formats.qualified_name)
        if name in seen:
            faults.duplicate(f"{path}[{index}].name", name)
        seen.add(name)
        _expression(faults, f"{path}[{index}].expression", text(condition, "expression"), declared)


def _expression(faults: Faults, path: str, source: str, declared: Any, **more: Any) -> Any:
    """The compiled expression, None when it has faults."""
    from drakkar.cel.errors import CompileError
    from drakkar.cel.expressions import compile_expression

    if not source.strip():
        faults.required(path, "expression is not specified")
        return None
    try:
        return compile_expression(source, declared, **more)
    except CompileError as error:
        faults.invalid(path, source, f"compilation failed: {as_upstream(error)}")
        return None


def _match(faults: Faults, path: str, resources: Object, *, needed: bool) -> None:
    rules = children(resources, "resourceRules")
    if needed and not rules:
        faults.required(f"{path}.resourceRules")
    _one_of(faults, f"{path}.matchPolicy", text(resources, "matchPolicy"), ("Equivalent", "Exact"))
    for field in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(children(resources, field)):
            _rule(faults, f"{path}.{field}[{index}]", rule)
            names = texts(rule, "resourceNames")
            faults.unique(f"{path}.{field}[{index}].resourceNames", names)
    _selectors(faults, path, resources)


def _policy(faults: Faults, spec: Object) -> None:
    from drakkar.cel.admission import variables
    from drakkar.cel.expressions import composed_type
    from drakkar.cel.types import NULL, STRING

    _one_of(faults, "spec.failurePolicy", text(spec, "failurePolicy"), ("Fail", "Ignore"))
    kind = spec.get("paramKind")
    if kind is not None:
        for field in ("apiVersion", "kind"):
            if not text(kind, field):
                faults.required(f"spec.paramKind.{field}")
    params = kind is not None
    if spec.get("matchConstraints") is None:
        faults.required("spec.matchConstraints")
    else:
        _match(faults, "spec.matchConstraints", child(spec, "matchConstraints"), needed=True)
    _conditions(faults, "spec.matchConditions", children(spec, "matchConditions"), params=params)
    definitions: dict[str, Any] = {}
    for index, entry in enumerate(children(spec, "variables")):
        path, name = f"spec.variables[{index}]", text(entry, "name")
        if not _IDENTIFIER.fullmatch(name):
            faults.invalid(f"{path}.name", name, "name is not a valid CEL identifier")
            continue
        if name in definitions:
            faults.duplicate(f"{path}.name", name)
            continue
        declared = variables(params=params, authorizer=True, composed=composed_type(definitions))
        found = _expression(faults, f"{path}.expression", text(entry, "expression"), declared, result=None)
        if found is not None:
            definitions[name] = found
    composed = composed_type(definitions)
    declared = variables(params=params, authorizer=True, composed=composed)
    silent = variables(params=params, composed=composed)
    validations, annotations = children(spec, "validations"), children(spec, "auditAnnotations")
    if not validations and not annotations:
        for field in ("validations", "auditAnnotations"):
            faults.required(f"spec.{field}", "validations or auditAnnotations must contain at least one item")
    for index, entry in enumerate(validations):
        path = f"spec.validations[{index}]"
        _expression(faults, f"{path}.expression", text(entry, "expression"), declared)
        message = text(entry, "message")
        if message and ("\n" in message.strip() or not message.strip()):
            faults.invalid(f"{path}.message", message, "message must be one line that is not empty")
        if text(entry, "messageExpression"):
            _expression(faults, f"{path}.messageExpression", text(entry, "messageExpression"), silent, result=STRING)
        _one_of(faults, f"{path}.reason", text(entry, "reason"), _REASONS)
    seen: set[str] = set()
    for index, entry in enumerate(annotations):
        path, key = f"spec.auditAnnotations[{index}]", text(entry, "key")
        if faults.check(f"{path}.key", key, formats.qualified_name) and key in seen:
            faults.duplicate(f"{path}.key", key)
        seen.add(key)
        source = text(entry, "valueExpression")
        _expression(faults, f"{path}.valueExpression", source, declared, result=(STRING, NULL))


def _binding(faults: Faults, spec: Object) -> None:
    if not text(spec, "policyName"):
        faults.required("spec.policyName")
    else:
        faults.check("spec.policyName", text(spec, "policyName"), formats.dns_subdomain)
    actions = texts(spec, "validationActions")
    if not actions:
        faults.required("spec.validationActions", "at least one validation action is required")
    for index, action in enumerate(actions):
        _one_of(faults, f"spec.validationActions[{index}]", action, _ACTIONS)
    faults.unique("spec.validationActions", actions)
    if {"Deny", "Warn"} <= set(actions):
        detail = "must not contain both Deny and Warn: the refusal says already what the warning would say"
        faults.invalid("spec.validationActions", actions, detail)
    ref = spec.get("paramRef")
    if ref is not None:
        name, selector = text(spec, "paramRef", "name"), at(spec, "paramRef", "selector")
        if bool(name) == (selector is not None):
            detail = (
                "one of name or selector must be specified" if not name else "name and selector are mutually exclusive"
            )
            (faults.required if not name else faults.forbidden)("spec.paramRef.name", detail)
        action = text(spec, "paramRef", "parameterNotFoundAction")
        if not action:
            faults.required("spec.paramRef.parameterNotFoundAction")
        _one_of(faults, "spec.paramRef.parameterNotFoundAction", action, ("Allow", "Deny"))
    if spec.get("matchResources") is not None:
        _match(faults, "spec.matchResources", child(spec, "matchResources"), needed=False)
