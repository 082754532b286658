"""Reading manifests: what is wrong is named with file and document."""

from __future__ import annotations

from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.cli.manifests import read_objects


def _write(folder: Path, text: str) -> Path:
    path = folder / "m.yaml"
    path.write_text(text)
    return path


def test_documents_and_lists_are_unfolded(tmp_path: Path) -> None:
    items = "- {kind: B, apiVersion: v1}\n- {kind: C, apiVersion: v1}\n"
    text = "kind: A\napiVersion: v1\n---\n---\nkind: List\napiVersion: v1\nitems:\n" + items
    assert [obj["kind"] for obj in read_objects(_write(tmp_path, text))] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "not valid YAML"), ("a: 1", "document 1"), ("kind: A\napiVersion: v1\n---\n- x", "document 2")],
)
def test_faults_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_objects(_write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_objects(tmp_path / "none.yaml")
