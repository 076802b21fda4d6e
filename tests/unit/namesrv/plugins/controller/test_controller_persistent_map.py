"""PersistentMap against the dumb one: a dict that is copied."""

from hypothesis import given
from hypothesis import strategies as st

from namesrv.plugins.controller.core.persistent_map import SHARDS, PersistentMap

NAMES = st.sampled_from([f"group-{each}" for each in range(3 * SHARDS)])


@given(st.dictionaries(NAMES, st.integers()), st.lists(st.tuples(NAMES, st.none() | st.integers())))
def test_like_a_dict_that_is_copied(start: dict[str, int], changes: list[tuple[str, int | None]]) -> None:
    table, model = PersistentMap(start), dict(start)
    for name, value in changes:
        before, was = table, dict(table)
        if value is None:
            table = table.without(name)
            model.pop(name, None)
        else:
            table = table.set(name, value)
            model[name] = value
        assert dict(before) == was, "the table before is as it was"
        assert len(table) == len(model)
        assert (name in table) == (name in model)
        assert table.get(name) == model.get(name)
    assert table == model
    assert model == table
    assert list(table) == sorted(model), "by name, whatever came first"


def test_a_change_shares_all_but_one_part() -> None:
    table = PersistentMap({f"group-{each}": each for each in range(10_000)})
    changed = table.set("group-5", -5)
    shared = sum(mine is theirs for mine, theirs in zip(table._shards, changed._shards, strict=True))
    assert shared == SHARDS - 1
    assert PersistentMap.of(changed) is changed
