"""Backups where there is no file to copy."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.cli.backup import ETCD_NOTE, backup
from drakkar.cli.plane import PlaneOptions, _keep_store


@pytest.mark.parametrize("named", [True, False])
def test_a_server_on_etcd_names_what_saves_it(tmp_path: Path, named: bool) -> None:
    store = "etcd://10.0.0.1:2379,10.0.0.2:2379/lab"
    _keep_store(PlaneOptions(data=tmp_path, fleet=None, store=store))
    (tmp_path / "kubeconfig").write_text("")
    where = {"data": str(tmp_path)} if named else {"data": None, "kubeconfig": str(tmp_path / "kubeconfig")}
    with pytest.raises(UsageError) as caught:
        backup(argparse.Namespace(file=str(tmp_path / "copy"), **where))
    assert str(caught.value) == (
        f"{tmp_path} belongs to a server on {store}, whose objects are in etcd; back them up with: "
        "etcdctl --endpoints=10.0.0.2:2379 snapshot save FILE"
    )
    assert not (tmp_path / "copy").exists()
    # The next start is on SQLite.
    _keep_store(PlaneOptions(data=tmp_path, fleet=None))
    assert not (tmp_path / ETCD_NOTE).exists()
