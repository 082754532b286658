"""Volumes that are bound already, and where that lets a pod run.

The scheduler binds no volumes: a pod waits until its PersistentVolumeClaims are bound by somebody
else, and then runs where the PersistentVolumes can be reached. Kinds of volumes that would
need more than this make the pod wait, with the reason.

Semantics as in the filters VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits of Kubernetes, for
bound volumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from drakkar.api.meta import Object
from drakkar.api.names import LABEL_REGION, LABEL_ZONE
from drakkar.api.objects import controller_of, is_deleting, key_of, labels_of, name_of
from drakkar.api.selectors import node_selector_matches
from drakkar.api.tree import at, child, children, text, texts
from drakkar.scheduler.nodes import Node
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.refusal import Cause, Refusal, refusal

#: Volumes in the pod itself whose disk two nodes, or two pods, must not use at once: that is not looked after here.
UNSUPPORTED = ("gcePersistentDisk", "awsElasticBlockStore", "azureDisk", "cinder", "iscsi", "rbd", "vsphereVolume")
#: Several zones in one label value of a volume.
ZONE_DELIMITER = "__"
_PLACES = (
    LABEL_ZONE,
    LABEL_REGION,
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
_NEWER = {_PLACES[2]: LABEL_ZONE, _PLACES[3]: LABEL_REGION}


class Volumes:
    """PersistentVolumeClaims and PersistentVolumes as they are known."""

    def __init__(self) -> None:
        self._claims: dict[str, Object] = {}
        self._volumes: dict[str, Object] = {}
        #: Node → CSI driver → how many volumes it attaches there at most.
        self._limits: dict[str, dict[str, int]] = {}

    def set_claim(self, claim: Object) -> None:
        """Takes over a PersistentVolumeClaim."""
        self._claims[key_of(claim)] = claim

    def remove_claim(self, claim: Object) -> None:
        """Forgets a PersistentVolumeClaim."""
        self._claims.pop(key_of(claim), None)

    def set_volume(self, volume: Object) -> None:
        """Takes over a PersistentVolume."""
        self._volumes[name_of(volume)] = volume

    def remove_volume(self, name: str) -> None:
        """Forgets a PersistentVolume."""
        self._volumes.pop(name, None)

    def set_csi_node(self, obj: Object) -> None:
        """Takes over a CSINode: how many volumes its drivers attach."""
        self._limits[name_of(obj)] = {
            driver["name"]: int(limit)
            for driver in children(obj, "spec", "drivers")
            if (limit := at(driver, "allocatable", "count")) is not None
        }

    def remove_csi_node(self, name: str) -> None:
        """Forgets a CSINode."""
        self._limits.pop(name, None)

    def too_many(self, pod: PodView, node: Node) -> bool:
        """Whether a CSI driver would have to attach more volumes to the node than it can."""
        limits = self._limits.get(node.name)
        if not limits:
            return False
        there = {handle for other in node.pods.values() for handle in self._attached(other)}
        wanted = set(self._attached(pod)) - there
        counts = Counter(driver for driver, _ in (*there, *wanted))
        return any(counts[driver] > limits[driver] for driver in {name for name, _ in wanted} if driver in limits)

    def _attached(self, pod: PodView) -> Iterator[tuple[str, str]]:
        """CSI driver and handle of each bound volume of a pod."""
        for name, _ in claim_names(pod):
            volume = self._volumes.get(text(self._claims.get(f"{pod.namespace}/{name}"), "spec", "volumeName"))
            driver = text(volume, "spec", "csi", "driver")
            if driver:
                yield driver, text(volume, "spec", "csi", "volumeHandle")

    def of(self, pod: PodView) -> BoundVolumes | Refusal:
        """The volumes of a pod, or what keeps it from every node."""
        bound: list[Object] = []
        lone: list[str] = []
        for volume in children(pod.obj, "spec", "volumes"):
            for kind in UNSUPPORTED:
                if volume.get(kind) is not None:
                    return _waiting(
                        f"volume {volume['name']} is of kind {kind}, which Drakkar's scheduler does not look after; "
                        "use a PersistentVolumeClaim"
                    )
        for name, own in claim_names(pod):
            claim = self._claims.get(f"{pod.namespace}/{name}")
            if claim is None:
                return _waiting(f'persistentvolumeclaim "{name}" not found')
            if own:
                owner = controller_of(claim)
                if owner is None or owner["uid"] != pod.uid:
                    return _waiting(f'persistentvolumeclaim "{name}" was not created for the pod')
            if is_deleting(claim):
                return _waiting(f'persistentvolumeclaim "{name}" is being deleted')
            if text(claim, "status", "phase") == "Lost":
                return _waiting(f'persistentvolumeclaim "{name}" has lost its volume')
            volume_name = text(claim, "spec", "volumeName")
            if not volume_name or text(claim, "status", "phase") != "Bound":
                return _waiting(
                    f'persistentvolumeclaim "{name}" is not bound, and Drakkar\'s scheduler binds no volumes; '
                    "use a StorageClass with volumeBindingMode Immediate"
                )
            found = self._volumes.get(volume_name)
            if found is None:
                return _waiting(f'persistentvolume "{volume_name}" of persistentvolumeclaim "{name}" not found')
            bound.append(found)
            if "ReadWriteOncePod" in texts(claim, "spec", "accessModes"):
                lone.append(name)
        return BoundVolumes(self, pod, bound, lone)


def claim_names(pod: PodView) -> Iterator[tuple[str, bool]]:
    """The PersistentVolumeClaims that a pod uses, and whether each must be the pod's own (an ephemeral volume)."""
    for volume in children(pod.obj, "spec", "volumes"):
        name = text(volume, "persistentVolumeClaim", "claimName")
        if name:
            yield name, False
        elif volume.get("ephemeral") is not None:
            yield f"{pod.name}-{volume['name']}", True


class BoundVolumes:
    """The PersistentVolumes of one pod, all bound; ``lone`` are claims that only one pod may use."""

    def __init__(self, known: Volumes, pod: PodView, volumes: list[Object], lone: list[str]):
        self._known = known
        self._pod = pod
        self._volumes = volumes
        self.lone = frozenset(lone)

    def __bool__(self) -> bool:
        return bool(self._volumes)

    def unfit(self, node: Node) -> Refusal | None:
        """Why the node does not reach the volumes."""
        for volume in self._volumes:
            for key, values in _places(volume):
                there = node.labels.get(key, node.labels.get(_NEWER.get(key, key)))
                if there is None and not any(place in node.labels for place in _PLACES):
                    # A node without any such label is one of a cluster that is all in one place.
                    continue
                if there not in values:
                    return refusal("node(s) had no available volume zone", Cause.VOLUME)
            required = at(volume, "spec", "nodeAffinity", "required")
            if required and not node_selector_matches(required, node.labels, node.name):
                return refusal("node(s) had volume node affinity conflict", Cause.VOLUME)
        if self._known.too_many(self._pod, node):
            return refusal("node(s) exceed max volume count", Cause.VOLUME, Cause.ROOM)
        return None


def _places(volume: Object) -> Iterator[tuple[str, list[str]]]:
    labels = labels_of(volume)
    for key in _PLACES:
        if key in labels:
            yield key, labels[key].split(ZONE_DELIMITER)


def _waiting(message: str) -> Refusal:
    return Refusal(message, frozenset((Cause.VOLUME,)))


def uses_alone(pod: PodView, name: str) -> bool:
    """Whether the pod uses the PersistentVolumeClaim ``name`` of its namespace."""
    return any(found == name for found, _ in claim_names(pod)) if child(pod.obj, "spec").get("volumes") else False
