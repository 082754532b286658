"""The command line: ``drakkar …``. Parses, calls a room, prints; no logic lives here.

Exit codes: 0 done, 1 a finding or a missed expectation, 2 usage or environment.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from drakkar.api.errors import ApiError, DrakkarError, EnvironmentProblem, UsageError
from drakkar.cli.parser import build


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = build().parse_args(argv)
    # "module:function"; imported only now, so that each command pays for its own imports alone.
    module, function = args.run.split(":")
    return guarded(lambda: getattr(importlib.import_module(f"drakkar.cli.{module}"), function)(args))


def guarded(run: Callable[[], int]) -> int:
    """The exit code of a command; what goes wrong in a known way becomes a line on standard error."""
    try:
        return int(run())
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (EnvironmentProblem, UsageError) as problem:
        print(f"drakkar: {problem}", file=sys.stderr)
        return 2
    except ApiError as refusal:
        print(f"drakkar: the API server refused ({refusal.code} {refusal.reason}): {refusal}", file=sys.stderr)
        return 1
    except DrakkarError as error:
        from drakkar.client.transport import Unreachable

        if isinstance(error, Unreachable):
            print(f"drakkar: {error}; start that server, or name another with --kubeconfig", file=sys.stderr)
            return 2
        print(f"drakkar: {error}", file=sys.stderr)
        return 1
