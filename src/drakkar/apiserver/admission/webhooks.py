"""Mutating and validating webhooks: who is asked, in which order, and what the answers do.

Mutating webhooks are asked one after the other, validating ones together. A webhook that cannot
be asked refuses the write or is passed over, as its ``failurePolicy`` says.

Source: admissionregistration.k8s.io/v1, AdmissionReview of admission.k8s.io/v1; texts are kube-apiserver's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from drakkar.api.errors import ParseError
from drakkar.api.tree import at, child, children, text, texts
from drakkar.apiserver import status
from drakkar.apiserver.admission.attributes import Attributes
from drakkar.apiserver.admission.callers import Caller, CallFailed
from drakkar.apiserver.admission.conditions import Conditions, expression_values
from drakkar.apiserver.admission.forms import Forms
from drakkar.apiserver.admission.match import EXEMPT, REGISTRATION, Match
from drakkar.apiserver.auth import User
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Catalog, Served
from drakkar.apiserver.patch import apply_json_patch
from drakkar.apiserver.rbac import Authorizer
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

_TABLE = f"/{REGISTRATION}/{{}}webhookconfigurations/"
#: Versions of AdmissionReview that are spoken, best first.
_REVIEWS = ("v1", "v1beta1")
_WITHOUT_EFFECTS = ("None", "NoneOnDryRun")


@dataclass(frozen=True, slots=True)
class Webhook:
    """One entry of a configuration."""

    name: str
    mutating: bool
    match: Match
    conditions: Conditions
    #: Whether a webhook that cannot be asked refuses the write.
    strict: bool
    #: Seconds.
    timeout: float
    side_effects: str
    #: Whether to ask again when a later one changed the object.
    again: bool
    review: str
    client: Object

    @staticmethod
    def of(entry: Object, mutating: bool) -> Webhook:
        """From its JSON; raises ParseError."""
        rules = children(entry, "rules")
        versions = texts(entry, "admissionReviewVersions")
        return Webhook(
            text(entry, "name"),
            mutating,
            Match.of(entry, rules),
            Conditions(children(entry, "matchConditions")),
            text(entry, "failurePolicy") != "Ignore",
            float(at(entry, "timeoutSeconds") or 10),
            text(entry, "sideEffects"),
            text(entry, "reinvocationPolicy") == "IfNeeded",
            next((version for version in _REVIEWS if version in versions), "v1"),
            child(entry, "clientConfig"),
        )


class _Response(msgspec.Struct):
    uid: str = ""
    allowed: bool = False
    status: dict[str, Any] | None = None
    patch: str | None = None
    patchType: str | None = None
    auditAnnotations: dict[str, str] | None = None
    warnings: list[str] | None = None


class _Review(msgspec.Struct):
    kind: str = ""
    apiVersion: str = ""
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Review).decode


class Webhooks:
    """All configured webhooks of a server."""

    def __init__(
        self, state: State, catalog: Catalog, caller: Caller, authorizer: Authorizer, new_uid: Callable[[], str]
    ):
        self._state = state
        self._catalog = catalog
        self._caller = caller
        self._authorizer = authorizer
        self._new_uid = new_uid
        self._compiled: dict[bool, tuple[int, tuple[Webhook, ...]]] = {}

    def configured(self, *, mutating: bool) -> bool:
        """Whether there is any."""
        return bool(self._state.tables[_TABLE.format("mutating" if mutating else "validating")].entries)

    def _hooks(self, *, mutating: bool) -> tuple[Webhook, ...]:
        """In the order of the names of their configurations."""
        table = self._state.tables[_TABLE.format("mutating" if mutating else "validating")]
        found = self._compiled.get(mutating)
        if found is None or found[0] != table.revision:
            hooks: list[Webhook] = []
            for key in table.keys(""):
                for entry in children(table.decode(table.entries[key]), "webhooks"):
                    try:
                        hooks.append(Webhook.of(entry, mutating))
                    except ParseError:
                        continue  # only what an older program let in; a selector that says nothing selects nothing
            found = self._compiled[mutating] = (table.revision, tuple(hooks))
        return found[1]

    async def mutate(
        self, attributes: Attributes, new: Object | None, old: Object | None, forms: Forms
    ) -> Object | None:
        """The object after all mutating webhooks, None at a delete; StatusError when one refuses."""
        if _exempt(attributes):
            return new
        asked: list[Webhook] = []
        last_changed = -1
        for hook in self._hooks(mutating=True):
            served = self._wants(hook, attributes, new, old, forms)
            if served is None:
                continue
            changed = await self._mutated(hook, served, attributes, new, old, forms)
            asked.append(hook)
            if changed is not None:
                new, last_changed = changed, len(asked) - 1
        # Once more for those that want to see what later ones did.
        for hook in asked[: max(last_changed, 0)]:
            served = self._wants(hook, attributes, new, old, forms) if hook.again else None
            if served is not None:
                changed = await self._mutated(hook, served, attributes, new, old, forms)
                new = new if changed is None else changed
        return new

    async def validate(self, attributes: Attributes, new: Object | None, old: Object | None, forms: Forms) -> None:
        """StatusError when a validating webhook refuses; all are asked at once."""
        if _exempt(attributes):
            return
        calls = [
            self._answer(hook, served, attributes, new, old, forms)
            for hook in self._hooks(mutating=False)
            if (served := self._wants(hook, attributes, new, old, forms)) is not None
        ]
        if not calls:
            return
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _wants(
        self, hook: Webhook, attributes: Attributes, new: Object | None, old: Object | None, forms: Forms
    ) -> Served | None:
        """The version in which to ask this webhook; None when it is not to be asked."""
        served = hook.match.served(attributes, self._catalog)
        if served is None or not hook.match.selects(self._state, attributes, new, old):
            return None
        if hook.conditions:

            def show(obj: Object | None) -> Object | None:
                return None if obj is None else forms.show(obj, served)

            request = request_of(attributes, served, "")
            namespace = namespace_object(self._state, attributes, new, old)
            verdict = hook.conditions.judge(
                expression_values(attributes, request, show(new), show(old), namespace, self._authorizer)
            )
            if isinstance(verdict, str):
                if hook.strict:
                    raise StatusError(_forbidden(attributes, f'match conditions of webhook "{hook.name}": {verdict}'))
                return None
            if not verdict:
                return None
        if attributes.dry_run and hook.side_effects not in _WITHOUT_EFFECTS:
            message = f'admission webhook "{hook.name}" does not support dry run'
            raise StatusError(status.bad_request(message))
        return served

    async def _mutated(
        self,
        hook: Webhook,
        served: Served,
        attributes: Attributes,
        new: Object | None,
        old: Object | None,
        forms: Forms,
    ) -> Object | None:
        """The object as the webhook wants it; None when it changes nothing."""
        response = await self._answer(hook, served, attributes, new, old, forms)
        if response is None or not response.patch:
            return None
        if new is None:
            raise self._broken(hook, "a delete has no object that a patch could change")
        shown = forms.show(new, served)
        try:
            patch = msgspec.json.decode(base64.b64decode(response.patch, validate=True))
            changed = apply_json_patch(shown, patch)
            taken = forms.take(msgspec.json.decode(msgspec.json.encode(changed)), served, new)
        except (binascii.Error, msgspec.DecodeError) as error:
            raise self._broken(hook, f"the patch is no base64 of a JSON patch: {error}") from None
        except StatusError as error:
            raise self._broken(hook, f"the patch cannot be applied: {error}") from None
        return taken if taken != new else None

    async def _answer(
        self,
        hook: Webhook,
        served: Served,
        attributes: Attributes,
        new: Object | None,
        old: Object | None,
        forms: Forms,
    ) -> _Response | None:
        """Asks; None when it could not be asked and need not be. StatusError when it refuses."""
        uid = self._new_uid()
        request = request_of(attributes, served, uid)
        request["object"] = None if new is None else forms.show(new, served)
        request["oldObject"] = None if old is None else forms.show(old, served)
        version = f"admission.k8s.io/{hook.review}"
        body = msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": version, "request": request})
        try:
            response = self._read(hook, uid, version, await self._caller.call(hook.client, body, hook.timeout))
        except CallFailed as error:
            if hook.strict:
                raise self._broken(hook, str(error)) from None
            kind = "mutation" if hook.mutating else "validation"
            attributes.annotations[f"failed-open.{kind}.webhook.admission.k8s.io"] = hook.name
            return None
        for key, value in (response.auditAnnotations or {}).items():
            attributes.annotations[f"{hook.name}/{key}"] = value
        for warning in response.warnings or ():
            attributes.warn(warning)
        if not response.allowed:
            raise StatusError(_denial(hook.name, response.status))
        return response

    def _read(self, hook: Webhook, uid: str, version: str, body: bytes) -> _Response:
        """The answer, if it is one; CallFailed."""
        try:
            review = _decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CallFailed(f"the answer is no AdmissionReview: {error}") from None
        if (review.kind, review.apiVersion) != ("AdmissionReview", version):
            raise CallFailed(
                f"expected webhook response of {version}, Kind=AdmissionReview, "
                f"got {review.apiVersion}, Kind={review.kind}"
            )
        response = review.response
        if response is None:
            raise CallFailed("expected webhook response to have a response")
        if response.uid != uid and not (hook.review == "v1beta1" and not response.uid):
            raise CallFailed(f'expected response.uid="{uid}", got "{response.uid}"')
        if response.patch and not hook.mutating:
            raise CallFailed("validating webhook may not return response.patch")
        if (
            response.patch
            and response.patchType != "JSONPatch"
            and not (hook.review == "v1beta1" and not response.patchType)
        ):
            raise CallFailed(f"webhook returned response.patchType {response.patchType!r}, only JSONPatch is known")
        if response.patchType and not response.patch and hook.review == "v1":
            raise CallFailed("webhook returned response.patchType but not response.patch")
        return response

    @staticmethod
    def _broken(hook: Webhook, why: str) -> StatusError:
        return StatusError(status.internal(f'failed calling webhook "{hook.name}": {why}'))


def _exempt(attributes: Attributes) -> bool:
    return attributes.served.group == REGISTRATION and attributes.served.plural in EXEMPT


def _forbidden(attributes: Attributes, message: str) -> Object:
    return status.forbidden(attributes.served.group, attributes.served.plural, attributes.name, message)


def _denial(name: str, result: Object | None) -> Object:
    """The answer to the client, from the Status of the webhook."""
    found = {"kind": "Status", "apiVersion": "v1", "metadata": {}, **(result or {})}
    denied = f'admission webhook "{name}" denied the request'
    said = found.get("message") or found.get("reason")
    found["message"] = f"{denied}: {said}" if said else f"{denied} without explanation"
    found["status"] = "Failure"
    code = found.get("code")
    found["code"] = code if isinstance(code, int) and 400 <= code < 600 else 400
    return found


def request_of(attributes: Attributes, served: Served, uid: str) -> Object:
    """``request`` of an AdmissionReview, without the objects; ``served`` is the version in which it is shown."""
    own = attributes.served
    asked = attributes.kind or (own.group, own.version, own.kind)
    shown = attributes.kind or (served.group, served.version, served.kind)
    request: Object = {
        "uid": uid,
        "kind": dict(zip(("group", "version", "kind"), shown, strict=True)),
        "resource": {"group": served.group, "version": served.version, "resource": served.plural},
        "requestKind": dict(zip(("group", "version", "kind"), asked, strict=True)),
        "requestResource": {"group": own.group, "version": own.version, "resource": own.plural},
        "operation": attributes.operation,
        "userInfo": user_info(attributes.user),
        "dryRun": attributes.dry_run,
        "options": attributes.options or None,
    }
    if attributes.subresource:
        request["subResource"] = request["requestSubResource"] = attributes.subresource
    if attributes.name:
        request["name"] = attributes.name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    return request


def user_info(user: User) -> Object:
    """``userInfo`` of a subject."""
    found: Object = {"username": user.name}
    if user.uid:
        found["uid"] = user.uid
    if user.groups:
        found["groups"] = list(user.groups)
    if user.extra:
        found["extra"] = {key: list(values) for key, values in user.extra}
    return found


def namespace_object(state: State, attributes: Attributes, new: Object | None, old: Object | None) -> Object | None:
    """The Namespace that an object is in or is; None for objects of the cluster."""
    if attributes.served.plural == "namespaces" and attributes.served.group == "":
        return new if new is not None else old
    table = state.tables["/core/namespaces/"]
    entry = table.entries.get(attributes.namespace)
    return table.decode(entry) if entry is not None else None


def random_uid(bits: Callable[[int], int]) -> Callable[[], str]:
    """Makes UIDs of reviews from random bits."""
    return lambda: str(uuid.UUID(int=bits(128), version=4))
