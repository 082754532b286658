"""When each node was last heard of, by our own clock.

What a lease says about time is the node's opinion; what counts is when *we* saw it change.
So clock skew does no harm, and after a restart of ours every node has its full grace.

Two things could make a healthy node look dead: our watch may have gone silent, and our
process may have been stopped for a while (a suspended laptop, SIGSTOP). The first is met by
a live GET of the lease before a node is declared lost, the second by :data:`OVERSLEPT`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import LEASE, NODE
from drakkar.api.meta import Object
from drakkar.api.objects import condition, name_of, namespace_of
from drakkar.api.tree import text
from drakkar.client.cache import Caches
from drakkar.controllers.common import Reader, live

#: A deadline noticed so much too late, in seconds, means that we slept and could not hear the node.
OVERSLEPT = 2.0


@dataclass(slots=True)
class _Heard:
    lease: str
    ready: str
    at: float
    lost: bool = False


class Heartbeats:
    """Watches the leases in ``kube-node-lease`` and the heartbeat in Node status.

    Args:
        grace: seconds of silence after which a node is lost.
        lease_period: seconds between two heartbeats of a healthy node.
    """

    def __init__(self, reader: Reader, clock: Clock, *, grace: float = 40.0, lease_period: float = 10.0):
        self._reader = reader
        self._clock = clock
        self._grace = grace
        self._lease_period = lease_period
        self._heard: dict[str, _Heard] = {}
        self._returned: list[Callable[[str], None]] = []

    def setup(self, caches: Caches) -> None:
        """Subscribes to leases and nodes."""
        # All namespaces: the collector watches leases too, and one watch of the busiest kind is enough.
        caches.of(LEASE).subscribe(self._lease_changed)
        caches.of(NODE).subscribe(self._node_changed)

    def on_return(self, call: Callable[[str], None]) -> None:
        """Calls ``call`` with the name of every node that was lost and is heard again."""
        self._returned.append(call)

    def _lease_changed(self, event: str, old: Any, new: Object | None) -> None:
        if new is not None and event != "DELETED" and namespace_of(new) == names.NODE_LEASE_NAMESPACE:
            self._note(name_of(new), lease=text(new, "spec", "renewTime"))

    def _node_changed(self, event: str, old: Any, new: Object | None) -> None:
        if event == "DELETED" or new is None:
            if old is not None:
                self._heard.pop(name_of(old), None)
            return
        ready = condition(new, names.NODE_READY)
        self._note(name_of(new), ready=(ready or {}).get("lastHeartbeatTime") or "")

    def _note(self, node: str, *, lease: str | None = None, ready: str | None = None) -> None:
        heard = self._heard.get(node)
        if heard is None:
            self._heard[node] = _Heard(lease or "", ready or "", self._clock.monotonic())
            return
        if (lease is None or lease == heard.lease) and (ready is None or ready == heard.ready):
            return
        heard.lease = heard.lease if lease is None else lease
        heard.ready = heard.ready if ready is None else ready
        heard.at = self._clock.monotonic()
        if heard.lost:
            heard.lost = False
            for call in self._returned:
                call(node)

    async def silence(self, node: str) -> float:
        """Seconds until the node is lost unless it is heard before; 0 or less: it is lost.

        Raises ApiError when the live check that precedes the verdict fails.
        """
        heard = self._heard.get(node)
        if heard is None:
            heard = self._heard[node] = _Heard("", "", self._clock.monotonic())
        rest = heard.at + self._grace - self._clock.monotonic()
        if rest > 0 or heard.lost:
            return rest
        if rest < -OVERSLEPT:
            # One more period is enough for a living node to be heard.
            heard.at = self._clock.monotonic() - self._grace + 1.5 * self._lease_period
            return 1.5 * self._lease_period
        lease = await live(self._reader, LEASE, names.NODE_LEASE_NAMESPACE, node)
        if lease is not None:
            self._note(node, lease=text(lease, "spec", "renewTime"))
        rest = heard.at + self._grace - self._clock.monotonic()
        if rest <= 0:
            heard.lost = True
        return rest
