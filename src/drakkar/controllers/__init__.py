"""What must become true: one module per duty, and :class:`Controllers`, which runs them together.

Every controller is ``reconcile(key) -> writes`` over shared caches; `drakkar.client.runner`
does the rest. All of them may be killed between any two writes: whatever they need to know
stands in the API, and what they remember besides only saves work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from drakkar.api.clock import Clock
from drakkar.api.errors import UsageError
from drakkar.api.exposition import family
from drakkar.api.kinds import Kind
from drakkar.client.cache import Caches
from drakkar.client.client import Client
from drakkar.client.runner import Controller, Runner
from drakkar.controllers.claims import Claims
from drakkar.controllers.daemonsets import DaemonSets
from drakkar.controllers.deployments import Deployments
from drakkar.controllers.disruption import Disruption
from drakkar.controllers.garbage import DEFAULT_KINDS, Garbage
from drakkar.controllers.jobs import Jobs
from drakkar.controllers.namespaces import Namespaces, ServiceAccounts
from drakkar.controllers.nodeeviction import NodeEviction
from drakkar.controllers.nodelifecycle import NodeLifecycle
from drakkar.controllers.nodeloss import NodeLoss
from drakkar.controllers.podgroups import PodGroups
from drakkar.controllers.poolstatus import PoolStatus
from drakkar.controllers.quotas import Quotas
from drakkar.controllers.replicasets import ReplicaSets
from drakkar.controllers.statefulsets import StatefulSets
from drakkar.controllers.tainteviction import TaintEviction

__all__ = ["CONTROLLERS", "CONTROLLER_NAMES", "ControllerSettings", "Controllers"]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """What differs from plane to plane; times in seconds."""

    #: Silence after which a node is lost, and the heartbeat period of its lease.
    node_grace: float = 40.0
    lease_period: float = 10.0
    #: Whether silence alone is loss. None: only where ``only`` names node-loss, which is the explicit choice that it
    #: takes on a cluster that is not ours (design.md, node loss).
    loss_by_silence: bool | None = None
    #: Certificate in PEM for ``kube-root-ca.crt``; empty: none is published.
    root_ca: str = ""
    garbage_kinds: tuple[Kind, ...] = DEFAULT_KINDS
    admin_access: bool = True
    device_taint_rules: bool = True
    #: Whether the server has PodGroups (scheduling.k8s.io/v1beta1).
    pod_groups: bool = False
    #: Keys each controller works on at a time, where that differs from 4.
    workers: Mapping[str, int] = field(
        default_factory=lambda: {
            "tainteviction": 16,
            "eviction": 16,
            "nodeeviction": 16,
            "node-loss": 16,
            "namespaces": 2,
        }
    )


Factory = Callable[[Client, Clock, ControllerSettings], Controller]

#: Name (of ``--only``) -> how to build the controller.
CONTROLLERS: dict[str, Factory] = {
    "claims": lambda client, clock, s: Claims(client, clock, admin_access=s.admin_access, pod_groups=s.pod_groups),
    "tainteviction": lambda client, clock, s: TaintEviction(clock, rules=s.device_taint_rules, pod_groups=s.pod_groups),
    "eviction": lambda client, clock, s: TaintEviction(
        clock, rules=s.device_taint_rules, pod_groups=s.pod_groups, beside=True
    ),
    "jobs": lambda client, clock, s: Jobs(client, clock),
    "nodelifecycle": lambda client, clock, s: NodeLifecycle(
        client, clock, grace=s.node_grace, lease_period=s.lease_period
    ),
    "nodeeviction": lambda client, clock, s: NodeEviction(clock),
    "node-loss": lambda client, clock, s: NodeLoss(
        client,
        clock,
        grace=s.node_grace,
        lease_period=s.lease_period,
        by_silence=bool(s.loss_by_silence),
        rules=s.device_taint_rules,
    ),
    "podgroups": lambda client, clock, s: PodGroups(),
    "replicasets": lambda client, clock, s: ReplicaSets(client, clock),
    "deployments": lambda client, clock, s: Deployments(client, clock),
    "daemonsets": lambda client, clock, s: DaemonSets(client, clock),
    "statefulsets": lambda client, clock, s: StatefulSets(client, clock),
    "disruption": lambda client, clock, s: Disruption(clock),
    "quotas": lambda client, clock, s: Quotas(client, clock),
    "poolstatus": lambda client, clock, s: PoolStatus(clock, rules=s.device_taint_rules),
    "garbage": lambda client, clock, s: Garbage(client, s.garbage_kinds),
    "namespaces": lambda client, clock, s: Namespaces(client),
    "serviceaccounts": lambda client, clock, s: ServiceAccounts(root_ca=s.root_ca),
}

#: Those that run only where ``only`` names them, and the controller whose work they do beside another's.
BESIDE = {"eviction": "tainteviction"}

CONTROLLER_NAMES: tuple[str, ...] = tuple(CONTROLLERS)


class Controllers:
    """All controllers, or those of ``only``, over one set of caches.

    Args:
        only: names out of :data:`CONTROLLERS`; None: all that ``settings`` allow, for a server that has none.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        only: Collection[str] | None = None,
        settings: ControllerSettings | None = None,
        caches: Caches | None = None,
    ):
        settings = settings or ControllerSettings()
        unknown = sorted(set(only or ()) - CONTROLLERS.keys())
        if unknown:
            raise UsageError(f"unknown controller {', '.join(unknown)}; choose from {', '.join(CONTROLLERS)}")
        if settings.loss_by_silence is None:
            settings = replace(settings, loss_by_silence="node-loss" in (only or ()))
        for beside, alone in BESIDE.items():
            if only is not None and {beside, alone} <= {*only}:
                raise UsageError(
                    f"{beside} and {alone} do the same: {beside} beside a cluster's own controller, {alone} without one"
                )
        chosen = CONTROLLERS.keys() - BESIDE.keys() if only is None else only
        wanted = [name for name in CONTROLLERS if name in chosen and (name != "podgroups" or settings.pod_groups)]
        self._own_caches = caches is None
        self.caches = caches or Caches(client)
        self.ready = asyncio.Event()
        self._made = {name: CONTROLLERS[name](client, clock, settings) for name in wanted}
        self.runners = {
            name: Runner(
                client,
                self.caches,
                controller,
                clock,
                workers=settings.workers.get(name, 4),
            )
            for name, controller in self._made.items()
        }

    def metrics_text(self) -> str:
        """What the controllers did, in Prometheus' text form."""
        name = "drakkar_controller_keys_total"
        lines = family(name, "counter", "Keys that were worked on, by controller and outcome.")
        for controller, runner in self.runners.items():
            for outcome, count in runner.metrics.items():
                lines.append(f'{name}{{controller="{controller}",outcome="{outcome}"}} {count}')
        claims = self._made.get("claims")
        more = claims.metrics_text() if isinstance(claims, Claims) and self.ready.is_set() else ""
        return "\n".join(lines) + "\n" + more

    async def run(self) -> None:
        """Works until cancelled; ``ready`` is set once every controller has seen the server's state."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, runner in self.runners.items():
                    group.create_task(runner.run(), name=f"controller-{name}")
                for runner in self.runners.values():
                    await runner.ready.wait()
                self.ready.set()
        finally:
            if self._own_caches:
                await self.caches.stop()
