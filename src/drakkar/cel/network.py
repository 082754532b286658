"""IP addresses, CIDRs and URLs, read by Go's rules (no zones, no IPv4-mapped IPv6, no leading zeroes)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_plus

from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.values import Address, Network, Url

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST_BAD: Final = re.compile(r"[\s<>\"^`{}|\\\x00-\x1f\x7f]")
_PATH_FREE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@")
_PATH_KEEP: Final = frozenset("!'()*[]")


def parse_address(text: str) -> Address | None:
    """An address, or None."""
    if "%" in text:
        return None
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        return None if parsed.ipv4_mapped is not None else Address(int(parsed), 128)
    return Address(int(parsed), 32)


def parse_network(text: str) -> Network | None:
    """A CIDR, or None."""
    address_part, slash, length = text.rpartition("/")
    address = parse_address(address_part) if slash else None
    if address is None or not length.isascii() or not length.isdigit() or len(length) > 3:
        return None
    if len(length) > 1 and length[0] == "0":
        return None
    return Network(address, int(length)) if int(length) <= address.bits else None


def address_text(address: Address) -> str:
    """Canonical text."""
    if address.bits == 32:
        return str(ipaddress.IPv4Address(address.number))
    return str(ipaddress.IPv6Address(address.number))


def network_text(network: Network) -> str:
    """Canonical text, with the host bits as written."""
    return f"{address_text(network.address)}/{network.prefix}"


def _text(function: str, value: Any) -> str:
    if type(value) is str:
        return value
    raise no_overload(function, value)


def _parses(function: str, parse: Callable[[str], object]) -> Callable[[Any], bool]:
    def call(value: Any) -> bool:
        return parse(_text(function, value)) is not None

    return call


def to_ip(value: Any) -> Address:
    """``ip(text)`` and ``cidr.ip()``."""
    if type(value) is Network:
        return value.address
    address = parse_address(_text("ip", value))
    if address is None:
        raise EvaluationError(
            "conversion", f"IP address {value!r} is malformed (zones, leading zeroes and mapped forms are refused)"
        )
    return address


def to_cidr(value: Any) -> Network:
    """``cidr(text)``."""
    network = parse_network(_text("cidr", value))
    if network is None:
        raise EvaluationError("conversion", f"CIDR {value!r} is malformed")
    return network


def is_canonical(value: Any) -> bool:
    """``ip.isCanonical``; an error for what is no address."""
    return address_text(to_ip(_text("ip.isCanonical", value))) == value


def _masked(address: Address, prefix: int) -> int:
    return address.number >> (address.bits - prefix) << (address.bits - prefix)


def masked(value: Any) -> Network:
    """``masked``: host bits cleared."""
    if type(value) is not Network:
        raise no_overload("masked", value)
    return Network(Address(_masked(value.address, value.prefix), value.address.bits), value.prefix)


def contains_ip(network: Any, other: Any) -> bool:
    """``containsIP`` with an address or its text."""
    if type(network) is not Network or type(other) not in (str, Address):
        raise no_overload("containsIP", network, other)
    address = to_ip(other) if type(other) is str else other
    return address.bits == network.address.bits and _masked(address, network.prefix) == _masked(
        network.address, network.prefix
    )


def contains_cidr(network: Any, other: Any) -> bool:
    """``containsCIDR`` with a CIDR or its text."""
    if type(network) is not Network or type(other) not in (str, Network):
        raise no_overload("containsCIDR", network, other)
    inner: Network = to_cidr(other) if type(other) is str else other
    return inner.prefix >= network.prefix and contains_ip(network, inner.address)


def prefix_length(value: Any) -> int:
    """``prefixLength``."""
    if type(value) is Network:
        return value.prefix
    raise no_overload("prefixLength", value)


def _family(address: Address) -> int:
    return 4 if address.bits == 32 else 6


def _loopback(address: Address) -> bool:
    return address.number >> 24 == 127 if address.bits == 32 else address.number == 1


def _link_local_multicast(address: Address) -> bool:
    return address.number >> 8 == 0xE00000 if address.bits == 32 else address.number >> 112 & 0xFF0F == 0xFF02


def _link_local_unicast(address: Address) -> bool:
    return address.number >> 16 == 0xA9FE if address.bits == 32 else address.number >> 118 == 0x3FA


def _multicast(address: Address) -> bool:
    return address.number >> 28 == 0xE if address.bits == 32 else address.number >> 120 == 0xFF


def _global_unicast(address: Address) -> bool:
    if address.bits == 32 and address.number == 0xFFFFFFFF:
        return False
    return not (address.number == 0 or _loopback(address) or _multicast(address) or _link_local_unicast(address))


def _of_address(name: str, function: Callable[[Address], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        if type(value) is not Address:
            raise no_overload(name, value)
        return function(value)

    return call


# URLs.


@lru_cache(maxsize=256)
def parse_url(text: str) -> Url | None:
    """An absolute URL or an absolute path, or None."""
    if not text or any(ord(char) < 0x20 or ord(char) == 0x7F for char in text):
        return None
    scheme = ""
    rest = text
    match = _SCHEME.match(text)
    if match:
        scheme, rest = match.group()[:-1].lower(), text[match.end() :]
    elif not text.startswith("/"):
        return None
    rest, _, query = rest.partition("#")[0].partition("?")
    if not rest.startswith("/"):
        return Url(text, scheme, "", "", query) if scheme and rest else None
    host = ""
    if scheme and rest.startswith("//") and not rest.startswith("///"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        user, at, host = authority.rpartition("@")
        if at and not re.fullmatch(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", user):
            return None
        if not _valid_host(host):
            return None
    if _PERCENT.search(rest):
        return None
    return Url(text, scheme, host, rest, query)


def _valid_host(host: str) -> bool:
    if _HOST_BAD.search(host):
        return False
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            return False
        port = host[end + 1 :]
    else:
        if host.count(":") > 1 or ("%" in host and _PERCENT.search(host)):
            return False
        colon = host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    return port == "" or (port[0] == ":" and (port == ":" or (port[1:].isascii() and port[1:].isdigit())))


def to_url(value: Any) -> Url:
    """``url(text)``."""
    parsed = parse_url(_text("url", value))
    if parsed is None:
        raise EvaluationError("conversion", f"URL {value!r} is malformed; it has to be absolute or an absolute path")
    return parsed


def _hostname(url: Url) -> str:
    host = url.host
    if host.startswith("["):
        return host[1 : host.index("]")]
    return host.rpartition(":")[0] if ":" in host else host


def _port(url: Url) -> str:
    host = url.host[url.host.rfind("]") + 1 :]
    return host.rpartition(":")[2] if ":" in host else ""


def _escaped_path(url: Url) -> str:
    path = url.path
    if all(char in _PATH_FREE or char in _PATH_KEEP or char == "%" for char in path):
        return path
    decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), path.encode())
    return "".join(chr(octet) if chr(octet) in _PATH_FREE else f"%{octet:02X}" for octet in decoded)


def _query(url: Url) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        if _PERCENT.search(key) or _PERCENT.search(value):
            continue
        result.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return result


def _of_url(name: str, function: Callable[[Url], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        if type(value) is not Url:
            raise no_overload(name, value)
        return function(value)

    return call


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "ip": to_ip, "cidr": to_cidr, "ip.isCanonical": is_canonical, "masked": masked, "containsIP": contains_ip,
    "containsCIDR": contains_cidr, "prefixLength": prefix_length,
    "isIP": _parses("isIP", parse_address),
    "isCIDR": _parses("isCIDR", parse_network),
    "family": _of_address("family", _family),
    "isUnspecified": _of_address("isUnspecified", lambda address: address.number == 0),
    "isLoopback": _of_address("isLoopback", _loopback),
    "isLinkLocalMulticast": _of_address("isLinkLocalMulticast", _link_local_multicast),
    "isLinkLocalUnicast": _of_address("isLinkLocalUnicast", _link_local_unicast),
    "isGlobalUnicast": _of_address("isGlobalUnicast", _global_unicast),
    "url": to_url, "isURL": _parses("isURL", parse_url),
    "getScheme": _of_url("getScheme", lambda url: url.scheme),
    "getHost": _of_url("getHost", lambda url: url.host),
    "getHostname": _of_url("getHostname", _hostname),
    "getPort": _of_url("getPort", _port),
    "getEscapedPath": _of_url("getEscapedPath", _escaped_path),
    "getQuery": _of_url("getQuery", _query),
}  # fmt: skip
