"""Validation of a pod's volumes, and of what its containers mount of them.

Checked are the sources that our node agent serves, besides nfs; the remaining ones, which only
a kubelet interprets, are checked by their schema alone. Some causes name a list where one would
expect an item (``volumeMounts.subPath``): so does kube-apiserver, and clients compare them.

Source: API reference of Volume and VolumeMount; answers of kube-apiserver 1.37.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from drakkar.api import formats
from drakkar.api.core.validation.references import field_ref, resource_ref
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.quantity import Quantity
from drakkar.api.resource.validation import shared
from drakkar.api.tree import child, children, text

#: Highest file mode: octal 0777.
MODE_MAX: Final = 0o777
#: Bounds of a service account token's life, in seconds.
TOKEN_LIFE_MIN: Final = 600
TOKEN_LIFE_MAX: Final = 1 << 32

_HOST_PATH_TYPES: Final = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_CERTIFICATE_FILES: Final = ("credentialBundlePath", "keyPath", "certificateChainPath")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE: Final = ("Disabled", "Enabled", "IfPossible")
#: In which order sources are looked at: all after the first are too many.
_SOURCES: Final = (
    "emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi",
    "glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte", "downwardAPI", "fc",
    "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume", "azureDisk", "storageos",
    "projected", "scaleIO", "csi", "ephemeral", "image",
)  # fmt: skip
#: Fields of a downward API volume's files: what can change while a pod runs, or stays what it is.
_FILE_FIELDS: Final = frozenset(
    ("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid")
)

Volumes = Mapping[str, Object]
"""Name of a volume → the volume, of those without fault."""


def volumes(faults: Faults, path: str, items: list[Object]) -> dict[str, Object]:
    """Faults of a pod's volumes; returns those that may be mounted: volumes with a fault are not there for mounts."""
    sound: dict[str, Object] = {}
    names: set[str] = set()
    for index, item in enumerate(items):
        at_item, name, before = f"{path}[{index}]", text(item, "name"), len(faults.found)
        _source(faults, at_item, item)
        if shared.named(faults, f"{at_item}.name", name, formats.dns_label) and name in names:
            faults.duplicate(f"{at_item}.name", name)
        if len(faults.found) == before:
            names.add(name)
            sound[name] = item
    return sound


def _source(faults: Faults, path: str, volume: Object) -> None:
    given = [field for field, value in volume.items() if field != "name" and value is not None]
    given.sort(key=lambda field: _SOURCES.index(field) if field in _SOURCES else len(_SOURCES))
    if not given:
        faults.required(path, "must specify a volume type")
        return
    for extra in given[1:]:
        faults.forbidden(f"{path}.{extra}", "may not specify more than 1 volume type")
    check = _CHECKS.get(given[0])
    if check is not None:
        check(faults, f"{path}.{given[0]}", child(volume, given[0]))


def descending_path(faults: Faults, path: str, value: str) -> None:
    """A path must not lead out of the folder it starts in."""
    if value.startswith("/"):
        faults.invalid(path, value, "must be a relative path")
    _no_way_up(faults, path, value)


def _no_way_up(faults: Faults, path: str, value: str) -> None:
    if ".." in value.split("/"):
        faults.invalid(path, value, "must not contain '..'")


def file_path(faults: Faults, path: str, value: str) -> None:
    """Where a file of a volume lies; names that begin with two dots are the node's own."""
    if not value:
        faults.required(path)
        return
    descending_path(faults, path, value)
    if value.startswith("..") and not value.startswith("../"):
        faults.invalid(path, value, "must not start with '..'")


def _mode(faults: Faults, path: str, mode: int | None) -> None:
    if mode is not None and not 0 <= mode <= MODE_MAX:
        faults.invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _key_files(faults: Faults, path: str, source: Object) -> None:
    for index, item in enumerate(children(source, "items")):
        at_item = f"{path}.items[{index}]"
        if not item.get("key"):
            faults.required(f"{at_item}.key")
        file_path(faults, f"{at_item}.path", text(item, "path"))
        _mode(faults, f"{at_item}.mode", item.get("mode"))


def _downward_files(faults: Faults, path: str, source: Object) -> None:
    for item in children(source, "items"):
        file_path(faults, f"{path}.path", text(item, "path"))
        field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
        if field is not None:
            field_ref(faults, f"{path}.fieldRef", field, _FILE_FIELDS)
            if resource is not None:
                faults.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
        elif resource is not None:
            resource_ref(faults, f"{path}.resourceFieldRef", resource, needs_container=True)
        else:
            faults.required(path, "one of fieldRef and resourceFieldRef is required")
        _mode(faults, f"{path}.mode", item.get("mode"))


def _config_map(faults: Faults, path: str, source: Object) -> None:
    if not source.get("name"):
        faults.required(f"{path}.name")
    _mode(faults, f"{path}.defaultMode", source.get("defaultMode"))
    _key_files(faults, path, source)


def _secret(faults: Faults, path: str, source: Object) -> None:
    if not source.get("secretName"):
        faults.required(f"{path}.secretName")
    _mode(faults, f"{path}.defaultMode", source.get("defaultMode"))
    _key_files(faults, path, source)


def _downward_api(faults: Faults, path: str, source: Object) -> None:
    _mode(faults, f"{path}.defaultMode", source.get("defaultMode"))
    _downward_files(faults, path, source)


def _projected(faults: Faults, path: str, source: Object) -> None:
    _mode(faults, f"{path}.defaultMode", source.get("defaultMode"))
    taken: set[str] = set()
    for index, part in enumerate(children(source, "sources")):
        at_part = f"{path}.sources[{index}]"
        given = [field for field, value in part.items() if value is not None]
        if len(given) > 1:
            faults.forbidden(at_part, "may not specify more than 1 volume type per source")
        for field in ("configMap", "secret"):
            if part.get(field) is not None:
                item = child(part, field)
                if not item.get("name"):
                    faults.required(f"{at_part}.{field}.name")
                _key_files(faults, f"{at_part}.{field}", item)
                _apart(faults, path, taken, text(item, "name"), children(item, "items"))
        if part.get("downwardAPI") is not None:
            _downward_files(faults, f"{at_part}.downwardAPI", child(part, "downwardAPI"))
            _apart(faults, path, taken, "", children(part, "downwardAPI", "items"))
        if part.get("clusterTrustBundle") is not None:
            _bundle(faults, f"{at_part}.clusterTrustBundle", child(part, "clusterTrustBundle"))
        if part.get("podCertificate") is not None:
            _certificate(faults, f"{at_part}.podCertificate", child(part, "podCertificate"))
        if part.get("serviceAccountToken") is not None:
            token = child(part, "serviceAccountToken")
            _token(faults, f"{at_part}.serviceAccountToken", token)
            file_path(faults, f"{path}.path", text(token, "path"))


def _apart(faults: Faults, path: str, taken: set[str], name: str, items: list[Object]) -> None:
    """Two parts of a projected volume must not write the same file; upstream leaves tokens out, and so do we."""
    for item in items:
        target = text(item, "path")
        if not target:
            continue
        if target in taken:
            faults.invalid(path, name or target, "conflicting duplicate paths")
        taken.add(target)


def _token(faults: Faults, path: str, token: Object) -> None:
    life = token.get("expirationSeconds")
    if life is None:
        return
    if life < TOKEN_LIFE_MIN:
        faults.invalid(f"{path}.expirationSeconds", life, "may not specify a duration less than 10 minutes")
    elif life > TOKEN_LIFE_MAX:
        faults.invalid(f"{path}.expirationSeconds", life, "may not specify a duration larger than 2^32 seconds")


def _bundle(faults: Faults, path: str, source: Object) -> None:
    if not source.get("name") and not source.get("signerName"):
        faults.required(path, "either name or signerName must be specified")
    file_path(faults, f"{path}.path", text(source, "path"))


def _certificate(faults: Faults, path: str, source: Object) -> None:
    given = [field for field in _CERTIFICATE_FILES if source.get(field)]
    for field in given:
        file_path(faults, f"{path}.{field}", text(source, field))
    if not given:
        faults.required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")


def _host_path(faults: Faults, path: str, source: Object) -> None:
    if not source.get("path"):
        faults.required(f"{path}.path")
        return
    _no_way_up(faults, f"{path}.path", text(source, "path"))
    if text(source, "type") not in _HOST_PATH_TYPES:
        faults.not_supported(f"{path}.type", text(source, "type"), _HOST_PATH_TYPES)


def _empty_dir(faults: Faults, path: str, source: Object) -> None:
    limit = source.get("sizeLimit")
    if limit is None:
        return
    try:
        negative = Quantity.parse(str(limit)).sign() < 0
    except ParseError as error:
        faults.invalid(f"{path}.sizeLimit", limit, str(error))
        return
    if negative:
        faults.forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _claim(faults: Faults, path: str, source: Object) -> None:
    if not source.get("claimName"):
        faults.required(f"{path}.claimName")


def _csi(faults: Faults, path: str, source: Object) -> None:
    shared.named(faults, f"{path}.driver", text(source, "driver"), formats.dns_subdomain)


def _nfs(faults: Faults, path: str, source: Object) -> None:
    for field in ("server", "path"):
        if not source.get(field):
            faults.required(f"{path}.{field}")
    if not text(source, "path").startswith("/"):
        faults.invalid(f"{path}.path", text(source, "path"), "must be an absolute path")


def _ephemeral(faults: Faults, path: str, source: Object) -> None:
    if source.get("volumeClaimTemplate") is None:
        faults.required(f"{path}.volumeClaimTemplate")


def _image(faults: Faults, path: str, source: Object) -> None:
    if not source.get("reference"):
        faults.required(f"{path}.reference")
    policy = text(source, "pullPolicy")
    if policy and policy not in PULL_POLICIES:
        faults.not_supported(f"{path}.pullPolicy", policy, PULL_POLICIES)


_CHECKS: Final[Mapping[str, Callable[[Faults, str, Object], None]]] = {
    "configMap": _config_map,
    "csi": _csi,
    "downwardAPI": _downward_api,
    "emptyDir": _empty_dir,
    "ephemeral": _ephemeral,
    "hostPath": _host_path,
    "image": _image,
    "nfs": _nfs,
    "persistentVolumeClaim": _claim,
    "projected": _projected,
    "secret": _secret,
}


# What containers do with them.


def mounts(faults: Faults, path: str, container: Object, known: Volumes) -> None:
    """Faults of a container's ``volumeMounts`` and ``volumeDevices``."""
    mounted, devices = children(container, "volumeMounts"), children(container, "volumeDevices")
    targets: set[str] = set()
    for index, mount in enumerate(mounted):
        at_item, target = f"{path}.volumeMounts[{index}]", text(mount, "mountPath")
        _volume_name(faults, f"{at_item}.name", text(mount, "name"), known)
        if not target:
            faults.required(f"{at_item}.mountPath")
        if target in targets:
            faults.invalid(f"{at_item}.mountPath", target, "must be unique")
        targets.add(target)
        _not_both(faults, at_item, mount, "mountPath", "volumeDevices", "devicePath", devices)
        _sub_path(faults, f"{path}.volumeMounts", at_item, mount)
        _propagation(faults, f"{path}.volumeMounts", mount, child(container, "securityContext").get("privileged"))
    names: set[str] = set()
    places: set[str] = set()
    for index, device in enumerate(devices):
        _device(faults, f"{path}.volumeDevices[{index}]", device, known, names, places)
        _not_both(
            faults, f"{path}.volumeDevices[{index}]", device, "devicePath", "volumeMounts", "mountPath", mounted
        )  # fmt: skip


def _volume_name(faults: Faults, path: str, name: str, known: Volumes) -> None:
    if not name:
        faults.required(path)
    if name not in known:
        faults.not_found(path, name)


def _not_both(
    faults: Faults, path: str, item: Object, place: str, others_field: str, others_place: str, others: list[Object]
) -> None:
    """A volume is mounted or given as a block device; a path is used once over both lists."""
    name, target = text(item, "name"), text(item, place)
    if any(text(other, "name") == name for other in others):
        faults.invalid(f"{path}.name", name, f"must not already exist in {others_field}")
    if any(text(other, others_place) == target for other in others):
        faults.invalid(f"{path}.{place}", target, f"must not already exist as a path in {others_field}")


def _sub_path(faults: Faults, path: str, at_item: str, mount: Object) -> None:
    plain, expanded = text(mount, "subPath"), text(mount, "subPathExpr")
    descending_path(faults, f"{path}.subPath", plain)
    if plain and expanded:
        faults.invalid(f"{at_item}.subPathExpr", expanded, "subPathExpr and subPath are mutually exclusive")
    descending_path(faults, f"{path}.subPathExpr", expanded)


def _propagation(faults: Faults, path: str, mount: Object, privileged: Any) -> None:
    propagation, recursive = text(mount, "mountPropagation"), text(mount, "recursiveReadOnly")
    if propagation and propagation not in _PROPAGATIONS:
        faults.not_supported(f"{path}.mountPropagation", propagation, _PROPAGATIONS)
    if propagation == "Bidirectional" and privileged is not True:
        faults.forbidden(
            f"{path}.mountPropagation", "Bidirectional mount propagation is available only to privileged containers"
        )
    if recursive in ("Enabled", "IfPossible"):
        if mount.get("readOnly") is not True:
            faults.forbidden(f"{path}.recursiveReadOnly", "may only be specified when readOnly is true")
        if propagation not in ("", "None"):
            faults.forbidden(
                f"{path}.recursiveReadOnly", "may only be specified when mountPropagation is None or not specified"
            )
    elif recursive and recursive != "Disabled":
        faults.not_supported(f"{path}.recursiveReadOnly", recursive, _RECURSIVE)


def _device(faults: Faults, path: str, device: Object, known: Volumes, names: set[str], places: set[str]) -> None:
    name, place = text(device, "name"), text(device, "devicePath")
    if name in names:
        faults.invalid(f"{path}.name", name, "must be unique")
    names.add(name)
    if name in known and not {"persistentVolumeClaim", "ephemeral"} & known[name].keys():
        faults.invalid(
            f"{path}.name",
            name,
            "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
        )
    else:
        _volume_name(faults, f"{path}.name", name, known)
    if not place:
        faults.required(f"{path}.devicePath")
    if place in places:
        faults.invalid(f"{path}.devicePath", place, "must be unique")
    if ".." in place.split("/"):
        faults.invalid(f"{path}.devicePath", place, "can not contain backsteps ('..')")
    else:
        places.add(place)
