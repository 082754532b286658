"""Pods that are to be spread evenly over the values of a node label (topologySpreadConstraints).

Semantics as in Kubernetes' PodTopologySpread filter: for each hard constraint the pods that its
selector matches are counted per value of the label, over the nodes that count at all; a node is
out if one more pod there would exceed the least crowded value by more than ``maxSkew``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from drakkar.api.selectors import untolerated_node_taint
from drakkar.scheduler.nodes import Node, selected
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.refusal import Cause, Refusal, refusal
from drakkar.scheduler.terms import SpreadConstraint

SKEWED = "node(s) didn't match pod topology spread constraints"
UNLABELLED = "node(s) didn't match pod topology spread constraints (missing required label)"


class Spreading:
    """How the pods that one pod's constraints mean are spread just now."""

    def __init__(self, pod: PodView, nodes: Mapping[str, Node]):
        self._pod = pod
        self._constraints = pod.spread
        self._counts: list[Counter[str]] = [Counter() for _ in pod.spread]
        #: With hard constraints only nodes that have all their labels count; the same for soft ones.
        self._keys = {hard: [c.key for c in pod.spread if c.hard == hard] for hard in (True, False)}
        for node in nodes.values():
            for constraint, counts in zip(pod.spread, self._counts, strict=True):
                if self._counts_in(constraint, node):
                    counts[node.labels[constraint.key]] += sum(
                        1
                        for other in node.pods.values()
                        if other.namespace == pod.namespace
                        and other.uid != pod.uid
                        and not other.deleting
                        and constraint.selector.matches(other.labels)
                    )

    def _counts_in(self, constraint: SpreadConstraint, node: Node) -> bool:
        if any(key not in node.labels for key in self._keys[constraint.hard]):
            return False
        if constraint.honor_affinity and not selected(self._pod, node):
            return False
        return not (constraint.honor_taints and untolerated_node_taint(node.taints, self._pod.tolerations))

    def unfit(self, node: Node) -> Refusal | None:
        """Why the pod may not run on the node because of hard constraints."""
        for constraint, counts in zip(self._constraints, self._counts, strict=True):
            if not constraint.hard:
                continue
            value = node.labels.get(constraint.key)
            if value is None:
                return refusal(UNLABELLED)
            least = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
            itself = constraint.selector.matches(self._pod.labels)
            if counts[value] + itself - least > constraint.max_skew:
                return refusal(SKEWED, Cause.ROOM, Cause.POD, Cause.TAINT)
        return None

    def wish(self, node: Node) -> int:
        """The fewer matching pods near the node the better, by the soft constraints."""
        return -sum(
            counts[node.labels[constraint.key]] if constraint.key in node.labels else max(counts.values(), default=0)
            for constraint, counts in zip(self._constraints, self._counts, strict=True)
            if not constraint.hard
        )
