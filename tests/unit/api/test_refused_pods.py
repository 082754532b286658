"""Pods that kube-apiserver refuses are refused here for the same causes, and those that it takes are taken.

``upstream_pods.json`` has pod specs with the causes that kube-apiserver 1.37.2 gave for them (field,
reason, message), none where it took the pod. It gave the same for the spec as template of every
workload.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest

from drakkar.api.faults import describe
from drakkar.api.registry import ValidationContext, defaults_for, validator_for

Object = dict[str, Any]

RECORDED: Final[list[Object]] = json.loads(Path(__file__).with_name("upstream_pods.json").read_text())
SELECTED: Final = {"selector": {"matchLabels": {"a": "b"}}}


def causes(group: str, kind: str, obj: Object, prefix: str = "") -> list[list[str]]:
    """What is wrong with a new object, as sorted causes; ``prefix`` is taken off their fields."""
    defaults, validate = defaults_for(kind, "v1"), validator_for(group, kind)
    assert defaults is not None
    assert validate is not None
    defaults(obj)
    found = validate(obj, None, None, ValidationContext())
    return sorted([error.field.removeprefix(prefix), error.type, describe(error)] for error in found)


@pytest.mark.parametrize("recorded", [pytest.param(item, id=item["case"].replace(" ", "-")) for item in RECORDED])
def test_pods_are_refused_as_upstream_refuses_them(recorded: Object) -> None:
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": copy.deepcopy(recorded["spec"])}
    assert causes("", "Pod", pod) == recorded["causes"]


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "DaemonSet"),
        ("apps", "StatefulSet"),
        ("batch", "Job"),
        ("batch", "CronJob"),
    ],
)
def test_templates_are_refused_as_pods_are(group: str, kind: str) -> None:
    for recorded in RECORDED:
        pod_spec, labels = copy.deepcopy(recorded["spec"]), {"labels": {"a": "b"}}
        prefix = "spec.template."
        spec: Object = {"template": {"metadata": labels, "spec": pod_spec}, **SELECTED}
        if group == "batch":
            spec = {"template": {"metadata": labels, "spec": {**pod_spec, "restartPolicy": "Never"}}}
        if kind == "Job":
            spec.update(SELECTED)
        if kind == "CronJob":
            prefix = "spec.jobTemplate.spec.template."
            spec = {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}
        obj = {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}
        assert causes(group, kind, obj, prefix) == recorded["causes"], recorded["case"]
