"""The variables of admission policies and of match conditions of webhooks.

Source: ValidatingAdmissionPolicy (admissionregistration.k8s.io/v1), field ``spec.validations``; Kubernetes 1.37.
"""

from __future__ import annotations

from typing import Final

from drakkar.cel import types
from drakkar.cel.types import BOOL, DYN, INT, STRING, TIMESTAMP, StructType, Type

_KIND: Final = StructType("kubernetes.GroupVersionKind", dict.fromkeys(("group", "version", "kind"), STRING))
_RESOURCE: Final = StructType(
    "kubernetes.GroupVersionResource", dict.fromkeys(("group", "version", "resource"), STRING)
)
_STRINGS: Final = types.list_of(STRING)
_LABELS: Final = types.map_of(STRING, STRING)
_USER: Final = StructType(
    "kubernetes.UserInfo",
    {"username": STRING, "uid": STRING, "groups": _STRINGS, "extra": types.map_of(STRING, _STRINGS)},
)

#: ``request``: an AdmissionRequest without uid, object and oldObject. Its value is the JSON of one.
REQUEST: Final = StructType(
    "kubernetes.AdmissionRequest",
    {
        "kind": _KIND, "resource": _RESOURCE, "subResource": STRING, "requestKind": _KIND,
        "requestResource": _RESOURCE, "requestSubResource": STRING, "name": STRING, "namespace": STRING,
        "operation": STRING, "userInfo": _USER, "dryRun": BOOL, "options": DYN,
    },
)  # fmt: skip

#: ``namespaceObject``: the Namespace of the object, null for objects without one. Its value is JSON.
NAMESPACE: Final = StructType(
    "kubernetes.Namespace",
    {
        "metadata": StructType(
            "kubernetes.NamespaceMetadata",
            {
                "name": STRING, "generateName": STRING, "namespace": STRING, "labels": _LABELS, "annotations": _LABELS,
                "UID": STRING, "creationTimestamp": TIMESTAMP, "deletionGracePeriodSeconds": INT,
                "deletionTimestamp": TIMESTAMP, "generation": INT, "resourceVersion": STRING, "finalizers": _STRINGS,
            },
        ),
        "spec": StructType("kubernetes.NamespaceSpec", {"finalizers": _STRINGS}),
        "status": StructType(
            "kubernetes.NamespaceStatus",
            {
                "conditions": types.list_of(
                    StructType(
                        "kubernetes.NamespaceCondition",
                        {
                            "status": STRING, "type": STRING, "lastTransitionTime": TIMESTAMP, "message": STRING,
                            "reason": STRING,
                        },
                    )
                ),
                "phase": STRING,
            },
        ),
    },
)  # fmt: skip


def variables(*, params: bool = False, authorizer: bool = False, composed: StructType | None = None) -> dict[str, Type]:
    """The variables of a policy's expressions, for :func:`~drakkar.cel.expressions.compile_expression`.

    ``params`` exist where the policy has a paramKind. The authorizer is there for validations, match conditions and
    variables, not for message expressions. ``composed`` is the type of ``variables``, see
    :func:`~drakkar.cel.expressions.composed_type`.
    """
    found: dict[str, Type] = {"object": DYN, "oldObject": DYN, "request": REQUEST, "namespaceObject": NAMESPACE}
    if params:
        found["params"] = DYN
    if authorizer:
        found |= {"authorizer": types.AUTHORIZER, "authorizer.requestResource": types.RESOURCE_CHECK}
    if composed is not None:
        found["variables"] = composed
    return found
