"""Match conditions of webhooks and policies, and what all expressions of admission see.

Source: ``matchConditions`` of admissionregistration.k8s.io/v1. Expressions are compiled when the first
request needs them, so that a server without them never loads the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drakkar.api.tree import text
from drakkar.apiserver.admission.attributes import Attributes
from drakkar.apiserver.auth import User
from drakkar.apiserver.rbac import Authorizer

if TYPE_CHECKING:
    from drakkar.cel.authorization import AccessDecision, AccessQuery
    from drakkar.cel.expressions import Expression

Object = dict[str, Any]


class Conditions:
    """All have to hold; none is a pass."""

    def __init__(self, conditions: Sequence[Object], *, params: bool = False):
        self._conditions = [(text(entry, "name"), text(entry, "expression")) for entry in conditions]
        self._params = params
        self._programs: list[tuple[str, Expression]] | None = None

    def __bool__(self) -> bool:
        return bool(self._conditions)

    def judge(self, values: Mapping[str, Any]) -> bool | str:
        """Whether all hold; a text when one fails to say and none is false."""
        from drakkar.cel.errors import CompileError, EvaluationError
        from drakkar.cel.expressions import MATCH_CONDITIONS_BUDGET, Budget, OutOfBudget

        budget, errors = Budget(MATCH_CONDITIONS_BUDGET), list[str]()
        try:
            programs = self._compiled()
        except CompileError as error:
            return str(error)
        for name, program in programs:
            try:
                if program.evaluate(values, budget) is not True:
                    return False
            except OutOfBudget as error:
                return f"condition {name!r}: {error}"
            except EvaluationError as error:
                errors.append(f"condition {name!r}: {error}")
        return "; ".join(errors) if errors else True

    def _compiled(self) -> list[tuple[str, Expression]]:
        from drakkar.cel.admission import variables
        from drakkar.cel.expressions import compile_expression

        if self._programs is None:
            declared = variables(params=self._params, authorizer=True)
            self._programs = [(name, compile_expression(source, declared)) for name, source in self._conditions]
        return self._programs


def expression_values(
    attributes: Attributes,
    request: Object,
    new: Object | None,
    old: Object | None,
    namespace: Object | None,
    authorizer: Authorizer,
) -> dict[str, Any]:
    """The variables of all expressions but ``params`` and ``variables``; ``request`` as in a review."""
    from drakkar.cel.authorization import AccessQuery, ResourceCheck
    from drakkar.cel.authorization import Authorizer as Asked

    decide = decider(authorizer, attributes.user)
    own = attributes.served
    about = AccessQuery(
        group=own.group,
        resource=own.plural,
        subresource=attributes.subresource,
        namespace=attributes.namespace,
        name=attributes.name,
    )
    return {
        "object": new,
        "oldObject": old,
        "request": {key: value for key, value in request.items() if key not in ("uid", "object", "oldObject")},
        "namespaceObject": namespace,
        "authorizer": Asked(decide),
        "authorizer.requestResource": ResourceCheck(decide, about),
    }


def decider(authorizer: Authorizer, user: User) -> Any:
    """Answers the questions that expressions ask about rights."""
    from drakkar.cel.authorization import AccessDecision

    def decide(query: AccessQuery) -> AccessDecision:
        subject = user
        if query.service_account is not None:
            subject = service_account_user(*query.service_account)
        if query.path:
            return AccessDecision(authorizer.allows_path(subject, query.verb, query.path))
        allowed = authorizer.allows(
            subject, query.verb, query.group, query.resource, query.subresource, query.namespace, query.name
        )
        return AccessDecision(allowed)

    return decide


def service_account_user(namespace: str, name: str) -> User:
    """The subject that a service account acts as."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)
