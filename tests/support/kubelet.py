"""A machine for a real kubelet: containerd, the kubelet and an image, with nothing of them left behind.

Everything runs in one mount namespace (mounts end with its last process) and in cgroups of one name (whatever is in
them is killed at the end). System settings that a kubelet writes, ``/dev`` and ``/var/log`` are covered by files of the
test, so that the machine itself stays as it is. Needs root; ``./do kubelet`` builds what is missing and says why it
cannot run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from drakkar.apiserver.tls import open_pki, write_private
from drakkar.node.imagewriter import Command, write_image
from tests.support.etcd import free_ports
from tests.support.guard import guarded
from tests.support.kubecluster import KubeCluster
from tests.support.upstream import CONTAINERD, Component, binary, build, is_built

#: The name of the Node; kube-apiserver reaches the kubelet by it.
NODE = "localhost"
#: The image of all pods, a static busybox.
IMAGE = "drakkar.test/box:1"
#: What a node takes, containerd included.
NEEDED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", *CONTAINERD)

#: Programs of the system, and the Debian packages that have them.
_PROGRAMS = {"runc": "runc", "busybox": "busybox-static", "unshare": "util-linux", "nsenter": "util-linux"}
#: Settings of the whole machine that a kubelet changes at its start.
_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_PREFIX = "drakkar-kubelet-"
#: Exit status of this program where a kubelet cannot run.
NOT_RUN = 77
_FOREVER = "2147483647"

#: Run in the new namespace: $1 the folder of the covers, the rest names below /proc/sys.
_COVER = f"""
set -e
folder=$1; shift
for name; do
    file="$folder/$(echo "$name" | tr / _)"
    cat "/proc/sys/$name" > "$file"
    mount --bind "$file" "/proc/sys/$name"
done
mkdir "$folder/dev" "$folder/log"
mount -t tmpfs -o mode=755 dev "$folder/dev"
cp -ax /dev/. "$folder/dev/"
for name in pts shm; do mount --rbind "/dev/$name" "$folder/dev/$name"; done
mount --move "$folder/dev" /dev
mount --bind "$folder/log" /var/log
mount --make-rshared /
touch "$folder/ready"
exec sleep {_FOREVER}
"""


def obstacle() -> str | None:
    """Why this machine cannot run a kubelet; None: it can."""
    if sys.platform != "linux":
        return "a kubelet needs Linux"
    if os.geteuid() != 0:
        return "a kubelet needs root"
    absent = {program: package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    if not os.environ.get("DRAKKAR_ETCD") and shutil.which("etcd") is None:
        absent["etcd"] = "etcd-server"
    if not all(map(is_built, NEEDED)) and shutil.which("go") is None:
        absent["go"] = "golang-go"
    if absent:
        return f"{', '.join(absent)} not found (Debian: {' '.join(dict.fromkeys(absent.values()))})"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(_busybox(), f"{folder}/busybox")
        for why, command in (
            ("busybox is not a static program (Debian: busybox-static)", ["chroot", folder, "/busybox", "true"]),
            ("no mounts in a namespace of our own", ["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder]),
        ):
            trial = subprocess.run(command, check=False, capture_output=True, text=True)
            if trial.returncode != 0:
                return f"{why}: {trial.stderr.strip()}"
    try:
        with Cgroups(f"{_PREFIX}{os.getpid()}"):
            return None
    except OSError as error:
        return f"no cgroups of our own: {error}"


def _busybox() -> str:
    found = shutil.which("busybox")
    assert found is not None
    return found


class Cgroups:
    """A cgroup of this name in every hierarchy; at the end of the block all that is in them is killed and removed."""

    def __init__(self, name: str):
        self.name = name
        self._folders = [place / name for place in _hierarchies()]
        if not self._folders:
            raise FileNotFoundError("none are mounted")

    @property
    def members(self) -> Path:
        """The file to which a process writes its number in order to belong; all its children do then."""
        # In a hierarchy where being a member limits nothing.
        place = next((f for f in self._folders if not (f / "cpuset.cpus").exists()), self._folders[0])
        return place / "system" / "cgroup.procs"

    def __enter__(self) -> Self:
        try:
            self._make()
        except OSError:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _make(self) -> None:
        for folder in self._folders:
            _enable(folder.parent)
            folder.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                # Version 1 begins with none at all.
                if (folder / setting).exists() and not (folder / "cgroup.controllers").exists():
                    (folder / setting).write_text((folder.parent / setting).read_text())
        self.members.parent.mkdir(exist_ok=True)

    def processes(self) -> set[int]:
        """Whoever is in them now."""
        found: set[int] = set()
        for folder in self._folders:
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found |= {int(word) for word in file.read_text().split()}
        return found - {0}

    def kill(self, timeout: float = 20, but: int = 0) -> None:
        """Kill everything that is in them, but for one process. AssertionError with what does not end."""
        deadline = time.monotonic() + timeout
        while left := self.processes() - {but}:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            assert time.monotonic() < deadline, f"cgroup {self.name}: processes {left} do not end"
            time.sleep(0.05)

    def remove(self, timeout: float = 20) -> None:
        """Kill everything that is in them, and remove them. AssertionError with what is left."""
        self.kill(timeout)
        deadline = time.monotonic() + timeout
        while folders := [folder for folder in self._folders if folder.exists()]:
            for folder in folders:
                for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                    with contextlib.suppress(OSError):
                        path.rmdir()
                with contextlib.suppress(OSError):
                    folder.rmdir()
            assert time.monotonic() < deadline, f"cgroups {folders} cannot be removed"
            time.sleep(0.05)


def _hierarchies() -> list[Path]:
    """Where cgroups are mounted: one place with version 2, one for each controller with version 1."""
    found = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(place.split()[4]) for place, kind in found if kind.split()[0] in ("cgroup", "cgroup2")]


def _enable(folder: Path) -> None:
    """Version 2: children of this cgroup may have limits of every sort."""
    controllers = folder / "cgroup.controllers"
    for name in controllers.read_text().split() if controllers.exists() else ():
        (folder / "cgroup.subtree_control").write_text(f"+{name}")


def sweep() -> None:
    """End what a test left behind whose own process was killed."""
    names = {path.name for place in _hierarchies() for path in place.glob(f"{_PREFIX}*")}
    for name in names:
        owner = name.removeprefix(_PREFIX)
        if not Path("/proc", owner).exists():
            Cgroups(name).remove()


class _Inside(Component):
    """A component in the namespace and the cgroups of a node."""

    def __init__(self, node: Node, name: str, *flags: str):
        super().__init__(name, node.folder, *flags)
        self._command = [*node.inside, *self._command]


class Node:
    """One node with containerd and a kubelet; :func:`node` makes one."""

    def __init__(self, root: Path, cluster: KubeCluster, gates: Mapping[str, bool], cgroups: Cgroups, holder: int):
        #: Where kubelet and drivers meet: ``plugins``, ``plugins_registry``.
        self.kubelet_root = root / "kubelet"
        #: Where containerd looks for CDI files.
        self.cdi = root / "cdi"
        #: Logs of containerd and the kubelet, and their configuration.
        self.folder = root / "node"
        #: What puts a command into the node's namespace and cgroups.
        self.inside = [
            *("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroups.members)),
            *("nsenter", "--target", str(holder), "--mount", "--"),
        ]
        self._root = root
        self._cgroups = cgroups
        self._holder = holder
        for folder in (self.kubelet_root, self.cdi, self.folder):
            folder.mkdir()
        self.socket = root / "containerd.sock"
        self.containerd = _Inside(self, "containerd", "--config", str(self._containerd_configuration()))
        self.kubelet = _Inside(
            self,
            "kubelet",
            f"--config={self._kubelet_configuration(cluster, gates, cgroups.name)}",
            f"--kubeconfig={cluster.kubeconfig(f'system:node:{NODE}', 'system:nodes')}",
            f"--hostname-override={NODE}",
            f"--root-dir={self.kubelet_root}",
            f"--cert-dir={self.folder / 'pki'}",
        )

    def import_image(self, folder: Path) -> None:
        """Make the image of all pods and give it to containerd."""
        root, layout, archive = folder / "root", folder / "layout", folder / "image.tar"
        (root / "bin").mkdir(parents=True)
        for name in ("proc", "sys", "dev", "etc", "tmp"):
            (root / name).mkdir()
        shutil.copy(_busybox(), root / "bin" / "busybox")
        names = subprocess.run([_busybox(), "--list"], check=True, capture_output=True, text=True).stdout.split()
        for name in names:
            if name != "busybox":
                (root / "bin" / name).symlink_to("busybox")
        base, _, tag = IMAGE.rpartition(":")
        # As the image of a pod's sandbox it has to wait.
        write_image(layout, root, [], Command(("/bin/sleep", _FOREVER)), name=tag, epoch=0)
        with tarfile.open(archive, "w") as tar:
            tar.add(layout, ".")
        self.ctr("images", "import", "--base-name", base, str(archive))

    def run(self, *command: str) -> str:
        """Run a command on the node; its output."""
        done = subprocess.run([*self.inside, *command], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ctr(self, *words: str) -> str:
        """Ask containerd; its answer."""
        return self.run(str(binary("ctr")), "--address", str(self.socket), "--namespace", "k8s.io", *words)

    def make_device(self, path: str, major: int, minor: int) -> None:
        """A character device that only this node has; one that is there already stays."""
        script = 'mkdir -p "$(dirname "$0")"; [ -e "$0" ] || mknod "$0" c "$1" "$2"'
        self.run("sh", "-c", script, path, str(major), str(minor))

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start it again; what runs in containers goes on."""
        self.kubelet.stop()
        self.kubelet.__enter__()

    def reboot(self) -> None:
        """What a power cut leaves: disks as they were, no process, nothing in what memory held (CDI files among it)."""
        self.kubelet.stop()
        self.containerd.stop()
        self._cgroups.kill(but=self._holder)
        containerd = self._root / "containerd"
        unmount = 'for place in $(cut -d" " -f2 /proc/mounts | grep "^$0/" | sort -r); do umount -l "$place"; done'
        for folder in (self.cdi, containerd / "state", containerd / "runc", containerd / "shims"):
            self.run("sh", "-c", unmount, str(folder))
            shutil.rmtree(folder, ignore_errors=True)
        self.socket.unlink(missing_ok=True)
        self.cdi.mkdir()
        self.start()

    def start(self) -> None:
        """Start containerd, see to the image, and start the kubelet."""
        self.containerd.__enter__()
        _until(self.socket.exists, self.containerd)
        if IMAGE not in self.ctr("images", "list", "--quiet"):
            self.import_image(self._root / "image")
        self.kubelet.__enter__()

    def stop(self) -> None:
        """Stop both, as far as they run."""
        for component in (self.kubelet, self.containerd):
            if component.process is not None:
                component.stop()

    def prepared(self) -> list[str]:
        """Names of the claims that the kubelet has on record as in use (its checkpoint, spec/kubelet-protocol.md 5)."""
        record = json.loads((self.kubelet_root / "dra_manager_state").read_text())
        return [entry["ClaimName"] for entry in json.loads(record["Data"])["ClaimInfoStateList"] or ()]

    def _containerd_configuration(self) -> Path:
        """containerd as it is by default, with everything in our folder."""
        folder = self._root / "containerd"
        # All pods are in the host's network; a node is ready only when there could be others.
        (folder / "cni").mkdir(parents=True)
        network = {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "none"}]}
        (folder / "cni" / "none.conflist").write_text(json.dumps(network))
        # The shim is found by the PATH, by the name it is released under.
        programs = folder / "bin"
        programs.mkdir()
        (programs / "containerd-shim-runc-v2").symlink_to(binary("containerd-shim-runc-v2"))
        configuration = {
            "version": 3,
            "root": str(folder / "root"),
            "state": str(folder / "state"),
            "grpc": {"address": str(self.socket)},
            "ttrpc": {"address": f"{self.socket}.ttrpc"},
            "disabled_plugins": [
                "io.containerd.internal.v1.opt",
                "io.containerd.nri.v1.nri",
                "io.containerd.internal.v1.tracing",
            ],
            "plugins": {
                "io.containerd.cri.v1.images": {"snapshotter": "native", "pinned_images": {"sandbox": IMAGE}},
                "io.containerd.cri.v1.runtime": {
                    "cdi_spec_dirs": [str(self.cdi)],
                    "netns_mounts_under_state_dir": True,
                    # Root of a virtual machine or container may be without the capability to go below its own score.
                    "restrict_oom_score_adj": True,
                    "cni": {"bin_dirs": [str(folder / "cni")], "conf_dir": str(folder / "cni")},
                    "containerd": {
                        "runtimes": {
                            "runc": {
                                "runtime_type": "io.containerd.runc.v2",
                                "runtime_path": str(programs / "containerd-shim-runc-v2"),
                                "snapshotter": "native",
                                "options": {"Root": str(folder / "runc"), "SystemdCgroup": False},
                            }
                        }
                    },
                },
                "io.containerd.shim.v1.manager": {"socket_dir": str(folder / "shims")},
            },
        }
        path = self.folder / "containerd.toml"
        path.write_text(_toml(configuration))
        return path

    def _kubelet_configuration(self, cluster: KubeCluster, gates: Mapping[str, bool], cgroup: str) -> Path:
        port, healthz = free_ports(2)
        configuration: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "readOnlyPort": 0,
            "healthzPort": healthz,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(cluster.pki / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "featureGates": dict(gates),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            # The disk belongs to the whole machine: the kubelet must neither clean it up nor evict for its sake.
            "localStorageCapacityIsolation": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self._root / "logs"),
            "volumePluginDir": str(self._root / "volumeplugins"),
            # A claim that failed is tried again sooner than in a minute.
            "syncFrequency": "5s",
        }
        path = self.folder / "kubelet.json"
        path.write_text(json.dumps(configuration))
        return path


def _toml(table: Mapping[str, Any], name: str = "") -> str:
    """A table of strings, numbers, lists and tables; JSON's spelling of values is TOML's too."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]"] if name else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    parts = ["\n".join(lines)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            quoted = f"{name}.{json.dumps(key)}" if name else json.dumps(key)
            parts.append(_toml(value, quoted))
    return "\n".join(parts)


def kubelet_client(folder: Path) -> list[str]:
    """Flags for the kube-apiserver of this folder, with which it reaches the kubelet for logs and exec."""
    certificate, key = open_pki(folder / "pki").client("kube-apiserver-kubelet-client", ["system:masters"])
    write_private(folder / "pki" / "kubelet-client.crt", certificate)
    write_private(folder / "pki" / "kubelet-client.key", key)
    return [
        f"--kubelet-client-certificate={folder / 'pki' / 'kubelet-client.crt'}",
        f"--kubelet-client-key={folder / 'pki' / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=Hostname",
    ]


@contextmanager
def node(root: Path, cluster: KubeCluster, gates: Mapping[str, bool] | None = None) -> Iterator[Node]:
    """A node of this cluster, its kubelet running; `root` is a folder with a short path, since sockets lie in it."""
    with ExitStack() as stack:
        sweep()
        cgroups = stack.enter_context(Cgroups(f"{_PREFIX}{os.getpid()}"))
        holder = stack.enter_context(_namespace(root / "covers", cgroups))
        made = Node(root, cluster, gates or {}, cgroups, holder)
        stack.callback(made.stop)
        made.start()
        yield made


@contextmanager
def _namespace(covers: Path, cgroups: Cgroups) -> Iterator[int]:
    """A process that holds a mount namespace open, in which the machine's own places are covered."""
    covers.mkdir()
    join = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroups.members)]
    command = [*join, "unshare", "--mount", "--propagation=private", "sh", "-c", _COVER, "sh", str(covers), *_SETTINGS]
    with (covers.parent / "namespace.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    guarded(process.pid)
    try:
        deadline = time.monotonic() + 20
        while not (covers / "ready").exists():
            said = (covers.parent / "namespace.log").read_text()
            alive = process.poll() is None and time.monotonic() < deadline
            assert alive, f"no namespace: {said}"
            time.sleep(0.02)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _until(holds: Callable[[], bool], component: Component, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        component.check()
        assert time.monotonic() < deadline, f"{component.name} is not ready:\n{component.log[-4000:]}"
        time.sleep(0.05)


def versions() -> str:
    """What a test ran with: programs and their versions."""
    lines = {"kubelet": "--version", "containerd": "--version", "runc": "--version"}
    said: list[str] = []
    for name, flag in lines.items():
        program = name if name == "runc" else str(binary(name))
        text = subprocess.run([program, flag], check=True, capture_output=True, text=True).stdout
        found = re.search(r"\d+\.\d+\.\d+", text)
        said.append(f"{name} {found.group() if found else text.strip()}")
    return ", ".join(said)


if __name__ == "__main__":
    reason = obstacle()
    if reason is not None:
        print(f"not run: {reason}")
        sys.exit(NOT_RUN)
    build(NEEDED)
    print(versions())
