"""Files that tell an application about its devices (KEP-5304; spec/kubelet-protocol.md section 8).

Per claim and request there is one file on the host and one CDI device that mounts it. A file is a stream of JSON
objects, the same content once per version of the format. An update is written in place, because a container sees
the file that was mounted, whatever is renamed over it later. A power cut may spoil a file: after it everything is
prepared anew.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.names import POD_CLAIM_NAME
from drakkar.api.resource import v1
from drakkar.plugin import cdi

logger = logging.getLogger(__name__)

VERSIONS = ("metadata.resource.k8s.io/v1alpha1",)
#: Where a container finds the files.
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"


class MetadataDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a request as the application sees it."""

    driver: str
    pool: str
    name: str
    attributes: dict[str, v1.DeviceAttribute] = {}
    networkData: v1.NetworkDeviceData | None = None


class MetadataFiles:
    """The files of one driver: in `folder` (its plugin data folder), with CDI specs in `cdi_folder`."""

    def __init__(self, driver: str, folder: Path, cdi_folder: Path) -> None:
        self._driver = driver
        self._folder = folder / "dra-device-metadata"
        self._cdi_folder = cdi_folder
        self._kind = f"{driver}/metadata"

    def write(self, claim: v1.ResourceClaim, devices: Sequence[tuple[str, MetadataDevice]]) -> dict[str, str]:
        """Write the files of a claim; `devices` pairs each with its request (`request/sub` where chosen so).

        Returns, per main request, the CDI id to add to its first device.
        """
        meta = claim.metadata
        pod_claim = (meta.annotations or {}).get(POD_CLAIM_NAME, "")
        ids: dict[str, str] = {}
        for main in dict.fromkeys(request.partition("/")[0] for request, _ in devices):
            requests: dict[str, list[MetadataDevice]] = {}
            for request, device in devices:
                if request.partition("/")[0] == main:
                    requests.setdefault(request, []).append(device)
            content: dict[str, Any] = {
                "kind": "DeviceMetadata",
                "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "generation": 1},
                **({"podClaimName": pod_claim} if pod_claim else {}),
                "requests": [{"name": name, "devices": msgspec.to_builtins(found)} for name, found in requests.items()],
            }
            path = self._path(meta.namespace, meta.name, main)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_in_place(path, content)
            ids[main] = self._write_cdi(meta.uid, main, path, pod_claim, meta.name)
        return ids

    def update(
        self,
        namespace: str,
        name: str,
        pool: str,
        device: str,
        attributes: Mapping[str, Any],
        network: v1.NetworkDeviceData | None = None,
    ) -> bool:
        """Set attributes (in wire form; None removes one) and network data of a claim's device.

        A change raises the generation. Returns whether there was one.
        """
        changed = False
        for path in sorted(self._claim_folder(namespace, name).glob("*/metadata.json")):
            content = _read(path)
            if content is None:
                continue
            touched = False
            for found in (d for request in content["requests"] for d in request["devices"]):
                if (found["pool"], found["name"]) != (pool, device):
                    continue
                before = dict(found.get("attributes", {}))
                after = {key: value for key, value in {**before, **attributes}.items() if value is not None}
                data = msgspec.to_builtins(network) if network is not None else found.get("networkData")
                if after != before or data != found.get("networkData"):
                    found |= {"attributes": after} | ({"networkData": data} if data is not None else {})
                    touched = True
            if touched:
                content["metadata"]["generation"] += 1
                _write_in_place(path, content)
                changed = True
        return changed

    def remove(self, namespace: str, name: str, uid: str) -> None:
        """Remove a claim's files and their CDI specs."""
        shutil.rmtree(self._claim_folder(namespace, name), ignore_errors=True)
        for path in self._cdi_folder.glob(f"{self._driver}_metadata_{uid}_*.json"):
            cdi.remove_spec(self._cdi_folder, path.name)
        for unfinished in self._cdi_folder.glob(f".{self._driver}_metadata_{uid}_*.json.*"):
            unfinished.unlink()  # A crash came before it had its right name.

    def _claim_folder(self, namespace: str, name: str) -> Path:
        return self._folder / f"{namespace}_{name}"

    def _path(self, namespace: str, name: str, request: str) -> Path:
        return self._claim_folder(namespace, name) / request / "metadata.json"

    def _write_cdi(self, uid: str, request: str, path: Path, pod_claim: str, claim_name: str) -> str:
        kind = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim_name}"
        mount = cdi.Mount(
            hostPath=str(path.absolute()),
            containerPath=f"{IN_CONTAINER}/{kind}/{request}/{self._driver}-metadata.json",
            options=["ro", "bind"],
        )
        device = cdi.CdiDevice(name=f"{uid}_{request}", containerEdits=cdi.ContainerEdits(mounts=[mount]))
        spec = cdi.build(self._kind, [device])
        cdi.write_spec(self._cdi_folder, f"{self._driver}_metadata_{uid}_{request}.json", spec)
        return cdi.device_id(self._kind, device.name)


def _write_in_place(path: Path, content: Mapping[str, Any]) -> None:
    text = b"".join(
        msgspec.json.format(msgspec.json.encode({"apiVersion": version, **content}), indent=2) + b"\n"
        for version in VERSIONS
    )
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "r+b") as file:
        os.fchmod(descriptor, 0o644)
        file.write(text)
        file.truncate()


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a file; None when a power cut has spoilt it, until its claim is prepared anew."""
    try:
        content: dict[str, Any] = msgspec.json.decode(_first(path.read_text()))
        del content["apiVersion"]
    except (ValueError, KeyError, msgspec.DecodeError) as error:
        logger.warning("%s is no device metadata: %s", path, error)
        return None
    return content


def _first(text: str) -> str:
    """The first of the JSON objects of a file; each begins and ends with a brace in the first column."""
    return text[: text.index("\n}\n") + 2]
