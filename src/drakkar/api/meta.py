"""Metadata and small shared types of the Kubernetes API.

``Struct`` is the base of every typed API object: frozen, keyword-only, absent fields
omitted on the wire. Objects of kinds that have no struct are plain JSON dicts
(``Object``); :func:`name_of` and friends read both.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: An API object of a kind without a struct: the decoded JSON.
Object = dict[str, Any]


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all typed API objects."""


class OwnerReference(Struct, frozen=True, kw_only=True):
    """``metav1.OwnerReference``."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    blockOwnerDeletion: bool | None = None


class ObjectMeta(Struct, frozen=True, kw_only=True):
    """``metav1.ObjectMeta``."""

    name: str = ""
    generateName: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[OwnerReference] | None = None
    finalizers: list[str] | None = None
    managedFields: list[dict[str, Any]] | None = None


class Condition(Struct, frozen=True, kw_only=True):
    """``metav1.Condition``."""

    type: str
    status: str
    lastTransitionTime: str | None = None
    reason: str = ""
    message: str = ""
    observedGeneration: int | None = None


class NodeSelectorRequirement(Struct, frozen=True, kw_only=True):
    """One expression of a node selector; ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: list[str] | None = None


class NodeSelectorTerm(Struct, frozen=True, kw_only=True):
    """Requirements that hold together; an empty term matches nothing."""

    matchExpressions: list[NodeSelectorRequirement] | None = None
    matchFields: list[NodeSelectorRequirement] | None = None


class NodeSelector(Struct, frozen=True, kw_only=True):
    """Terms of which one has to hold (``core/v1`` NodeSelector)."""

    nodeSelectorTerms: list[NodeSelectorTerm]
