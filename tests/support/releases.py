"""Which release of Kubernetes the tests with upstream's control plane run against.

By default it is the release of the Go module in ``tests/upstream``. With ``DRAKKAR_KUBERNETES=1.34`` a module is
derived from it for an older one: the same main programs, the dependencies that that release itself names. With
``DRAKKAR_EMULATED=1.34`` the components of our release emulate the older one (``--emulated-version``): its APIs and its
gates with their defaults, but the newer rules of validation and the newer code. ``./do upstream --kubernetes 1.34`` and
``--emulated 1.34`` set the variables.
"""

from __future__ import annotations

import json
import os
import subprocess

from drakkar.version import KUBERNETES_VERSION

#: Release -> the newest patch of it that the Go module proxy has.
OLDER = {"1.34": "1.34.4", "1.35": "1.35.4", "1.36": "1.36.3"}
#: What of a control plane is built for an older release.
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")

#: Tests that run against older releases.
TESTS = ("test_kube_story.py", "test_gate_mode.py", "test_real_world_kube.py", "test_older_servers.py")

_MODULE = "k8s.io/kubernetes"


def older() -> str:
    """The older version that is asked for, such as ``1.34.4``; empty for that of ``tests/upstream``."""
    asked = os.environ.get("DRAKKAR_KUBERNETES", "")
    if asked in ("", KUBERNETES_VERSION, KUBERNETES_VERSION.rpartition(".")[0]):
        return ""
    version = OLDER.get(asked, asked)
    if version not in OLDER.values():
        raise SystemExit(f"DRAKKAR_KUBERNETES={asked}: no such release here; there are {', '.join(OLDER)}")
    return version


def emulated() -> str:
    """The older release that components of ours emulate, such as ``1.34``; empty for none."""
    asked = os.environ.get("DRAKKAR_EMULATED", "")
    if asked and asked not in OLDER:
        raise SystemExit(f"DRAKKAR_EMULATED={asked}: no such release; there are {', '.join(OLDER)}")
    return asked


def release() -> str:
    """The older release that is under test, built or emulated, such as ``1.34``; empty for our own."""
    return emulated() or older().rpartition(".")[0]


def version() -> str:
    """The version of upstream's components in the tests."""
    return older() or KUBERNETES_VERSION


def go_mod(version: str) -> str:
    """A go.mod for that version of Kubernetes; what it needs besides, ``go build -mod=mod`` adds.

    Kubernetes names its staging modules with v0.0.0 and means the ones that are published with it.
    """
    told = subprocess.run(
        ["go", "mod", "download", "-json", f"{_MODULE}@v{version}"], check=True, capture_output=True, text=True
    )
    edit = ["go", "mod", "edit", "-json", json.loads(told.stdout)["GoMod"]]
    module = json.loads(subprocess.run(edit, check=True, capture_output=True, text=True).stdout)
    staged = "v0" + version.removeprefix("1")
    staging = [required["Path"] for required in module["Require"] if required["Version"] == "v0.0.0"]
    return "\n".join(
        (
            "module upstream",
            # Defaults of the Go runtime depend on it.
            f"go {module['Go']}",
            f"require {_MODULE} v{version}",
            *(f"replace {path} => {path} {staged}" for path in staging),
            "",
        )
    )


if __name__ == "__main__":
    if release():
        print(*(f"tests/e2e/{name}" for name in TESTS))
    else:
        print("tests")
