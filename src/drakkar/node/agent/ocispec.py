"""The OCI runtime spec of a container: pure, from the plan to the content of ``config.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drakkar.api.claimcosts import claim_costs, summed
from drakkar.api.meta import Object
from drakkar.api.quantity import Quantity
from drakkar.api.tree import at, child, texts
from drakkar.node.agent.env import expand
from drakkar.node.agent.runtime import USUAL_PATH, BindMount, ContainerProblem, Plan, pod_of

OciSpec = dict[str, Any]

#: What containers may do unless their pod says otherwise. No CAP_MKNOD: the device filter alone decides.
_CAPABILITIES = (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID "
    "SYS_CHROOT"
)
_MORE_CAPABILITIES = (
    "AUDIT_CONTROL AUDIT_READ BLOCK_SUSPEND BPF CHECKPOINT_RESTORE DAC_READ_SEARCH IPC_LOCK IPC_OWNER LEASE "
    "LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BROADCAST PERFMON SYSLOG SYS_ADMIN SYS_BOOT SYS_MODULE "
    "SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM"
)
_MASKED = (
    "/proc/asound /proc/acpi /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list /proc/timer_stats "
    "/proc/sched_debug /proc/scsi /sys/firmware"
)
_READ_ONLY = "/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger"
_CPU_PERIOD = 100_000
_ZERO = Quantity.from_int(0)
_PIDS = 4096


@dataclass(frozen=True, slots=True)
class User:
    """Who a container's program runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def build(plan: Plan, user: User, files: Sequence[BindMount], *, pause: list[str]) -> OciSpec:
    """The spec; ``files`` are files that the agent has made.

    Raises ContainerProblem.
    """
    pod, container = plan.pod, plan.container
    privileged = bool(at(container, "securityContext", "privileged"))
    host_network = plan.network is None
    mounts = _standard_mounts(host_network=host_network)
    mounts += [_bind(mount) for mount in (*files, *plan.mounts)]
    # Parents first: a mount on a folder hides what was mounted within it before.
    mounts.sort(key=lambda mount: mount["destination"].rstrip("/").count("/"))
    linux: OciSpec = {
        "namespaces": _namespaces(plan),
        "cgroupsPath": f"/{control_group(plan.identity)}",
        "resources": _resources(pod, container, privileged=privileged),
        "rootfsPropagation": "rslave" if any(m.propagation != "rprivate" for m in plan.mounts) else "rprivate",
    }
    if not privileged:
        linux |= {"maskedPaths": _MASKED.split(), "readonlyPaths": _READ_ONLY.split()}
    spec: OciSpec = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": bool(container.get("tty")),
            "user": {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups)},
            "args": _arguments(plan, pause),
            "env": _env(plan, tty=bool(container.get("tty"))),
            "cwd": container.get("workingDir") or plan.image.cwd or "/",
            "capabilities": _capabilities(container, privileged=privileged),
            "noNewPrivileges": at(container, "securityContext", "allowPrivilegeEscalation") is False,
        },
        "root": {
            "path": str(plan.folder / "rootfs"),
            "readonly": bool(at(container, "securityContext", "readOnlyRootFilesystem")),
        },
        "mounts": mounts,
        "linux": linux,
    }
    if not (host_network and at(pod, "spec", "hostNetwork")):
        spec["hostname"] = plan.hostname
    return spec


def control_group(identity: str) -> str:
    """An attempt's control group, from the top of a hierarchy; those of a pod lie in one."""
    return f"drakkar/{pod_of(identity)}/{identity}"


def _namespaces(plan: Plan) -> list[OciSpec]:
    spec = child(plan.pod, "spec")
    found: list[OciSpec] = [{"type": "mount"}, {"type": "uts"}]
    if not spec.get("hostPID"):
        found.append({"type": "pid"})
    if not spec.get("hostIPC"):
        found.append({"type": "ipc"})
    if plan.network is not None:
        found.append({"type": "network", "path": str(plan.network)})
    return found


def _standard_mounts(*, host_network: bool) -> list[OciSpec]:
    sys = ["nosuid", "noexec", "nodev", "ro"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]},
        # A new view of devices belongs to a new network; without one the machine's is shown.
        {"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", *sys]}
        if host_network
        else {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": sys},
    ]


def _bind(mount: BindMount) -> OciSpec:
    options = ["rbind", mount.propagation, "ro" if mount.read_only else "rw"]
    return {"destination": mount.destination, "type": "bind", "source": str(mount.source), "options": options}


def _arguments(plan: Plan, pause: list[str]) -> list[str]:
    command, arguments = texts(plan.container, "command"), texts(plan.container, "args")
    if plan.image.pause and not command:
        return pause
    command = expand(command, plan.env) or list(plan.image.entrypoint)
    if not texts(plan.container, "command") and not arguments:
        arguments = list(plan.image.command)
    else:
        arguments = expand(arguments, plan.env)
    if not command and not arguments:
        raise ContainerProblem(
            "CreateContainerConfigError",
            f"container {plan.container['name']} names no command, and image {plan.image.name} has none",
        )
    return [*command, *arguments]


def _env(plan: Plan, *, tty: bool) -> list[str]:
    env = {"PATH": USUAL_PATH, **({"TERM": "xterm"} if tty else {}), **plan.env}
    return [f"{name}={value}" for name, value in env.items()]


def _capabilities(container: Object, *, privileged: bool) -> OciSpec:
    usual = _CAPABILITIES.split()
    if privileged:
        names = {*usual, *_MORE_CAPABILITIES.split()}
    else:
        names = set(usual)
        added = texts(container, "securityContext", "capabilities", "add")
        dropped = texts(container, "securityContext", "capabilities", "drop")
        if "ALL" in added:
            names |= set(_MORE_CAPABILITIES.split())
        if "ALL" in dropped:
            names = set()
        names |= {name for name in added if name != "ALL"}
        names -= set(dropped)
    held = sorted(f"CAP_{name.removeprefix('CAP_')}" for name in names)
    return {kind: held for kind in ("bounding", "effective", "permitted")}


def _resources(pod: Object, container: Object, *, privileged: bool) -> OciSpec:
    everything = {"allow": True, "access": "rwm"}
    resources: OciSpec = {"devices": [everything if privileged else {"allow": False, "access": "rwm"}]}
    limits = child(container, "resources", "limits")
    requests = child(container, "resources", "requests")
    # What its devices bring of the node's own resources comes on top of its limits (KEP-5517).
    brought = summed(cost.of_container(container["name"]) for cost in claim_costs(pod))
    cpu: OciSpec = {}
    if limits.get("cpu"):
        limit = Quantity.parse(str(limits["cpu"])) + brought.get("cpu", _ZERO)
        cpu |= {"period": _CPU_PERIOD, "quota": limit.to_milli() * _CPU_PERIOD // 1000}
    asked = requests.get("cpu") or limits.get("cpu")
    cpu["shares"] = max(2, Quantity.parse(str(asked)).to_milli() * 1024 // 1000) if asked else 2
    resources["cpu"] = cpu
    if limits.get("memory"):
        memory = Quantity.parse(str(limits["memory"])) + brought.get("memory", _ZERO)
        resources["memory"] = {"limit": memory.to_int()}
    resources["pids"] = {"limit": _PIDS}
    return resources


def user_of(plan: Plan) -> User:
    """Who the program runs as: what the container says, then the pod, then the image. Raises ContainerProblem."""
    context, own = child(plan.pod, "spec", "securityContext"), child(plan.container, "securityContext")
    uid, gid = own.get("runAsUser", context.get("runAsUser")), own.get("runAsGroup", context.get("runAsGroup"))
    image_uid, image_gid = _image_user(plan)
    if uid is None:
        uid = image_uid
        gid = image_gid if gid is None else gid
    if own.get("runAsNonRoot", context.get("runAsNonRoot")) and uid == 0:
        raise ContainerProblem(
            "CreateContainerConfigError",
            f"container {plan.container['name']} has runAsNonRoot and would run as root; set runAsUser",
        )
    groups = [*context.get("supplementalGroups", [])]
    if context.get("fsGroup") is not None:
        groups.append(context["fsGroup"])
    return User(uid, gid or 0, tuple(groups))


def _image_user(plan: Plan) -> tuple[int, int]:
    user, _, group = plan.image.user.partition(":")
    uid, gid = _lookup(plan, "passwd", user), None
    if group:
        gid = _lookup(plan, "group", group)[0]
    return uid[0], uid[1] if gid is None else gid


def _lookup(plan: Plan, file: str, name: str) -> tuple[int, int]:
    """Ids out of the image's ``/etc/passwd`` or ``/etc/group``; numbers are taken as they are."""
    if not name:
        return 0, 0
    path = plan.image.root / "etc" / file if plan.image.root is not None else Path("/nonexistent")
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields = line.split(":")
        if len(fields) > 3 and name in (fields[0], fields[2]) and fields[2].isdigit():
            return int(fields[2]), int(fields[3]) if fields[3].isdigit() else 0
    if name.isdigit():
        return int(name), 0
    raise ContainerProblem("CreateContainerConfigError", f"image {plan.image.name} has no user or group {name}")
