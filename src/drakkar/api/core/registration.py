"""Defaults of webhook configurations and admission policies.

Source: answers of kube-apiserver 1.37, fields of admissionregistration.k8s.io/v1.
"""

from __future__ import annotations

from typing import Any, Final

from drakkar.api.meta import Object
from drakkar.api.rules import Defaults
from drakkar.api.tree import child, children


def _fill(holder: Object, **members: Any) -> None:
    for field, value in members.items():
        if holder.get(field) is None or holder[field] == "":
            holder[field] = value


def _webhook(entry: Object) -> None:
    _fill(entry, failurePolicy="Fail", matchPolicy="Equivalent", timeoutSeconds=10)
    _fill(entry, namespaceSelector={}, objectSelector={})
    for rule in children(entry, "rules"):
        _fill(rule, scope="*")
    service = child(entry, "clientConfig", "service")
    if service:
        _fill(service, port=443)


def validating_webhooks(obj: Object) -> None:
    """A ValidatingWebhookConfiguration."""
    for entry in children(obj, "webhooks"):
        _webhook(entry)


def mutating_webhooks(obj: Object) -> None:
    """A MutatingWebhookConfiguration."""
    for entry in children(obj, "webhooks"):
        _webhook(entry)
        _fill(entry, reinvocationPolicy="Never")


def _match(resources: Object) -> None:
    _fill(resources, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
    for field in ("resourceRules", "excludeResourceRules"):
        for rule in children(resources, field):
            _fill(rule, scope="*")


def policy(obj: Object) -> None:
    """An admission policy, validating or mutating."""
    spec = child(obj, "spec")
    if not spec:
        return
    _fill(spec, failurePolicy="Fail")
    if spec.get("matchConstraints") is not None:
        _match(spec["matchConstraints"])


def binding(obj: Object) -> None:
    """A binding of an admission policy."""
    resources = child(obj, "spec", "matchResources")
    if resources:
        _match(resources)


DEFAULTS: Final[dict[tuple[str, str], Defaults]] = {
    ("ValidatingWebhookConfiguration", "v1"): validating_webhooks,
    ("MutatingWebhookConfiguration", "v1"): mutating_webhooks,
    ("ValidatingAdmissionPolicy", "v1"): policy,
    ("ValidatingAdmissionPolicyBinding", "v1"): binding,
    **{("MutatingAdmissionPolicy", version): policy for version in ("v1", "v1beta1", "v1alpha1")},
    **{("MutatingAdmissionPolicyBinding", version): binding for version in ("v1", "v1beta1", "v1alpha1")},
}
"""(kind, version) → what fills in its defaults."""
