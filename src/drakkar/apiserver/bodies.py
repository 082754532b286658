"""Bodies of requests into dicts that obey the schema of their kind.

Whatever ``fieldValidation`` says, unknown fields never get stored; it only decides whether
the client is refused, warned or not told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from drakkar.api.errors import FieldError
from drakkar.api.wire import Request
from drakkar.apiserver import patch as patches
from drakkar.apiserver import status
from drakkar.apiserver.catalog import Served
from drakkar.apiserver.negotiate import body_type, patch_type
from drakkar.apiserver.options import WriteOptions
from drakkar.apiserver.scale import KIND as SCALE
from drakkar.apiserver.schema import (
    SchemaNode,
    check,
    decode_json,
    decode_yaml,
    is_settled,
    prune,
    schemas,
    write_zeros,
)
from drakkar.apiserver.schema.walk import strict_error
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]


class Bodies:
    """Decodes and checks; ``schema`` finds the schema of a served kind, ``explain`` wrong types of custom kinds."""

    def __init__(
        self,
        schema: Callable[[Served], SchemaNode | None],
        explain: Callable[[Served, Object], list[FieldError]],
    ):
        self.schema = schema
        self._explain = explain

    def decode(self, request: Request, kind: str) -> tuple[Object, list[str]]:
        """The body in whatever encoding, with its duplicate fields."""
        encoding = body_type(request.headers.get("content-type", ""))
        if encoding == "json":
            return decode_json(request.body, kind)
        if encoding == "yaml":
            return decode_yaml(request.body, kind)
        from drakkar.apiserver import protobuf

        return protobuf.decode(request.body), []

    def read(self, request: Request, served: Served, options: WriteOptions, warnings: list[str]) -> Object:
        """An object of the served kind: decoded, checked, without unknown fields."""
        obj, faults = self.decode(request, served.kind)
        _claim_kind(obj, served)
        if not self._settle(obj, served, faults, options, warnings):
            self._complete(obj, served)
        return obj

    def read_as(self, request: Request, group: str, version: str, kind: str) -> Object:
        """An object of another kind, as subresources take them."""
        obj, _ = self.decode(request, kind)
        schema = schemas().for_kind(group, version, kind)
        if schema is not None:
            check(obj, schema)
            prune(obj, schema)
        return obj

    def scale(self, request: Request, *, patching: bool) -> Callable[[Object], Object]:
        """What makes the wanted Scale of the current one; an applied Scale counts as a merge patch."""
        schema = schemas().for_kind(*SCALE)
        assert schema is not None
        if not patching:
            body = self.read_as(request, *SCALE)
            return lambda current: body
        kind = patch_type(request.headers.get("content-type", ""))
        patch: Any = decode_yaml(request.body, "Scale")[0] if kind == "apply" else _json(request, kind, "Scale")

        def change(current: Object) -> Object:
            if kind == "json":
                new = patches.apply_json_patch(current, patch)
            elif kind == "strategic":
                new = patches.apply_strategic_patch(current, patch, schema)
            else:
                new = patches.apply_merge_patch(current, patch)
            check(new, schema)
            return new

        return change

    def options(self, request: Request) -> Object | None:
        """DeleteOptions in a body, if there are any."""
        if not request.body:
            return None
        return self.decode(request, "DeleteOptions")[0]

    def _settle(
        self, obj: Object, served: Served, faults: list[str], options: WriteOptions, warnings: list[str]
    ) -> bool:
        """Refuses, warns of and drops unknown fields; True when the object needed nothing, completion included."""
        schema = self.schema(served)
        settled = schema is not None and is_settled(obj, schema)
        if schema is not None and not settled:
            faults = self._check(obj, served, schema) + faults
        if faults:
            if options.field_validation == "Strict":
                raise StatusError(strict_error(obj, faults))
            if options.field_validation == "Warn":
                warnings.extend(faults)
        if schema is not None and not settled:
            prune(obj, schema)
        return settled

    def _check(self, obj: Object, served: Served, schema: SchemaNode) -> list[str]:
        """Unknown fields. Of a wrong type Go's decoder complains (400), for custom kinds their validation (422)."""
        try:
            return check(obj, schema)
        except StatusError:
            meta = obj.get("metadata") or {}
            custom = served.stored is not None and served.stored.custom and isinstance(meta, dict)
            found = self._explain(served, obj) if custom else []
            if not found:
                raise
            name = str(meta.get("name") or "")
            raise StatusError(status.invalid(served.group, served.kind, name, found)) from None

    def _complete(self, obj: Object, served: Served) -> None:
        """Required texts that the client left out; not for what is applied, which would then own them."""
        schema = self.schema(served)
        if schema is not None:
            write_zeros(obj, schema)

    def patch(self, request: Request, served: Served, kind: str, options: WriteOptions, warnings: list[str]) -> Any:
        """The patch itself; what it makes of the object is checked by :meth:`patched`."""
        if kind == "apply":
            if not options.field_manager:
                fault = FieldError(
                    type="FieldValueRequired", field="fieldManager", detail="is required for apply patch"
                )
                raise StatusError(status.invalid("meta.k8s.io", "PatchOptions", "", [fault]))
            obj, faults = decode_yaml(request.body, served.kind)
            _claim_kind(obj, served)
            self._settle(obj, served, faults, options, warnings)
            return obj
        return _json(request, kind, served.kind)

    def patched(
        self, old: Object, patch: Any, served: Served, kind: str, options: WriteOptions, warnings: list[str]
    ) -> Object:
        """The object after the patch, checked like one that was sent whole."""
        if kind == "json":
            new = patches.apply_json_patch(old, patch)
        elif kind == "merge":
            new = patches.apply_merge_patch(old, patch)
        else:
            schema = self.schema(served)
            assert schema is not None
            new = patches.apply_strategic_patch(old, patch, schema)
        new = _own(new)
        if not self._settle(new, served, [], options, warnings):
            self._complete(new, served)
        return new


def _json(request: Request, kind: str, word: str) -> Any:
    """A patch in JSON; only a JSON patch is no object."""
    if kind != "json":
        return decode_json(request.body, word)[0]
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError as error:
        raise StatusError(status.bad_request(f"error decoding patch: {error}")) from None


def _own(obj: Object) -> Object:
    """A copy whose parts nobody else holds: patches share what they leave alone."""
    return msgspec.json.decode(msgspec.json.encode(obj))


def _claim_kind(obj: Object, served: Served) -> None:
    """Fills in kind and version; StatusError 400 when the object says that it is another."""
    for field in ("kind", "apiVersion"):
        if type(obj.get(field)) not in (str, type(None)):
            text = f"couldn't get version/kind; json parse error: json: field .{field} has to be a string"
            raise StatusError(status.bad_request(text))
    kind, version = obj.get("kind") or served.kind, obj.get("apiVersion") or served.api_version
    if (kind, version) != (served.kind, served.api_version):
        group, _, short = version.rpartition("/")
        internal = group.partition(".")[0] or "core"
        ours = served.group.partition(".")[0] or "core"
        if kind != served.kind:
            given = f"{internal}/{short}" if group else "v1"
            text = f'{kind} in version "{short}" cannot be handled as a {served.kind}: '
            text += f"converting ({given}.{kind}) to ({ours}.{served.kind}): unknown conversion"
        else:
            expected = served.api_version
            text = f"the API version in the data ({version}) does not match the expected API version ({expected})"
        raise StatusError(status.bad_request(text))
    obj["kind"], obj["apiVersion"] = kind, version
