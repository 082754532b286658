"""Upstream's own components (``k8s.io/kubernetes`` 1.37) as peers, built once by the Go tool from ``tests/upstream``.

``./do upstream`` builds them (minutes, and gigabytes of Go's caches) and runs the tests against them. What a kubelet
needs besides, containerd, comes from ``tests/upstream-containerd`` and is built by ``./do kubelet``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import yaml

from tests.support.guard import guarded
from tests.support.kubectl import absent, cache_folder
from tests.support.shared import ROOT

#: The Go module carries no version of the release in its binaries; clients of kube-apiserver look at it.
_VERSION = "1.37.2"
_LINK = "-s -w " + " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in (
        ("gitVersion", f"v{_VERSION}"),
        ("gitMajor", _VERSION.split(".")[0]),
        ("gitMinor", _VERSION.split(".")[1]),
        ("gitTreeState", "clean"),
    )
)


@dataclass(frozen=True)
class _Module:
    """A Go module of ours: every folder with a main program is a component; flags of the linker, tags of the build."""

    folder: Path
    link: str
    tags: str = ""

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(sorted(path.parent.name for path in self.folder.glob("*/main.go")))


_KUBERNETES = _Module(ROOT / "tests" / "upstream", _LINK)
#: A module of its own, because it wants other versions of what both need; without btrfs no C compiler is needed.
_CONTAINERD = _Module(ROOT / "tests" / "upstream-containerd", "-s -w", "no_btrfs")

#: What a build makes.
COMPONENTS = _KUBERNETES.components
#: containerd, its shim, and its client.
CONTAINERD = _CONTAINERD.components


def _module(component: str) -> _Module:
    return _CONTAINERD if component in CONTAINERD else _KUBERNETES


def _path(component: str) -> Path:
    """Where the binary of a component is kept for the sources as they are."""
    module = _module(component)
    sources = [module.folder / "go.mod", module.folder / "go.sum", module.folder / component / "main.go"]
    content = b"".join(path.read_bytes() for path in sources) + (module.link + module.tags).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return cache_folder() / f"{component}-{digest}"


def binary(component: str) -> Path:
    """Path of a component; skips where it is not built, fails where CI=true."""
    path = _path(component)
    chore = "kubelet" if component in CONTAINERD else "upstream"
    return path if path.exists() else absent(f"{component} is not built; ./do {chore} builds it (minutes, needs Go)")


def is_built(component: str) -> bool:
    """Whether the cache has it for the sources as they are."""
    return _path(component).exists()


def build(components: tuple[str, ...] = COMPONENTS) -> None:
    """Build what is not in the cache yet; CalledProcessError where Go refuses, SystemExit where it is absent."""
    absent_yet = [component for component in components if not is_built(component)]
    if not absent_yet:
        return
    if shutil.which("go") is None:
        raise SystemExit(f"{', '.join(absent_yet)} not built yet and there is no go on the PATH to build with")
    print(f"building {', '.join(absent_yet)} ...", file=sys.stderr, flush=True)
    cache_folder().mkdir(parents=True, exist_ok=True)
    for module in dict.fromkeys(_module(component) for component in absent_yet):
        wanted = [component for component in absent_yet if _module(component) is module]
        # In the cache's file system, so that a finished binary appears at once.
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="upstream-") as folder:
            command = ["go", "build", "-p", "2", "-trimpath", f"-ldflags={module.link}", f"-tags={module.tags}"]
            command += ["-o", f"{folder}/"]
            command += [f"./{component}" for component in wanted]
            environment = {**os.environ, "CGO_ENABLED": "0"}
            subprocess.run(command, cwd=module.folder, env=environment, check=True, stdin=subprocess.DEVNULL)
            for component in wanted:
                Path(folder, component).replace(_path(component))


def token_kubeconfig(administrator: Path, path: Path, token: str) -> Path:
    """Write a kubeconfig for the cluster of another one, with a bearer token in place of its user."""
    config = yaml.safe_load(administrator.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


class Component:
    """One component as a child process that logs to a file; started on entering the block, stopped at the end."""

    def __init__(self, name: str, folder: Path, *flags: str, env: Mapping[str, str] | None = None):
        self.name = name
        self._command = [str(binary(name)), *flags]
        self._env = {**os.environ, "HOME": str(folder), **(env or {})}
        self._log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """All it has said so far."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Component:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        guarded(self.process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """AssertionError with the end of its log if it has ended by itself."""
        assert self.process is not None
        status = self.process.poll()
        assert status is None, f"{self.name} ended with {status}:\n{self.log[-4000:]}"

    def stop(self, timeout: float = 15) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


if __name__ == "__main__":
    build(tuple(sys.argv[1:]) or COMPONENTS)
