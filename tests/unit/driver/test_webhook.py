"""Parameters are judged when a claim is created: the rule, and the webhook behind an API server; metrics."""

from __future__ import annotations

import asyncio
import base64
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import ApiError, EnvironmentProblem
from drakkar.api.kinds import DEVICECLASS, NODE, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, Kind
from drakkar.apiserver.tls import open_pki
from drakkar.client import health
from drakkar.driver import Driver, Health, device
from drakkar.driver.command import main
from drakkar.driver.metrics import missing, render
from drakkar.driver.service import DriverService
from drakkar.driver.settings import NodeSettings
from drakkar.driver.webhook import review, serving
from tests.support.eventually import eventually, memory_plane

NAME = "hello.example.com"
WEBHOOK = Kind(
    "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)


class Greeting(msgspec.Struct, forbid_unknown_fields=True):
    language: str = "en"


CONFIGS = {(f"{NAME}/v1", "Greeting"): Greeting}


class Hello(Driver):
    name = NAME
    configs = CONFIGS

    def discover(self) -> list[Any]:
        return [device("d0"), device("d1")]

    def prepare(self, claim: Any, devices: Any) -> list[Any]:
        raise NotImplementedError

    def health(self) -> dict[str, Health]:
        return {"d1": Health("Unhealthy")}


def claim(**parameters: Any) -> dict[str, Any]:
    requests = [{"name": "r", "exactly": {"deviceClassName": "c"}}]
    opaque = {"driver": NAME, "parameters": {"apiVersion": f"{NAME}/v1", "kind": "Greeting", **parameters}}
    other = {"driver": "other.example.com", "parameters": {"apiVersion": "x/v1", "kind": "Y"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": requests, "config": [{"opaque": other}, {"opaque": opaque}]}},
    }


def judged(obj: dict[str, Any]) -> Any:
    return review(NAME, CONFIGS, {"request": {"uid": "7", "object": obj}})["response"]


def test_only_faults_in_parameters_for_this_driver_are_refused() -> None:
    assert judged(claim(language="is")) == {"uid": "7", "allowed": True}
    refused = judged(claim(lnguage="is"))
    assert not refused["allowed"]
    place = "spec.devices.config[1].opaque.parameters"
    assert refused["status"]["message"] == f"{place}: Object contains unknown field `lnguage`"
    template = {"kind": "ResourceClaimTemplate", "spec": {"spec": claim(kind="Grating")["spec"]}}
    assert "spec.spec.devices.config[1]" in judged(template)["status"]["message"]
    assert (
        "Grating is not known to driver hello.example.com, known: hello.example.com/v1 Greeting"
        in (judged(template)["status"]["message"])
    )
    nothing = claim()
    nothing["spec"]["devices"]["config"][1]["opaque"]["parameters"] = {}
    assert f"{place}: apiVersion and kind are needed" in judged(nothing)["status"]["message"]
    assert len(judged(claim(kind="x" * 9000))["status"]["message"]) < 400
    for odd in ({}, {"spec": None}, {"spec": {"devices": {"config": [None, 3, {"opaque": {"driver": NAME}}]}}}):
        judged(odd)


def test_behind_an_api_server(tmp_path: Path) -> None:
    pki = open_pki(tmp_path / "pki")
    certificate, key = pki.folder / "server.crt", pki.folder / "server.key"

    async def story() -> None:
        async with memory_plane() as client, serving(NAME, CONFIGS, "127.0.0.1", 0, certificate, key) as port:
            await client.create(
                WEBHOOK,
                {
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": "ValidatingWebhookConfiguration",
                    "metadata": {"name": "hello"},
                    "webhooks": [
                        {
                            "name": "parameters.hello.example.com",
                            "admissionReviewVersions": ["v1"],
                            "sideEffects": "None",
                            "rules": [
                                {
                                    "apiGroups": ["resource.k8s.io"],
                                    "apiVersions": ["*"],
                                    "operations": ["CREATE"],
                                    "resources": ["resourceclaims", "resourceclaimtemplates"],
                                }
                            ],
                            "clientConfig": {
                                "url": f"https://127.0.0.1:{port}/",
                                "caBundle": base64.b64encode((pki.folder / "ca.crt").read_bytes()).decode(),
                            },
                        }
                    ],
                },
            )
            await client.create(
                DEVICECLASS, {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"}}
            )
            with pytest.raises(ApiError, match="unknown field `lnguage`"):
                await client.create(RESOURCECLAIM, claim(lnguage="is"), "default")
            await client.create(RESOURCECLAIM, claim(language="is"), "default")
            template = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": "t"},
                "spec": {"spec": claim(kind="Grating")["spec"]},
            }
            with pytest.raises(ApiError, match="Grating is not known"):
                await client.create(RESOURCECLAIMTEMPLATE, template, "default")

    asyncio.run(story())


def test_what_the_webhook_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a"}}], '
        '"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}]}'
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert main(Hello(), ["--webhook", "127.0.0.1:0"]) == 2
    assert "needs --tls-cert and --tls-key" in capsys.readouterr().err
    # Of the node's side: a folder that is not there is not made by mistake.
    root = tmp_path / "nothing"
    assert main(Hello(), ["--node-name", "n1", "--kubelet-root", str(root)]) == 2
    assert "--kubelet-root must be that of the kubelet or node agent" in capsys.readouterr().err
    assert not root.exists()
    for period in ("0", "-1", "nan", "often"):
        with pytest.raises(SystemExit):
            main(Hello(), ["--health-period", period])
        assert f"invalid number of seconds value: '{period}'" in capsys.readouterr().err

    async def unusable() -> None:
        async with serving(NAME, CONFIGS, "127.0.0.1", 0, tmp_path / "none", tmp_path / "none"):
            pass

    with pytest.raises(EnvironmentProblem, match="cannot be used"):
        asyncio.run(unusable())


def test_metrics_and_readiness(root: Path) -> None:
    async def story() -> None:
        (root / "plugins_registry").mkdir()
        async with memory_plane() as client:
            await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            settings = NodeSettings("n1", root, root / "cdi", health_period=0.05)
            service = DriverService(Hello(), client, client.clock, settings)
            task = asyncio.create_task(service.run())
            async with health.serving(("127.0.0.1", 0), lambda: missing(service), lambda: render(service)) as url:
                await asyncio.wait_for(service.publication.published.wait(), 60)
                assert missing(service) == "the kubelet has not registered the driver"
                service.registered.set()
                assert missing(service) == ""

                def read() -> str:
                    return urllib.request.urlopen(f"{url}/metrics").read().decode()

                text = await eventually(lambda: asyncio.to_thread(read), lambda t: 'state="Unhealthy"} 1' in t)
                assert f'drakkar_driver_devices{{driver="{NAME}",state="Healthy"}} 1' in text
                assert f'drakkar_driver_claims_total{{driver="{NAME}",operation="prepare",outcome="ok"}} 0' in text
                assert f'drakkar_driver_published{{driver="{NAME}"}} 1' in text
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
