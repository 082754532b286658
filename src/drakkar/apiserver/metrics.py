"""Numbers about the server in Prometheus' text form, under the names that kube-apiserver uses.

Counting is a dict access per request; everything else is looked up when somebody asks.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from drakkar.api.exposition import family, label_pairs
from drakkar.api.features import GATES, stage
from drakkar.apiserver.exchange import Exchange
from drakkar.apiserver.limits import Releasing

if TYPE_CHECKING:
    from drakkar.apiserver.server import ApiServer

#: Upper bounds of the buckets of durations, in seconds (kube-apiserver's).
BUCKETS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
)  # fmt: skip
_VERBS = {"deletecollection": "DELETECOLLECTION", "create": "POST", "update": "PUT"}

Key = tuple[str, ...]


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._requests: dict[Key, int] = {}
        self._durations: dict[Key, list[float]] = {}
        #: Streams in progress by (verb, group, version, resource).
        self.streams: dict[Key, int] = {}
        self._started = time.time()

    def observe(self, exchange: Exchange, code: int, seconds: float, *, stream: bool) -> None:
        """Counts one answered request. Streams have no duration that would say anything."""
        info = exchange.info
        if info is None:
            return
        if info.is_resource and not exchange.known:
            verb, what = _method(exchange.request.method), ("", "", "unknown", "", "")
        elif info.is_resource:
            verb = _VERBS.get(info.verb) or info.verb.upper()
            scope = "resource" if info.name else "namespace" if info.namespace else "cluster"
            what = (info.group, info.version, info.resource, info.subresource, scope)
        else:
            verb, what = _method(info.verb.upper()), ("", "", "", _path(info.path), "")
        key = (verb, *what, str(code))
        self._requests[key] = self._requests.get(key, 0) + 1
        if stream:
            return
        key = (verb, *what)
        found = self._durations.get(key)
        if found is None:
            found = self._durations[key] = [0.0] * (len(BUCKETS) + 2)
        found[bisect_left(BUCKETS, seconds)] += 1
        found[-1] += seconds

    def counted(self, exchange: Exchange, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A stream that counts as in progress until it ends."""
        info = exchange.info
        assert info is not None
        key = (info.verb.upper(), info.group, info.version, info.resource)
        self.streams[key] = self.streams.get(key, 0) + 1

        def ended() -> None:
            self.streams[key] -= 1

        return Releasing(stream, ended)

    def text(self, server: ApiServer) -> bytes:
        """Everything."""
        lines: list[str] = []
        lines += self._request_lines()
        reading, writing = server.in_flight
        lines += family("apiserver_current_inflight_requests", "gauge", "Requests in progress, watches not counted.")
        lines += [
            f'apiserver_current_inflight_requests{{request_kind="readOnly"}} {reading}',
            f'apiserver_current_inflight_requests{{request_kind="mutating"}} {writing}',
        ]
        lines += self._stream_lines()
        lines += family("apiserver_storage_objects", "gauge", "Number of stored objects.")
        for stored in server.catalog.stored.values():
            count = len(server.state.tables[stored.prefix].entries)
            resource = f"{stored.plural}.{stored.group}" if stored.group else stored.plural
            lines.append(f'apiserver_storage_objects{{resource="{resource}"}} {count}')
        lines += family("kubernetes_feature_enabled", "gauge", "Whether a feature gate is on.")
        for gate in sorted(GATES):
            enabled = int(gate in server.features)
            lines.append(f'kubernetes_feature_enabled{{name="{gate}",stage="{stage(gate)}"}} {enabled}')
        if server.audit is not None:
            lines += family("apiserver_audit_event_total", "counter", "Events written to the audit log.")
            lines.append(f"apiserver_audit_event_total {server.audit.written}")
            lines += family("apiserver_audit_error_total", "counter", "Events that the audit log lost.")
            lines.append(f'apiserver_audit_error_total{{plugin="log"}} {server.audit.lost}')
        lines += family("drakkar_store_revision", "counter", "Revision of the newest committed write.")
        lines.append(f"drakkar_store_revision {server.state.revision}")
        lines += family("drakkar_store_commits_total", "counter", "Commits of the store, each with one or more writes.")
        lines.append(f"drakkar_store_commits_total {server.committer.batches}")
        lines += self._process_lines()
        return ("\n".join(lines) + "\n").encode()

    def _request_lines(self) -> Iterable[str]:
        yield from family("apiserver_request_total", "counter", "Answered requests.")
        for (verb, group, version, resource, sub, scope, code), count in sorted(self._requests.items()):
            labels = label_pairs(
                verb=verb, group=group, version=version, resource=resource, subresource=sub, scope=scope
            )
            yield f'apiserver_request_total{{code="{code}",component="apiserver",{labels}}} {count}'
        name = "apiserver_request_duration_seconds"
        yield from family(name, "histogram", "Seconds from the arrival of a request to its answer.")
        for (verb, group, version, resource, sub, scope), found in sorted(self._durations.items()):
            labels = label_pairs(
                verb=verb, group=group, version=version, resource=resource, subresource=sub, scope=scope
            )
            labels = f'component="apiserver",{labels}'
            below = 0.0
            for bound, count in zip((*map(_number, BUCKETS), "+Inf"), found, strict=False):
                below += count
                yield f'{name}_bucket{{{labels},le="{bound}"}} {below:g}'
            yield f"{name}_sum{{{labels}}} {found[-1]!r}"
            yield f"{name}_count{{{labels}}} {below:g}"

    def _stream_lines(self) -> Iterable[str]:
        yield from family("apiserver_longrunning_requests", "gauge", "Watches and other streams in progress.")
        for (verb, group, version, resource), count in sorted(self.streams.items()):
            labels = label_pairs(verb=verb, group=group, version=version, resource=resource)
            yield f'apiserver_longrunning_requests{{component="apiserver",{labels}}} {count}'

    def _process_lines(self) -> Iterable[str]:
        yield from family("process_start_time_seconds", "gauge", "Start of the process, in Unix time.")
        yield f"process_start_time_seconds {self._started!r}"
        used = os.times()
        yield from family("process_cpu_seconds_total", "counter", "Processor time, user and system.")
        yield f"process_cpu_seconds_total {used.user + used.system!r}"
        try:
            with open("/proc/self/statm") as file:
                pages = file.read().split()
            count = len(os.listdir("/proc/self/fd"))
        except OSError:
            return  # not Linux
        yield from family("process_resident_memory_bytes", "gauge", "Memory in use.")
        yield f"process_resident_memory_bytes {int(pages[1]) * os.sysconf('SC_PAGE_SIZE')}"
        yield from family("process_open_fds", "gauge", "Open files and sockets.")
        yield f"process_open_fds {count}"


def _method(method: str) -> str:
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "OTHER"


def _path(path: str) -> str:
    """The root of a path that is no resource: paths that clients make up must not fill the memory."""
    root = "/" + path.removeprefix("/").partition("/")[0]
    known = ("/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz", "/metrics", "/openid")
    return root if root in known else "other"


def _number(bound: float) -> str:
    return f"{bound:g}"
