"""CDI specs: what is valid, who wins, and what a container gets."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.plugin import cdi
from drakkar.plugin.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, HostNode, IntelRdt, Mount

KIND = "example.com/gpu"


def spec(*names: str, kind: str = KIND, **edits: object) -> cdi.Spec:
    given_edits = ContainerEdits(**(edits or {"env": ["A=1"]}))  # type: ignore[arg-type]
    return cdi.build(kind, [CdiDevice(name=name, containerEdits=given_edits) for name in names])


@pytest.mark.parametrize(
    ("built", "version"),
    [
        (spec("a"), "0.3.0"),
        (spec("a", mounts=[Mount(hostPath="/h", containerPath="/c", type="bind")]), "0.4.0"),
        (spec("0"), "0.5.0"),
        (spec("a", deviceNodes=[DeviceNode(path="/dev/a", hostPath="/dev/b")]), "0.5.0"),
        (spec("a", kind="example.com/gpu.big"), "0.6.0"),
        (spec("a", additionalGids=[5]), "0.7.0"),
        (spec("a", intelRdt=IntelRdt(closID="x")), "0.7.0"),
    ],
)
def test_the_lowest_version_is_written(built: cdi.Spec, version: str) -> None:
    assert built.cdiVersion == version
    below = [name for name in cdi.VERSIONS if name < version]
    for name in below:
        with pytest.raises(cdi.CdiError, match="it takes " + version):
            cdi.decode({**json.loads(cdi.encode(built)), "cdiVersion": name})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cdiVersion": "2.0.0"}, "not known"),
        ({"kind": "example.com"}, "kind: class"),
        ({"kind": "1x/gpu"}, "kind: vendor"),
        ({"devices": []}, "at least one"),
        ({"devices": [{"name": "-a", "containerEdits": {"env": ["A=1"]}}]}, r"devices\[0\].name"),
        ({"devices": [{"name": "a", "containerEdits": {}}]}, "must not be empty"),
        ({"devices": [{"name": "a", "containerEdits": {"env": ["A"]}}]}, "NAME=VALUE"),
        ({"devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}] * 2}, "stands twice"),
        ({"containerEdits": {"hooks": [{"hookName": "later", "path": "/x"}]}}, "hookName"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "permissions": "rx"}]}}, "permissions"),
        ({"containerEdits": {"deviceNodes": [{"path": "dev/a"}]}}, "absolute"),
        ({"containerEdits": {"mounts": [{"hostPath": "", "containerPath": "/x"}]}}, "hostPath"),
        ({"containerEdits": {"intelRdt": {"closID": ".."}}, "cdiVersion": "1.0.0"}, "closID"),
        ({"containerEdits": {"netDevices": []}}, "netDevices"),
        ({"devices": "none"}, "devices"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(cdi.CdiError, match=words):
        cdi.decode({**json.loads(cdi.encode(spec("a"))), **change})


def test_written_and_read_again(tmp_path: Path) -> None:
    written = spec("a", "b")
    path = cdi.write_spec(tmp_path / "new", cdi.file_name(KIND, "uid-1"), written)
    assert path.name == "example.com-gpu_uid-1.json"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert cdi.read_spec(path) == written
    assert cdi.remove_spec(path.parent, path.name)
    assert not cdi.remove_spec(path.parent, path.name)
    with pytest.raises(cdi.CdiError, match="no name"):
        cdi.write_spec(tmp_path, "../x.json", written)


def test_later_folder_wins_and_changes_are_seen(tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    folders = cdi.SpecFolders([low, high])
    with pytest.raises(cdi.CdiError, match="no spec file defines it"):
        folders.resolve([f"{KIND}=a"])
    cdi.write_spec(low, "x.json", spec("a", env=["FROM=low"]))
    assert folders.resolve([f"{KIND}=a"])[-1].env == ["FROM=low"]
    high.mkdir()
    (high / "x.yaml").write_text(
        "---\ncdiVersion: 0.3.0\nkind: example.com/gpu\ndevices:\n- name: a\n  containerEdits: {env: [FROM=high]}\n"
    )
    assert folders.resolve([f"{KIND}=a"])[-1].env == ["FROM=high"]
    (high / "x.yaml").unlink()
    assert folders.resolve([f"{KIND}=a"])[-1].env == ["FROM=low"]


def test_conflicts_and_broken_files_disable_only_what_they_touch(tmp_path: Path) -> None:
    cdi.write_spec(tmp_path, "one.json", spec("a", "b"))
    cdi.write_spec(tmp_path, "two.json", spec("a", "c"))
    (tmp_path / "torn.json").write_text('{"cdiVersion": "0.3')
    (tmp_path / "bad.yaml").write_text("a: [")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "readme.txt").write_text("no spec")
    folders = cdi.SpecFolders([tmp_path])
    folders.refresh()
    assert folders.devices() == [f"{KIND}=b", f"{KIND}=c"]
    assert sorted(path.name for path in folders.errors) == ["bad.yaml", "torn.json"]
    with pytest.raises(cdi.CdiError, match=r"=a: defined in several files.*=zz: no spec") as caught:
        folders.resolve([f"{KIND}=b", f"{KIND}=a", f"{KIND}=zz", "nonsense"])
    assert "nonsense" in str(caught.value)


def test_edits_of_the_file_come_once_before_its_first_device(tmp_path: Path) -> None:
    devices = [CdiDevice(name=name, containerEdits=ContainerEdits(env=[f"{name}=1"])) for name in ("a", "b")]
    cdi.write_spec(tmp_path, "x.json", cdi.build(KIND, devices, edits=ContainerEdits(env=["ALL=1"])))
    edits = cdi.SpecFolders([tmp_path]).resolve([f"{KIND}=b", f"{KIND}=a"])
    assert [edit.env for edit in edits] == [["ALL=1"], ["b=1"], ["a=1"]]


def host(path: str) -> HostNode:
    return {"/dev/x": HostNode("c", 240, 7, 0o640), "/dev/disk": HostNode("b", 7, 1, 0o600)}[path]


def test_everything_is_applied() -> None:
    oci = {
        "process": {"env": ["A=old", "B=2"], "user": {"uid": 1000, "gid": 0}},
        "mounts": [{"destination": "/data/deep", "source": "s"}, {"destination": "/c", "source": "old"}],
        "linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 1}]},
    }
    before = copy.deepcopy(oci)
    edits = ContainerEdits(
        env=["A=new", "C=3"],
        deviceNodes=[
            DeviceNode(path="/dev/x", permissions="rw"),
            DeviceNode(path="/dev/p", type="p"),
            DeviceNode(path="/dev/y", hostPath="/dev/disk", fileMode=0o666, uid=0),
        ],
        mounts=[Mount(hostPath="/h", containerPath="/c", options=["ro"]), Mount(hostPath="/h", containerPath="/data")],
        hooks=[Hook(hookName="createRuntime", path="/bin/h", args=["h"], timeout=3)],
        intelRdt=IntelRdt(closID="k"),
        additionalGids=[0, 5, 5],
    )
    made = cdi.apply_edits([edits], oci, host=host)
    assert oci == before
    assert made["process"]["env"] == ["A=new", "B=2", "C=3"]
    assert made["process"]["user"]["additionalGids"] == [5]
    assert made["linux"]["devices"] == [
        {"path": "/dev/x", "type": "c", "major": 240, "minor": 7, "fileMode": 0o640, "uid": 1000},
        {"path": "/dev/p", "type": "p", "uid": 1000},
        {"path": "/dev/y", "type": "b", "major": 7, "minor": 1, "fileMode": 0o666, "uid": 0},
    ]
    assert made["linux"]["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 240, "minor": 7, "access": "rw"},
        {"allow": True, "type": "b", "major": 7, "minor": 1, "access": "rwm"},
    ]
    assert [mount["destination"] for mount in made["mounts"]] == ["/c", "/data", "/data/deep"]
    assert made["hooks"] == {"createRuntime": [{"path": "/bin/h", "args": ["h"], "timeout": 3}]}
    assert made["linux"]["intelRdt"] == {"closID": "k"}


def test_a_node_of_another_type_is_refused() -> None:
    edits = ContainerEdits(deviceNodes=[DeviceNode(path="/dev/x", type="b")])
    with pytest.raises(cdi.CdiError, match="is of type c, the spec says b"):
        cdi.apply_edits([edits], {}, host=host)


def test_the_host_is_asked(tmp_path: Path) -> None:
    assert cdi.host_node("/dev/null")[:3] == ("c", 1, 3)
    with pytest.raises(cdi.CdiError, match="No such file"):
        cdi.host_node(str(tmp_path / "absent"))
    with pytest.raises(cdi.CdiError, match="neither"):
        cdi.host_node(str(tmp_path))


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", fullmatch=True)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
ENV = st.builds(lambda name, value: f"{name}={value}", st.sampled_from("ABCD"), TEXT)
EDITS = st.builds(
    ContainerEdits,
    env=st.lists(ENV, min_size=1, max_size=4),
    mounts=st.lists(
        st.builds(Mount, hostPath=st.just("/h"), containerPath=st.sampled_from(["/a", "/a/b", "/c"]), type=TEXT),
        max_size=3,
    ),
    additionalGids=st.lists(st.integers(0, 70000), max_size=3),
)


@given(
    st.lists(st.builds(CdiDevice, name=NAMES, containerEdits=EDITS), min_size=1, max_size=4, unique_by=lambda d: d.name)
)
def test_what_is_built_is_valid_and_survives_the_wire(devices: list[CdiDevice]) -> None:
    built = cdi.build(KIND, devices)
    assert cdi.problems(built) == []
    assert cdi.decode(json.loads(cdi.encode(built))) == built
    for device in devices:
        assert cdi.parse_device_id(cdi.device_id(KIND, device.name)) == (KIND, device.name)


@settings(max_examples=40)
@given(st.lists(EDITS, max_size=4))
def test_applying_twice_changes_nothing_more(edits: list[ContainerEdits]) -> None:
    once = cdi.apply_edits(edits, {"process": {"env": ["A=0", "Z=1"]}})
    assert cdi.apply_edits(edits, once) == once
    names = [entry.partition("=")[0] for entry in once["process"]["env"]]
    assert len(names) == len(set(names))
    depths = [mount["destination"].count("/") for mount in once.get("mounts", [])]
    assert depths == sorted(depths)
