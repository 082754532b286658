"""What a DELETE does to an object: gone at once, or marked and left to finalizers, agents or time.

Source: spec/apiserver.md section 5 (Delete, Namespaces).
"""

from __future__ import annotations

from typing import Any, Literal

from drakkar.api.names import FOREGROUND_DELETION, ORPHAN_DEPENDENTS
from drakkar.apiserver import status
from drakkar.apiserver.catalog import Stored
from drakkar.apiserver.options import DeleteOptions
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.times import rfc3339

Object = dict[str, Any]
Decision = Literal["now", "marked", "unchanged"]

#: Grace of a pod that does not say, in seconds.
_POD_GRACE = 30
#: Longest grace, in seconds (68 years); beyond, times run out of the years that RFC 3339 can write.
_MAX_GRACE = (1 << 31) - 1


#: Namespaces that every cluster has. Source: admission plugin NamespaceLifecycle; upstream has a controller
#: that makes the last one again, here it stays: without it no node can show that it lives.
_IMMORTAL = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


def check_mortal(stored: Stored, name: str) -> None:
    """StatusError 403 for the namespaces that may not be deleted."""
    if stored.prefix == "/core/namespaces/" and name in _IMMORTAL:
        raise StatusError(status.forbidden("", "namespaces", name, "this namespace may not be deleted"))


def decide(stored: Stored, obj: Object, options: DeleteOptions, now: float) -> Decision:
    """Applies the request to ``obj`` in place; ``marked`` when it has to be written back."""
    meta = obj["metadata"]
    changed = _set_finalizers(meta, options.propagation)
    grace = _grace(stored, obj, options)
    if not grace and not meta.get("finalizers") and not _held(stored, obj):
        return "now"
    if meta.get("deletionTimestamp"):
        before = meta.get("deletionGracePeriodSeconds") or 0
        # Grace only ever gets shorter.
        if options.grace is not None and grace < before:
            meta["deletionTimestamp"] = rfc3339(now + grace)
            meta["deletionGracePeriodSeconds"] = grace
            changed = True
        return "marked" if changed else "unchanged"
    meta["deletionTimestamp"] = rfc3339(now + grace)
    if stored.prefix != "/core/namespaces/":
        meta["deletionGracePeriodSeconds"] = grace
    if "generation" in meta or stored.counts_generations:
        meta["generation"] = meta.get("generation", 0) + 1
    if stored.prefix == "/core/namespaces/":
        obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return "marked"


def completes(stored: Stored, obj: Object) -> bool:
    """Whether an object that has just been updated has nothing left that holds it."""
    meta = obj["metadata"]
    return bool(
        meta.get("deletionTimestamp")
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not _held(stored, obj)
    )


def _held(stored: Stored, obj: Object) -> bool:
    """Namespaces stay until their content is gone."""
    return stored.prefix == "/core/namespaces/" and bool((obj.get("spec") or {}).get("finalizers"))


def _grace(stored: Stored, obj: Object, options: DeleteOptions) -> int:
    if stored.prefix != "/core/pods/":
        return 0
    spec = obj.get("spec") or {}
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace is not None:
        return min(options.grace, _MAX_GRACE)
    if obj["metadata"].get("deletionTimestamp"):
        return obj["metadata"].get("deletionGracePeriodSeconds") or 0
    grace = spec.get("terminationGracePeriodSeconds")
    return _POD_GRACE if grace is None else min(max(grace, 0), _MAX_GRACE)


def _set_finalizers(meta: Object, propagation: str) -> bool:
    """Adds or takes away the two finalizers of the garbage collector, as the policy says."""
    before: list[str] = meta.get("finalizers") or []
    if not propagation:
        # Unless the object says otherwise (a finalizer it already carries), dependents go in the background.
        return False
    wanted = {"Foreground": FOREGROUND_DELETION, "Orphan": ORPHAN_DEPENDENTS}.get(propagation)
    after = [name for name in before if name not in (FOREGROUND_DELETION, ORPHAN_DEPENDENTS) or name == wanted]
    if wanted and wanted not in after:
        after.append(wanted)
    if after == before:
        return False
    if after:
        meta["finalizers"] = after
    else:
        meta.pop("finalizers", None)
    return True
