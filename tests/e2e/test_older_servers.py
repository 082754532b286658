"""An older kube-apiserver with only those gates on that it has on by itself: what our parts do, and what they say.

``./do upstream --kubernetes 1.34`` runs this, beside the story and the corpus with more gates on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.features import Features
from drakkar.api.tree import children
from drakkar.sim.fleets import load_fleet
from tests.support import releases
from tests.support.eventually import until
from tests.support.kubeparts import Site, kube_site

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not releases.release(), reason="is for older releases: ./do upstream --kubernetes 1.34"),
]

LEASES = ("--leader-elect-resource-namespace", "drakkar-system")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Sixteen hosts, upstream's controllers, our scheduler and the two controllers that run beside upstream's."""
    with kube_site(tmp_path_factory.mktemp("kube"), untouched=True) as made:
        made.grant("scheduler.mode=own", "controllers.only={eviction,node-loss}")
        for node in load_fleet("tpu-16").nodes():
            made.kubectl.run("create", "-f", "-", stdin=json.dumps(node))
        with made.cluster.controller_manager() as manager:
            yield made
            manager.check()


def published(site: Site) -> list[dict[str, Any]]:
    slices = json.loads(site.kubectl.run("get", "resourceslices", "-o", "json"))["items"]
    return [device for found in slices for device in children(found, "spec", "devices")]


def test_it_is_the_server_that_was_asked_for(site: Site) -> None:
    told = json.loads(site.kubectl.run("get", "--raw", "/version"))
    if releases.emulated():
        assert f"{told['emulationMajor']}.{told['emulationMinor']}" == releases.emulated()
    assert told["gitVersion"] == f"v{releases.version()}"


def test_partitions_are_published_only_where_their_counters_are_kept(site: Site) -> None:
    with site.part("driver-tpu", "driver", "run", "tpu") as driver:
        if "DRAPartitionableDevices" in Features.profile(releases.release()):
            until(lambda: published(site), lambda found: len(found) > 16)
        else:
            until(lambda: driver.output, lambda said: "DRAPartitionableDevices" in said or "may need" in said)
            assert published(site) == []
    assert site.refused() == []


def test_our_parts_come_to_rest_without_what_the_server_lacks(site: Site, tmp_path: Path) -> None:
    """A pod gets a whole device; nobody asks again and again for kinds that are not there."""
    claim = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "whole.example.com"}}]}}
    selector = {"cel": {"expression": 'device.driver == "whole.example.com"'}}
    pool = {"name": "host-0", "generation": 1, "resourceSliceCount": 1}
    devices = {"driver": "whole.example.com", "nodeName": "host-0", "pool": pool, "devices": [{"name": "one"}]}
    pod = {
        "schedulerName": "drakkar",
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "r", "resourceClaimTemplateName": "whole"}],
    }
    made = [
        ("resource.k8s.io/v1", "DeviceClass", "whole.example.com", {"selectors": [selector]}),
        ("resource.k8s.io/v1", "ResourceSlice", "whole", devices),
        ("resource.k8s.io/v1", "ResourceClaimTemplate", "whole", {"spec": claim}),
        ("v1", "Pod", "whole", pod),
    ]
    items = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        for version, kind, name, spec in made
    ]
    account = ("get", "serviceaccount", "default", "-n", "default")
    until(lambda: site.kubectl.ask(*account).returncode == 0)
    only = ("--only", "eviction,node-loss", "--leader-elect-resource-name", "drakkar-controllers", *LEASES)
    with (
        site.part("scheduler", "scheduler", "--mode", "own", *LEASES) as scheduler,
        site.part("controllers", "controllers", *only) as controllers,
    ):
        for item in items:
            site.kubectl.run("create", "-f", "-", stdin=json.dumps(item))
        where = ("get", "pod", "whole", "-n", "default", "-o", "jsonpath={.spec.nodeName}")
        until(lambda: site.kubectl.ask(*where).stdout, lambda node: node == "host-0")
        lacks_rules = site.kubectl.ask("get", "devicetaintrules").returncode != 0
        for part in (scheduler, controllers):
            told = [line for line in part.output.splitlines() if "devicetaintrules are not served here" in line]
            assert len(told) == lacks_rules, part.output
            assert "Traceback" not in part.output
    assert site.refused() == []
