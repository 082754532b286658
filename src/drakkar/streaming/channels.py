"""Messages of the subprotocols ``v4.channel.k8s.io`` and ``v5.channel.k8s.io`` for exec and attach.

Every binary message begins with a byte that names its channel. v5 adds a message that says that a channel ends,
which is how a client closes the standard input of a program.
"""

from __future__ import annotations

from typing import Any

import msgspec

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
#: In order of preference.
SUBPROTOCOLS = (V5, V4)
#: Port-forward: the bytes of a SPDY/3.1 connection, cut into binary messages anyhow.
TUNNEL = "SPDY/3.1+portforward.k8s.io"

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

#: Largest piece of output in one message, in bytes.
PIECE = 32 << 10
#: Largest message that is taken; kubectl sends pieces of 32 KiB.
LONGEST_MESSAGE = 4 << 20


def exit_status(code: int) -> bytes:
    """The last message on the channel ERROR: how the command ended."""
    if code == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    return msgspec.json.encode(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    )


def failure_status(message: str) -> bytes:
    """The same for a command that could not be run or be attached to."""
    return msgspec.json.encode(
        {
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }
    )


def window_size(content: bytes) -> tuple[int, int] | None:
    """Columns and rows out of a message on the channel RESIZE; None when it makes no sense."""
    try:
        size: Any = msgspec.json.decode(content)
        columns, rows = int(size["Width"]), int(size["Height"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return (columns, rows) if 0 < columns < 1 << 16 and 0 < rows < 1 << 16 else None
