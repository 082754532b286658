"""`drakkar driver run gpu`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from drakkar.client import Client
from drakkar.driver.command import add_node_arguments, run_command, serve, serve_webhook
from drakkar.drivers.gpu.driver import MIG_MODES, GpuDriver
from drakkar.drivers.gpu.fake import MEMORY, MODELS, FakeHardware
from drakkar.drivers.gpu.hardware import Hardware


def main(argv: Sequence[str] | None = None) -> int:
    """Run the GPU driver on one node."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run gpu",
        description="NVIDIA GPUs: whole, as MIG partitions, shared by time or MPS, passed through to virtual machines.",
    )
    parser.add_argument(
        "--mig",
        choices=MIG_MODES,
        default="static",
        help="off: whole GPUs; static: the partitions that exist (default); dynamic: partitions cut on demand",
    )
    parser.add_argument("--passthrough", action="store_true", help="offer GPUs to virtual machines too (vfio-pci)")
    parser.add_argument(
        "--fake", choices=tuple(MODELS), metavar="MODEL", help=f"no hardware, a node of {', '.join(MODELS)}"
    )
    parser.add_argument("--fake-folder", type=Path, metavar="DIR", help="where the fake GPUs keep their state")
    parser.add_argument("--fake-count", type=int, default=0, metavar="N", help="how many fake GPUs")
    parser.add_argument(
        "--fake-memory",
        type=Path,
        metavar="DIR",
        help=f"a file per fake GPU stands for its memory; containers with a whole GPU find it at {MEMORY}/UUID",
    )
    parser.add_argument(
        "--driver-root", type=Path, default=Path("/"), metavar="DIR", help="where the NVIDIA driver is installed"
    )
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    if args.webhook:  # Wherever the webhook runs, there need be no GPU.
        await serve_webhook(GpuDriver.name, GpuDriver.configs, args)
        return
    driver = GpuDriver(_hardware(args), mig=args.mig, passthrough=args.passthrough)
    await serve(driver, client, args)


def _hardware(args: argparse.Namespace) -> Hardware:
    if args.fake:
        folder = args.fake_folder or args.kubelet_root / "plugins" / GpuDriver.name / "fake"
        # As with real ones: split where somebody has made partitions, whole otherwise.
        return FakeHardware(folder, args.fake, args.fake_count, node=args.node_name, memory=args.fake_memory)
    from drakkar.drivers.gpu.nvml import NvmlHardware

    return NvmlHardware(args.driver_root, args.kubelet_root / "plugins" / GpuDriver.name)
