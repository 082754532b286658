"""CDI specs as values: their form, the names in them, and the lowest version that can say what they say.

A spec is written with the lowest version that fits, because a runtime refuses files that are newer than itself.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_NODE_TYPES = ("", "b", "c", "u", "p")


class CdiError(ValueError):
    """A spec, a device id or an edit that cannot be used; the message names the place and what would be right."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Unknown fields are refused: an edit that we would silently leave out is a device that half works."""


class DeviceNode(_Part, frozen=True):
    """A device node; what is absent is taken from the node of the host."""

    path: str
    hostPath: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    fileMode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Part, frozen=True):
    hostPath: str
    containerPath: str
    options: list[str] = []
    type: str = ""


class Hook(_Part, frozen=True):
    hookName: str
    path: str
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None


class IntelRdt(_Part, frozen=True):
    closID: str = ""
    l3CacheSchema: str = ""
    memBwSchema: str = ""
    enableCMT: bool = False
    enableMBM: bool = False


class ContainerEdits(_Part, frozen=True):
    """What is done to a container that gets the device."""

    env: list[str] = []
    deviceNodes: list[DeviceNode] = []
    hooks: list[Hook] = []
    mounts: list[Mount] = []
    intelRdt: IntelRdt | None = None
    additionalGids: list[int] = []

    def __bool__(self) -> bool:
        return self != ContainerEdits()


class CdiDevice(_Part, frozen=True):
    name: str
    containerEdits: ContainerEdits
    annotations: dict[str, str] = {}


class Spec(_Part, frozen=True):
    """One file: devices of one kind (`vendor/class`); the edits at the top are made once for any of them."""

    cdiVersion: str
    kind: str
    devices: list[CdiDevice]
    containerEdits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = {}

    @property
    def vendor(self) -> str:
        return self.kind.partition("/")[0]

    @property
    def class_(self) -> str:
        return self.kind.partition("/")[2]

    def edits(self) -> Iterator[ContainerEdits]:
        """Every set of edits, that of the whole file first."""
        yield self.containerEdits
        for device in self.devices:
            yield device.containerEdits


def build(
    kind: str,
    devices: Iterable[CdiDevice],
    *,
    edits: ContainerEdits | None = None,
    annotations: dict[str, str] | None = None,
) -> Spec:
    """A valid spec of the lowest version that can say this. Raises CdiError with everything that is wrong."""
    spec = Spec(
        cdiVersion=VERSIONS[-1],
        kind=kind,
        devices=list(devices),
        containerEdits=edits or ContainerEdits(),
        annotations=annotations or {},
    )
    spec = msgspec.structs.replace(spec, cdiVersion=required_version(spec))
    _refuse(spec)
    return spec


def decode(data: object) -> Spec:
    """A spec from parsed JSON or YAML. Raises CdiError for a wrong form and for wrong content."""
    try:
        spec = msgspec.convert(data, Spec)
    except msgspec.ValidationError as error:
        raise CdiError(str(error)) from None
    _refuse(spec)
    return spec


def encode(spec: Spec) -> bytes:
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def required_version(spec: Spec) -> str:
    """The lowest version whose features suffice."""
    needed = 0
    if any(mount.type for edits in spec.edits() for mount in edits.mounts):
        needed = 1
    if any(node.hostPath for edits in spec.edits() for node in edits.deviceNodes) or any(
        device.name[:1].isdigit() for device in spec.devices
    ):
        needed = 2
    if "." in spec.class_ or spec.annotations or any(device.annotations for device in spec.devices):
        needed = 3
    if any(edits.intelRdt is not None or edits.additionalGids for edits in spec.edits()):
        needed = 4
    return VERSIONS[needed]


def device_id(kind: str, name: str) -> str:
    """`vendor/class=name`, as kubelets and runtimes pass it on. Raises CdiError for a name that is none."""
    identifier = f"{kind}={name}"
    parse_device_id(identifier)
    return identifier


def parse_device_id(identifier: str) -> tuple[str, str]:
    """`(kind, device name)`. Raises CdiError."""
    kind, found, name = identifier.partition("=")
    problems = list(_kind_problems(kind))
    if not found or not _DEVICE.fullmatch(name):
        problems.append("the part after '=' must be letters and digits with '_', '-', '.', ':' between")
    if problems:
        raise CdiError(f"{identifier!r} is no CDI device (vendor/class=name): {'; '.join(problems)}")
    return kind, name


def problems(spec: Spec) -> list[str]:
    """Everything that makes the spec unusable, each with its place; empty when it is good."""
    return list(_problems(spec))


def _refuse(spec: Spec) -> None:
    if found := problems(spec):
        raise CdiError("; ".join(found))


def _problems(spec: Spec) -> Iterator[str]:
    if spec.cdiVersion not in VERSIONS:
        yield f"cdiVersion: {spec.cdiVersion!r} is not known, known are {', '.join(VERSIONS)}"
    elif VERSIONS.index(spec.cdiVersion) < VERSIONS.index(required_version(spec)):
        yield f"cdiVersion: {spec.cdiVersion} cannot say what this file says, it takes {required_version(spec)}"
    yield from _kind_problems(spec.kind)
    yield from _annotation_problems("annotations", spec.annotations)
    yield from _edit_problems("containerEdits", spec.containerEdits)
    if not spec.devices:
        yield "devices: at least one is needed"
    names: set[str] = set()
    for index, device in enumerate(spec.devices):
        place = f"devices[{index}]"
        if not _DEVICE.fullmatch(device.name):
            yield f"{place}.name: {device.name!r} must be letters and digits with '_', '-', '.', ':' between"
        if device.name in names:
            yield f"{place}.name: {device.name!r} stands twice in this file"
        names.add(device.name)
        if not device.containerEdits:
            yield f"{place}.containerEdits: must not be empty"
        yield from _annotation_problems(f"{place}.annotations", device.annotations)
        yield from _edit_problems(f"{place}.containerEdits", device.containerEdits)


def _kind_problems(kind: str) -> Iterator[str]:
    vendor, _, class_ = kind.partition("/")
    for what, value in (("vendor", vendor), ("class", class_)):
        if not _VENDOR_OR_CLASS.fullmatch(value):
            yield (
                f"kind: {what} {value!r} must begin with a letter, end with a letter or digit, "
                "and have letters, digits, '_', '-', '.' between"
            )


def _annotation_problems(place: str, annotations: dict[str, str]) -> Iterator[str]:
    if any(not key for key in annotations):
        yield f"{place}: a key must not be empty"
    if sum(len(key) + len(value) for key, value in annotations.items()) > 256 * 1024:
        yield f"{place}: together more than 256 KiB"


def _edit_problems(place: str, edits: ContainerEdits) -> Iterator[str]:
    yield from _env_problems(f"{place}.env", edits.env)
    for index, node in enumerate(edits.deviceNodes):
        here = f"{place}.deviceNodes[{index}]"
        if not node.path.startswith("/"):
            yield f"{here}.path: {node.path!r} must be an absolute path"
        if node.hostPath and not node.hostPath.startswith("/"):
            yield f"{here}.hostPath: {node.hostPath!r} must be an absolute path"
        if node.type not in _NODE_TYPES:
            yield f"{here}.type: {node.type!r} must be b, c, u or p"
        if set(node.permissions) - set("rwm"):
            yield f"{here}.permissions: {node.permissions!r} must be made of r, w and m"
    for index, mount in enumerate(edits.mounts):
        for field in ("hostPath", "containerPath"):
            if not getattr(mount, field):
                yield f"{place}.mounts[{index}].{field}: must not be empty"
    for index, hook in enumerate(edits.hooks):
        here = f"{place}.hooks[{index}]"
        if hook.hookName not in HOOKS:
            yield f"{here}.hookName: {hook.hookName!r} must be one of {', '.join(HOOKS)}"
        if not hook.path:
            yield f"{here}.path: must not be empty"
        yield from _env_problems(f"{here}.env", hook.env)
    if any(gid < 0 for gid in edits.additionalGids):
        yield f"{place}.additionalGids: must not be negative"
    if edits.intelRdt is not None:
        closid = edits.intelRdt.closID
        if len(closid) >= 4096 or closid in (".", "..") or "/" in closid or "\n" in closid:
            yield f"{place}.intelRdt.closID: {closid[:40]!r} is no name of a folder"


def _env_problems(place: str, env: list[str]) -> Iterator[str]:
    for index, entry in enumerate(env):
        if entry.find("=") < 1:
            yield f"{place}[{index}]: {entry!r} must be NAME=VALUE"
