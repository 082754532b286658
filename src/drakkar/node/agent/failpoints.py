"""Places at which an agent can be made to die, for crash tests: ``DRAKKAR_NODE_FAILPOINTS="POINT:COUNT"``.

The process kills itself with SIGKILL the COUNT-th time it comes to the point. Points are named where they stand.
"""

from __future__ import annotations

import os
import signal

#: All points, in the order in which a pod's life meets them.
POINTS = (
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
)

_left: dict[str, int] = {}
for _entry in filter(None, os.environ.get("DRAKKAR_NODE_FAILPOINTS", "").split(",")):
    _point, _, _count = _entry.partition(":")
    if _point not in POINTS or not _count.isdigit():
        raise ValueError(f"DRAKKAR_NODE_FAILPOINTS: {_entry!r} must be POINT:COUNT with a point of {', '.join(POINTS)}")
    _left[_point] = int(_count)


def hit(point: str) -> None:
    """Die here, if somebody wants that."""
    if point in _left:
        _left[point] -= 1
        if _left[point] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
