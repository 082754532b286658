"""Addresses and node ports of Services: given out by the server, each to one Service at a time.

Nothing routes to a cluster IP in an embedded plane; clients and charts all the same expect every Service
but headless ones to have one.

Source: Service of core/v1; ranges are kube-apiserver's and kubeadm's defaults.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Any

from drakkar.api.errors import FieldError
from drakkar.api.tree import child, children, text
from drakkar.apiserver import status
from drakkar.apiserver.cache import State
from drakkar.apiserver.commit import Committer
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

SERVICES = "/core/services/"
RANGE = ipaddress.IPv4Network("10.96.0.0/12")
NODE_PORTS = range(30000, 32768)
#: The first addresses stay free for those who ask for one by name (``10.96.0.10`` is a habit for DNS).
_RESERVED = 256
_ATTEMPTS = 1000
#: How many values of writes are remembered before those that are done are forgotten.
_REMEMBERED = 4096


class ServiceAddresses:
    """Gives out what Services lack."""

    def __init__(self, state: State, committer: Committer, rng: random.Random):
        self._state = state
        self._committer = committer
        self._rng = rng
        #: What was given to writes in flight: address or port → key in the store.
        self._given: dict[str | int, str] = {}

    def complete(self, service: Object, old: Object | None) -> None:
        """Fills in addresses and ports, in place; StatusError 422 when those that are asked for cannot be had."""
        if len(self._given) > _REMEMBERED:
            self._given = {value: key for value, key in self._given.items() if key in self._committer.busy}
        spec, before = child(service, "spec"), child(old, "spec")
        meta = service["metadata"]
        store_key = f"{SERVICES}{meta.get('namespace', '')}/{meta.get('name') or ''}"
        kind = text(spec, "type")
        if kind == "ExternalName":
            for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                spec.pop(field, None)
            return
        if old is not None and text(before, "type") != "ExternalName":
            self._take_over(spec, before)
        self._address(service, spec, before, store_key)
        if kind in ("NodePort", "LoadBalancer") and spec.get("allocateLoadBalancerNodePorts") is not False:
            self._ports(service, spec, before, store_key)
        elif kind == "ClusterIP":
            for port in children(spec, "ports"):
                if before and port.get("nodePort") in {one.get("nodePort") for one in children(before, "ports")}:
                    port.pop("nodePort", None)

    @staticmethod
    def _take_over(spec: Object, before: Object) -> None:
        """What an update leaves out stays as it was."""
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(field) and before.get(field):
                spec[field] = before[field]
        if text(spec, "type") in ("NodePort", "LoadBalancer"):
            known = {
                (port.get("port"), port.get("protocol")): port.get("nodePort") for port in children(before, "ports")
            }
            for port in children(spec, "ports"):
                if not port.get("nodePort") and known.get((port.get("port"), port.get("protocol"))):
                    port["nodePort"] = known[port.get("port"), port.get("protocol")]

    def _address(self, service: Object, spec: Object, before: Object, store_key: str) -> None:
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if not spec["ipFamilyPolicy"]:
            spec["ipFamilyPolicy"] = "SingleStack"
        if not spec.get("ipFamilies"):
            spec["ipFamilies"] = ["IPv4"]
        asked = text(spec, "clusterIP") or next(iter(spec.get("clusterIPs") or ()), "")
        if asked == "None" or (asked and asked == text(before, "clusterIP")):
            address = asked
        elif asked:
            fault = self._fault(asked, store_key)
            if fault:
                raise _invalid(service, "spec.clusterIPs", [asked], fault)
            address = asked
        else:
            address = self._free_address(service, store_key)
        spec["clusterIP"], spec["clusterIPs"] = address, [address]
        if address != "None":
            self._given[address] = store_key

    def _fault(self, asked: str, store_key: str) -> str:
        try:
            address = ipaddress.ip_address(asked)
        except ValueError:
            return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        if address not in RANGE:
            return f"failed to allocate IP {asked}: the provided IP is not in the valid range {RANGE}"
        taken = asked in self._addresses() or self._is_given(asked, store_key)
        return f"failed to allocate IP {asked}: provided IP is already allocated" if taken else ""

    def _addresses(self) -> set[str]:
        entries = self._state.tables[SERVICES].entries.values()
        return {
            entry.fields["spec.clusterIP"] for entry in entries if entry.fields and "spec.clusterIP" in entry.fields
        }

    def _is_given(self, value: str | int, store_key: str) -> bool:
        holder = self._given.get(value)
        if holder is None or holder == store_key:
            return False
        if holder in self._committer.busy:
            return True
        del self._given[value]
        return False

    def _free_address(self, service: Object, store_key: str) -> str:
        taken = self._addresses()
        for _ in range(_ATTEMPTS):
            address = str(RANGE[self._rng.randrange(_RESERVED, RANGE.num_addresses - 1)])
            if address not in taken and not self._is_given(address, store_key):
                return address
        raise _invalid(service, "spec.clusterIPs", [], f"failed to allocate an IP: the range {RANGE} is full")

    def _ports(self, service: Object, spec: Object, before: Object, store_key: str) -> None:
        own = {port.get("nodePort") for port in children(before, "ports")}
        taken = self._node_ports() - own
        chosen: set[int] = set()
        for index, port in enumerate(children(spec, "ports")):
            asked: int = port.get("nodePort") or 0
            if asked:
                path = f"spec.ports[{index}].nodePort"
                if asked not in NODE_PORTS:
                    low, high = NODE_PORTS.start, NODE_PORTS.stop - 1
                    raise _invalid(
                        service,
                        path,
                        asked,
                        f"provided port is not in the valid range. The range of valid ports is {low}-{high}",
                    )
                if asked in taken or (asked not in own and self._is_given(asked, store_key)):
                    raise _invalid(service, path, asked, "provided port is already allocated")
            else:
                found = self._free_port(taken | chosen, store_key)
                if found is None:
                    fault = "failed to allocate a nodePort: range is full"
                    raise _invalid(service, f"spec.ports[{index}].nodePort", 0, fault)
                asked = port["nodePort"] = found
            chosen.add(asked)
            self._given[asked] = store_key

    def _node_ports(self) -> set[int]:
        table = self._state.tables[SERVICES]
        found: set[int] = set()
        for entry in table.entries.values():
            if (entry.fields or {}).get("spec.type") in ("NodePort", "LoadBalancer"):
                ports = children(table.decode(entry), "spec", "ports")
                found |= {port["nodePort"] for port in ports if port.get("nodePort")}
        return found

    def _free_port(self, taken: set[int], store_key: str) -> int | None:
        free = [port for port in NODE_PORTS if port not in taken and not self._is_given(port, store_key)]
        return self._rng.choice(free) if free else None


def _invalid(service: Object, field: str, value: Any, detail: str) -> StatusError:
    fault = FieldError(type="FieldValueInvalid", field=field, value=value, detail=detail)
    return StatusError(status.invalid("", "Service", service["metadata"].get("name") or "", [fault]))
