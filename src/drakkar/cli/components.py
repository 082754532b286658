"""Single components against any API server: scheduler and controllers, alone or as one of several replicas.

Of several replicas one works, the one that holds the Lease; a scheduler that stands by follows the
server's state, so that it can decide at once when it comes to lead. SIGTERM and Ctrl-C end a
component in order, and hand the Lease over. One that loses it otherwise goes on as a candidate, with a new state.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import LEASE
from drakkar.api.meta import Object
from drakkar.api.times import parse_timestamp
from drakkar.api.tree import child, text
from drakkar.cli import process
from drakkar.cli.logs import configure
from drakkar.cli.target import targeted
from drakkar.client import Client, Election, Unreachable
from drakkar.client.clock import SystemClock
from drakkar.client.endpoints import address_for, lead_here
from drakkar.client.health import address_of, leading, serving

logger = logging.getLogger(__name__)

#: Where the webhook that judges allocations is served.
GUARD_PATH = "/guard"
#: Seconds that it waits for the watch to show a claim, within the webhook's ``timeoutSeconds``.
KNOWN_WITHIN = 1.0
#: Lease of the controllers of a cluster, and of those of `drakkar up` on etcd.
CONTROLLER_MANAGER = "kube-controller-manager"


class Part(Protocol):
    """What a component process runs; ``ready`` is set once it has the server's state."""

    ready: asyncio.Event

    async def run(self) -> None: ...

    def metrics_text(self) -> str: ...


class Replica:
    """One process of a component: what of it works or stands by just now."""

    def __init__(self, args: argparse.Namespace, client: Client, lease: str, make: Callable[[Client], Part]):
        self.client = client
        self._make = make
        self._part = make(client)
        #: Follows the server's state while the replica stands by.
        self._following: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None]
        #: What else the replica that works has to do, as long as the part works.
        self.besides: Callable[[Part], Coroutine[Any, Any, None]] | None = None
        self._elects: bool = args.leader_elect
        self._election = Election(
            client,
            SystemClock(),
            args.leader_elect_resource_name or lease,
            f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}",
            namespace=args.leader_elect_resource_namespace,
            lease_duration=args.leader_elect_lease_duration,
            renew_deadline=args.leader_elect_lease_duration * 2 / 3,
            retry_period=args.leader_elect_lease_duration / 7.5,
        )

    @property
    def leads(self) -> bool:
        """Whether this replica is the one that works."""
        return not self._elects or self._election.leads.is_set()

    @property
    def part(self) -> Part:
        """What works or stands by just now."""
        return self._part

    def is_sure(self) -> bool:
        """Whether no other replica can be at work just now."""
        return not self._elects or self._election.is_sure()

    def missing(self) -> str:
        """What the replica still waits for; empty when it is ready to work."""
        stands_by = hasattr(self._part, "stand_by")
        if (stands_by or self.leads) and not self._part.ready.is_set():
            return "the server's state has not been read yet"
        return ""

    def metrics(self) -> str:
        """Prometheus' text form."""
        own = "\n".join((*leading(self.leads), self._part.metrics_text()))
        return own + self.client.rights.metrics_text()

    async def run(self) -> None:
        """Works, whenever it is this replica's turn, until cancelled."""
        self._settling = asyncio.create_task(self._settle(self._part), name="settling")
        try:
            await self._run()
        finally:
            self._settling.cancel()

    async def _settle(self, part: Part) -> None:
        await part.ready.wait()
        process.settle()

    async def _run(self) -> None:
        if not self._elects:
            await self._work()
            return
        self._stand_by()
        try:
            await self._election.run(self._work, self._begin_anew)
        finally:
            if self._following is not None:
                self._following.cancel()
                await asyncio.gather(self._following, return_exceptions=True)
            close = getattr(self._part, "close", None)
            if close is not None:
                await close()

    def _stand_by(self) -> None:
        if self._following is not None:
            self._following.cancel()
        stand_by = getattr(self._part, "stand_by", None)
        if stand_by is not None:
            self._following = asyncio.create_task(stand_by(), name="standing-by")

    def _begin_anew(self) -> None:
        """A candidate again after a lost term: what that had decided and not written is void."""
        self._settling.cancel()
        process.unsettle()
        self._part = self._make(self.client)
        self._settling = asyncio.create_task(self._settle(self._part), name="settling")
        self._stand_by()

    async def _work(self) -> None:
        besides = asyncio.create_task(self.besides(self._part), name="besides") if self.besides is not None else None
        try:
            await self._part.run()
        finally:
            if besides is not None:
                besides.cancel()
                await asyncio.gather(besides, return_exceptions=True)


def _forever(
    args: argparse.Namespace,
    what: str,
    lease: str,
    make: Callable[[Client], Part],
    beside: Callable[[Replica], contextlib.AbstractAsyncContextManager[str]] = lambda _: contextlib.nullcontext(""),
    first: Callable[[Client], Awaitable[None]] | None = None,
) -> int:
    """Runs a component until a signal; ``beside`` is what every replica serves, leading or not, and gives its URL.

    ``first`` may refuse to begin.
    """
    # Alone in its terminal, a component says when it cannot reach its server.
    configure("INFO")
    address = address_of(args.metrics_bind_address)

    async def at_work() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        async with targeted(args, role=f"drakkar-{what}") as client:
            if first is not None:
                await first(client)
            replica = Replica(args, client, lease, make)
            serves = serving(address, replica.missing, replica.metrics, client.rights.text)
            async with serves as url, beside(replica) as webhook:
                print(f"{what} at work; Ctrl-C stops it", flush=True)
                if url:
                    print(f"health and metrics at {url}", flush=True)
                if webhook:
                    print(f"admission webhook at {webhook}", flush=True)
                work = asyncio.create_task(replica.run(), name=what)
                stop = asyncio.create_task(ended.wait(), name="signal")
                await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
                if not work.done():
                    print(f"{what} stops", flush=True)
                    work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work

    process.run(at_work())
    return 0


def scheduler(args: argparse.Namespace) -> int:
    """Run the scheduler for gated pods and for those with one scheduler name."""
    from drakkar.scheduler import GateScheduler, Scheduler

    if bool(args.webhook) != bool(args.tls_cert) or bool(args.webhook) != bool(args.tls_key):
        raise UsageError("--webhook, --tls-cert and --tls-key belong together: an API server calls by HTTPS only")
    if args.guard_service and not args.webhook:
        raise UsageError("--guard-service leads to the webhook, which is not served: add --webhook")
    kind = GateScheduler if args.mode == "gate" else Scheduler

    def make(client: Client) -> Scheduler:
        return kind(
            client,
            SystemClock(),
            scheduler_names={args.scheduler_name},
            policy=args.policy,
            binding_timeout=args.binding_timeout,
            guards=bool(args.webhook),
        )

    lease = f"drakkar-scheduler-{args.scheduler_name}"
    return _forever(args, "scheduler", lease, make, functools.partial(_webhook, args))


@contextlib.asynccontextmanager
async def _webhook(args: argparse.Namespace, replica: Replica) -> AsyncIterator[str]:
    """Serves the webhooks, where that is asked for: any replica says which pods are gated, the leader is the guard."""
    from drakkar.client import admission
    from drakkar.scheduler import Scheduler
    from drakkar.scheduler.webhook import review, review_allocation

    address = address_of(args.webhook)
    if address is None:
        yield ""
        return

    async def judge(asked: Object) -> Object:
        part = replica.part
        assert isinstance(part, Scheduler)
        await part.expect_claim(text(asked, "request", "object", "metadata", "uid"), KNOWN_WITHIN)
        if not replica.is_sure() or not part.guard.opened.is_set():
            raise admission.NotHere("this replica does not lead, or not yet: the leader alone knows what is taken")
        return review_allocation(part.guard, asked)

    host, port = address
    reviews: dict[str, admission.Review] = {GUARD_PATH: judge}
    if args.mode == "gate":
        reviews["/"] = functools.partial(review, args.scheduler_name)
    async with admission.serving(reviews, host, port, Path(args.tls_cert), Path(args.tls_key)) as bound:
        if args.guard_service:
            here = address_for(args.guard_service, args.pod_ip or os.environ.get("POD_IP", ""), bound)

            async def lead(part: Part) -> None:
                assert isinstance(part, Scheduler)
                await lead_here(replica.client, SystemClock(), here, part.guard.opened, replica.is_sure)

            replica.besides = lead
        yield f"https://{host}:{bound}/"


def controllers(args: argparse.Namespace) -> int:
    """Run some or all controllers."""
    from drakkar.controllers import CONTROLLERS, Controllers, ControllerSettings

    only = {name.strip() for name in args.only.split(",")} if args.only else None
    unknown = (only or set()) - CONTROLLERS.keys()
    if unknown:
        raise UsageError(f"--only {', '.join(sorted(unknown))}: no such controller; there are {', '.join(CONTROLLERS)}")
    # On a cluster that is not ours a silent node is not taken for lost unless somebody says so (design.md, node loss).
    by_silence = args.loss_by_silence
    if by_silence is None:
        by_silence = only is not None and "node-loss" in only
    settings = ControllerSettings(node_grace=args.node_grace, loss_by_silence=by_silence)

    def make(client: Client) -> Controllers:
        return Controllers(client, SystemClock(), only=only, settings=settings)

    # Replicas that run different controllers do not wait for each other.
    lease = "-".join(("drakkar-controllers", *sorted(only or ())))
    return _forever(args, "controllers", lease, make, first=_alone if only is None else None)


async def _alone(client: Client) -> None:
    """Raises UsageError where another controller manager is at work: two that do everything undo each other's work."""
    try:
        lease: Object = await client.get(LEASE, CONTROLLER_MANAGER, "kube-system")
    except (ApiError, Unreachable) as error:
        logger.info("whether %s is at work here is not known: %s", CONTROLLER_MANAGER, error)
        return
    spec = child(lease, "spec")
    renewed = spec.get("renewTime")
    patience = float(spec.get("leaseDurationSeconds") or 15)
    if spec.get("holderIdentity") and renewed and abs(SystemClock().time() - parse_timestamp(renewed)) < 4 * patience:
        raise UsageError(
            f"{CONTROLLER_MANAGER} is at work here ({spec['holderIdentity']}), and has its own controllers for almost "
            "everything: choose with --only, for example --only eviction,node-loss (docs/reference/controllers.md)"
        )
