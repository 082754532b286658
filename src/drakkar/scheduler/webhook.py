"""The answers of our admission webhooks; `drakkar.client.admission` serves them.

The one of gate mode (:func:`review`) says which new pods get our scheduling gate: its configuration names the
namespaces, by the label ``drakkar.dev/gate: enabled``; that a pod has claims is asked there and here. The other
(:func:`review_allocation`) puts allocations before the guard (:mod:`drakkar.scheduler.guard`).
"""

from __future__ import annotations

import base64

import msgspec

from drakkar.api.meta import Object
from drakkar.api.names import SCHEDULING_GATE
from drakkar.api.tree import child, children, text
from drakkar.scheduler.gates import is_gated
from drakkar.scheduler.guard import Guard


def review_allocation(guard: Guard, asked: Object) -> Object:
    """The AdmissionReview that answers `asked`, about a write to the status of a claim."""
    request = child(asked, "request")
    refusal = guard.judge(request)
    response: Object = {"uid": text(request, "uid"), "allowed": not refusal}
    if refusal:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": refusal}
    return _answer(response)


def review(scheduler_name: str, asked: Object) -> Object:
    """The AdmissionReview that answers `asked`: always allowed, with a patch where the pod is to be gated."""
    request = child(asked, "request")
    response: Object = {"uid": text(request, "uid"), "allowed": True}
    pod = child(request, "object")
    if request.get("operation") == "CREATE" and _wants_gate(scheduler_name, pod):
        patch = [_addition(pod)]
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    return _answer(response)


def _answer(response: Object) -> Object:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _wants_gate(scheduler_name: str, pod: Object) -> bool:
    """Only pods with claims: devices behind extended resources are allocated by the scheduler that binds.

    A pod that has its node already may have no gates, and one with our scheduler name needs none.
    """
    if pod.get("kind") != "Pod" or child(pod, "spec").get("nodeName") or is_gated(pod):
        return False
    return bool(children(pod, "spec", "resourceClaims")) and child(pod, "spec").get("schedulerName") != scheduler_name


def _addition(pod: Object) -> Object:
    gate = {"name": SCHEDULING_GATE}
    if child(pod, "spec").get("schedulingGates"):
        return {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
    return {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}
