"""Generators of API objects for property tests; shared by all rooms.

They make valid, defaulted JSON in ``resource.k8s.io/v1``, small enough that names collide
often: collisions are where the bugs are.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Object = dict[str, Any]

names = st.sampled_from(["a", "b", "c", "gpu-0", "gpu-1", "x"])
drivers = st.sampled_from(["gpu.example.com", "nic.example.com"])
pools = st.sampled_from(["n1", "n2", "rack/1"])
nodes = st.sampled_from(["n1", "n2", "n3"])
classes = st.sampled_from(["gpu.example.com", "nic.example.com"])
attribute_ids = st.sampled_from(["model", "index", "resource.kubernetes.io/pcieRoot", "gpu.example.com/numa"])
capacity_ids = st.sampled_from(["memory", "cores", "gpu.example.com/slots"])

quantities = st.one_of(
    st.integers(0, 2**40).map(str),
    st.tuples(st.integers(0, 4096), st.sampled_from(["m", "", "k", "M", "Ki", "Mi", "Gi", "Ti"])).map(
        lambda parts: f"{parts[0]}{parts[1]}"
    ),
)


def optional(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """An object with any subset of these members."""
    return st.fixed_dictionaries({}, optional=members)


attributes = st.one_of(
    st.builds(lambda value: {"int": value}, st.integers(-5, 5)),
    st.builds(lambda value: {"bool": value}, st.booleans()),
    st.builds(lambda value: {"string": value}, st.sampled_from(["", "A100", "H100"])),
    st.builds(lambda value: {"version": value}, st.sampled_from(["1.0.0", "2.1.0-rc.1+b"])),
)
taints = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["example.com/bad", "maintenance"]),
        "effect": st.sampled_from(["None", "NoSchedule", "NoExecute"]),
        "timeAdded": st.just("2026-01-01T00:00:00Z"),
    },
    optional={"value": st.sampled_from(["x", "y"])},
)
tolerations = st.one_of(
    st.fixed_dictionaries(
        {"operator": st.just("Exists")},
        optional={"key": st.sampled_from(["example.com/bad", "maintenance"]), "effect": st.just("NoSchedule")},
    ),
    st.fixed_dictionaries({"operator": st.just("Equal"), "key": st.just("maintenance"), "value": st.just("x")}),
)
counters = st.dictionaries(names, st.fixed_dictionaries({"value": quantities}), min_size=1, max_size=3)


def device(name: str) -> st.SearchStrategy[Object]:
    """A device of this name."""
    return st.fixed_dictionaries(
        {"name": st.just(name)},
        optional={
            "attributes": st.dictionaries(attribute_ids, attributes, min_size=1, max_size=3),
            "capacity": st.dictionaries(
                capacity_ids, st.fixed_dictionaries({"value": quantities}), min_size=1, max_size=2
            ),
            "taints": st.lists(taints, max_size=2),
            "consumesCounters": st.lists(
                st.fixed_dictionaries({"counterSet": st.just("set"), "counters": counters}), max_size=1
            ),
            "allowMultipleAllocations": st.booleans(),
        },
    )


@st.composite
def slices(draw: st.DrawFn) -> Object:
    """A ResourceSlice with up to four devices."""
    spec: Object = {
        "driver": draw(drivers),
        "pool": {
            "name": draw(pools),
            "generation": draw(st.integers(0, 3)),
            "resourceSliceCount": draw(st.integers(1, 3)),
        },
        "devices": [draw(device(f"dev-{index}")) for index in range(draw(st.integers(0, 4)))],
    }
    spec |= draw(
        st.one_of(
            st.builds(lambda node: {"nodeName": node}, nodes),
            st.just({"allNodes": True}),
            st.builds(
                lambda node: {
                    "nodeSelector": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                        ]
                    }
                },
                nodes,
            ),
        )
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{draw(st.integers(0, 99))}"},
        "spec": spec,
    }


def _main_fields() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "deviceClassName": classes,
        "selectors": st.lists(st.just({"cel": {"expression": "true"}}), max_size=2),
        "tolerations": st.lists(tolerations, max_size=2),
        "capacity": st.fixed_dictionaries({"requests": st.dictionaries(capacity_ids, quantities, max_size=2)}),
    }


def _how_many(request: Object, count: int | None) -> Object:
    mode: Object = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    return {**request, **mode}


def main_requests(*, named: bool) -> st.SearchStrategy[Object]:
    """What stands under ``exactly`` or, ``named``, in ``firstAvailable``."""
    fields = _main_fields()
    required: dict[str, Any] = {"deviceClassName": fields.pop("deviceClassName")}
    if named:
        required["name"] = names
    return st.builds(
        _how_many, st.fixed_dictionaries(required, optional=fields), st.one_of(st.none(), st.integers(1, 4))
    )


def requests() -> st.SearchStrategy[Object]:
    """A request with one class or with alternatives."""
    return st.one_of(
        st.fixed_dictionaries({"name": names, "exactly": main_requests(named=False)}),
        st.fixed_dictionaries(
            {
                "name": names,
                "firstAvailable": st.lists(
                    main_requests(named=True), min_size=1, max_size=3, unique_by=lambda item: item["name"]
                ),
            }
        ),
    )


@st.composite
def claim_specs(draw: st.DrawFn) -> Object:
    """The spec of a claim; its constraints and configuration name existing requests."""
    found = draw(st.lists(requests(), max_size=4, unique_by=lambda item: item["name"]))
    known = [item["name"] for item in found]
    subsets = st.lists(st.sampled_from(known), unique=True, max_size=3) if known else st.just([])
    devices: Object = {"requests": found}
    if draw(st.booleans()):
        devices["constraints"] = [{"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": draw(subsets)}]
    if draw(st.booleans()):
        devices["config"] = [
            {
                "opaque": {"driver": draw(drivers), "parameters": {"kind": "Config"}},
                "requests": draw(subsets),
            }
        ]
    return {"devices": devices}


@st.composite
def claims(draw: st.DrawFn) -> Object:
    """A ResourceClaim that is not allocated."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{draw(st.integers(0, 99))}", "namespace": "default"},
        "spec": draw(claim_specs()),
        "status": {},
    }


@st.composite
def claim_templates(draw: st.DrawFn) -> Object:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"template-{draw(st.integers(0, 99))}", "namespace": "default"},
        "spec": {"metadata": {}, "spec": draw(claim_specs())},
    }
