"""Sessions end by themselves, and show no password."""

from keelmq.console.core.sessions import IDLE_MS, LIFE_MS, SessionTable


def test_a_session_ends_when_it_is_not_used() -> None:
    table = SessionTable()
    table.begin("one", "alice", "secret", 0)
    assert table.use("one", IDLE_MS - 1) is not None
    assert table.look("one", 2 * IDLE_MS - 2) is not None
    assert table.look("one", 2 * IDLE_MS) is None
    assert table.use("one", 2 * IDLE_MS) is None


def test_a_look_does_not_prolong_it() -> None:
    table = SessionTable()
    table.begin("one", "alice", "secret", 0)
    assert table.look("one", IDLE_MS - 1) is not None
    assert table.look("one", IDLE_MS) is None


def test_it_ends_even_if_it_is_used() -> None:
    table = SessionTable()
    table.begin("one", "alice", "secret", 0)
    for now in range(0, LIFE_MS, IDLE_MS // 2):
        assert table.use("one", now) is not None
    assert table.use("one", LIFE_MS) is None


def test_the_table_is_bounded_and_the_longest_unused_one_goes() -> None:
    table = SessionTable(sessions_max=2)
    table.begin("one", "alice", "a", 0)
    table.begin("two", "bob", "b", 1)
    table.use("one", 2)
    table.begin("three", "carol", "c", 3)
    assert len(table) == 2
    assert table.look("two", 3) is None
    assert table.look("one", 3) is not None


def test_ended_sessions_make_room_first() -> None:
    table = SessionTable(sessions_max=2)
    table.begin("old", "alice", "a", 0)
    table.begin("new", "bob", "b", IDLE_MS - 1)
    table.begin("newer", "carol", "c", IDLE_MS)
    assert table.look("new", IDLE_MS) is not None


def test_no_repr_shows_the_password() -> None:
    session = SessionTable().begin("one", "alice", "s3cret", 0)
    assert "s3cret" not in repr(session)
