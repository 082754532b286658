"""What the API server resets, keeps and computes when pods, jobs, nodes, namespaces and leases are written.

The server has set ``metadata.name`` and ``metadata.uid`` before ``prepare_create`` runs; the
labels and the selector of a Job are made from them.

Source: spec/apiserver.md, answers of kube-apiserver 1.37.
"""

from __future__ import annotations

from typing import Final

from drakkar.api.core.validation.resize import names_of, resized
from drakkar.api.errors import ParseError
from drakkar.api.features import Features
from drakkar.api.meta import Object
from drakkar.api.names import (
    CONTROLLER_UID_LABEL,
    CONTROLLER_UID_LABEL_OLD,
    JOB_NAME_LABEL,
    JOB_NAME_LABEL_OLD,
    NAMESPACE_FINALIZER,
    POD_SCHEDULED,
    REASON_SCHEDULING_GATED,
)
from drakkar.api.objects import condition, pod_qos_class
from drakkar.api.resource.strategy import count_generation, drop_generation, keep
from drakkar.api.rules import Strategy
from drakkar.api.tree import at, child, children, text, texts

#: What a server says of every gated pod; a scheduler that has looked at it says more.
GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"

_ALL: Final = Features.drakkar()

#: The status endpoints of these kinds change metadata too, apart from its owners.
_STATUS_RESET: Final = {"": ("status",), "status": ("spec",), "resize": ("status",)}


# Pods.


def _create_pod(obj: Object, now: str, features: Features = _ALL, /) -> None:
    status: Object = {"phase": "Pending", "qosClass": _qos_class(obj)}
    if at(obj, "spec", "schedulingGates"):
        status["conditions"] = [_gated(now)]
    obj["status"] = status
    count_generation(obj, None)


def _qos_class(pod: Object) -> str:
    try:
        return pod_qos_class(pod)
    except ParseError:
        # An amount that cannot be read: validation, which comes next, refuses the pod and names the field.
        return ""


def _gated(now: str) -> Object:
    return {
        "type": POD_SCHEDULED,
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": now,
        "reason": REASON_SCHEDULING_GATED,
        "message": GATED,
    }


def _update_pod(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    if subresource == "status":
        _keep_for_status(new, old)
        new["status"] = child(new, "status")
        new["status"]["qosClass"] = text(old, "status", "qosClass") or _qos_class(old)
        return
    keep(new, old, "status")
    if subresource == "resize":
        owners = child(new, "metadata").get("managedFields")
        new["metadata"] = {**child(old, "metadata"), **({"managedFields": owners} if owners else {})}
        # Other containers than before are for validation to refuse.
        if names_of(child(new, "spec")) == names_of(child(old, "spec")):
            new["spec"] = resized(child(old, "spec"), child(new, "spec"))
    if subresource == "ephemeralcontainers":
        added = children(new, "spec", "ephemeralContainers")
        keep(new, old, "spec")
        new["spec"] = {**new["spec"], "ephemeralContainers": added}
    if children(old, "spec", "schedulingGates") and not children(new, "spec", "schedulingGates"):
        _lift_gate(new)
    count_generation(new, old)


def _lift_gate(pod: Object) -> None:
    """The condition that named the gate goes with the last gate."""
    found = condition(pod, POD_SCHEDULED)
    if found is not None and found.get("reason") == REASON_SCHEDULING_GATED:
        left = [entry for entry in children(pod, "status", "conditions") if entry is not found]
        pod["status"] = {**pod["status"], "conditions": left}
        if not left:
            del pod["status"]["conditions"]


def _keep_for_status(new: Object, old: Object) -> None:
    keep(new, old, "spec")
    keep(
        new.setdefault("metadata", {}),
        child(old, "metadata"),
        "ownerReferences",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    )


# Jobs.


def _create_job(obj: Object, now: str, features: Features = _ALL, /) -> None:
    obj["status"] = {}
    count_generation(obj, None)
    spec = child(obj, "spec")
    if spec and spec.get("manualSelector") is not True:
        _generate_selector(obj, spec)


def _generate_selector(obj: Object, spec: Object) -> None:
    name, uid = text(obj, "metadata", "name"), text(obj, "metadata", "uid")
    metadata = spec.setdefault("template", {}).setdefault("metadata", {})
    labels: Object = {
        **child(metadata, "labels"),
        CONTROLLER_UID_LABEL: uid,
        CONTROLLER_UID_LABEL_OLD: uid,
        JOB_NAME_LABEL: name,
        JOB_NAME_LABEL_OLD: name,
    }
    metadata["labels"] = labels
    selector = spec["selector"] = dict(child(spec, "selector"))
    selector["matchLabels"] = {**child(selector, "matchLabels"), CONTROLLER_UID_LABEL: uid}
    if not at(obj, "metadata", "labels"):
        obj["metadata"]["labels"] = dict(labels)


def _update_job(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    if subresource == "status":
        _keep_for_status(new, old)
        return
    new["status"] = old.get("status") or {}
    count_generation(new, old)


# Nodes.


def _create_node(obj: Object, now: str, features: Features = _ALL, /) -> None:
    drop_generation(obj, None)


def _update_node(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    if subresource == "status":
        _keep_for_status(new, old)
        return
    keep(new, old, "status")
    drop_generation(new, old)


# Namespaces.


def _create_namespace(obj: Object, now: str, features: Features = _ALL, /) -> None:
    obj["status"] = {"phase": "Active"}
    spec = obj["spec"] = dict(child(obj, "spec"))
    finalizers = texts(spec, "finalizers")
    if NAMESPACE_FINALIZER not in finalizers:
        spec["finalizers"] = [*finalizers, NAMESPACE_FINALIZER]
    drop_generation(obj, None)


def _update_namespace(
    new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /
) -> None:
    if subresource == "status":
        keep(new, old, "spec")
    elif subresource == "finalize":
        keep(new, old, "status")
    else:
        keep(new, old, "spec", "status")
    drop_generation(new, old)


# Leases.


def _create_lease(obj: Object, now: str, features: Features = _ALL, /) -> None:
    drop_generation(obj, None)


def _update_lease(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    drop_generation(new, old)


STRATEGIES: Final[dict[tuple[str, str], Strategy]] = {
    ("", "Pod"): Strategy(prepare_create=_create_pod, prepare_update=_update_pod, reset_fields=_STATUS_RESET),
    ("batch", "Job"): Strategy(prepare_create=_create_job, prepare_update=_update_job, reset_fields=_STATUS_RESET),
    ("", "Node"): Strategy(
        prepare_create=_create_node, prepare_update=_update_node, reset_fields={"": ("status",), "status": ("spec",)}
    ),
    ("", "Namespace"): Strategy(
        prepare_create=_create_namespace, prepare_update=_update_namespace, reset_fields=_STATUS_RESET
    ),
    ("coordination.k8s.io", "Lease"): Strategy(
        prepare_create=_create_lease, prepare_update=_update_lease, create_on_update=True, reset_fields={}
    ),
}
"""(group, kind) → its strategy."""
