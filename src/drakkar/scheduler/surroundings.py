"""All of a node's rules that look beyond the node itself, counted once per decision.

For most pods there are none, and then nothing is counted.
"""

from __future__ import annotations

from drakkar.scheduler.affinity import Neighbours
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.nodes import Node
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.refusal import Cause, Refusal
from drakkar.scheduler.spread import Spreading
from drakkar.scheduler.volumes import BoundVolumes, uses_alone


class Surroundings:
    """Volumes, other pods and the spread over nodes, as far as they matter to one pod."""

    def __init__(self, cluster: Cluster, pod: PodView):
        #: What keeps the pod from every node, if something does.
        self.obstacle: Refusal | None = None
        volumes = cluster.volumes.of(pod)
        if isinstance(volumes, Refusal):
            self.obstacle = volumes
        elif volumes.lone:
            self.obstacle = _in_use_alone(cluster, pod, volumes)
        self._rules: list[Neighbours | Spreading | BoundVolumes] = []
        if isinstance(volumes, BoundVolumes) and volumes:
            self._rules.append(volumes)
        self._wishing: list[Neighbours | Spreading] = []
        if cluster.repelling or pod.near or pod.away or pod.drawn:
            neighbours = Neighbours(pod, cluster.nodes, cluster.repelling.values(), cluster.namespaces)
            self._rules.append(neighbours)
            if pod.drawn:
                self._wishing.append(neighbours)
        if pod.spread:
            spreading = Spreading(pod, cluster.nodes)
            self._rules.append(spreading)
            if any(not constraint.hard for constraint in pod.spread):
                self._wishing.append(spreading)

    @property
    def wishing(self) -> bool:
        """Whether nodes that all fit can still be more or less welcome."""
        return bool(self._wishing)

    def unfit(self, node: Node) -> Refusal | None:
        """Why the pod may not run on the node."""
        for rule in self._rules:
            refused = rule.unfit(node)
            if refused is not None:
                return refused
        return None

    def wish(self, node: Node) -> int:
        """How welcome the node is, in weights of preferred terms."""
        return sum(rule.wish(node) for rule in self._wishing)


def _in_use_alone(cluster: Cluster, pod: PodView, volumes: BoundVolumes) -> Refusal | None:
    for node in cluster.nodes.values():
        for other in node.pods.values():
            if other.uid != pod.uid and other.namespace == pod.namespace:
                for name in volumes.lone:
                    if uses_alone(other, name):
                        text = f'persistentvolumeclaim "{name}" is ReadWriteOncePod and in use by pod {other.name}'
                        return Refusal(text, frozenset((Cause.ROOM,)))
    return None
