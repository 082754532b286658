"""Pods that belong to a PodGroup: when they may start at all.

Source: spec/scheduling.md 12.2 and 12.3.
"""

from __future__ import annotations

from drakkar.api.groups import minimum_of
from drakkar.scheduler.claims import Obstacle
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.pods import PodView


def queue_key(group: str) -> str:
    """Under which the queue knows a group (``namespace/name``); different from every key of a claim."""
    return f"podgroup {group}"


def group_obstacle(cluster: Cluster, pod: PodView) -> Obstacle | None:
    """What the pod's group lacks: the group itself, or pods enough to start together."""
    if not pod.group:
        return None
    group = cluster.groups.get(pod.group_key)
    if group is None:
        return Obstacle("waiting-for-group", f"podgroup {pod.group} not found in namespace {pod.namespace}")
    there, minimum = len(cluster.pods_of_group(pod.group_key)), minimum_of(group)
    if there < minimum:
        text = f"podgroup {pod.group} has {there} pods, and starts with {minimum} or more only"
        return Obstacle("waiting-for-group", text)
    return None
