"""Formats of names and keys; each check returns what is wrong in the words of the Kubernetes API.

An empty tuple means that the text is fine. Names repeat a lot (every device of a driver has the same
attributes), therefore the frequent checks are cached. Clients and users compare these texts with what
they know, therefore they are spelled as the API server spells them.

Source: spec/api.md section 2.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

Check = Callable[[str], Sequence[str]]

LABEL_MAX: Final = 63
SUBDOMAIN_MAX: Final = 253
DRIVER_NAME_MAX: Final = 63
POOL_NAME_MAX: Final = 253
IDENTIFIER_MAX: Final = 32
PORT_NAME_MAX: Final = 15

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
_VALUE: Final = f"({_QUALIFIED})?"

_LABEL_RE: Final = re.compile(_LABEL)
_SUBDOMAIN_RE: Final = re.compile(_SUBDOMAIN)
_QUALIFIED_RE: Final = re.compile(_QUALIFIED)
_IDENTIFIER_RE: Final = re.compile(_IDENTIFIER)
_VALUE_RE: Final = re.compile(_VALUE)
_CONFIG_KEY_RE: Final = re.compile("[-._a-zA-Z0-9]+")
_UID_RE: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_QUALIFIED_TEXT: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{_VALUE}')"
)
_IDENTIFIER_TEXT: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    f"or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '{_IDENTIFIER}')"
)

_CONFIG_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def too_long(limit: int) -> str:
    """The text about a text of more than ``limit`` bytes."""
    return f"must be no more than {limit} bytes"


@lru_cache(maxsize=8192)
def dns_label(text: str) -> tuple[str, ...]:
    """RFC 1123 label: at most 63 of a-z, 0-9 and -."""
    found = (too_long(LABEL_MAX),) if len(text) > LABEL_MAX else ()
    return found if _LABEL_RE.fullmatch(text) else (*found, _LABEL_TEXT)


@lru_cache(maxsize=8192)
def dns_subdomain(text: str) -> tuple[str, ...]:
    """Labels joined by dots, at most 253 bytes: the usual format of object names."""
    found = (too_long(SUBDOMAIN_MAX),) if len(text) > SUBDOMAIN_MAX else ()
    return found if _SUBDOMAIN_RE.fullmatch(text) else (*found, _SUBDOMAIN_TEXT)


def path_segment(text: str) -> tuple[str, ...]:
    """What can stand between two slashes of a URL."""
    if text in (".", ".."):
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{mark}'" for mark in ("/", "%") if mark in text)


@lru_cache(maxsize=8192)
def qualified_name(text: str) -> tuple[str, ...]:
    """Key of labels, annotations, taints: ``[prefix/]name``."""
    prefix, slash, name = text.partition("/")
    if not slash:
        prefix, name = "", text
    if "/" in name:
        return (
            f"a qualified name {_QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')",
        )
    found: list[str] = []
    if slash:
        if not prefix:
            found.append("prefix part must be non-empty")
        else:
            found += [f"prefix part {message}" for message in dns_subdomain(prefix)]
    if not name:
        return (*found, "name part must be non-empty", f"name part {_QUALIFIED_TEXT}")
    if len(name) > LABEL_MAX:
        found.append(f"name part {too_long(LABEL_MAX)}")
    if not _QUALIFIED_RE.fullmatch(name):
        found.append(f"name part {_QUALIFIED_TEXT}")
    return tuple(found)


@lru_cache(maxsize=8192)
def label_value(text: str) -> tuple[str, ...]:
    """Value of a label: empty or a name of at most 63 bytes."""
    found = (too_long(LABEL_MAX),) if len(text) > LABEL_MAX else ()
    return found if _VALUE_RE.fullmatch(text) else (*found, _VALUE_TEXT)


@lru_cache(maxsize=8192)
def c_identifier(text: str) -> tuple[str, ...]:
    """Identifier of an attribute or capacity without its domain; its length is checked apart."""
    return () if _IDENTIFIER_RE.fullmatch(text) else (_IDENTIFIER_TEXT,)


@lru_cache(maxsize=8192)
def config_key(text: str) -> tuple[str, ...]:
    """Key of a config map or secret: what can be the name of a file."""
    found = () if len(text) <= SUBDOMAIN_MAX else (f"must be no more than {SUBDOMAIN_MAX} characters",)
    if text in (".", ".."):
        return (*found, f"must not be '{text}'")
    if text.startswith(".."):
        return (*found, "must not start with '..'")
    return found if _CONFIG_KEY_RE.fullmatch(text) else (*found, _CONFIG_KEY_TEXT)


def variable_name(text: str) -> tuple[str, ...]:
    """Name of an environment variable: printable ASCII without ``=``."""
    if all(" " <= letter <= "~" and letter != "=" for letter in text):
        return ()
    return ("a valid environment variable name must consist only of printable ASCII characters other than '='",)


def port_name(text: str) -> tuple[str, ...]:
    """Name of a container's port, as services and probes refer to it."""
    found: list[str] = []
    if len(text) > PORT_NAME_MAX:
        found.append(f"must be no more than {PORT_NAME_MAX} characters")
    if not re.fullmatch("[-a-z0-9]+", text):
        found.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", text):
        found.append("must contain at least one letter (a-z)")
    if "--" in text:
        found.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        found.append("must not begin or end with a hyphen")
    return tuple(found)


def uid(text: str) -> tuple[str, ...]:
    """A UUID of 36 characters in lower case."""
    if _UID_RE.fullmatch(text):
        return ()
    return (
        "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal "
        "characters",
    )


def interface_address(text: str) -> tuple[str, ...]:
    """An IP address with its prefix length, in canonical spelling, such as ``192.0.2.5/24``."""
    try:
        address = ipaddress.ip_interface(text)
    except ValueError:
        return ("must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",)
    mapped = isinstance(address, ipaddress.IPv6Interface) and address.ip.ipv4_mapped is not None
    if "/" not in text or mapped or (isinstance(address, ipaddress.IPv6Interface) and address.scope_id):
        return ("must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",)
    if str(address) != text:
        return (f"must be in canonical form ({str(address)!r})",)
    return ()


def extended_resource_name(text: str) -> tuple[str, ...]:
    """A resource name that a device class may claim: with a domain that is not Kubernetes' own."""
    domain, slash, _ = text.partition("/")
    if not slash or "kubernetes.io/" in text or domain == "kubernetes.io" or text.startswith("requests."):
        return ("must be a valid extended resource name",)
    return qualified_name("requests." + text)


NODE_ALLOCATABLE: Final = frozenset(("cpu", "memory", "ephemeral-storage"))


def is_node_allocatable(name: str) -> bool:
    """Whether nodes themselves account for the resource."""
    return name in NODE_ALLOCATABLE or name.startswith("hugepages-")
