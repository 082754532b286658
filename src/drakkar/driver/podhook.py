"""A CDI hook (`createRuntime`) that tells a driver of the network namespace of a pod, and waits until it is done.

The container runtime runs it with the container's state on standard input, after the namespaces exist and before the
program starts. Only the standard library: it starts for every container. The other side is
`drakkar.driver.podnetwork`.
"""

import argparse
import json
import socket
import sys

#: Seconds that a driver has.
PATIENCE = 30.0


def main(argv: list[str] | None = None) -> int:
    """Returns 1, and the runtime gives the container up, when the driver refuses or cannot be reached."""
    parser = argparse.ArgumentParser(prog="drakkar-pod-hook", description="hand a pod's network to a driver")
    parser.add_argument("--socket", required=True, help="where the driver listens")
    parser.add_argument("--claim", required=True, help="UID of the claim")
    args = parser.parse_args(argv)
    state = json.load(sys.stdin)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(PATIENCE)
            client.connect(args.socket)
            client.sendall(json.dumps({"claim": args.claim, "pid": state["pid"]}).encode() + b"\n")
            answer = json.loads(client.makefile("rb").readline() or b'{"error": "the driver hung up"}')
    except (OSError, ValueError) as error:
        answer = {"error": f"driver at {args.socket}: {error}"}
    if answer.get("error"):
        print(f"drakkar-pod-hook: claim {args.claim}: {answer['error']}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
