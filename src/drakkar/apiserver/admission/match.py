"""Which requests a webhook or a policy is for: rules, selectors, and versions that mean the same.

Source: ``rules``, ``matchConstraints``, ``matchPolicy``, ``namespaceSelector`` and ``objectSelector`` of
admissionregistration.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import child, children, text, texts
from drakkar.apiserver.admission.attributes import Attributes
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Catalog, Served

Object = dict[str, Any]

#: Never judged by webhooks and policies: a mistake in one could not be taken back.
EXEMPT = frozenset(
    {
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
    }
)
REGISTRATION = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True)
class Rule:
    """``RuleWithOperations``, with the names that policies add."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    scope: str
    names: frozenset[str]

    @staticmethod
    def of(rule: Object) -> Rule:
        """From its JSON, whose schema was checked."""
        resources = [("*", "*") if name == "*/*" else _split(name) for name in texts(rule, "resources")]
        return Rule(
            frozenset(texts(rule, "operations")),
            frozenset(texts(rule, "apiGroups")),
            frozenset(texts(rule, "apiVersions")),
            tuple(resources),
            text(rule, "scope") or "*",
            frozenset(texts(rule, "resourceNames")),
        )

    def matches(self, served: Served, attributes: Attributes) -> bool:
        """Whether a request, taken as one for this version of its resource, is meant."""
        if attributes.operation not in self.operations and "*" not in self.operations:
            return False
        if served.group not in self.groups and "*" not in self.groups:
            return False
        if served.version not in self.versions and "*" not in self.versions:
            return False
        if self.scope != "*" and (self.scope == "Namespaced") != served.namespaced:
            return False
        if self.names and attributes.name not in self.names:
            return False
        return any(
            resource in ("*", served.plural) and sub in ("*", attributes.subresource)
            for resource, sub in self.resources
        )


def _split(name: str) -> tuple[str, str]:
    resource, _, sub = name.partition("/")
    return resource, sub


@dataclass(frozen=True, slots=True)
class Match:
    """Everything by which a request is chosen. ``rules`` None: any that gets this far."""

    rules: tuple[Rule, ...] | None
    excluded: tuple[Rule, ...]
    equivalent: bool
    namespaces: LabelSelector
    objects: LabelSelector

    @staticmethod
    def of(holder: Object, rules: Iterable[Object] | None, excluded: Iterable[Object] = ()) -> Match:
        """From a webhook, ``matchConstraints`` or ``matchResources``. Raises ParseError for a bad selector."""
        return Match(
            None if rules is None else tuple(Rule.of(rule) for rule in rules),
            tuple(Rule.of(rule) for rule in excluded),
            text(holder, "matchPolicy") != "Exact",
            LabelSelector.from_object(child(holder, "namespaceSelector")),
            LabelSelector.from_object(child(holder, "objectSelector")),
        )

    @staticmethod
    def constraints(holder: Object) -> Match:
        """From ``matchConstraints`` of a policy or ``matchResources`` of a binding: no rules at all match all."""
        rules = children(holder, "resourceRules")
        return Match.of(holder, rules or None, children(holder, "excludeResourceRules"))

    def served(self, attributes: Attributes, catalog: Catalog) -> Served | None:
        """The version in which the request is judged; None when it is not meant."""
        own = attributes.served
        if any(rule.matches(own, attributes) for rule in self.excluded):
            return None
        if self.rules is None or any(rule.matches(own, attributes) for rule in self.rules):
            return own
        if not self.equivalent or own.stored is None:
            return None
        others = [served for served in catalog.served.values() if served.stored is own.stored and served is not own]
        if any(rule.matches(served, attributes) for rule in self.excluded for served in others):
            return None
        for served in others:
            if any(rule.matches(served, attributes) for rule in self.rules):
                return served
        return None

    def selects(self, state: State, attributes: Attributes, new: Object | None, old: Object | None) -> bool:
        """Whether the selectors take the request in."""
        if self.objects.requirements and not any(
            self.objects.matches(child(obj, "metadata", "labels")) for obj in (new, old) if obj is not None
        ):
            return False
        if not self.namespaces.requirements:
            return True
        if attributes.served.plural == "namespaces" and attributes.served.group == "":
            labels = child(new if new is not None else old, "metadata", "labels")
        elif not attributes.namespace:
            return True
        else:
            entry = state.tables["/core/namespaces/"].entries.get(attributes.namespace)
            labels = (entry.labels if entry is not None else None) or {}
        return self.namespaces.matches(labels)
