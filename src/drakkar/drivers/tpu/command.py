"""`drakkar driver run tpu`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from drakkar.client.clock import SystemClock
from drakkar.driver.command import lead, run_command
from drakkar.drivers.tpu.driver import TpuDriver


def main(argv: Sequence[str] | None = None) -> int:
    """Run the central controller of multi-host slices; of several replicas one leads."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run tpu", description="Multi-host TPU slices from the labels of Nodes."
    )
    return run_command(parser, lambda client, _: lead("tpu-driver", client, TpuDriver(client, SystemClock()).run), argv)
