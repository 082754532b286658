"""The verbs over every kind: read, create, update, delete, each as kube-apiserver does it.

A write is decided in one go, without awaiting anything between reading the current object and
handing the new one to the committer; the key is then busy until the write is durable, and
whoever wants it next decides anew. So a write never works on what others cannot see yet.

What kinds bring along (defaults, strategies, validation) comes from `drakkar.api.registry`;
kinds without a strategy get the generic rules here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from drakkar.api import formats
from drakkar.api import metadata as object_metadata
from drakkar.api import registry as kinds
from drakkar.api.clock import Clock
from drakkar.api.errors import FieldError
from drakkar.api.features import Features
from drakkar.api.registry import ValidationContext
from drakkar.apiserver import deletion, status
from drakkar.apiserver.admission import Admission, Attributes, Charge, ObjectForms, ScaleForms
from drakkar.apiserver.admission.definitions import definition_faults
from drakkar.apiserver.admission.match import REGISTRATION
from drakkar.apiserver.admission.policies import POLICIES
from drakkar.apiserver.cache import Change, Entry, State, Table, decode, encode, entry_key
from drakkar.apiserver.catalog import Catalog, Served, Stored, field_reader
from drakkar.apiserver.commit import Committer
from drakkar.apiserver.custom import DEFINITIONS, CustomResources, complete, stored_version
from drakkar.apiserver.custom import definition_faults as custom_faults
from drakkar.apiserver.expressions import Expressions
from drakkar.apiserver.managed import reset_paths
from drakkar.apiserver.options import DeleteOptions, WriteOptions, revision
from drakkar.apiserver.points import points_of
from drakkar.apiserver.rbac import RBAC, Authorizer
from drakkar.apiserver.schema import apply_schema_defaults, write_zeros
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.times import Stamps
from drakkar.apiserver.views import View
from drakkar.store.base import Conflict, Refused, Write

Object = dict[str, Any]

#: Letters of generated names: no vowels, so that no words come out.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_GENERATE_ATTEMPTS = 8
#: How often an update starts anew because the object changed while webhooks judged it. Upstream's number for patches.
_UPDATE_ATTEMPTS = 5
#: How long a name may be before random letters are appended to it.
_GENERATE_BASE = 58

#: Metadata that only the server writes; taken from the stored object on every update.
_SYSTEM = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")

#: Metadata that is a list or a map for clients to fill.
_COLLECTIONS = ("annotations", "finalizers", "labels", "ownerReferences")

_SIGNING_REQUESTS = "/certificates.k8s.io/certificatesigningrequests/"

#: Kinds whose status subresources write metadata as well, and what of it they leave alone (strategies in
#: k8s.io/kubernetes/pkg/registry). The controller of Deployments keeps the revision of the rollout that way.
_STATUS_WRITES_METADATA: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "namespaces"): (),
    ("", "nodes"): (),
    ("", "persistentvolumeclaims"): (),
    ("", "persistentvolumes"): (),
    ("", "pods"): ("ownerReferences",),
    ("", "replicationcontrollers"): (),
    ("", "resourcequotas"): (),
    ("", "services"): (),
    ("apps", "daemonsets"): (),
    ("apps", "deployments"): ("labels",),
    ("apps", "replicasets"): (),
    ("apps", "statefulsets"): (),
    ("autoscaling", "horizontalpodautoscalers"): (),
    ("batch", "cronjobs"): (),
    ("batch", "jobs"): (),
    ("certificates.k8s.io", "certificatesigningrequests"): (),
    ("networking.k8s.io", "ingresses"): (),
    ("policy", "poddisruptionbudgets"): (),
}

Transform = Callable[[Object], Object]

#: In the JSON of objects whose fields have known owners.
_MANAGED = b'"managedFields":['


class Outrun(StatusError):
    """Another server wrote the object first; the cache knows by now, so a new decision is on the newest state."""


class Registry:
    """All objects of one server."""

    def __init__(
        self,
        catalog: Catalog,
        state: State,
        committer: Committer,
        clock: Clock,
        rng: random.Random,
        features: Features,
        authorizer: Authorizer,
    ):
        self.catalog = catalog
        self.state = state
        self.committer = committer
        self.clock = clock
        self.rng = rng
        self.features = features
        self.stamps = Stamps(clock)
        self._views: dict[Served, View] = {}
        for stored in catalog.stored.values():
            self.add_table(stored)
        self.custom = CustomResources(catalog)
        self.authorizer = authorizer
        forms = ObjectForms(self.view, self.custom.node)
        self.admission = Admission(
            state, catalog, committer, clock, rng, authorizer, forms, ScaleForms(self.custom.scale_paths), features
        )
        state.tables[DEFINITIONS].listener = self._definition_changed

    # Tables and views.

    def serve_custom(self) -> None:
        """Serves the definitions that were loaded."""
        table = self.state.tables[DEFINITIONS]
        for entry in table.entries.values():
            self.custom.serve(table.decode(entry))
        self._add_custom_tables()

    def _definition_changed(self, change: Change) -> None:
        definition = self.state.tables[DEFINITIONS].decode(change.entry)
        self.custom.changed(change, definition)
        self._views = {served: view for served, view in self._views.items() if not view.stored.custom}
        if change.type == "DELETED":
            spec = definition["spec"]
            table = self.state.tables.pop(f"/{spec['group']}/{spec['names']['plural']}/", None)
            if table is not None:
                table.wake()
        self._add_custom_tables()

    def _add_custom_tables(self) -> None:
        for stored in self.catalog.stored.values():
            if stored.custom and stored.prefix not in self.state.tables:
                self.add_table(stored)

    def add_table(self, stored: Stored) -> Table:
        """A new table for a resource."""
        return self.state.add(
            Table(
                stored.prefix,
                stored.api_version,
                stored.kind,
                namespaced=stored.namespaced,
                fields=field_reader(stored.fields),
                indexed=stored.indexed,
                log_changes=256 if stored.plural == "leases" else 2048,
            )
        )

    def view(self, served: Served) -> View:
        """The view of a served resource that is stored."""
        found = self._views.get(served)
        if found is None:
            assert served.stored is not None
            self.custom.check_convertible(served)
            hub = served.version == served.stored.version
            coercion = None if hub else self.custom.coercion(served, served.stored.version)
            found = View(served, served.stored, self.state.tables[served.stored.prefix], coercion)
            self._views[served] = found
        return found

    # Reading.

    def entry(self, view: View, namespace: str, name: str) -> Entry:
        """The committed object; StatusError 404."""
        found = view.table.entries.get(entry_key(namespace, name))
        if found is None:
            raise StatusError(status.not_found(view.served.group, view.served.plural, name))
        return found

    async def idle(self, store_key: str) -> None:
        """Ends when no write to the key is in flight."""
        while (future := self.committer.busy.get(store_key)) is not None:
            await asyncio.wait((future,))

    # Create.

    async def create(
        self,
        view: View,
        namespace: str,
        obj: Object,
        options: WriteOptions,
        warnings: list[str],
        *,
        managed: list[Object] | None = None,
        attributes: Attributes | None = None,
    ) -> Entry:
        """Stores a new object, given in the client's version and already checked against its schema.

        ``managed`` is what server-side apply says about the owners of its fields. Without ``attributes`` it is
        the server itself that writes, which no policy and no webhook judges.
        """
        served, stored = view.served, view.stored
        meta = obj.get("metadata")
        if meta is None:
            meta = obj["metadata"] = {}
        if meta.get("resourceVersion"):
            raise StatusError(
                status.status_error(500, "", "resourceVersion should not be set on objects to be created")
            )
        _place(served, meta, namespace)
        defaults = kinds.defaults_for(served.kind, served.version)
        if defaults is not None:
            defaults(obj)
        if managed is None and options.field_manager:
            managed = self._first_owners(view, obj, options)
        if not view.hub:
            obj = view.to_hub(obj)
        meta = obj["metadata"]
        if stored.namespaced:
            self._check_namespace(served, namespace, meta)
        if stored.custom:
            self._default_custom(view, obj)
        self.admission.complete(stored, namespace, obj)
        if attributes is not None:
            attributes.name = attributes.name or meta.get("name") or ""
            obj = await self.admission.mutate(attributes, obj, None)
            meta = obj["metadata"]
        now = self.stamps.now()
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
            meta.pop(field, None)
        if managed:
            meta["managedFields"] = managed
        meta["uid"] = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        meta["creationTimestamp"] = now
        strategy = kinds.strategy_for(stored.group, stored.kind)
        generated = not meta.get("name") and meta.get("generateName")
        if generated:
            meta["name"] = self._generate(view, namespace, generated)
        name = meta.get("name") or ""
        store_key = stored.store_key(namespace, name)
        if store_key in self.committer.busy:
            await self.idle(store_key)
        if entry_key(namespace, name) in view.table.entries:
            raise StatusError(status.already_exists(served.group, served.plural, name))
        if strategy is not None:
            warnings.extend(strategy.dropped(obj, None, None, self.features))
            strategy.prepare_create(obj, now, self.features)
        else:
            if stored.drops_status:
                self._empty_status(view, obj)
            meta.pop("generation", None)
            if stored.counts_generations:
                meta["generation"] = 1
        if stored.prefix == DEFINITIONS:
            complete(obj, now)
        elif stored.custom:
            self._default_custom(view, obj)
        if stored.prefix == POLICIES:
            _observe(obj, None)
        self.admission.allot(stored, obj, None)
        self.validate(view, obj, None, None)
        if strategy is not None:
            warnings.extend(strategy.warnings(obj, None))
        if attributes is not None and stored.group == RBAC:
            self.authorizer.check_grant(attributes.user, stored.plural, obj, None)
        if attributes is not None and stored.prefix == "/core/nodes/":
            self.authorizer.check_node(attributes.user, {}, obj)
        if attributes is not None and self.admission.configured:
            attributes.name = name
            await self.admission.validate(attributes, obj, None)
            # Webhooks took their time: the world may be another one.
            while store_key in self.committer.busy:
                await self.idle(store_key)
            if entry_key(namespace, name) in view.table.entries:
                raise StatusError(status.already_exists(served.group, served.plural, name))
            if stored.namespaced:
                self._check_namespace(served, namespace, meta)
        while True:
            self.admission.check(stored, namespace, obj, None)
            charge = self.admission.charge(stored, namespace, "", obj, None)
            try:
                return await self._write(view, store_key, None, obj, options.dry_run, charge=charge)
            except Outrun:
                if generated:
                    meta["name"] = name = self._generate(view, namespace, generated)
                    store_key = stored.store_key(namespace, name)
                await self.idle(store_key)
                if entry_key(namespace, name) in view.table.entries:
                    raise StatusError(status.already_exists(served.group, served.plural, name)) from None

    def _empty_status(self, view: View, obj: Object) -> None:
        """What a new object has for a status: what its schema says about a status nobody wrote."""
        obj.pop("status", None)
        node = self.custom.node(view.served)
        field = node.fields.get("status") if node is not None else None
        if field is not None and field.has_default and not view.stored.custom:
            obj["status"] = {}
            apply_schema_defaults(obj["status"], field)

    def _default_custom(self, view: View, obj: Object) -> None:
        node = self.custom.hub_node(view.served, view.stored.version)
        if node is not None:
            meta = obj.pop("metadata")
            apply_schema_defaults(obj, node)
            obj["metadata"] = meta

    def _generate(self, view: View, namespace: str, prefix: str) -> str:
        """A name that nobody has or is about to have; StatusError 409 when luck fails eight times."""
        name = ""
        for _ in range(_GENERATE_ATTEMPTS):
            name = prefix[:_GENERATE_BASE] + "".join(self.rng.choices(_LETTERS, k=5))
            free = entry_key(namespace, name) not in view.table.entries
            if free and view.stored.store_key(namespace, name) not in self.committer.busy:
                return name
        raise StatusError(status.already_exists(view.served.group, view.served.plural, name))

    def _check_namespace(self, served: Served, namespace: str, meta: Object) -> None:
        found = self.state.tables["/core/namespaces/"].entries.get(namespace)
        if found is None:
            raise StatusError(status.not_found("", "namespaces", namespace))
        if b'"deletionTimestamp":' in found.tail and self.namespace(namespace)["metadata"].get("deletionTimestamp"):
            name = meta.get("name", "")
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            answer = status.forbidden(served.group, served.plural, name, text)
            answer["details"]["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise StatusError(answer)

    def namespace(self, name: str) -> Object:
        """The namespace object; KeyError."""
        table = self.state.tables["/core/namespaces/"]
        return table.decode(table.entries[name])

    # Update.

    async def update(
        self,
        view: View,
        namespace: str,
        name: str,
        subresource: str,
        transform: Transform,
        options: WriteOptions,
        warnings: list[str],
        *,
        unconditional: bool = True,
        direct: bool = False,
        applied: bool = False,
        judge: Callable[[Object, Object], None] | None = None,
        attributes: Attributes | None = None,
    ) -> Entry:
        """Replaces an object by what ``transform`` makes of it (both in the client's version).

        With ``unconditional`` false the new object has to name a resourceVersion where its kind
        demands that. ``direct`` is for the server's own changes: the kind's rules for clients
        (what is kept, counted and validated) are left out. ``applied``: the owners of fields are
        already settled. ``judge`` sees the old and the new object (as stored) and may refuse.
        Without ``attributes`` no policy and no webhook judges. ``transform`` is called again when
        the object changed while webhooks took their time, or another server was quicker.
        """
        store_key = view.stored.store_key(namespace, name)
        said, attempts = len(warnings), 0
        while attempts < _UPDATE_ATTEMPTS:
            await self.idle(store_key)
            del warnings[said:]
            # Being outrun does not count: whoever outran us got on, and the request has a time limit.
            with contextlib.suppress(Outrun):
                done = await self._update(
                    view,
                    self.entry(view, namespace, name),
                    subresource,
                    transform,
                    options,
                    warnings,
                    unconditional=unconditional,
                    direct=direct,
                    applied=applied,
                    judge=judge,
                    attributes=attributes,
                )
                if done is not None:
                    return done
                attempts += 1
        raise StatusError(status.conflict(view.served.group, view.served.plural, name))

    async def _update(
        self,
        view: View,
        entry: Entry,
        subresource: str,
        transform: Transform,
        options: WriteOptions,
        warnings: list[str],
        *,
        unconditional: bool,
        direct: bool,
        applied: bool,
        judge: Callable[[Object, Object], None] | None,
        attributes: Attributes | None,
    ) -> Entry | None:
        """One attempt; None when the object changed while it was judged."""
        served, stored, table = view.served, view.stored, view.table
        namespace, store_key = entry.namespace, stored.store_key(entry.namespace, entry.name)
        judged = attributes is not None and self.admission.configured

        def moved() -> bool:
            return store_key in self.committer.busy or table.entries.get(entry.key) is not entry

        new = transform(view.decode(entry))
        if new.get("metadata") is None:
            new["metadata"] = {}
        meta = new["metadata"]
        strategy = kinds.strategy_for(stored.group, stored.kind)
        self._check_identity(view, entry, meta, strategy, unconditional)
        defaults = kinds.defaults_for(served.kind, served.version)
        if defaults is not None:
            defaults(new)
        if not direct and not applied and _MANAGED in entry.tail:
            self._track(view, entry, new, subresource, strategy, options)
            meta = new["metadata"]
        if not view.hub:
            new = view.to_hub(new)
            meta = new["metadata"]
        old = table.decode(entry)
        _keep_system(meta, old["metadata"])
        if judged and attributes is not None:
            new = await self.admission.mutate(attributes, new, old)
            if moved():
                return None
            meta = new["metadata"]
            _keep_system(meta, old["metadata"])
        old_meta = old["metadata"]
        now = self.stamps.now()
        if direct:
            pass
        elif strategy is not None:
            warnings.extend(strategy.dropped(new, old, subresource or None, self.features))
            strategy.prepare_update(new, old, subresource or None, now, self.features)
        else:
            self._carry_over(view, new, old, subresource)
            if stored.counts_generations and _spec_changed(new, old):
                new["metadata"]["generation"] = old_meta.get("generation", 0) + 1
        if not direct and stored.prefix == DEFINITIONS:
            complete(new, now)
        elif stored.custom:
            self._default_custom(view, new)
        if not direct and not subresource:
            if stored.prefix == POLICIES:
                _observe(new, old)
            self.admission.allot(stored, new, old)
        if new == old:
            return entry
        if judge is not None:
            judge(old, new)
        if not direct:
            self.validate(view, new, old, subresource or None)
            if strategy is not None:
                warnings.extend(strategy.warnings(new, old))
        if attributes is not None and stored.group == RBAC:
            self.authorizer.check_grant(attributes.user, stored.plural, new, old)
        if attributes is not None and stored.prefix == "/core/nodes/":
            self.authorizer.check_node(attributes.user, old, new)
        if attributes is not None and stored.prefix == "/core/pods/":
            self.authorizer.check_pod(attributes.user, old, new)
        if attributes is not None and subresource and stored.prefix == _SIGNING_REQUESTS:
            self.authorizer.check_signer(attributes.user, subresource, old, new)
        if judged and attributes is not None:
            await self.admission.validate(attributes, new, old)
            if moved():
                return None
        if deletion.completes(stored, new):
            return await self.remove(view, entry, options.dry_run, last=new)
        charge: Charge | None = None
        if not direct:
            self.admission.check(stored, namespace, new, old)
            charge = self.admission.charge(stored, namespace, subresource, new, old)
        return await self._write(view, store_key, entry, new, options.dry_run, old, charge)

    def _check_identity(
        self, view: View, entry: Entry, meta: Object, strategy: kinds.Strategy | None, unconditional: bool
    ) -> None:
        """Name, uid and resourceVersion of an update against the stored object."""
        served, stored = view.served, view.stored
        if (meta.get("name") or entry.name) != entry.name:
            text = f"the name of the object ({meta['name']}) does not match the name on the URL ({entry.name})"
            raise StatusError(status.bad_request(text))
        meta["name"] = entry.name
        if stored.namespaced:
            meta["namespace"] = entry.namespace
        else:
            meta.pop("namespace", None)
        uid = meta.get("uid")
        if uid and uid != entry.uid:
            key = f"/registry/{served.plural}/{entry_key(entry.namespace, entry.name)}"
            text = (
                f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {entry.uid}"
            )
            raise StatusError(status.conflict(served.group, served.plural, entry.name, text))
        text = meta.get("resourceVersion") or ""
        if text:
            if revision(text) != entry.revision:
                raise StatusError(status.conflict(served.group, served.plural, entry.name))
        elif not unconditional:
            conditional = stored.conditional or (
                strategy is not None and served.version in strategy.conditional_versions
            )
            if conditional:
                fault = FieldError(
                    type="FieldValueInvalid",
                    field="metadata.resourceVersion",
                    value=0,
                    detail="must be specified for an update",
                )
                raise StatusError(status.invalid(served.group, served.kind, entry.name, [fault]))

    def _carry_over(self, view: View, new: Object, old: Object, subresource: str) -> None:
        """What an update of a kind without a strategy may not touch."""
        # The approval of a request for a certificate is a part of its status.
        if subresource in ("status", "approval"):
            status_ = new.get("status")
            meta = new["metadata"]
            new.clear()
            new.update(old)
            new["metadata"] = dict(old["metadata"])
            kept = _STATUS_WRITES_METADATA.get((view.stored.group, view.stored.plural))
            if kept is not None:
                new["metadata"] = {key: value for key, value in meta.items() if key not in kept}
                new["metadata"] |= {key: old["metadata"][key] for key in kept if key in old["metadata"]}
            if "managedFields" in meta:
                new["metadata"]["managedFields"] = meta["managedFields"]
            if status_ is None:
                new.pop("status", None)
            else:
                new["status"] = status_
        elif "status" in view.served.subresources:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)

    # Server-side apply.

    async def apply(
        self,
        view: View,
        namespace: str,
        name: str,
        subresource: str,
        patch: Object,
        options: WriteOptions,
        warnings: list[str],
        judge: Callable[[Object, Object], None] | None = None,
        attributes: Attributes | None = None,
    ) -> tuple[Entry, bool]:
        """Applies a configuration; also whether that created the object."""
        from drakkar.apiserver.apply import server_side_apply

        schema = self.custom.node(view.served)
        if schema is None:
            raise StatusError(status.unknown_resource())
        strategy = kinds.strategy_for(view.stored.group, view.stored.kind)
        reset = reset_paths(strategy, subresource)
        now = self.clock.time()
        meta = patch.get("metadata") or {}
        if (meta.get("name") or name) != name:
            text = f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            raise StatusError(status.bad_request(text))
        await self.idle(view.stored.store_key(namespace, name))
        if entry_key(namespace, name) not in view.table.entries and not subresource:
            if meta.get("uid"):
                text = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
                raise StatusError(status.conflict(view.served.group, view.served.plural, name, text))
            # A copy: the patch may be needed once more.
            new = decode(encode(patch))
            new = server_side_apply(None, new, options.manager, options.force, schema, "", now, reset=reset)
            new["metadata"] = {**(new.get("metadata") or {}), "name": name}
            managed = new["metadata"].pop("managedFields", None)
            if not view.stored.custom:
                write_zeros(new, schema)
            if attributes is not None:
                attributes.operation = "CREATE"
            try:
                made = await self.create(
                    view, namespace, new, options, warnings, managed=managed, attributes=attributes
                )
                return made, True
            except StatusError as error:
                # Somebody was quicker: what was to be created is applied to what is there.
                if error.reason != "AlreadyExists":
                    raise
            if attributes is not None:
                attributes.operation = "UPDATE"

        def transform(old: Object) -> Object:
            merged = server_side_apply(
                old, patch, options.manager, options.force, schema, subresource, now, reset=reset
            )
            new = decode(encode(merged))  # nothing of the result may be shared with the inputs
            if not view.stored.custom:
                # As whoever else writes the object would; they belong to nobody.
                write_zeros(new, schema)
            return new

        entry = await self.update(
            view,
            namespace,
            name,
            subresource,
            transform,
            options,
            warnings,
            applied=True,
            judge=judge,
            attributes=attributes,
        )
        return entry, False

    def _track(
        self,
        view: View,
        entry: Entry,
        new: Object,
        subresource: str,
        strategy: kinds.Strategy | None,
        options: WriteOptions,
    ) -> None:
        """Brings the owners of fields up to date after a write that is no apply."""
        from drakkar.apiserver.apply import track_update

        schema = self.custom.node(view.served)
        if schema is not None:
            reset = reset_paths(strategy, subresource)
            old, now = view.decode(entry), self.clock.time()
            track_update(old, new, options.manager, "Update", schema, subresource, now, reset=reset)

    def _first_owners(self, view: View, obj: Object, options: WriteOptions) -> list[Object]:
        """Who owns the fields of an object that is created by somebody who says who they are.

        People and their tools do (kubectl, helm). For others the owners are settled when somebody applies,
        which spares the objects of drivers and controllers the bookkeeping.
        """
        from drakkar.apiserver.apply import track_update

        schema = self.custom.node(view.served)
        if schema is None:
            return []
        strategy = kinds.strategy_for(view.stored.group, view.stored.kind)
        new = {**obj, "metadata": {**obj["metadata"], "managedFields": None}}
        reset = reset_paths(strategy, "")
        track_update(None, new, options.manager, "Update", schema, "", self.clock.time(), reset=reset)
        return new["metadata"].get("managedFields") or []

    def creates_on_update(self, view: View) -> bool:
        """Whether a PUT of an absent object creates it."""
        strategy = kinds.strategy_for(view.stored.group, view.stored.kind)
        return view.stored.create_on_update or (strategy is not None and strategy.create_on_update)

    # Validation.

    def validate(self, view: View, obj: Object, old: Object | None, subresource: str | None) -> None:
        """StatusError 422 when the object has faults."""
        served, stored = view.served, view.stored
        validator = kinds.validator_for(stored.group, stored.kind)
        if validator is not None:
            expressions = Expressions(self.features)
            context = ValidationContext(
                check_selector=expressions.selector,
                check_derived_attribute=expressions.derived_attribute,
                features=self.features,
                namespace_labels=self._namespace_labels(obj["metadata"].get("namespace") or ""),
                version=served.version,
            )
            errors = validator(obj, old, subresource, context)
        elif old is None:
            errors = object_metadata.validate_metadata(
                obj, namespaced=stored.namespaced, name_format=_any_name(stored, obj)
            )
        else:
            errors = object_metadata.validate_metadata_update(obj, old, namespaced=stored.namespaced)
        if stored.custom:
            errors = [*errors, *self._custom_faults(view, obj, old)]
        elif stored.prefix == DEFINITIONS and subresource is None:
            errors = [*errors, *custom_faults(obj, old)]
        if stored.group == REGISTRATION and (old is None or obj.get("spec") != old.get("spec") or "webhooks" in obj):
            errors = [*errors, *definition_faults(stored.kind, obj)]
        if errors:
            name = obj["metadata"].get("name") or ""
            raise StatusError(status.invalid(served.group, served.kind, name, errors))

    def _custom_faults(self, view: View, obj: Object, old: Object | None) -> list[FieldError]:
        """Judged in the version that the client speaks, as upstream does."""
        if not view.hub:
            obj = view.from_hub(decode(encode(obj)))
            old = None if old is None else view.from_hub(decode(encode(old)))
        return self.custom.faults(view.served, obj, old)

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        found = self.state.tables["/core/namespaces/"].entries.get(namespace)
        return (found.labels or {}) if found is not None else {}

    # Delete.

    async def delete(
        self,
        view: View,
        namespace: str,
        name: str,
        options: DeleteOptions,
        attributes: Attributes | None = None,
    ) -> tuple[Entry, bool]:
        """The object and whether it is gone (rather than marked as going)."""
        deletion.check_mortal(view.stored, name)
        while True:
            with contextlib.suppress(Outrun):
                return await self._delete(view, namespace, name, options, attributes)

    async def _delete(
        self, view: View, namespace: str, name: str, options: DeleteOptions, attributes: Attributes | None
    ) -> tuple[Entry, bool]:
        """One attempt."""
        stored, table = view.stored, view.table
        store_key = stored.store_key(namespace, name)
        await self.idle(store_key)
        entry = self.entry(view, namespace, name)
        _check_preconditions(view.served, entry, options)
        if attributes is not None and self.admission.configured:
            judged = entry
            await self.admission.judge_delete(attributes, table.decode(entry))
            await self.idle(store_key)
            entry = self.entry(view, namespace, name)
            if entry is not judged:
                # Whoever judges deletes looks at who asks and at labels, so a newer state need not be judged again;
                # another object of this name is another matter.
                if entry.uid != judged.uid:
                    raise StatusError(status.conflict(view.served.group, view.served.plural, name))
                _check_preconditions(view.served, entry, options)
        obj = table.decode(entry)
        decision = deletion.decide(stored, obj, options, self.clock.time())
        if decision == "now" and stored.prefix == DEFINITIONS and not options.dry_run:
            await self._remove_custom_objects(obj)
        if decision == "now":
            return await self.remove(view, entry, options.dry_run), True
        if decision == "unchanged":
            return entry, False
        return await self._write(view, store_key, entry, obj, options.dry_run), False

    async def _remove_custom_objects(self, definition: Object) -> None:
        """The objects of a definition go with it, whatever finalizers they have."""
        spec = definition["spec"]
        prefix = f"/{spec['group']}/{spec['names']['plural']}/"
        stored = self.catalog.stored.get(prefix)
        if stored is None:
            return
        # Versions that are not served, maybe all of them, keep objects as well.
        view = View(stored_version(definition, stored), stored, self.state.tables[prefix])
        for entry in list(view.table.entries.values()):
            while True:
                await self.idle(view.stored.store_key(entry.namespace, entry.name))
                current = view.table.entries.get(entry.key)
                if current is None:
                    break
                with contextlib.suppress(Outrun):
                    await self.remove(view, current, False)

    async def remove(self, view: View, entry: Entry, dry_run: bool, last: Object | None = None) -> Entry:
        """Removes an object at once; ``last`` is its last state where that differs from the stored one."""
        stored, table = view.stored, view.table
        final = table.entry(last, table.value(last), entry.revision) if last is not None else entry
        if dry_run:
            return final
        store_key = stored.store_key(entry.namespace, entry.name)
        write = Write(store_key, entry.revision, None, stored.lifetime is None)
        points = points_of(stored, None, None) if self.committer.counts else ()
        return await self._commit(view, entry.key, write, final, points)

    # Storing.

    async def _commit(
        self,
        view: View,
        key: str,
        write: Write,
        entry: Entry,
        points: tuple[str, ...],
        charge: Charge | None = None,
    ) -> Entry:
        future = self.committer.submit(view.table, key, write, entry, points)
        if charge is not None:
            self.admission.quota.hold(charge, write.key, future)
        # Shielded: a client that goes away does not take back what is on its way to the disk.
        result = await asyncio.shield(future)
        if isinstance(result, Conflict):
            name = result.key.rpartition("/")[2]
            refusal = Outrun if self.committer.shared else StatusError
            raise refusal(status.conflict(view.served.group, view.served.plural, name))
        if isinstance(result, Refused):
            raise StatusError(status.not_stored(result.why, full=result.full, unclear=result.unclear))
        return result

    async def _write(
        self,
        view: View,
        store_key: str,
        entry: Entry | None,
        obj: Object,
        dry_run: bool,
        old: Object | None = None,
        charge: Charge | None = None,
    ) -> Entry:
        stored, table = view.stored, view.table
        value = table.value(obj)
        limit = self.committer.backend.value_limit
        if limit is not None and len(value) > limit:
            raise StatusError(status.entity_too_large(f"the store takes objects of at most {limit} bytes"))
        new = table.entry(obj, value, 0)
        if dry_run:
            kept = entry.revision if entry is not None else 0
            if kept:
                return table.entry(obj, value, kept)
            new.tail = table.unrevised_tail(value)
            return new
        write = Write(store_key, entry.revision if entry is not None else 0, value, stored.lifetime is None)
        points = points_of(stored, obj, old) if self.committer.counts else ()
        return await self._commit(view, new.key, write, new, points, charge)


def _check_preconditions(served: Served, entry: Entry, options: DeleteOptions) -> None:
    """StatusError 409 when the object is not the one that is meant."""
    if options.uid is not None and options.uid != entry.uid:
        text = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({entry.uid}). "
            "The object might have been deleted and then recreated"
        )
        raise StatusError(status.conflict(served.group, served.kind, entry.name, text))
    if options.resource_version is not None and options.resource_version != str(entry.revision):
        text = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({entry.revision}). The object might have been modified"
        )
        raise StatusError(status.conflict(served.group, served.kind, entry.name, text))


def _place(served: Served, meta: Object, namespace: str) -> None:
    """Reconciles the namespace of the object with that of the path."""
    if served.namespaced:
        given = meta.get("namespace")
        if given and given != namespace:
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise StatusError(status.bad_request(text))
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)


def _observe(policy: Object, old: Object | None) -> None:
    """An admission policy is in force as soon as it is stored; its status says so (no types are checked)."""
    generation = policy["metadata"].get("generation")
    if old is None or generation != old["metadata"].get("generation"):
        policy["status"] = {**(policy.get("status") or {}), "observedGeneration": generation, "typeChecking": {}}


def _keep_system(meta: Object, old: Object) -> None:
    """Takes over what only the server writes; what a patch has emptied is absent, as it is in upstream's encoding."""
    for field in (*_SYSTEM, "resourceVersion"):
        if field in old:
            meta[field] = old[field]
        else:
            meta.pop(field, None)
    for field in _COLLECTIONS:
        if field in meta and not meta[field]:
            del meta[field]


def _spec_changed(new: Object, old: Object) -> bool:
    for key in new.keys() | old.keys():
        if key not in ("metadata", "status", "kind", "apiVersion") and new.get(key) != old.get(key):
            return True
    return False


def _path_segment(name: str) -> list[str]:
    """Names of roles need only fit into a path: colons are fine."""
    return ["may not be '.' or '..' or contain '/' or '%'"] if name in (".", "..") or set(name) & set("/%") else []


def _bundle_name(signer: str, name: str) -> tuple[str, ...]:
    """Names of ClusterTrustBundles for a signer begin with the signer's, its slash as a colon (KEP-3257)."""
    prefix = signer.replace("/", ":") + ":"
    if not name.startswith(prefix):
        return (f"ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}",)
    return tuple(formats.dns_subdomain(name.removeprefix(prefix)))


def _any_name(stored: Stored, obj: Object) -> formats.Check:
    if stored.group == "rbac.authorization.k8s.io":
        return _path_segment
    if (stored.group, stored.kind) == ("certificates.k8s.io", "ClusterTrustBundle"):
        signer = (obj.get("spec") or {}).get("signerName")
        if signer:
            return partial(_bundle_name, signer)
    return formats.dns_subdomain
