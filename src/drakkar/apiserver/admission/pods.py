"""What the server adds to pods when they are created: account, priority, patience with sick nodes.

Order and texts are upstream's (plugins ServiceAccount, Priority and DefaultTolerationSeconds). One thing
is not: the account need not exist yet. Where it does, its token is mounted into the pod.
"""

from __future__ import annotations

import random
from typing import Any

from drakkar.api.names import POD_GROUP_PROTECTION, TAINT_NOT_READY, TAINT_UNREACHABLE
from drakkar.apiserver import status
from drakkar.apiserver.cache import Table
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

#: How long a pod stays on a node that is not ready or cannot be reached, in seconds.
TOLERATION_SECONDS = 300


#: Where containers find the token, the certificate of the cluster and their namespace.
ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Life of such a token, in seconds; odd, so that it is told from those that somebody asked for.
_TOKEN_SECONDS = 3607
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def admit_pod(pod: Object, namespace: str, priority_classes: Table, accounts: Table, rng: random.Random) -> None:
    """Completes a pod in place; StatusError 403 when it names a priority class that there is not."""
    spec: Object = pod.setdefault("spec", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    entry = accounts.entries.get(f"{namespace}/{account}")
    if entry is not None and not _is_mirror(pod):
        _use_account(spec, accounts.decode(entry), rng)
    _set_priority(pod, spec, priority_classes, "pods")
    tolerations: list[Object] = spec.get("tolerations") or []
    missing = [taint for taint in (TAINT_NOT_READY, TAINT_UNREACHABLE) if not _tolerated(tolerations, taint)]
    if missing:
        spec["tolerations"] = tolerations + [
            {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
            for taint in missing
        ]


def _is_mirror(pod: Object) -> bool:
    """Whether the pod only shows one that a node runs by itself."""
    return "kubernetes.io/config.mirror" in (pod["metadata"].get("annotations") or {})


def _use_account(spec: Object, account: Object, rng: random.Random) -> None:
    """Pull secrets and token of the pod's account."""
    if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = account["imagePullSecrets"]
    automount = spec.get("automountServiceAccountToken")
    if automount is None:
        automount = account.get("automountServiceAccountToken")
    if automount is False:
        return
    volumes: list[Object] = spec.get("volumes") or []
    name = "kube-api-access-" + "".join(rng.choices(_LETTERS, k=5))
    mounted = False
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            mounts: list[Object] = container.get("volumeMounts") or []
            if any(mount.get("mountPath") == ACCESS_PATH for mount in mounts):
                continue
            container["volumeMounts"] = [*mounts, {"name": name, "readOnly": True, "mountPath": ACCESS_PATH}]
            mounted = True
    if mounted:
        spec["volumes"] = [*volumes, {"name": name, "projected": {"sources": _access(), "defaultMode": 0o644}}]


def _access() -> list[Object]:
    here = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [here]}},
    ]


def _tolerated(tolerations: list[Object], taint: str) -> bool:
    return any(
        (toleration.get("key") == taint or not toleration.get("key"))
        and toleration.get("effect") in (None, "", "NoExecute")
        for toleration in tolerations
    )


def admit_group(group: Object, priority_classes: Table) -> None:
    """Completes a PodGroup or CompositePodGroup in place; StatusError 403 when there is no such priority class."""
    spec: Object = group.setdefault("spec", {})
    if spec.get("priorityClassName"):
        _set_priority(group, spec, priority_classes, f"{group['kind'].lower()}s")


def protect(group: Object) -> None:
    """A PodGroup stays until the last of its pods has ended; a controller takes this finalizer off."""
    meta = group["metadata"]
    finalizers: list[str] = meta.get("finalizers") or []
    if POD_GROUP_PROTECTION not in finalizers:
        meta["finalizers"] = [*finalizers, POD_GROUP_PROTECTION]


def only_default(class_: Object, classes: Table) -> None:
    """StatusError 403 when another class is the default already."""
    own = class_["metadata"].get("name") or ""
    for entry in classes.entries.values():
        if entry.name != own and classes.decode(entry).get("globalDefault"):
            text = f"PriorityClass {entry.name} is already marked as default. Only one default can exist"
            raise StatusError(status.forbidden("scheduling.k8s.io", "priorityclasses", own, text))


def _set_priority(holder: Object, spec: Object, classes: Table, plural: str) -> None:
    name = spec.get("priorityClassName") or ""
    group = "" if plural == "pods" else "scheduling.k8s.io"
    found: Object | None = None
    if name:
        entry = classes.entries.get(name)
        if entry is None:
            text = f"no PriorityClass with name {name} was found"
            raise StatusError(status.forbidden(group, plural, holder["metadata"].get("name") or "", text))
        found = classes.decode(entry)
    else:
        for entry in classes.entries.values():
            candidate = classes.decode(entry)
            if candidate.get("globalDefault"):
                found = candidate
                spec["priorityClassName"] = entry.name
                break
    value = int(found.get("value", 0)) if found is not None else 0
    given = spec.get("priority")
    if given is not None and given != value:
        text = (
            f"the integer value of priority ({given}) must not be provided in {plural.removesuffix('s')} spec; "
            f"priority admission controller computed {value} from the given PriorityClass name"
        )
        raise StatusError(status.forbidden(group, plural, holder["metadata"].get("name") or "", text))
    spec["priority"] = value
    if plural == "pods" and spec.get("preemptionPolicy") is None:
        spec["preemptionPolicy"] = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
