"""Keeping within ResourceQuotas when objects are created or grow.

The status of a quota is written by a controller and lags behind, so a write is judged by the
objects themselves: an account per quota adds up what the cache has and follows the logs of
the tables; beside it count the writes that were let through and are not yet in the cache.
So creates that come together are let through one by one until the limit is reached.

Source: admission plugin ResourceQuota; spec/controllers.md section 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.core.quota import PODS, ExtendedNames, Source, Usage, applies, exceeded, hard, sources, usage
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import DeviceClass
from drakkar.api.tree import children
from drakkar.apiserver import status
from drakkar.apiserver.cache import Entry, Expired, State, Table
from drakkar.apiserver.catalog import Stored
from drakkar.apiserver.commit import Committer
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

QUOTAS = "/core/resourcequotas/"
CLASSES = "/resource.k8s.io/deviceclasses/"
#: Subresources whose writes are charged; all others cannot make an object larger.
_CHARGED = ("", "resize")
_COMPUTE = ("cpu", "memory")


@dataclass(slots=True)
class Charge:
    """What a write adds to quotas, from the decision until the cache shows it."""

    by_quota: dict[str, Usage]
    store_key: str = ""
    future: asyncio.Future[Any] | None = None


@dataclass(slots=True)
class _Account:
    """What the objects of a quota add up to, as of positions in the logs of their tables."""

    revision: int
    classes: int
    used: Usage
    positions: dict[Source, int] = field(default_factory=dict[Source, int])


class QuotaAdmission:
    """Judges writes against all quotas of their namespace."""

    def __init__(self, state: State, committer: Committer, clock: Clock):
        self._state = state
        self._committer = committer
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._pending: list[Charge] = []
        self._extended: tuple[int, ExtendedNames] | None = None

    def judge(
        self, stored: Stored, name: str, namespace: str, subresource: str, new: Object, old: Object | None
    ) -> Charge | None:
        """What to hold until the write is done; StatusError 403 when a quota has no room for it."""
        table = self._state.tables[QUOTAS]
        if not namespace or not table.entries or subresource not in _CHARGED:
            return None
        source = (stored.group, stored.plural)
        by_quota: dict[str, Usage] = {}
        for key in table.keys(namespace):
            entry = table.entries[key]
            quota = table.decode(entry)
            limits = hard(quota)
            if not any(source in sources(resource) for resource in limits):
                continue
            more = self._growth(quota, source, new, old)
            more = {resource: amount for resource, amount in more.items() if resource in limits}
            if source == PODS and old is None and applies(quota, source, new):
                self._all_named(stored, name, quota, limits, new)
            if not any(amount > Quantity.from_int(0) for amount in more.values()):
                continue
            self._fits(stored, name, entry, quota, more)
            by_quota[entry.uid] = more
        return Charge(by_quota) if by_quota else None

    def hold(self, charge: Charge, store_key: str, future: asyncio.Future[Any]) -> None:
        """Counts a charge until the write in flight, which ends with ``future``, has come to the cache."""
        charge.store_key, charge.future = store_key, future
        self._pending.append(charge)

    def _growth(self, quota: Object, source: Source, new: Object, old: Object | None) -> Usage:
        extended, now = self._names(), self._clock.time()
        more = usage(source, new, extended=extended, now=now) if applies(quota, source, new) else {}
        if old is not None and applies(quota, source, old):
            more = _less(more, usage(source, old, extended=extended, now=now))
        return more

    def _fits(self, stored: Stored, name: str, entry: Entry, quota: Object, more: Usage) -> None:
        text = exceeded(quota, self._used(entry, quota), more)
        if text:
            # Time may have freed something that no write told of: pods past their grace.
            current = self._count(entry, quota, 0, self._clock.time())
            text = exceeded(quota, self._with_pending(entry, current.used), more)
        if text:
            raise StatusError(status.forbidden(stored.group, stored.plural, name, text))

    def _all_named(self, stored: Stored, name: str, quota: Object, limits: Usage, pod: Object) -> None:
        """A quota of requests or limits demands that every container says how much it wants."""
        missing: dict[str, list[str]] = {}
        level: Object = (pod.get("spec") or {}).get("resources") or {}
        for resource in limits:
            which, base = ("limits", resource[7:]) if resource.startswith("limits.") else ("requests", resource)
            base = base.removeprefix("requests.")
            if base not in _COMPUTE or base in (level.get(which) or {}):
                continue
            for container in [*children(pod, "spec", "initContainers"), *children(pod, "spec", "containers")]:
                if base not in ((container.get("resources") or {}).get(which) or {}):
                    missing.setdefault(resource, []).append(container.get("name") or "")
        if missing:
            parts = [f"{resource} for: {','.join(sorted(found))}" for resource, found in sorted(missing.items())]
            text = f"failed quota: {quota['metadata']['name']}: must specify {'; '.join(parts)}"
            raise StatusError(status.forbidden(stored.group, stored.plural, name, text))

    # What is used.

    def _used(self, entry: Entry, quota: Object) -> Usage:
        return self._with_pending(entry, self._account(entry, quota).used)

    def _with_pending(self, entry: Entry, counted: Usage) -> Usage:
        used = dict(counted)
        self._pending = [charge for charge in self._pending if self._in_flight(charge)]
        for charge in self._pending:
            for resource, amount in charge.by_quota.get(entry.uid, {}).items():
                used[resource] = used[resource] + amount if resource in used else amount
        return used

    def _in_flight(self, charge: Charge) -> bool:
        return self._committer.busy.get(charge.store_key) is charge.future

    def _account(self, entry: Entry, quota: Object) -> _Account:
        classes = self._state.tables[CLASSES].revision
        account = self._accounts.get(entry.uid)
        if account is None or account.revision != entry.revision or account.classes != classes:
            account = self._count(entry, quota, classes)
        else:
            try:
                self._follow(account, entry.namespace, quota)
            except Expired:
                account = self._count(entry, quota, classes)
        if len(self._accounts) > 10_000:
            self._accounts.clear()
        self._accounts[entry.uid] = account
        return account

    def _count(self, entry: Entry, quota: Object, classes: int, now: float = 0.0) -> _Account:
        """At time 0 pods that go are counted until they are gone, so that what was added can be taken off again."""
        account = _Account(entry.revision, classes, {name: Quantity.from_int(0) for name in hard(quota)})
        for source, table in self._tables(quota):
            account.positions[source] = table.end
            for key in table.keys(entry.namespace):
                self._add(account, quota, source, table.decode(table.entries[key]), now=now)
        return account

    def _follow(self, account: _Account, namespace: str, quota: Object) -> None:
        for source, table in self._tables(quota):
            position = account.positions.get(source, -1)
            if not 0 <= position <= table.end:
                raise Expired  # another table: its definition came or came back
            changes = table.changes(position)
            account.positions[source] = table.end
            for change in changes:
                if change.entry.namespace != namespace:
                    continue
                if change.old is not None:
                    self._add(account, quota, source, table.decode(change.old), sign=-1)
                if change.type != "DELETED":
                    self._add(account, quota, source, table.decode(change.entry))

    def _add(
        self, account: _Account, quota: Object, source: Source, obj: Object, *, sign: int = 1, now: float = 0.0
    ) -> None:
        if not applies(quota, source, obj):
            return
        for name, amount in usage(source, obj, extended=self._names(), now=now).items():
            if name in account.used:
                account.used[name] = account.used[name] + (amount if sign > 0 else -amount)

    def _tables(self, quota: Object) -> Iterable[tuple[Source, Table]]:
        for group, plural in dict.fromkeys(source for name in hard(quota) for source in sources(name)):
            table = self._state.tables.get(f"/{group or 'core'}/{plural}/")
            if table is not None:
                yield (group, plural), table

    def _names(self) -> ExtendedNames:
        table = self._state.tables[CLASSES]
        if self._extended is None or self._extended[0] != table.revision:
            classes = [msgspec.convert(table.decode(entry), DeviceClass) for entry in table.entries.values()]
            self._extended = (table.revision, ExtendedNames.of(classes))
        return self._extended[1]


def _less(new: Usage, old: Usage) -> Usage:
    """What ``new`` has more than ``old``; negative where it has less."""
    found = dict(new)
    for name, amount in old.items():
        found[name] = found[name] - amount if name in found else -amount
    return found
