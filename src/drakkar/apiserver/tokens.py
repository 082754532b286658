"""Tokens of service accounts: signed, so that they outlive the process, and good as long as what they are bound to.

A token is a JSON Web Token (ES256). It stops being good when it expires, or when its account, or the
pod, secret or node it is bound to, is gone or another one of the same name. The key follows from that of
the plane's authority, so that all servers of one plane accept each other's tokens.

Source: TokenRequest and TokenReview of authentication.k8s.io/v1, RFC 7519.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drakkar.api.errors import FieldError
from drakkar.api.tree import child, text, texts
from drakkar.apiserver import status
from drakkar.apiserver.auth import AUTHENTICATED, User
from drakkar.apiserver.cache import Entry, State
from drakkar.apiserver.claims import NODE_KEY
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.times import rfc3339

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

Object = dict[str, Any]

ISSUER = "https://kubernetes.default.svc"
#: Whom tokens for this server are for.
AUDIENCES = (ISSUER, "https://kubernetes.default.svc.cluster.local")
_SHORTEST, _USUAL, _LONGEST = 600, 3600, 1 << 32
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
#: Tokens whose signature was found good, least recently used first out.
_REMEMBERED = 10_000
_BOUND = {"Pod": "/core/pods/", "Secret": "/core/secrets/", "Node": "/core/nodes/"}


def signing_key(authority: str | os.PathLike[str]) -> EllipticCurvePrivateKey:
    """The key for tokens that belongs to an authority, whose private key is in this file."""
    from cryptography.hazmat.primitives.asymmetric import ec

    digest = hashlib.sha512(b"drakkar service account tokens\0" + Path(authority).read_bytes()).digest()
    return ec.derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, ec.SECP256R1())


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpacked(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


class AccountTokens:
    """Signs and verifies; ``now`` tells Unix time, ``bits`` makes random numbers."""

    def __init__(self, state: State, now: Callable[[], float], bits: Callable[[int], int]):
        self._state = state
        self._now = now
        self._bits = bits
        self._key: EllipticCurvePrivateKey | None = None
        self._known: OrderedDict[str, Object] = OrderedDict()

    @property
    def key(self) -> EllipticCurvePrivateKey:
        """The key; one that lives as long as the process where none was set."""
        if self._key is None:
            from cryptography.hazmat.primitives.asymmetric import ec

            self._key = ec.generate_private_key(ec.SECP256R1())
        return self._key

    @key.setter
    def key(self, key: EllipticCurvePrivateKey) -> None:
        self._key = key
        self._known.clear()

    def jwks(self) -> Object:
        """The public key, for those who verify tokens themselves."""
        numbers = self.key.public_key().public_numbers()
        x, y = (_packed(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        return {
            "keys": [{"use": "sig", "kty": "EC", "kid": self._key_id(), "crv": "P-256", "alg": "ES256", "x": x, "y": y}]
        }

    def _key_id(self) -> str:
        numbers = self.key.public_key().public_numbers()
        return _packed(hashlib.sha256(numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")).digest())

    # Making.

    def request(self, account: Object, body: Object) -> Object:
        """The TokenRequest with its token. StatusError 422, or 404 and 409 for what it is to be bound to."""
        meta, now = account["metadata"], self._now()
        spec = child(body, "spec")
        seconds = spec.get("expirationSeconds") or _USUAL
        if not _SHORTEST <= seconds <= _LONGEST:
            detail = "may not specify a duration less than 10 minutes"
            if seconds > _LONGEST:
                detail = "may not specify a duration larger than 2^32 seconds"
            fault = FieldError(type="FieldValueInvalid", field="spec.expirationSeconds", value=seconds, detail=detail)
            raise StatusError(status.invalid("authentication.k8s.io", "TokenRequest", meta["name"], [fault]))
        namespace, name = meta["namespace"], meta["name"]
        audiences = texts(spec, "audiences") or [ISSUER]
        about: Object = {"namespace": namespace, "serviceaccount": {"name": name, "uid": meta["uid"]}}
        about |= self._binding(namespace, child(spec, "boundObjectRef"))
        claims = {
            "aud": audiences,
            "exp": int(now + seconds),
            "iat": int(now),
            "iss": ISSUER,
            "jti": f"{self._bits(128):032x}",
            "kubernetes.io": about,
            "nbf": int(now),
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "uid": meta["uid"], "creationTimestamp": rfc3339(now)},
            "spec": {
                "audiences": audiences,
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": self.sign(claims), "expirationTimestamp": rfc3339(now + seconds)},
        }

    def _binding(self, namespace: str, bound: Object) -> Object:
        """What a token says about the object it is bound to, and the node of a pod."""
        if not bound:
            return {}
        kind, name = text(bound, "kind"), text(bound, "name")
        entry = self._entry(kind, namespace, name)
        if entry is None:
            plural = _BOUND.get(kind, f"/core/{kind.lower()}s/").split("/")[2]
            raise StatusError(status.not_found("", plural, name))
        if text(bound, "uid") and bound["uid"] != entry.uid:
            said = f"the UID in the bound object reference ({bound['uid']}) does not match the UID in record"
            raise StatusError(status.conflict("", _BOUND[kind].split("/")[2], name, said))
        found: Object = {kind.lower(): {"name": name, "uid": entry.uid}}
        node = (entry.fields or {}).get("spec.nodeName", "") if kind == "Pod" else ""
        if node:
            of_node = self._entry("Node", "", node)
            found["node"] = {"name": node, **({"uid": of_node.uid} if of_node is not None else {})}
        return found

    def _entry(self, kind: str, namespace: str, name: str) -> Entry | None:
        prefix = _BOUND.get(kind)
        if prefix is None:
            return None
        key = name if kind == "Node" else f"{namespace}/{name}"
        return self._state.tables[prefix].entries.get(key)

    def sign(self, claims: Object) -> str:
        """A token with these claims."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        header = {"alg": "ES256", "kid": self._key_id()}
        text_ = ".".join(_packed(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims))
        r, s = decode_dss_signature(self.key.sign(text_.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text_}.{_packed(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    # Judging.

    def user_of(self, token: str, audiences: tuple[str, ...] = AUDIENCES) -> User | None:
        """The account that acts with a token, if the token is good and for one of these audiences."""
        claims = self._claims(token)
        if claims is None or not set(audiences) & set(self.audiences(claims)):
            return None
        now = self._now()
        if not claims["nbf"] - 1 <= now < claims["exp"]:
            return None
        about = child(claims, "kubernetes.io")
        namespace, account = text(about, "namespace"), child(about, "serviceaccount")
        entry = self._state.tables["/core/serviceaccounts/"].entries.get(f"{namespace}/{text(account, 'name')}")
        if entry is None or entry.uid != text(account, "uid"):
            return None
        extra = [("authentication.kubernetes.io/credential-id", (f"JTI={claims['jti']}",))]
        for kind in _BOUND:
            bound = child(about, kind.lower())
            if not bound or (kind == "Node" and "pod" in about):
                continue  # The node of a token's pod may go before the pod does.
            there = self._entry(kind, namespace, text(bound, "name"))
            if there is None or there.uid != text(bound, "uid"):
                return None
            if kind == "Pod":
                extra.append(("authentication.kubernetes.io/pod-name", (bound["name"],)))
                extra.append(("authentication.kubernetes.io/pod-uid", (bound["uid"],)))
        node = child(about, "node")
        if node:
            extra.append((NODE_KEY, (node["name"],)))
            if node.get("uid"):
                extra.append(("authentication.kubernetes.io/node-uid", (node["uid"],)))
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return User(text(claims, "sub"), groups, text(account, "uid"), tuple(extra))

    @staticmethod
    def audiences(claims: Object) -> list[str]:
        """Whom a token is for."""
        return texts(claims, "aud")

    def audiences_of(self, token: str) -> list[str]:
        """Whom a token with a good signature is for; empty for others."""
        claims = self._claims(token)
        return self.audiences(claims) if claims is not None else []

    def _claims(self, token: str) -> Object | None:
        """What a token says, if we signed it."""
        known = self._known.get(token)
        if known is not None:
            self._known.move_to_end(token)
            return known
        if token.count(".") != 2 or len(token) > 8192:
            return None
        claims = self._verified(token)
        if claims is None:
            return None
        self._known[token] = claims
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return claims

    def _verified(self, token: str) -> Object | None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        head, body, mark = token.split(".")
        try:
            header, claims, signature = json.loads(_unpacked(head)), json.loads(_unpacked(body)), _unpacked(mark)
            if header.get("alg") != "ES256" or len(signature) != 64 or claims.get("iss") != ISSUER:
                return None
            pair = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
            public = self.key.public_key()
            public.verify(encode_dss_signature(*pair), f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, binascii.Error, ValueError, AttributeError, RecursionError):
            return None
        wanted = (("exp", int), ("nbf", int), ("jti", str), ("sub", str), ("aud", list), ("kubernetes.io", dict))
        return claims if all(isinstance(claims.get(name), kind) for name, kind in wanted) else None
