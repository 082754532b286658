"""Opaque parameters judged when a claim is created, not only when its pod starts: a validating admission webhook.

:func:`review` is the whole rule, without I/O; :func:`serving` answers AdmissionReview over HTTPS. The webhook's
configuration sends it claims and claim templates of all versions; the manifests of a new driver have one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from drakkar.api.meta import Object
from drakkar.api.tree import at, child, children, text
from drakkar.client import admission
from drakkar.driver.config import ConfigProblem, Configs, decode_config


def review(driver: str, configs: Configs, asked: Object) -> Object:
    """The AdmissionReview that answers `asked`: denied with the place of every fault in parameters for this driver."""
    request = child(asked, "request")
    problems = list(_problems(driver, configs, child(request, "object")))
    response: Object = {"uid": text(request, "uid"), "allowed": not problems}
    if problems:
        response["status"] = {"code": 422, "reason": "Invalid", "message": "; ".join(problems)}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _problems(driver: str, configs: Configs, obj: Object) -> Iterator[str]:
    template = obj.get("kind") == "ResourceClaimTemplate" or "spec" in child(obj, "spec")
    place = "spec.spec.devices" if template else "spec.devices"
    devices = at(obj, *place.split("."))
    for index, config in enumerate(children(devices, "config")):
        # A webhook is also asked about what the server will refuse itself.
        opaque = child(config, "opaque") if isinstance(config, dict) else {}
        if opaque.get("driver") != driver:
            continue
        parameters = opaque.get("parameters")
        try:
            decode_config(driver, configs, parameters if isinstance(parameters, Mapping) else {})
        except ConfigProblem as problem:
            yield f"{place}.config[{index}].opaque.parameters: {problem}"


@asynccontextmanager
async def serving(
    driver: str, configs: Configs, host: str, port: int, certificate: Path, key: Path
) -> AsyncIterator[int]:
    """Answer at `https://host:port/` as long as the block lasts; gives the port. Raises EnvironmentProblem."""
    async with admission.serving(partial(review, driver, configs), host, port, certificate, key) as bound:
        yield bound
