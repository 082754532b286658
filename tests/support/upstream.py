"""Upstream's own components (``k8s.io/kubernetes``) as peers, built once by the Go tool from ``tests/upstream``.

:mod:`tests.support.releases` says of which release. ``./do upstream`` builds them (minutes, and gigabytes of Go's
caches) and runs the tests against them. What a kubelet needs besides, containerd, comes from
``tests/upstream-containerd`` and is built by ``./do kubelet``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

import yaml

from drakkar.version import KUBERNETES_VERSION
from tests.support import releases
from tests.support.guard import guarded
from tests.support.kubectl import absent, cache_folder
from tests.support.shared import ROOT


def _link(version: str) -> str:
    """The Go module carries no version of the release in its binaries; clients of kube-apiserver look at it."""
    major, minor, _ = version.split(".")
    told = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in told.items())


@dataclass(frozen=True)
class _Module:
    """A Go module of ours: every folder with a main program is a component; flags of the linker, tags of the build.

    With ``version`` the programs are built from that version of Kubernetes instead of what go.mod says.
    """

    folder: Path
    link: str
    tags: str = ""
    version: str = ""

    @property
    def components(self) -> tuple[str, ...]:
        if self.version:
            return releases.CONTROL_PLANE
        return tuple(sorted(path.parent.name for path in self.folder.glob("*/main.go")))

    def cache(self) -> Path:
        """Where its binaries are kept."""
        return cache_folder() / f"kubernetes-{self.version}" if self.version else cache_folder()

    def path(self, component: str) -> Path:
        """Where the binary of a component is kept for the sources as they are."""
        fixed = [] if self.version else [self.folder / "go.mod", self.folder / "go.sum"]
        sources = [*fixed, self.folder / component / "main.go"]
        content = b"".join(path.read_bytes() for path in sources) + (self.link + self.tags).encode()
        return self.cache() / f"{component}-{hashlib.sha256(content).hexdigest()[:16]}"

    def build(self, components: Sequence[str]) -> None:
        """Build these and put them into the cache."""
        self.cache().mkdir(parents=True, exist_ok=True)
        # In the cache's file system, so that a finished binary appears at once.
        with tempfile.TemporaryDirectory(dir=self.cache(), prefix="upstream-") as folder:
            source = self._derived(Path(folder), components) if self.version else self.folder
            command = ["go", "build", "-p", "2", "-trimpath", f"-ldflags={self.link}", f"-tags={self.tags}"]
            command += ["-mod=mod"] if self.version else []
            command += ["-o", f"{folder}/made/", *(f"./{component}" for component in components)]
            environment = {**os.environ, "CGO_ENABLED": "0"}
            subprocess.run(command, cwd=source, env=environment, check=True, stdin=subprocess.DEVNULL)
            for component in components:
                Path(folder, "made", component).replace(self.path(component))

    def _derived(self, folder: Path, components: Sequence[str]) -> Path:
        """The module with the programs as they are and the dependencies of the version."""
        source = folder / "source"
        for component in components:
            shutil.copytree(self.folder / component, source / component)
        (source / "go.mod").write_text(releases.go_mod(self.version))
        return source


_OLDER = releases.older()
_KUBERNETES = _Module(ROOT / "tests" / "upstream", _link(_OLDER or KUBERNETES_VERSION), version=_OLDER)
#: A module of its own, because it wants other versions of what both need; without btrfs no C compiler is needed.
_CONTAINERD = _Module(ROOT / "tests" / "upstream-containerd", "-s -w", "no_btrfs")

#: What a build makes.
COMPONENTS = _KUBERNETES.components
#: containerd, its shim, and its client.
CONTAINERD = _CONTAINERD.components


def _module(component: str) -> _Module:
    return _CONTAINERD if component in CONTAINERD else _KUBERNETES


def binary(component: str) -> Path:
    """Path of a component; skips where it is not built, fails where CI=true."""
    module = _module(component)
    path = module.path(component)
    chore = "kubelet" if component in CONTAINERD else "upstream"
    if module.version:
        chore = f"upstream --kubernetes {module.version.rpartition('.')[0]}"
    return path if path.exists() else absent(f"{component} is not built; ./do {chore} builds it (minutes, needs Go)")


def is_built(component: str) -> bool:
    """Whether the cache has it for the sources as they are."""
    return _module(component).path(component).exists()


def build(components: tuple[str, ...] = COMPONENTS) -> None:
    """Build what is not in the cache yet; CalledProcessError where Go refuses, SystemExit where it is absent."""
    absent_yet = [component for component in components if not is_built(component)]
    if not absent_yet:
        return
    if shutil.which("go") is None:
        raise SystemExit(f"{', '.join(absent_yet)} not built yet and there is no go on the PATH to build with")
    print(f"building {', '.join(absent_yet)} ...", file=sys.stderr, flush=True)
    for module in dict.fromkeys(_module(component) for component in absent_yet):
        module.build([component for component in absent_yet if _module(component) is module])


@cache
def gates_of(component: str) -> Mapping[str, bool]:
    """The feature gates that a component names in its help, with their defaults: those that are alpha or beta in it.

    A component refuses to start with a gate that it does not know.
    """
    told = subprocess.run([binary(component), "--help"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(\w+)=true\|false \((?:ALPHA|BETA) - default=(true|false)\)", told)
    # One whose default hangs on the version to be compatible with is there twice; the first is for no such flag.
    return {name: default == "true" for name, default in reversed(found)}


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
