"""docs/damage.md: each kind of file has its table, each cell says something, and each row has tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAMAGES = ("flipped bit", "zeroed page", "truncated", "lost")
STORE, META = "tests/unit/broker/store/", "tests/unit/broker/metadata/test_damaged_tables.py::"
HA, RAFT = "tests/unit/broker/ha/", "tests/unit/namesrv/plugins/controller/raft/"
FILES, UNITS = f"{STORE}test_damaged_files.py::", f"{STORE}test_lost_units.py::"
SHORT = f"{STORE}test_short_queue_files.py::"
LOG = f"{STORE}test_damaged_log.py::"
ENTRY = f"{FILES}test_a_damaged_entry_is_an_error_and_never_another_message"
BATCH = f"{FILES}test_a_damaged_entry_of_a_batch_queue"
SCRUBBED = f"{STORE}test_entry_check.py::"
BASES = f"{STORE}test_batch_bases.py::"
ENDS = f"{FILES}test_lost_entries_at_the_end_are_made_again"
SINCE = f"{FILES}test_entries_since_the_ends_were_written_are_made_again"
NEW_QUEUE = f"{FILES}test_a_new_queue_that_is_lost_is_made_again"
SIGBUS = f"{FILES}test_a_mapped_file_that_a_program_truncates_ends_the_broker"
INDEX = f"{FILES}test_a_damaged_index_finds_fewer_messages_and_none_that_is_wrong"
CHECKPOINT = (
    f"{FILES}test_a_damaged_checkpoint_loses_nothing",
    f"{FILES}test_no_value_of_a_damaged_checkpoint_is_used",
)
EPOCHS = (
    f"{HA}test_damaged_epochs.py::test_epochs_are_the_newest_or_a_fault",
    f"{HA}test_damaged_epochs.py::test_damage_while_the_broker_runs_is_overwritten",
)
WAL = f"{HA}test_damaged_epochs.py::test_a_version_that_is_in_the_write_ahead_file_only_survives_there"
CUT_WAL = (
    f"{HA}test_damaged_epochs.py::test_a_truncated_write_ahead_file_is_a_fault_if_it_may_have_had_a_version",
    f"{HA}test_damaged_epochs.py::test_a_truncated_write_ahead_file_without_a_version_is_no_fault",
)
LOST_WAL = (
    f"{HA}test_damaged_epochs.py::test_a_lost_write_ahead_file_is_a_fault_until_the_epochs_are_written_again",
    f"{HA}test_damaged_epochs.py::test_a_write_ahead_file_that_is_lost_after_a_clean_stop_is_not_missed",
    f"{HA}test_damaged_epochs.py::test_a_version_ahead_is_put_into_the_file_whatever_is_damaged_meanwhile",
    f"{HA}test_epoch_file_ahead.py::test_without_a_write_ahead_file_saves_are_direct",
)
IDENTITY = "tests/unit/broker/controller_mode/test_broker_id_registration.py::"
TABLE = (
    f"{META}test_a_damaged_table_is_never_taken_for_the_truth",
    f"{META}test_without_a_good_version_the_start_is_refused",
    f"{META}test_damage_while_the_broker_runs_is_overwritten",
)
LOST_TABLES = "tests/unit/broker/app/test_start_check.py::test_a_lost_directory_of_tables_is_named"
CONTROLLER = f"{RAFT}test_raft_damage.py::test_a_damaged_file_of_a_controller"
ALIVE = f"{RAFT}test_raft_damage.py::test_a_file_that_is_damaged_while_the_controller_runs"
STANDING = f"{RAFT}test_raft_vote_eligibility.py::"


def same(*tests: str) -> dict[str, tuple[str, ...]]:
    """One test module with all four damages."""
    return dict.fromkeys(DAMAGES, tests)


TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "commitlog": {
        "flipped bit": (
            f"{LOG}test_a_consumer_gets_all_but_the_damaged_records",
            f"{LOG}test_a_start_keeps_the_records_behind_damage",
            f"{STORE}test_scrub.py::test_it_names_exactly_what_is_damaged",
            f"{STORE}test_damaged_numbers.py::test_a_replica",
            f"{BASES}test_a_wrong_number_in_a_record_is_damage_and_the_unit_stays",
            f"{BASES}test_a_replica_dispatches_no_record_with_a_wrong_number",
            f"{STORE}test_unread_numbers.py::test_a_promotion_with_a_damaged_header",
            f"{HA}test_damaged_master.py::test_a_replica_with_a_damaged_end_does_not_cut_it",
            f"{STORE}test_damaged_numbers.py::test_a_start_after_a_crash",
            "tests/unit/broker/healing/test_healer.py::test_a_range_is_healed_and_counted",
        ),
        "zeroed page": (
            f"{LOG}test_a_zeroed_file_is_one_range",
            f"{LOG}test_a_start_keeps_the_records_behind_damage",
        ),
        "truncated": (
            f"{LOG}test_a_start_does_not_take_a_torn_end_for_damage",
            f"{STORE}test_known_file_sizes.py::test_the_only_file_has_lost_its_end",
            f"{STORE}test_lost_log_files.py::"
            "test_a_short_file_is_named_and_serves_its_rest_when_it_has_its_size",
            SIGBUS,
        ),
        "lost": ("tests/unit/broker/app/test_start_check.py::test_a_refused_start_changes_nothing",),
    },
    "consumequeue": {
        "flipped bit": (
            ENTRY,
            f"{SCRUBBED}test_a_flipped_bit_is_mended",
            f"{SCRUBBED}test_a_filtered_consumer_misses_nothing_any_more",
            f"{SCRUBBED}test_the_place_of_another_record_of_the_same_size",
        ),
        "zeroed page": (
            ENTRY,
            f"{UNITS}test_lost_entries_end_no_queue",
            f"{UNITS}test_a_lost_page_of_the_last_file_ends_no_queue",
            ENDS,
            SINCE,
            f"{SCRUBBED}test_lost_entries_of_sound_records_are_written",
        ),
        "truncated": (
            f"{SHORT}test_each_cut_of_one_of_several_files_heals",
            f"{SHORT}test_each_cut_of_the_only_file_of_a_queue_heals",
            f"{SHORT}test_entries_since_the_ends_were_written_are_made_again",
            f"{STORE}test_file_sizes.py::test_a_wrong_size_of_queues_is_refused",
            SIGBUS,
        ),
        "lost": (
            f"{UNITS}test_a_lost_file_is_an_error_at_its_messages_only",
            f"{SHORT}test_a_lost_file_makes_the_scrub_begin_anew",
            ENDS,
            SINCE,
            NEW_QUEUE,
        ),
    },
    "batchconsumequeue": {
        "flipped bit": (
            BATCH,
            f"{SCRUBBED}test_a_flipped_bit_in_an_entry_of_batches",
            f"{BASES}test_a_wrong_last_unit_moves_no_number_at_a_start",
            f"{BASES}test_a_wrong_unit_behind_a_cut_moves_no_number",
            f"{BASES}test_a_consumer_passes_no_message",
        ),
        "zeroed page": (BATCH, f"{SCRUBBED}test_a_lost_page_of_batches"),
        "truncated": (f"{SHORT}test_a_short_file_of_batches", SIGBUS),
        "lost": (f"{UNITS}test_a_lost_file_of_batches",),
    },
    "queueEnds": same(
        f"{FILES}test_damaged_ends_of_queues_are_not_used", f"{FILES}test_new_queues_in_damaged_ends"
    ),
    "index": {
        **same(INDEX, SIGBUS),
        "truncated": (INDEX, f"{FILES}test_a_truncated_index_is_made_again", SIGBUS),
    },
    "epochFileCheckpoint": same(*EPOCHS),
    "epochFileCheckpoint.wal": {
        **same(EPOCHS[0], WAL),
        "truncated": (EPOCHS[0], *CUT_WAL),
        "lost": (EPOCHS[0], *LOST_WAL),
    },
    ".broker.meta": {
        **same(f"{IDENTITY}test_a_damaged_identity_is_refused"),
        "lost": (f"{IDENTITY}test_a_lost_identity_is_named",),
    },
    ".broker.meta.temp": {
        **same(f"{IDENTITY}test_a_damaged_identity_is_refused"),
        "lost": ("tests/property/test_registration.py::test_one_broker_id_for_life_wherever_we_fail",),
    },
    "config/*.json": {**same(*TABLE), "lost": (*TABLE, LOST_TABLES)},
    "config/*.json.sum": same(f"{META}test_damaged_checksums_refuse_no_table"),
    "config/*.json.journal": {
        **same(f"{META}test_a_damaged_journal_ends_in_front_of_the_damage"),
        "lost": (
            f"{META}test_a_lost_journal_is_named_until_a_master_has_sent_the_table",
            f"{META}test_a_journal_that_nobody_lost_is_not_missed",
        ),
    },
    "config/users.json and config/acls.json": same(*TABLE),
    "checkpoint": same(*CHECKPOINT),
    "abort": same(f"{FILES}test_a_damaged_checkpoint_loses_nothing"),
    "damagedRanges": {
        **same(f"{FILES}test_a_damaged_list_of_damage_is_made_again"),
        "lost": (f"{STORE}test_scrub.py::test_a_lost_list_of_damage_makes_it_begin_anew",),
    },
    "raft.journal": same(CONTROLLER, ALIVE),
    "raft.vote": same(CONTROLLER, ALIVE),
    "raft.snapshot": same(
        CONTROLLER, f"{RAFT}test_raft_group.py::test_a_damaged_snapshot_is_refused_at_start"
    ),
    "raft.standing and raft.lock": same(
        CONTROLLER,
        ALIVE,
        f"{STANDING}test_every_flipped_byte_of_the_file_is_refused",
        f"{STANDING}test_what_a_directory_says",
    ),
}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def tables() -> dict[str, dict[str, list[str]]]:
    """Kind -> damage -> cells, as the document has them."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in (ROOT / "docs" / "damage.md").read_text().split("\n## ")[1:]:
        kind, _, rest = section.partition("\n")
        rows = re.findall(r"^\| ([^|]+) \|(.*)\|$", rest, re.MULTILINE)[1:]
        found[kind] = {damage: [cell.strip() for cell in cells.split("|")] for damage, cells in rows}
    return found


def test_every_kind_has_every_damage_and_every_cell_says_something() -> None:
    found = tables()
    assert list(found) == list(TESTS)
    for kind, rows in found.items():
        assert tuple(rows) == DAMAGES, kind
        for damage, cells in rows.items():
            assert len(cells) == 3 and all(cells), f"{kind}, {damage}"
            assert cells[0] != "the same" or damage != "flipped bit", kind


@pytest.mark.parametrize("kind", TESTS)
def test_every_row_has_tests_that_exist(kind: str) -> None:
    assert tuple(TESTS[kind]) == DAMAGES
    for tests in TESTS[kind].values():
        assert tests
        for test in tests:
            path, _, name = test.partition("::")
            assert name in names_in(path), test
