"""The whole server as one function from :class:`Request` to :class:`Response`, without sockets.

A request is authenticated, read (`drakkar.apiserver.routes`), authorized and handed to the
verb; whatever goes wrong inside is a :class:`StatusError` and becomes the answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.features import Features
from drakkar.api.wire import Request, Response
from drakkar.apiserver import bootstrap, deadlines, paths, pods, reviews, scale, status
from drakkar.apiserver.admission import Attributes, BodyForms
from drakkar.apiserver.audit import AuditLog
from drakkar.apiserver.auth import ANONYMOUS, AUTHENTICATED, Authenticator, User
from drakkar.apiserver.bodies import Bodies
from drakkar.apiserver.cache import Entry, State, entry_key
from drakkar.apiserver.catalog import Catalog, Served
from drakkar.apiserver.claims import check_status_write
from drakkar.apiserver.commit import Committer, PeerCommitter
from drakkar.apiserver.exchange import Exchange
from drakkar.apiserver.expiry import Expiry
from drakkar.apiserver.joining import bootstrap_users, name_requester
from drakkar.apiserver.limits import BODY_LIMIT, Limits, Releasing
from drakkar.apiserver.lists import select
from drakkar.apiserver.metrics import Metrics
from drakkar.apiserver.negotiate import JSON, PLAIN, answer_form, patch_type
from drakkar.apiserver.options import (
    TRUE,
    ListOptions,
    WriteOptions,
    delete_options,
    list_options,
    revision,
    write_options,
)
from drakkar.apiserver.peers import Behind, Peers
from drakkar.apiserver.publishing import Publisher, advertised
from drakkar.apiserver.rbac import Authorizer
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.render import Renderer
from drakkar.apiserver.routes import RequestInfo, parse
from drakkar.apiserver.selection import Selection
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.streaming import answers as streaming
from drakkar.apiserver.streaming.agents import Agents
from drakkar.apiserver.ticker import Ticker
from drakkar.apiserver.tokens import AccountTokens
from drakkar.apiserver.views import View
from drakkar.apiserver.watch import Watch
from drakkar.store.base import Backend, SharedBackend, StoreFailed
from drakkar.store.failpoints import Failpoints

_log = logging.getLogger(__name__)
Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode

#: Lists of at least this many bytes go out in pieces, to callers that take pieces.
PIECES_FROM = 1 << 20
YAML_PIECES_FROM = 32 << 10
#: Characters of one warning, and of all warnings of an answer.
MAX_WARNING, MAX_WARNINGS = 256, 4 << 10

#: Subresources that a node or pod would have to answer; a POST to them has no body to read.
_OF_AGENTS = frozenset({"proxy"})

_MUTATING_POLICIES = "/admissionregistration.k8s.io/mutatingadmissionpolicies/"

#: Kinds of what clients ask of a node's agent, as admission sees them.
_CONNECTIONS = {"exec": "PodExecOptions", "attach": "PodAttachOptions", "portforward": "PodPortForwardOptions"}

_HEADERS = {"cache-control": "no-cache, private", "content-type": JSON}


class ApiServer:
    """One API server over one store.

    ``clock`` and ``rng`` are its only sources of time and chance; ``features`` its gates.
    :meth:`start` loads the store; requests before that are refused. ``on_failure`` is called once
    when the store failed: from then on writes are refused, and the process should end.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Clock,
        rng: random.Random | None = None,
        features: Features | None = None,
        failpoints: Failpoints | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        limits: Limits | None = None,
    ):
        self.backend = backend
        self.limits = limits or Limits()
        self.clock = clock
        self.rng = rng or random.Random(uuid.uuid4().int)
        self.state = State()
        self.catalog = Catalog()
        #: What other servers of the same store write; None for a store of one server.
        self.peers: Peers | None = None
        if isinstance(backend, SharedBackend):
            self.committer = committer = PeerCommitter(backend, self.state, failpoints)
            self.peers = Peers(backend, self.state, committer)
        else:
            self.committer = Committer(backend, self.state, failpoints)
        self.committer.on_failure = on_failure
        self.features = features or Features.drakkar()
        self.authorizer = Authorizer(self.state)
        self.registry = Registry(
            self.catalog, self.state, self.committer, clock, self.rng, self.features, self.authorizer
        )
        self.authenticator = Authenticator(clock.time)
        self.accounts = AccountTokens(self.state, clock.time, self.rng.getrandbits)
        self.authenticator.sources.append(self.accounts.user_of)
        self.authenticator.sources.append(bootstrap_users(self.state, clock.time))
        self.ticker = Ticker(clock)
        self.expiry = Expiry(self.registry, self.ticker)
        self.bodies = Bodies(self.registry.custom.node, self.registry.custom.type_faults)
        #: How pods' nodes are reached for logs and exec; None: not at all.
        self.agents: Agents | None = None
        self._publisher: Publisher | None = None
        self.metrics = Metrics()
        self.audit: AuditLog | None = None
        self.ready = False
        self._reading = self._writing = 0
        self._ending = False

    # Life.

    async def start(self) -> None:
        """Loads the store and makes what every cluster has (namespaces)."""
        rest = self.state.load(self.backend.load())
        self.registry.serve_custom()
        orphans = self.state.load(rest)
        if orphans:
            _log.warning("%d stored objects, %s among them, have no definition", len(orphans), orphans[0][0])
            for key, revision_, value in orphans:
                self.state.take(key, revision_, value)
        self.state.loaded(self.backend.revision)
        self.expiry.start()
        if self.peers is not None:
            self.peers.start(self.backend.revision)
        await bootstrap.create_missing(self.registry)
        self.ready = True

    async def publish(self, host: str, port: int) -> None:
        """Keeps endpoints of the Service ``kubernetes`` for this server, which listens there, until it closes."""
        place = advertised(host), port
        self._publisher = Publisher(self.registry, self.clock, place, shared=self.peers is not None)
        await self._publisher.start()

    async def close(self) -> None:
        """Refuses new requests, waits for writes in flight, ends watches and closes the store."""
        self.ready = False
        if self._publisher is not None:
            await self._publisher.close()
        await self.registry.admission.close()
        await self.committer.drained()
        self.end_watches()
        await self.ticker.close()
        if self.peers is not None:
            await self.peers.close()
        if self.agents is not None:
            await self.agents.close()
        await self.backend.close()
        if self.audit is not None:
            self.audit.close()

    @property
    def in_flight(self) -> tuple[int, int]:
        """Requests in progress: reading and writing ones."""
        return self._reading, self._writing

    @property
    def ending(self) -> bool:
        """Whether the server is about to go."""
        return self._ending

    def end_watches(self) -> None:
        """Ends all watches; their clients will come back."""
        self._ending = True
        for table in self.state.tables.values():
            table.wake()

    def token(self, user: str, *groups: str) -> str:
        """A bearer token for a component of this process; it lives as long as the server."""
        return self.authenticator.issue(user, groups)

    # Requests.

    async def handle(self, request: Request) -> Response:
        """Answers one request; warnings go with refusals as well."""
        clock = self.clock
        id_ = request.headers.get("audit-id", "")
        if not 0 < len(id_) <= 64 or not id_.isascii() or not id_.isprintable():
            id_ = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        exchange = Exchange(request, id_, clock.time(), clock.monotonic())
        response = await self._guarded(request, exchange)
        response.headers["audit-id"] = id_
        if exchange.warnings:
            response.headers["warning"] = _warning(exchange.warnings)
        stream = response.stream is not None and not response.whole
        if response.stream is not None and stream and exchange.info is not None:
            response.stream = self.metrics.counted(exchange, response.stream)
        self.metrics.observe(exchange, response.status, clock.monotonic() - exchange.started, stream=stream)
        return response if self.audit is None else self.audit.answered(exchange, response)

    async def _guarded(self, request: Request, exchange: Exchange) -> Response:
        try:
            return await self._answer(request, exchange)
        except StatusError as error:
            return failure(error.status)
        except StoreFailed as error:
            return failure(status.internal(f"the store failed, restart the server: {error}"))
        except RecursionError:
            return failure(status.bad_request("the request nests too deeply"))
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return failure(status.internal("the server could not handle the request; its log says why"))

    async def _answer(self, request: Request, exchange: Exchange) -> Response:
        query = dict(request.query)
        info = exchange.info = parse(request, query)
        wanted = query.get("timeout", "")
        if not wanted or deadlines.lasts(info):
            return await self._handled(request, exchange, info, query)
        try:
            async with asyncio.timeout(deadlines.allotted(wanted, self.limits.seconds)):
                return await self._handled(request, exchange, info, query)
        except TimeoutError:
            raise deadlines.exceeded() from None

    async def _handled(
        self, request: Request, exchange: Exchange, info: RequestInfo, query: Mapping[str, str]
    ) -> Response:
        warnings = exchange.warnings
        user = exchange.user = self.authenticator.authenticate(request)
        if self.audit is not None:
            self.audit.received(exchange)
        if "impersonate-user" in request.headers:
            user = exchange.impersonated = self._impersonated(request, user)
        elif any(name.startswith("impersonate-") for name in request.headers):
            raise StatusError(status.bad_request("Impersonate-User is missing beside other Impersonate headers"))
        if not info.is_resource:
            if self.peers is not None and user is not ANONYMOUS and info.path.startswith(("/apis", "/openapi")):
                await self._catch_up(self.peers)  # kinds may have come
            return await paths.answer(self, request, info, user)
        if not self.ready:
            raise StatusError(status.status_error(503, "ServiceUnavailable", "the server is not ready", retry_after=1))
        if user is ANONYMOUS:
            raise StatusError(status.unauthorized())
        if self.peers is not None and not self._may_lag(info, query):
            await self._catch_up(self.peers)
        served = self.catalog.find(info.group, info.version, info.resource)
        if served is None:
            if (info.group, info.version) not in self.catalog.group_versions:
                return paths.not_found()
            raise StatusError(status.unknown_resource())
        self._check_verb(request, info, served)
        exchange.known = True
        self.authorizer.check(user, info)
        if served.plural == "pods" and info.subresource in streaming.SUBRESOURCES:
            await self._admit_connection(request, info, served, exchange)
            return await streaming.answer(self, request, info, user)
        if served.deprecation:
            warnings.append(served.deprecation)
        if info.verb == "watch":
            return await self._watch(request, info, served, query)
        if info.verb in ("get", "list"):
            if self._reading >= self.limits.reading:
                raise StatusError(status.too_many_requests("too many requests, please try again later"))
            self._reading += 1
            streamed = False
            try:
                response = await self._read(request, info, served, query)
                if response.stream is not None:
                    # A list counts until the last of it is sent: it holds what it is going to send.
                    response.stream, streamed = Releasing(response.stream, self._read_ended), True
                return response
            finally:
                if not streamed:
                    self._read_ended()
        if self._writing >= self.limits.writing:
            raise StatusError(status.too_many_requests("too many requests, please try again later"))
        if len(request.body) > BODY_LIMIT:
            raise StatusError(status.entity_too_large(f"Request entity too large: limit is {BODY_LIMIT}"))
        self._writing += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._write(request, info, served, query, user, exchange)
        except TimeoutError:
            raise deadlines.exceeded() from None
        finally:
            self._writing -= 1

    def _read_ended(self) -> None:
        self._reading -= 1

    def _may_lag(self, info: RequestInfo, query: Mapping[str, str]) -> bool:
        """Whether the client asked for a state that is not older than one which this server has."""
        if info.verb not in ("get", "list", "watch") or query.get("continue"):
            return False
        asked = query.get("resourceVersion", "")
        return asked.isdigit() and int(asked) <= self.state.revision

    async def _catch_up(self, peers: Peers) -> None:
        """Waits until this server has seen what any server acknowledged; StatusError 503 when that takes too long."""
        try:
            await peers.fresh()
        except Behind as error:
            raise StatusError(status.status_error(503, "ServiceUnavailable", str(error), retry_after=1)) from None

    def _impersonated(self, request: Request, user: User) -> User:
        """Whom the client wants to be, if it may."""
        name, uid = request.headers["impersonate-user"], request.headers.get("impersonate-uid", "")
        groups = tuple(part.strip() for part in request.headers.get("impersonate-group", "").split(",") if part.strip())
        extra = tuple(
            (unquote(key.removeprefix("impersonate-extra-")), (value,))
            for key, value in sorted(request.headers.items())
            if key.startswith("impersonate-extra-")
        )
        asked: list[tuple[str, str, str, str]] = [("groups", "", "", group) for group in groups]
        account = name.split(":") if name.startswith("system:serviceaccount:") else []
        if len(account) == 4:
            asked.append(("serviceaccounts", "", account[2], account[3]))
            groups = groups or ("system:serviceaccounts", f"system:serviceaccounts:{account[2]}")
        else:
            asked.append(("users", "", "", name))
        group = "authentication.k8s.io"
        asked += [("uids", group, "", uid)] if uid else []
        asked += [(f"userextras/{key}", group, "", values[0]) for key, values in extra]
        for resource, api_group, namespace, value in asked:
            plural, _, sub = resource.partition("/")
            info = RequestInfo("impersonate", request.path, api_group, "", plural, namespace, value, sub)
            self.authorizer.check(user, info)
        groups = groups if AUTHENTICATED in groups else (*groups, AUTHENTICATED)
        return User(name, groups, uid, extra)

    def _check_verb(self, request: Request, info: RequestInfo, served: Served) -> None:
        """404 for subresources that there are not, 405 for methods that a path does not take."""
        if info.subresource:
            sub = served.subresources.get(info.subresource)
            if sub is None:
                raise StatusError(status.unknown_resource())
            verbs = sub.verbs
        else:
            verbs = served.verbs
        if served.namespaced and info.name and not info.namespace:
            raise StatusError(status.unknown_resource())
        if request.method == "HEAD" or info.verb not in verbs:
            raise StatusError(status.method_not_allowed())
        if not info.subresource and info.name and info.verb == "create":
            raise StatusError(status.method_not_allowed())
        if not info.name and info.verb in ("update", "patch"):
            raise StatusError(status.method_not_allowed())
        if served.namespaced and not info.namespace and info.verb == "create":
            raise StatusError(status.method_not_allowed())

    # Reading.

    def _renderer(self, request: Request, options: ListOptions | None = None, *, transforms: bool = True) -> Renderer:
        form = answer_form(request.headers.get("accept", ""), transforms=transforms)
        include = options.include_object if options else "Metadata"
        return Renderer(form, self.clock.time, include, self.registry.custom.printer)

    async def _read(self, request: Request, info: RequestInfo, served: Served, query: Mapping[str, str]) -> Response:
        if served.stored is None:
            raise StatusError(status.unknown_resource())
        view = self.registry.view(served)
        if info.verb == "get":
            if info.subresource not in ("", "status", "resize", "ephemeralcontainers", "approval"):
                return self._subresource(info, view)
            renderer = self._renderer(request)
            await self._reached(revision(query.get("resourceVersion", "")))
            entry = self.registry.entry(view, info.namespace if served.namespaced else "", info.name)
            return _object(renderer, view, entry, 200)
        options = list_options(query, watch=False)
        renderer = self._renderer(request, options)
        selection = self._selection(view, info, options)
        await self._reached_for(options)
        entries, metadata = select(self.state, view, selection, options)
        size = sum(len(entry.tail) for entry in entries) if request.pieces else 0
        # YAML takes so long that others want a turn even in short lists.
        if size >= PIECES_FROM or (renderer.form.yaml and size >= YAML_PIECES_FROM):
            headers = {**_HEADERS, "content-type": renderer.content_type}
            return Response(200, headers, stream=_flow(renderer.pieces(view, entries, metadata)), whole=True)
        body = renderer.many(view, entries, metadata)
        return Response(200, {**_HEADERS, "content-type": renderer.content_type}, body)

    async def _reached(self, asked: int) -> None:
        """Waits a moment for a revision of the future; StatusError 504 when it does not come."""
        if asked <= self.state.revision:
            return
        try:
            async with asyncio.timeout(min(deadlines.FUTURE_SECONDS, self.limits.seconds)):
                await self.state.reached(asked)
        except TimeoutError:
            raise StatusError(status.too_large_resource_version(asked, self.state.revision)) from None

    async def _reached_for(self, options: ListOptions) -> None:
        """The same for a list; one of exactly a revision, or one that goes on, does not wait."""
        if options.match != "Exact" and not options.token:
            await self._reached(revision(options.resource_version))

    def _selection(self, view: View, info: RequestInfo, options: ListOptions) -> Selection:
        namespace = info.namespace if view.served.namespaced else ""
        return Selection(view.stored, namespace, info.name, options.labels, options.fields)

    async def _watch(self, request: Request, info: RequestInfo, served: Served, query: Mapping[str, str]) -> Response:
        options = list_options(query, watch=True)
        renderer = self._renderer(request, options)
        if options.initial_events:
            await self._reached(revision(options.resource_version))
        view = self.registry.view(served)
        selection = self._selection(view, info, options)
        after = revision(options.resource_version)
        seconds = options.timeout
        if not seconds or seconds < 0:
            seconds = 1800 * (1 + self.rng.random())
        watch = Watch(
            view,
            selection,
            options,
            renderer,
            self.ticker,
            lambda: self.state.revision,
            lambda: self._ending,
            deadline=self.ticker.now() + seconds,
        )
        from_state = options.initial_events or after == 0
        return Response(200, dict(_HEADERS), stream=watch.stream(None if from_state else after))

    def _subresource(self, info: RequestInfo, view: View) -> Response:
        if info.subresource == "scale":
            return self._scale_of(view, self.registry.entry(view, info.namespace, info.name))
        raise _no_agent(info)

    def _scale_of(self, view: View, entry: Entry) -> Response:
        found = scale.scale_of(view.decode(entry), self.registry.custom.scale_paths(view.served))
        return Response(200, dict(_HEADERS), _encode(found))

    # Writing.

    async def _write(
        self,
        request: Request,
        info: RequestInfo,
        served: Served,
        query: Mapping[str, str],
        user: User,
        exchange: Exchange,
    ) -> Response:
        if served.stored is None:
            return await self._compute(request, info, served, user)
        namespace = info.namespace if served.namespaced else ""
        write = _Write(request, info, self.registry.view(served), namespace, query, user, exchange)
        if info.verb == "create":
            return await (self._create_subresource(write) if info.subresource else self._create(write))
        if info.subresource == "scale":
            return await self._scale(write)
        if info.verb == "update":
            return await self._update(write)
        if info.verb == "patch":
            return await self._patch(write)
        return await self._delete(write)

    async def _create(self, write: _Write) -> Response:
        info, view = write.info, write.view
        options = write.options("CreateOptions")
        renderer = self._renderer(write.request)
        obj = self.bodies.read(write.request, view.served, options, write.exchange.warnings)
        self.authorizer.check_new(write.user, info, obj)
        if view.stored.prefix == _MUTATING_POLICIES:
            write.exchange.warnings.append("MutatingAdmissionPolicies are kept but not run by this server")
        name_requester(view.stored, write.user, obj)
        attributes = write.attributes("CREATE", "CreateOptions", options)
        entry = await self.registry.create(
            view, write.namespace, obj, options, write.exchange.warnings, attributes=attributes
        )
        return _object(renderer, view, entry, 201)

    async def _update(self, write: _Write) -> Response:
        info, view = write.info, write.view
        options = write.options("UpdateOptions")
        renderer = self._renderer(write.request)
        obj = self.bodies.read(write.request, view.served, options, write.exchange.warnings)
        meta = obj.get("metadata") or {}
        given = meta.get("namespace")
        if given and view.served.namespaced and given != write.namespace:
            text = "the namespace of the provided object does not match the namespace on the request"
            raise StatusError(status.bad_request(text))
        if not info.subresource and self.registry.creates_on_update(view) and write.key not in view.table.entries:
            new: Object = msgspec.json.decode(_encode(obj))
            meta = new.setdefault("metadata", {})
            meta.pop("resourceVersion", None)
            if (meta.get("name") or info.name) != info.name:
                # Rights are judged by the name in the path.
                text = f"the name of the object ({meta['name']}) does not match the name on the URL ({info.name})"
                raise StatusError(status.bad_request(text))
            meta["name"] = info.name
            self.authorizer.check_new(write.user, info, new)
            attributes = write.attributes("CREATE", "CreateOptions", options)
            try:
                entry = await self.registry.create(
                    view, write.namespace, new, options, write.exchange.warnings, attributes=attributes
                )
                return _object(renderer, view, entry, 201)
            except StatusError as error:
                # Somebody was quicker, at this server or another one: then it is an update, judged as such.
                if error.reason != "AlreadyExists":
                    raise
        # Admission or other servers may make it start anew, and each attempt uses up what it is given.
        sent = _encode(obj) if self.registry.admission.configured or self.peers is not None else None
        entry = await self.registry.update(
            view,
            write.namespace,
            info.name,
            info.subresource,
            lambda old: obj if sent is None else msgspec.json.decode(sent),
            options,
            write.exchange.warnings,
            unconditional=False,
            judge=self._judge(info, view, write.user),
            attributes=write.attributes("UPDATE", "UpdateOptions", options),
        )
        return _object(renderer, view, entry, 200)

    async def _patch(self, write: _Write) -> Response:
        info, view = write.info, write.view
        options = write.options("PatchOptions")
        renderer = self._renderer(write.request)
        kind = patch_type(write.request.headers.get("content-type", ""), strategic=not view.stored.custom)
        patch = self.bodies.patch(write.request, view.served, kind, options, write.exchange.warnings)
        judge = self._judge(info, view, write.user)
        attributes = write.attributes("UPDATE", "PatchOptions", options)
        if kind == "apply":
            if write.key not in view.table.entries:
                self.authorizer.check_new(write.user, info, patch)
            entry, created = await self.registry.apply(
                view,
                write.namespace,
                info.name,
                info.subresource,
                patch,
                options,
                write.exchange.warnings,
                judge,
                attributes,
            )
            return _object(renderer, view, entry, 201 if created else 200)

        def transform(old: Object) -> Object:
            return self.bodies.patched(old, patch, view.served, kind, options, write.exchange.warnings)

        entry = await self.registry.update(
            view,
            write.namespace,
            info.name,
            info.subresource,
            transform,
            options,
            write.exchange.warnings,
            judge=judge,
            attributes=attributes,
        )
        return _object(renderer, view, entry, 200)

    def _judge(self, info: RequestInfo, view: View, user: User) -> Callable[[Object, Object], None] | None:
        """What has to be checked on the objects themselves, beyond verb and resource."""
        if (
            info.subresource != "status"
            or view.stored.prefix != "/resource.k8s.io/resourceclaims/"
            or self.authorizer.unlimited(user)
            or "DRAResourceClaimGranularStatusAuthorization" not in self.features
        ):
            return None
        return lambda old, new: check_status_write(self.authorizer, user, info.verb, old, new)

    async def _scale(self, write: _Write) -> Response:
        info, view = write.info, write.view
        options = write.options("UpdateOptions")
        change = self.bodies.scale(write.request, patching=info.verb == "patch")

        where = self.registry.custom.scale_paths(view.served)

        def transform(old: Object) -> Object:
            return scale.rescale(old, change(scale.scale_of(old, where)), where)

        attributes = write.attributes("UPDATE", "UpdateOptions", options)
        attributes.kind = scale.KIND
        entry = await self.registry.update(
            view, write.namespace, info.name, "", transform, options, write.exchange.warnings, attributes=attributes
        )
        return self._scale_of(view, entry)

    async def _delete(self, write: _Write) -> Response:
        info, view = write.info, write.view
        body = self.bodies.options(write.request)
        options = delete_options(body, write.query)
        renderer = self._renderer(write.request)

        passed: Object = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", **(body or {})}

        def attributes(of: str, name: str) -> Attributes:
            return Attributes(
                operation="DELETE",
                served=view.served,
                namespace=of,
                name=name,
                subresource=info.subresource,
                user=write.user,
                options=passed,
                dry_run=options.dry_run,
                warnings=write.exchange.warnings,
                annotations=write.exchange.annotations,
            )

        if info.verb == "delete":
            entry, gone = await self.registry.delete(
                view, write.namespace, info.name, options, attributes(write.namespace, info.name)
            )
            if gone and not view.stored.answers_deleted:
                details = {"name": entry.name, "group": view.served.group, "kind": view.served.plural, "uid": entry.uid}
                details = {key: value for key, value in details.items() if value}
                return Response(200, dict(_HEADERS), _encode(status.success(details)))
            return _object(renderer, view, entry, 200)
        selected = list_options(write.query, watch=False)
        self.authorizer.check_selected(write.user, info, selected.fields)
        await self._reached_for(selected)
        entries, metadata = select(self.state, view, self._selection(view, info, selected), selected)
        deleted: list[Entry] = []
        for entry in entries:
            try:
                gone_entry, _ = await self.registry.delete(
                    view, entry.namespace, entry.name, options, attributes(entry.namespace, entry.name)
                )
                deleted.append(gone_entry)
            except StatusError as error:
                if error.code != 404:
                    raise
        metadata["resourceVersion"] = str(self.state.revision)
        body = renderer.many(view, deleted, metadata)
        return Response(200, {**_HEADERS, "content-type": renderer.content_type}, body)

    async def _create_subresource(self, write: _Write) -> Response:
        info, view = write.info, write.view
        options = write.options("CreateOptions")
        sub = view.served.subresources[info.subresource]
        if info.subresource in _OF_AGENTS:
            self.registry.entry(view, info.namespace, info.name)
            raise _no_agent(info)
        body = self.bodies.read_as(write.request, sub.group or view.served.group, sub.version or "v1", sub.kind)
        attributes = write.attributes("CREATE", "CreateOptions", options)
        attributes.kind = (sub.group or view.served.group, sub.version or "v1", sub.kind)
        body = await self._admit_body(attributes, body)
        if view.stored.prefix == "/core/pods/" and info.subresource == "binding":
            await pods.bind(self.registry, view, info.namespace, info.name, body, options)
            return Response(201, dict(_HEADERS), _encode(status.success(code=201)))
        if view.stored.prefix == "/core/pods/" and info.subresource == "eviction":
            await pods.evict(self.registry, view, info.namespace, info.name, body, options)
            return Response(201, dict(_HEADERS), _encode(status.success(code=201)))
        if view.stored.prefix == "/core/serviceaccounts/" and info.subresource == "token":
            account = view.decode(self.registry.entry(view, info.namespace, info.name))
            self.authorizer.check_token(write.user, info.namespace, info.name, body)
            answer = self.accounts.request(account, body)
            return Response(201, dict(_HEADERS), _encode(answer))
        raise StatusError(status.unknown_resource())

    async def _admit_connection(self, request: Request, info: RequestInfo, served: Served, exchange: Exchange) -> None:
        """Lets policies and webhooks judge an exec, attach or port-forward, which is a CONNECT to them."""
        kind = _CONNECTIONS.get(info.subresource)
        admission, user = self.registry.admission, exchange.impersonated or exchange.user
        if kind is None or user is None or not admission.configured:
            return
        attributes = _attributes("CONNECT", "", info, served, user, WriteOptions(field_validation=""), exchange)
        attributes.kind, attributes.options = ("", "v1", kind), {}
        body: Object = {"kind": kind, "apiVersion": "v1"}
        for name, value in request.query:
            if name == "command":
                body.setdefault(name, []).append(value)
            elif name == "ports":
                body.setdefault(name, []).extend(int(port) for port in value.split(",") if port.isdigit())
            else:
                body[name] = value in TRUE if name in ("stdin", "stdout", "stderr", "tty") else value
        await self._admit_body(attributes, body)

    async def _admit_body(self, attributes: Attributes, body: Object) -> Object:
        """What webhooks make of a body that is no object of the resource (a Binding, an Eviction)."""
        forms = BodyForms()
        body = await self.registry.admission.mutate(attributes, body, None, forms)
        await self.registry.admission.validate(attributes, body, None, forms)
        return body

    async def _compute(self, request: Request, info: RequestInfo, served: Served, user: User) -> Response:
        """Resources that store nothing: reviews, and bindings posted to their own collection."""
        if served.plural == "bindings":
            pod_view = self.registry.view(self._served("", "v1", "pods"))
            body = self.bodies.read_as(request, "", "v1", "Binding")
            name = (body.get("metadata") or {}).get("name") or ""
            await pods.bind(self.registry, pod_view, info.namespace, name, body, write_options({}, "CreateOptions"))
            return Response(201, dict(_HEADERS), _encode(status.success(code=201)))
        body = self.bodies.read_as(request, served.group, served.version, served.kind)
        answer = reviews.answer(served, body, user, self.authorizer, self.authenticator, self.accounts)
        return Response(201, dict(_HEADERS), _encode(answer))

    def _served(self, group: str, version: str, plural: str) -> Served:
        found = self.catalog.find(group, version, plural)
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class _Write:
    """One write on its way through the server; ``namespace`` is empty for kinds that have none."""

    request: Request
    info: RequestInfo
    view: View
    namespace: str
    query: Mapping[str, str]
    user: User
    exchange: Exchange

    @property
    def key(self) -> str:
        """The object's key in its table."""
        return entry_key(self.namespace, self.info.name)

    def options(self, kind: str) -> WriteOptions:
        """What the query asks for; ``kind`` is that of the options. StatusError when it makes no sense."""
        return write_options(self.query, kind, self.request.headers.get("user-agent", ""))

    def attributes(self, operation: str, kind: str, options: WriteOptions) -> Attributes:
        """What admission gets to know of it."""
        return _attributes(operation, kind, self.info, self.view.served, self.user, options, self.exchange)


def _attributes(
    operation: str,
    kind: str,
    info: RequestInfo,
    served: Served,
    user: User,
    options: WriteOptions,
    exchange: Exchange,
) -> Attributes:
    """What admission gets to know of a write; ``kind`` is that of its options."""
    passed: Object = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if options.dry_run:
        passed["dryRun"] = ["All"]
    if options.field_manager:
        passed["fieldManager"] = options.field_manager
    if options.field_validation:
        passed["fieldValidation"] = options.field_validation
    return Attributes(
        operation=operation,
        served=served,
        namespace=info.namespace if served.namespaced else "",
        name=info.name,
        subresource=info.subresource,
        user=user,
        options=passed,
        dry_run=options.dry_run,
        warnings=exchange.warnings,
        annotations=exchange.annotations,
    )


async def _flow(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces one by one; whoever else waits gets a turn in between."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


def _no_agent(info: RequestInfo) -> StatusError:
    text = f"{info.subresource} of {info.resource} needs a node agent, to which this server has no connection"
    return StatusError(status.status_error(501, "NotImplemented", text))


def _object(renderer: Renderer, view: View, entry: Entry, code: int) -> Response:
    if renderer.form is PLAIN:
        return Response(code, dict(_HEADERS), view.head + view.tail(entry))
    headers = {**_HEADERS, "content-type": renderer.content_type}
    return Response(code, headers, renderer.finish(renderer.one(view, entry)))


def _warning(warnings: list[str]) -> str:
    """The header; no longer than upstream's, since clients and proxies refuse long ones."""
    texts: list[str] = []
    left = MAX_WARNINGS
    for text in warnings:
        shown = f"299 - {_encode(text[:MAX_WARNING]).decode()}"
        left -= len(shown)
        if left < 0:
            break
        texts.append(shown)
    return ", ".join(texts)


def failure(answer: dict[str, Any]) -> Response:
    """A Status as an answer."""
    headers = dict(_HEADERS)
    seconds = (answer.get("details") or {}).get("retryAfterSeconds")
    if seconds is not None:
        headers["retry-after"] = str(seconds)
    return Response(int(answer.get("code", 500)), headers, _encode(answer))
