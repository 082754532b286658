"""Builds the image of Drakkar without any engine: ``./do image --base FOLDER --out LAYOUT``.

The base is a root file system, or an OCI layout (folder or tar), with a Python of the version that runs this program.
Drakkar and what it needs become one layer, in /opt/drakkar. Packages are those of requirements.image.lock, checked by
their hashes; with the same base, lock, sources and SOURCE_DATE_EPOCH the image has the same digest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.node.imagewriter import Command, Tree, epoch_of, write_image
from drakkar.version import __version__

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.image.lock"
#: Where everything lies in the image; the Containerfile has the same.
PREFIX = "opt/drakkar"
COMMAND = Command(
    entrypoint=("python3", "-m", "drakkar.cli"),
    arguments=("--help",),
    env={"PYTHONPATH": f"/{PREFIX}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"},
    user="65532:65532",
    labels={"org.opencontainers.image.title": "drakkar", "org.opencontainers.image.version": __version__},
)


def pip(*words: str, epoch: int) -> None:
    """Run this Python's pip. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}, cwd=ROOT)


def stage(folder: Path, epoch: int, *, packages: bool = True) -> None:
    """Lay Drakkar into a folder as Python imports it; ``packages``: and what it needs (from the package index)."""
    with tempfile.TemporaryDirectory() as scratch:
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, str(ROOT), epoch=epoch)
        target = ("--target", str(folder), "--no-compile", "--no-deps")
        if packages:
            pip("install", *target, "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK), epoch=epoch)
            # Programs name the Python of this machine, and pip warns of a folder that is there.
            shutil.rmtree(folder / "bin", ignore_errors=True)
        pip("install", *target, "--no-index", *(str(wheel) for wheel in Path(scratch).glob("*.whl")), epoch=epoch)
    shutil.rmtree(folder / "bin", ignore_errors=True)
    # Records name folders of this machine.
    for name in ("direct_url.json", "RECORD", "REQUESTED", "INSTALLER"):
        for file in folder.glob(f"*.dist-info/{name}"):
            file.unlink()
    for cache in folder.rglob("__pycache__"):
        shutil.rmtree(cache)


def check_base(base: Path) -> None:
    """Before anything is fetched: whether the base is there, and, where it is a plain folder, has this Python.

    Raises UsageError.
    """
    if not base.exists():
        raise UsageError(f"base {base}: no such file or folder; `skopeo copy docker://IMAGE oci:FOLDER` makes one")
    if not base.is_dir() or (base / "index.json").exists():
        return
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    places = [base / folder / name for folder in ("usr/local/bin", "usr/bin", "bin")]
    if not any(os.path.lexists(place) for place in places):
        raise UsageError(f"base {base} has no {name} (in usr/local/bin or usr/bin), for which packages are chosen here")


def main(argv: list[str] | None = None) -> int:
    """Build, and say the digest."""
    parser = argparse.ArgumentParser(prog="./do image", description="build the image of Drakkar without any engine")
    parser.add_argument(
        "--base",
        type=Path,
        required=True,
        metavar="PATH",
        help=f"root file system or OCI layout, folder or tar, with Python {sys.version_info[0]}.{sys.version_info[1]}",
    )
    parser.add_argument("--base-ref", default="", metavar="NAME", help="which image of a layout that has several")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the OCI layout to write")
    parser.add_argument("--name", default=f"drakkar:{__version__}", help="what the image is called (%(default)s)")
    args = parser.parse_args(argv)
    try:
        epoch = epoch_of(os.environ)
        check_base(args.base)
        with tempfile.TemporaryDirectory() as folder:
            stage(Path(folder), epoch)
            digest = write_image(
                args.out,
                args.base,
                [Tree(Path(folder), PREFIX)],
                COMMAND,
                name=args.name,
                epoch=epoch,
                base_ref=args.base_ref,
            )
    except (UsageError, subprocess.CalledProcessError) as error:
        print(f"./do image: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {args.name} is {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
