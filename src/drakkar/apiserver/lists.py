"""Lists: of now, of a past revision, in pages."""

from __future__ import annotations

from itertools import islice
from typing import Any

from drakkar.apiserver import status
from drakkar.apiserver.cache import Entry, Expired, State
from drakkar.apiserver.options import ListOptions, decode_token, encode_token, revision
from drakkar.apiserver.selection import Selection
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.views import View

_TOKEN_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


def select(state: State, view: View, selection: Selection, options: ListOptions) -> tuple[list[Entry], dict[str, Any]]:
    """The objects of one page and the list's metadata; StatusError 400, 410 or 504."""
    table = view.table
    at, start = state.revision, ""
    asked = revision(options.resource_version)
    if options.token:
        if options.resource_version and asked != 0:
            text = "specifying resource version is not allowed when using continue"
            raise StatusError(status.bad_request(text))
        at, start = decode_token(options.token)
        if at < 0:
            at = state.revision
    elif options.match == "Exact":
        at = asked
    if max(asked, at) > state.revision:
        raise StatusError(status.too_large_resource_version(max(asked, at), state.revision))
    try:
        if at >= table.revision:
            found = selection.entries(table, start)
        else:
            found = selection.among(table.at(at), start)
    except Expired:
        if not options.token:
            raise StatusError(status.expired()) from None
        answer = status.expired(_TOKEN_EXPIRED)
        answer["metadata"] = {"continue": encode_token(-1, start)}
        raise StatusError(answer) from None
    metadata: dict[str, Any] = {"resourceVersion": str(at)}
    if options.limit <= 0:
        return list(found), metadata
    page = list(islice(found, options.limit))
    if len(page) == options.limit and (following := next(found, None)) is not None:
        del following
        metadata["continue"] = encode_token(at, page[-1].key)
        if not options.filtered:
            metadata["remainingItemCount"] = 1 + sum(1 for _ in found)
    return page, metadata
