"""Places at which an agent or a driver can be made to die, for crash tests: ``DRAKKAR_NODE_FAILPOINTS="POINT:COUNT"``.

The process kills itself with SIGKILL the COUNT-th time it comes to the point. Points are named where they stand. The
monitor of a container, which can import nothing, has its own (`drakkar.node.agent.shim`).
"""

from __future__ import annotations

import os
import signal

#: Met by everybody who keeps records: the new content lies beside the file that it is to replace.
FILES = ("file-unfinished",)
#: In the order in which a pod's life on a node meets them.
AGENT = (
    "claim-recorded",
    "claim-answered",
    "claim-prepared",
    "volumes-made",
    "container-made",
    "container-created",
    "container-started",
    "status-written",
    "containers-gone",
    "unprepare-called",
    "claim-forgotten",
    "cleaned",
    "pod-deleted",
    *FILES,
)
#: In the order of a driver's start, and of a claim's life in it.
DRIVER = (
    "devices-discovered",
    "service-open",
    "driver-registered",
    "slices-planned",
    "slice-seen",
    "claim-read",
    "prepare-recorded",
    "device-prepared",
    "status-reported",
    "cdi-written",
    "metadata-written",
    "prepare-finished",
    "device-unprepared",
    "cdi-removed",
    "metadata-removed",
    "record-removed",
    *FILES,
)
_KNOWN = dict.fromkeys((*AGENT, *DRIVER))

_left: dict[str, int] = {}
for _entry in filter(None, os.environ.get("DRAKKAR_NODE_FAILPOINTS", "").split(",")):
    _point, _, _count = _entry.partition(":")
    if _point not in _KNOWN or not _count.isdigit():
        raise ValueError(f"DRAKKAR_NODE_FAILPOINTS: {_entry!r} must be POINT:COUNT with a point of {', '.join(_KNOWN)}")
    _left[_point] = int(_count)


def hit(point: str) -> None:
    """Die here, if somebody wants that."""
    if point in _left:
        _left[point] -= 1
        if _left[point] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
