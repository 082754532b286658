"""Disruption budgets at an eviction: whether one more pod may go, and taking that from the budget.

Source: KEP-85; order, words and the answer 429 are kube-apiserver's (subresource eviction of pods).
"""

from __future__ import annotations

from typing import Any

from drakkar.api.objects import condition_is, is_deleting, labels_of
from drakkar.api.selectors import LabelSelector
from drakkar.apiserver import status
from drakkar.apiserver.options import WriteOptions
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
#: Seconds after which to ask again when the controller has not yet seen the budget.
_PROCESSING = 10


async def spend(registry: Registry, pod: Object, options: WriteOptions) -> None:
    """Takes one disruption from the budget that covers the pod; nothing where none does or none is needed.

    Raises StatusError: 429 when the budget has none left or is not counted yet, 500 when several cover the pod.
    """
    # What does not run yet, or no more, is no disruption.
    if is_deleting(pod) or (pod.get("status") or {}).get("phase") in ("Pending", "Succeeded", "Failed"):
        return
    served = registry.catalog.find("policy", "v1", "poddisruptionbudgets")
    assert served is not None
    view = registry.view(served)
    meta = pod["metadata"]
    namespace, name = meta.get("namespace") or "", meta["name"]
    budgets = [view.decode(view.table.entries[key]) for key in view.table.keys(namespace)]
    covering = [budget for budget in budgets if _selects(budget, pod)]
    if not covering:
        return
    if len(covering) > 1:
        text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(status.status_error(500, "InternalError", text))
    if not condition_is(pod, "Ready") and _lets_unready_go(covering[0]):
        return

    def take(budget: Object) -> Object:
        found = budget["status"] = dict(budget.get("status") or {})
        title = budget["metadata"]["name"]
        if (found.get("observedGeneration") or 0) < (budget["metadata"].get("generation") or 0):
            raise _refused(f"The disruption budget {title} is still being processed by the server.", _PROCESSING)
        allowed = found.get("disruptionsAllowed") or 0
        if allowed <= 0:
            needed, present = found.get("desiredHealthy") or 0, found.get("currentHealthy") or 0
            raise _refused(f"The disruption budget {title} needs {needed} healthy pods and has {present} currently")
        found["disruptionsAllowed"] = allowed - 1
        found["disruptedPods"] = {**(found.get("disruptedPods") or {}), name: registry.stamps.now()}
        return budget

    await registry.update(view, namespace, covering[0]["metadata"]["name"], "status", take, options, [], direct=True)


def _selects(budget: Object, pod: Object) -> bool:
    """An empty selector selects every pod, an absent one none."""
    return LabelSelector.from_object((budget.get("spec") or {}).get("selector")).matches(labels_of(pod))


def _lets_unready_go(budget: Object) -> bool:
    """Whether a pod that is not ready may go without being counted (``unhealthyPodEvictionPolicy``)."""
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    found = budget.get("status") or {}
    desired = found.get("desiredHealthy") or 0
    return desired > 0 and (found.get("currentHealthy") or 0) >= desired


def _refused(cause: str, retry_after: int | None = None) -> StatusError:
    causes = [{"reason": "DisruptionBudget", "message": cause}]
    answer = status.status_error(429, "TooManyRequests", _REFUSED, details={"causes": causes}, retry_after=retry_after)
    return StatusError(answer)
