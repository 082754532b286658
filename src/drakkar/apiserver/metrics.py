"""A few numbers in Prometheus' text form."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drakkar.apiserver.server import ApiServer


def text(server: ApiServer) -> bytes:
    """What is stored, and how often it was committed."""
    lines = [
        "# HELP apiserver_storage_objects Number of stored objects.",
        "# TYPE apiserver_storage_objects gauge",
    ]
    for stored in server.catalog.stored.values():
        count = len(server.state.tables[stored.prefix].entries)
        resource = f"{stored.plural}.{stored.group}" if stored.group else stored.plural
        lines.append(f'apiserver_storage_objects{{resource="{resource}"}} {count}')
    lines += [
        "# HELP drakkar_store_revision Revision of the newest committed write.",
        "# TYPE drakkar_store_revision counter",
        f"drakkar_store_revision {server.state.revision}",
        "# HELP drakkar_store_commits_total Commits of the store, each with one or more writes.",
        "# TYPE drakkar_store_commits_total counter",
        f"drakkar_store_commits_total {server.committer.batches}",
    ]
    return ("\n".join(lines) + "\n").encode()
