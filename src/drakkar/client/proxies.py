"""Which HTTP proxy leads to a server, by the environment, as Go's programs read it: ``HTTPS_PROXY`` and ``NO_PROXY``.

Only servers that are spoken to by TLS are reached through one (``CONNECT``), and never those of this machine.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from drakkar.api.errors import UsageError


@dataclass(frozen=True, slots=True)
class Proxy:
    """Address of a proxy; ``login`` is ``user:password``, empty for none."""

    host: str
    port: int
    login: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What it has to be told besides the address of the server."""
        login = base64.b64encode(self.login.encode()).decode()
        return {"proxy-authorization": f"Basic {login}"} if login else {}


def proxy_for(server: str, environment: Mapping[str, str]) -> str:
    """The URL of the proxy for ``server`` (``https://host:port``); empty for none."""
    target = urlsplit(server)
    if target.scheme != "https" or _excepted(target, _value(environment, "NO_PROXY")):
        return ""
    return _value(environment, "HTTPS_PROXY")


def parse_proxy(url: str) -> Proxy:
    """Of ``http://[user:password@]host[:port]``; raises UsageError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        # The password is nobody's business.
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise UsageError(
            f"proxy {shown!r} cannot be used: write http://host:port, in HTTPS_PROXY or clusters[].cluster.proxy-url; "
            "NO_PROXY names servers that are reached without"
        )
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(parts.hostname, port, login)


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _excepted(target: SplitResult, exceptions: str) -> bool:
    host, port = (target.hostname or "").rstrip("."), str(target.port or 443)
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host, port, address) for entry in exceptions.split(","))


def _covers(entry: str, host: str, port: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    """Whether one entry of ``NO_PROXY`` covers the server: ``*``, an address, a range of them, a name, ``.domain``."""
    if not entry:
        return False
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    named, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit() and (":" not in named or named.endswith("]")):
        if wanted != port:
            return False
        entry = named
    entry = entry.strip("[]").removeprefix("*")
    if address is not None:
        return _address(entry) == address
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
