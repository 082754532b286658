"""Server-side apply: who owns which field, typed merge, conflicts.

:func:`server_side_apply` answers an apply patch; :func:`track_update` keeps the owners up
to date on every other write. Both read the list and map markers of the schema.
"""

from drakkar.apiserver.apply.engine import LAST_APPLIED, server_side_apply, track_update
from drakkar.apiserver.apply.fields import FieldSet, Path, from_fields_v1, path_text, to_fields_v1

__all__ = [
    "LAST_APPLIED",
    "FieldSet",
    "Path",
    "from_fields_v1",
    "path_text",
    "server_side_apply",
    "to_fields_v1",
    "track_update",
]
