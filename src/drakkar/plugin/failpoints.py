"""Places at which an agent or a driver can be made to die, for crash tests.

``DRAKKAR_NODE_FAILPOINTS`` names a folder. Whoever comes first to a point while a file of its name lies there renames
the file to ``POINT.met`` and kills itself with SIGKILL. Points are named where they stand. The monitor of a container,
which can import nothing, does the same by itself (`drakkar.node.agent.shim`).
"""

from __future__ import annotations

import os
import signal

VARIABLE = "DRAKKAR_NODE_FAILPOINTS"
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

_folder = os.environ.get(VARIABLE)


def hit(point: str) -> None:
    """Die here, if somebody wants that."""
    if not _folder:
        return
    try:
        os.rename(f"{_folder}/{point}", f"{_folder}/{point}.met")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
