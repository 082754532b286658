"""The order of admission, as the registry goes through it.

A write is completed by the built-in rules (:meth:`Admission.complete`) and changed by webhooks
(:meth:`Admission.mutate`); then comes validation; then policies and webhooks judge it
(:meth:`Admission.validate`), then the bounds (:meth:`Admission.check`), and last of all quota.

Source: order of the admission plugins of kube-apiserver 1.37.
"""

from __future__ import annotations

import random
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.features import Features
from drakkar.apiserver.admission import limits
from drakkar.apiserver.admission.attributes import Attributes
from drakkar.apiserver.admission.callers import Caller
from drakkar.apiserver.admission.forms import Forms, ScaleForms
from drakkar.apiserver.admission.pods import admit_group, admit_pod, only_default, protect
from drakkar.apiserver.admission.policies import Policies
from drakkar.apiserver.admission.quota import Charge, QuotaAdmission
from drakkar.apiserver.admission.services import SERVICES, ServiceAddresses
from drakkar.apiserver.admission.webhooks import Webhooks, random_uid
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Catalog, Stored
from drakkar.apiserver.commit import Committer
from drakkar.apiserver.rbac import Authorizer

Object = dict[str, Any]

PODS = "/core/pods/"
VOLUMES = "/core/persistentvolumeclaims/"
CLASSES = "/scheduling.k8s.io/priorityclasses/"
GROUPS = ("/scheduling.k8s.io/podgroups/", "/scheduling.k8s.io/compositepodgroups/")


class Admission:
    """Everything beside validation between a write and the store. Objects are in the stored version."""

    def __init__(
        self,
        state: State,
        catalog: Catalog,
        committer: Committer,
        clock: Clock,
        rng: random.Random,
        authorizer: Authorizer,
        forms: Forms,
        scales: ScaleForms,
        features: Features,
    ):
        self._state = state
        self._forms = forms
        self._rng = rng
        self._features = features
        self._scales = scales
        self._caller = Caller(state)
        self.quota = QuotaAdmission(state, committer, clock)
        self._services = ServiceAddresses(state, committer, rng)
        self.policies = Policies(state, catalog, authorizer, forms)
        self.webhooks = Webhooks(state, catalog, self._caller, authorizer, random_uid(rng.getrandbits))

    async def close(self) -> None:
        """Closes connections to webhooks."""
        await self._caller.close()

    @property
    def configured(self) -> bool:
        """Whether users have configured anything that judges writes."""
        return (
            self.policies.configured()
            or self.webhooks.configured(mutating=True)
            or self.webhooks.configured(mutating=False)
        )

    def _shown(self, attributes: Attributes, forms: Forms | None) -> Forms:
        if forms is not None:
            return forms
        return self._scales if attributes.subresource == "scale" else self._forms

    def complete(self, stored: Stored, namespace: str, obj: Object) -> None:
        """Fills in what the server adds to a new object, in place; StatusError 403."""
        if stored.prefix in GROUPS:
            admit_group(obj, self._state.tables[CLASSES])
        if stored.prefix == GROUPS[0] and "GenericWorkload" in self._features:
            protect(obj)
        if stored.prefix == PODS:
            accounts = self._state.tables["/core/serviceaccounts/"]
            admit_pod(obj, namespace, self._state.tables[CLASSES], accounts, self._rng)
            limits.set_defaults(obj, limits.limit_ranges(self._state, namespace))

    def allot(self, stored: Stored, new: Object, old: Object | None) -> None:
        """Gives an object what the server has to give, in place, once its name is known; StatusError 422."""
        if stored.prefix == SERVICES:
            self._services.complete(new, old)

    async def mutate(
        self, attributes: Attributes, new: Object, old: Object | None, forms: Forms | None = None
    ) -> Object:
        """The object as webhooks want it; StatusError when one refuses. May take seconds."""
        if not self.webhooks.configured(mutating=True):
            return new
        changed = await self.webhooks.mutate(attributes, new, old, self._shown(attributes, forms))
        return new if changed is None else changed

    async def judge_delete(self, attributes: Attributes, old: Object) -> None:
        """StatusError when a policy or a webhook, mutating ones among them, forbids the delete."""
        if self.webhooks.configured(mutating=True):
            await self.webhooks.mutate(attributes, None, old, self._forms)
        await self.validate(attributes, None, old)

    async def validate(
        self, attributes: Attributes, new: Object | None, old: Object | None, forms: Forms | None = None
    ) -> None:
        """StatusError when a policy or a webhook refuses. May take seconds."""
        shown = self._shown(attributes, forms)
        if self.policies.configured():
            self.policies.validate(attributes, new, old, shown)
        if self.webhooks.configured(mutating=False):
            await self.webhooks.validate(attributes, new, old, shown)

    def check(self, stored: Stored, namespace: str, new: Object, old: Object | None) -> None:
        """Bounds that other objects set; StatusError 403."""
        if stored.prefix == CLASSES and new.get("globalDefault"):
            only_default(new, self._state.tables[CLASSES])
        if (stored.prefix == PODS and old is None) or stored.prefix == VOLUMES:
            ranges = limits.limit_ranges(self._state, namespace)
            if ranges:
                limits.check(stored, new["metadata"].get("name") or "", new, ranges)

    def charge(
        self, stored: Stored, namespace: str, subresource: str, new: Object, old: Object | None
    ) -> Charge | None:
        """What the write costs of the quotas of its namespace; StatusError 403 when one has no room."""
        return self.quota.judge(stored, new["metadata"].get("name") or "", namespace, subresource, new, old)
