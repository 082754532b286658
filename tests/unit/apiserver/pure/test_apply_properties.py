"""Laws of server-side apply, over random histories."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.apiserver import apply, schema
from drakkar.apiserver.apply.fields import fields_of

POD = schema.schemas().for_kind("", "v1", "Pod")
assert POD is not None

names = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["1", "2"])
containers = st.lists(
    st.builds(
        lambda name, extra: {"name": name, **extra},
        names,
        st.dictionaries(st.sampled_from(["image", "workingDir"]), values),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda item: item["name"],
)
configs = st.builds(
    lambda labels, items, finalizers: {
        "apiVersion": "v1",
        "kind": "Pod",
        # Go writes no empty lists and maps.
        "metadata": {
            "name": "p",
            **({"labels": labels} if labels else {}),
            **({"finalizers": finalizers} if finalizers else {}),
        },
        "spec": {"containers": items},
    },
    st.dictionaries(names, values, max_size=3),
    containers,
    st.lists(names, unique=True, max_size=2),
)
managers = st.sampled_from(["m1", "m2", "m3"])


def claims(obj, manager):
    for entry in obj["metadata"].get("managedFields", ()):
        if entry["manager"] == manager:
            return apply.from_fields_v1(entry["fieldsV1"])
    return frozenset()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(managers, configs), min_size=1, max_size=5))
def test_laws(history):
    live = None
    for time, (manager, config) in enumerate(history):
        before = copy.deepcopy((live, config))
        live, previous = apply.server_side_apply(live, config, manager, True, POD, "", float(time)), live
        assert (previous, config) == before
        bare = {**live, "metadata": {k: v for k, v in live["metadata"].items() if k != "managedFields"}}
        present = fields_of(bare, POD)
        # What was applied is there, and belongs to the applier.
        wanted = fields_of(config, POD)
        assert wanted <= present
        for path in claims(live, manager):
            assert path in wanted
        # Nothing is owned that is not there (names and what the server sets aside).
        for other in ("m1", "m2", "m3"):
            assert claims(live, other) <= present
        # With one owner after the other, nothing remains that nobody owns.
        owned = frozenset().union(*(claims(live, other) for other in ("m1", "m2", "m3")))
        for path in present - owned:
            assert path[0] != "f:spec" or any(other[: len(path)] == path for other in owned)
        # Applying once more changes nothing, not even a time.
        assert apply.server_side_apply(live, config, manager, False, POD, "", float(time + 100)) == live


@given(
    st.frozensets(st.lists(st.sampled_from(["f:a", "f:b", 'k:{"x":1}', 'v:"y"']), min_size=1, max_size=4).map(tuple))
)
def test_fields_survive_their_json(fields):
    assert apply.from_fields_v1(apply.to_fields_v1(fields)) == fields
