"""What a pod says about other pods: terms of affinity and anti-affinity, constraints of topology spread.

Read out of the pod's JSON once. `drakkar.scheduler.affinity` and `drakkar.scheduler.spread` ask them.

Source: PodAffinityTerm, WeightedPodAffinityTerm and TopologySpreadConstraint of core/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from drakkar.api.meta import Object
from drakkar.api.selectors import LabelSelector, Requirement
from drakkar.api.tree import child, children

#: Namespace → its labels.
Namespaces = Mapping[str, Mapping[str, str]]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Term:
    """One affinity term: which pods, and which label of their nodes makes nodes one place."""

    key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    #: Selects namespaces beside the listed ones; None selects none.
    namespace_selector: LabelSelector | None = None
    #: Of a preferred term, negative for anti-affinity; 0 for a required one.
    weight: int = 0

    @staticmethod
    def of(term: Object, namespace: str, labels: Mapping[str, str], weight: int = 0) -> Term:
        """Reads a term of a pod with these labels in ``namespace``."""
        selected = term.get("namespaceSelector")
        listed = frozenset(term.get("namespaces") or ())
        return Term(
            key=str(term.get("topologyKey") or ""),
            selector=_with_own_values(term, labels),
            namespaces=listed if listed or selected is not None else frozenset((namespace,)),
            namespace_selector=None if selected is None else LabelSelector.from_object(selected),
            weight=weight,
        )

    def matches(self, namespace: str, labels: Mapping[str, str], namespaces: Namespaces) -> bool:
        """Whether a pod with these labels in ``namespace`` is meant."""
        if namespace not in self.namespaces and (
            self.namespace_selector is None or not self.namespace_selector.matches(namespaces.get(namespace))
        ):
            return False
        return self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """One constraint on how evenly pods are spread over the values of a node label."""

    key: str
    max_skew: int
    #: ``DoNotSchedule``: nodes that break it are out. Otherwise they are only less welcome.
    hard: bool
    selector: LabelSelector
    min_domains: int
    #: Whether nodes that the pod's node affinity, or its tolerations, rule out are left out of the count.
    honor_affinity: bool
    honor_taints: bool

    @staticmethod
    def of(constraint: Object, labels: Mapping[str, str]) -> SpreadConstraint:
        """Reads a constraint of a pod with these labels."""
        return SpreadConstraint(
            key=str(constraint.get("topologyKey") or ""),
            max_skew=int(constraint.get("maxSkew") or 1),
            hard=constraint.get("whenUnsatisfiable") != "ScheduleAnyway",
            selector=_with_own_values(constraint, labels),
            min_domains=int(constraint.get("minDomains") or 1),
            honor_affinity=constraint.get("nodeAffinityPolicy") != "Ignore",
            honor_taints=constraint.get("nodeTaintsPolicy") == "Honor",
        )


def _with_own_values(term: Object, labels: Mapping[str, str]) -> LabelSelector:
    """The label selector, narrowed to (or away from) the pod's own values of some labels."""
    selector = LabelSelector.from_object(term.get("labelSelector"))
    own = [
        Requirement(key, operator, frozenset((labels[key],)))
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field) or ()
        if key in labels
    ]
    return replace(selector, requirements=(*selector.requirements, *own)) if own else selector


def required_terms(affinity: Object, which: str, namespace: str, labels: Mapping[str, str]) -> tuple[Term, ...]:
    """Required terms of ``podAffinity`` or ``podAntiAffinity``."""
    return tuple(Term.of(term, namespace, labels) for term in children(affinity, which, REQUIRED))


def preferred_terms(affinity: Object, namespace: str, labels: Mapping[str, str]) -> Iterator[Term]:
    """Preferred terms of both; those of anti-affinity with negative weight."""
    for which, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for wish in children(affinity, which, PREFERRED):
            weight = sign * int(wish.get("weight") or 0)
            yield Term.of(child(wish, "podAffinityTerm"), namespace, labels, weight)
