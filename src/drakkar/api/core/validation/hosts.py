"""Validation of what a pod sees of the host and of names: namespaces, DNS, aliases, operating system.

Source: API reference of PodSpec, PodDNSConfig and HostAlias; answers of kube-apiserver 1.37.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from drakkar.api import formats
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.tree import child, children, text, texts

NAMESERVERS_MAX: Final = 3
SEARCHES_MAX: Final = 32
#: Bytes of all search domains together, with a space between each two.
SEARCH_TEXT_MAX: Final = 2048

_SYSTEMS: Final = ("linux", "windows")
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")
_LABEL: Final = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH: Final = rf"{_LABEL}(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*"
_SEARCH_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    f"start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SEARCH}')"
)


def hosts(faults: Faults, path: str, spec: Object) -> None:
    """Faults of the members of a pod spec that concern its host and names."""
    if spec.get("hostUsers") is False:
        # Two of these causes are spelled like the fields of Go.
        for field, spelled in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")):
            if spec.get(field) is True:
                faults.forbidden(f"{path}.{spelled}", "when `hostUsers` is false")
    if spec.get("shareProcessNamespace") is True and spec.get("hostPID") is True:
        faults.invalid(
            f"{path}.shareProcessNamespace", True, "ShareProcessNamespace and HostPID cannot both be enabled"
        )
    for index, alias in enumerate(children(spec, "hostAliases")):
        at_item = f"{path}.hostAliases[{index}]"
        _address(faults, f"{at_item}.ip", text(alias, "ip"))
        for position, name in enumerate(texts(alias, "hostnames")):
            faults.check(f"{at_item}.hostnames[{position}]", name, formats.dns_subdomain)
    if spec.get("os") is not None:
        system = text(spec, "os", "name")
        if not system:
            faults.required(f"{path}.os.name")
        elif system not in _SYSTEMS:
            faults.not_supported(f"{path}.os", system, _SYSTEMS)
    _dns(faults, f"{path}.dnsConfig", spec)


def _dns(faults: Faults, path: str, spec: Object) -> None:
    config, servers = child(spec, "dnsConfig"), texts(spec, "dnsConfig", "nameservers")
    if text(spec, "dnsPolicy") == "None":
        if spec.get("dnsConfig") is None:
            faults.required(path, "must provide `dnsConfig` when `dnsPolicy` is None")
        elif not servers:
            faults.required(f"{path}.nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None")
    if len(servers) > NAMESERVERS_MAX:
        faults.invalid(f"{path}.nameservers", servers, f"must not have more than {NAMESERVERS_MAX} nameservers")
    for index, server in enumerate(servers):
        _address(faults, f"{path}.nameservers[{index}]", server)
    searches = texts(config, "searches")
    if len(searches) > SEARCHES_MAX:
        faults.invalid(f"{path}.searches", searches, f"must not have more than {SEARCHES_MAX} search paths")
    if len(" ".join(searches)) > SEARCH_TEXT_MAX:
        faults.invalid(
            f"{path}.searches",
            searches,
            f"must not have more than {SEARCH_TEXT_MAX} characters (including spaces) in the search list",
        )
    for index, search in enumerate(searches):
        name = search.removesuffix(".")
        if search == ".":
            continue
        if len(name) > formats.SUBDOMAIN_MAX:
            faults.invalid(
                f"{path}.searches[{index}]", name, f"must be no more than {formats.SUBDOMAIN_MAX} characters"
            )
        if not re.fullmatch(_SEARCH, name):
            faults.invalid(f"{path}.searches[{index}]", name, _SEARCH_TEXT)
    for index, option in enumerate(children(config, "options")):
        if not option.get("name"):
            faults.required(f"{path}.options[{index}]", "must not be empty")


def _address(faults: Faults, path: str, value: str) -> None:
    plain = value if ":" in value else _LEADING_ZEROS.sub("", value)
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        address = None
    if address is None or "%" in value:
        faults.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
    elif plain != value:
        faults.invalid(path, value, "must not have leading 0s")
    elif isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        faults.invalid(path, value, "must not be an IPv4-mapped IPv6 address")
