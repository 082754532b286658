"""The order of admission, as the registry goes through it.

A write is completed by the built-in rules (:meth:`Admission.complete`), then comes what users
configured, then validation, then the bounds (:meth:`Admission.check`), and last of all quota.

Source: order of the admission plugins of kube-apiserver 1.37.
"""

from __future__ import annotations

from typing import Any

from drakkar.api.clock import Clock
from drakkar.apiserver.admission import limits
from drakkar.apiserver.admission.pods import admit_pod
from drakkar.apiserver.admission.quota import Charge, QuotaAdmission
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Stored
from drakkar.apiserver.commit import Committer

Object = dict[str, Any]

PODS = "/core/pods/"
VOLUMES = "/core/persistentvolumeclaims/"


class Admission:
    """Everything between validation of a write and its way to the store. Objects are in the stored version."""

    def __init__(self, state: State, committer: Committer, clock: Clock):
        self._state = state
        self.quota = QuotaAdmission(state, committer, clock)

    def complete(self, stored: Stored, namespace: str, obj: Object) -> None:
        """Fills in what the server adds to a new object, in place; StatusError 403."""
        if stored.prefix == PODS:
            admit_pod(obj, self._state.tables["/scheduling.k8s.io/priorityclasses/"])
            limits.set_defaults(obj, limits.limit_ranges(self._state, namespace))

    def check(self, stored: Stored, namespace: str, new: Object, old: Object | None) -> None:
        """Bounds that other objects set; StatusError 403."""
        if (stored.prefix == PODS and old is None) or stored.prefix == VOLUMES:
            ranges = limits.limit_ranges(self._state, namespace)
            if ranges:
                limits.check(stored, new["metadata"].get("name") or "", new, ranges)

    def charge(
        self, stored: Stored, namespace: str, subresource: str, new: Object, old: Object | None
    ) -> Charge | None:
        """What the write costs of the quotas of its namespace; StatusError 403 when one has no room."""
        return self.quota.judge(stored, new["metadata"].get("name") or "", namespace, subresource, new, old)
