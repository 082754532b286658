"""Whose certificates are trusted: those that kubectl and kube-apiserver trust, by the same authorities."""

from __future__ import annotations

import ssl


def trusting(ca: str | None, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> ssl.SSLContext:
    """A context that trusts these authorities (PEM), or those of the system. Raises SSLError.

    Python 3.13 asks more of certificates than Go's TLS does, an authority key identifier for one. Those of many
    clusters and webhooks have none, so all versions of Python ask here what 3.11 asks.
    """
    context = ssl.create_default_context(purpose, cadata=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
