"""Pods that must, must not or would like to run near other pods (inter-pod affinity and anti-affinity).

A decision counts once which places (value of a node label) hold matching pods; each node is then
a look-up. Nothing is counted for a pod without terms, except that pods on nodes may have
anti-affinity against it.

Semantics as in Kubernetes' InterPodAffinity filter. Of the preferred terms only the pod's own count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from drakkar.scheduler.nodes import Node
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.refusal import Cause, Refusal, refusal
from drakkar.scheduler.terms import Namespaces, Term

#: Label and its value: all nodes that have it are one place.
Place = tuple[str, str]

FAR = "node(s) didn't match pod affinity rules"
NEAR = "node(s) didn't match pod anti-affinity rules"
REPELLED = "node(s) didn't satisfy existing pods anti-affinity rules"


class Neighbours:
    """Where the pods are that one pod cares about, or that care about it."""

    def __init__(
        self,
        pod: PodView,
        nodes: Mapping[str, Node],
        repelling: Iterable[tuple[str, PodView]],
        namespaces: Namespaces,
    ):
        self._pod = pod
        #: Places with a pod that all required affinity terms match.
        self._near: set[Place] = set()
        self._away: set[Place] = set()
        self._drawn: Counter[Place] = Counter()
        self._repelled = {
            (term.key, nodes[name].labels[term.key])
            for name, other in repelling
            if name in nodes and other.uid != pod.uid
            for term in other.away
            if term.key in nodes[name].labels and term.matches(pod.namespace, pod.labels, namespaces)
        }
        if pod.near or pod.away or pod.drawn:
            self._count(nodes, namespaces)
        #: The first of a group that wants to be together has nobody to join.
        self._first = not self._near and all(term.matches(pod.namespace, pod.labels, namespaces) for term in pod.near)

    def _count(self, nodes: Mapping[str, Node], namespaces: Namespaces) -> None:
        pod = self._pod

        def meant(term: Term, other: PodView) -> bool:
            return term.matches(other.namespace, other.labels, namespaces)

        for node in nodes.values():
            for other in node.pods.values():
                if other.uid == pod.uid:
                    continue
                if pod.near and all(meant(term, other) for term in pod.near):
                    self._near.update((t.key, node.labels[t.key]) for t in pod.near if t.key in node.labels)
                self._away.update(
                    (t.key, node.labels[t.key]) for t in pod.away if t.key in node.labels and meant(t, other)
                )
                for term in pod.drawn:
                    if term.key in node.labels and meant(term, other):
                        self._drawn[term.key, node.labels[term.key]] += term.weight

    def unfit(self, node: Node) -> Refusal | None:
        """Why the pod may not run on the node because of other pods."""
        labels = node.labels
        for term in self._pod.near:
            value = labels.get(term.key)
            if value is None or ((term.key, value) not in self._near and not self._first):
                return refusal(FAR, Cause.POD)
        if any((term.key, labels.get(term.key)) in self._away for term in self._pod.away):
            return refusal(NEAR, Cause.ROOM)
        if self._repelled and any((key, labels.get(key)) in self._repelled for key, _ in self._repelled):
            return refusal(REPELLED, Cause.ROOM)
        return None

    def wish(self, node: Node) -> int:
        """Sum of the weights of preferred terms, per matching pod in the node's places."""
        keys = {term.key for term in self._pod.drawn}
        return sum(self._drawn[key, node.labels[key]] for key in keys if key in node.labels)
