"""Events for people: what happened to an object, kept short.

The same thing said again about the same object raises the count of the Event that says it
already. Losing an Event is not an error.
"""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import EVENT, Kind
from drakkar.client.client import Client
from drakkar.client.clock import timestamp
from drakkar.client.codec import meta
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

#: How many distinct Events are remembered for counting; older ones start anew.
REMEMBERED = 2000
#: Longest message that the API accepts, in bytes.
LONGEST_MESSAGE = 1024


@dataclass(slots=True)
class _Said:
    namespace: str
    name: str
    count: int


class EventRecorder:
    """Writes Events in the name of ``component``."""

    def __init__(
        self, client: Client, clock: Clock, component: str, *, host: str = "", rng: random.Random | None = None
    ):
        self._client = client
        self._clock = clock
        self._component = component
        self._host = host
        self._rng = rng or random.Random()
        self._said: OrderedDict[tuple[str, ...], _Said] = OrderedDict()

    async def record(self, kind: Kind, obj: Any, type: str, reason: str, message: str) -> None:
        """Says ``message`` about ``obj`` (struct or dict); ``type`` is Normal or Warning."""
        message = message if len(message.encode()) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE // 4 * 3] + "..."
        key = (meta(obj, "uid") or f"{meta(obj, 'namespace')}/{meta(obj, 'name')}", type, reason, message)
        try:
            said = self._said.get(key)
            if said is None or not await self._count(said):
                self._said[key] = await self._create(kind, obj, type, reason, message)
            self._said.move_to_end(key)
            while len(self._said) > REMEMBERED:
                self._said.popitem(last=False)
        except (ApiError, Unreachable) as error:
            logger.debug("event %s about %s %s lost: %s", reason, kind.kind, meta(obj, "name"), error)

    async def _count(self, said: _Said) -> bool:
        """Raises the count of an Event; False when it is gone."""
        body = {"count": said.count + 1, "lastTimestamp": timestamp(self._clock.time())}
        try:
            await self._client.patch(EVENT, said.name, said.namespace, body)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        said.count += 1
        return True

    async def _create(self, kind: Kind, obj: Any, type: str, reason: str, message: str) -> _Said:
        now = timestamp(self._clock.time())
        name = f"{meta(obj, 'name')[:230]}.{self._rng.getrandbits(64):016x}"
        namespace = meta(obj, "namespace") or "default"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "name": meta(obj, "name"),
                "namespace": meta(obj, "namespace"),
                "uid": meta(obj, "uid"),
                "resourceVersion": meta(obj, "resourceVersion"),
            },
            "type": type,
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(EVENT, event)
        return _Said(namespace, name, 1)
