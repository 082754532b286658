"""What the commands' arguments have in common: how a command is added, which cluster it addresses, kinds of numbers."""

from __future__ import annotations

import argparse
from typing import Any

Sub = Any  # argparse's private sub-parser action


def add_command(parent: Sub, name: str, run: str, help: str, epilog: str = "") -> argparse.ArgumentParser:
    """A command under ``parent``; ``run`` names the function to call, ``module:function`` of `drakkar.cli`."""
    command = parent.add_parser(
        name, help=help, description=help, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(run=run)
    return command


def add_target(command: argparse.ArgumentParser) -> None:
    """Which cluster a command addresses (see `drakkar.cli.target`)."""
    command.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="default: $KUBECONFIG, the pod's service account, your running `drakkar up`, ~/.kube/config",
    )
    command.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


# The kinds of numbers. Their ``__name__`` is what argparse calls them where one is refused.


def seconds(text: str) -> float:
    """More than none; ``10`` or ``10s``."""
    value = float(text.removesuffix("s"))
    if not value > 0:
        raise ValueError
    return value


seconds.__name__ = "number of seconds"


def count(text: str) -> int:
    """1 or more."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


count.__name__ = "number of at least 1"


def port(text: str) -> int:
    """0 stands for any free one."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError
    return value


port.__name__ = "port number"
