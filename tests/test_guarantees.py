"""Names the tests that hold each part of the guarantees, and their words: a paragraph, an item, a line of a table."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "model/test_model.py no_schedule_breaks_a_promise"
"""Its families: tests/model/families.py."""

TESTS = {
    "- **txid**": "spout/test_query_by_hand.py a_new_checkpoint_has_a_batch_0 | model/test_restores.py the_played_case",
    "- **Done**": MODEL,
    "- **Checkpoint**": MODEL,
    "- **Position**": "spout/planner/settling/test_settlement.py a_poison_record_at_the_head_holds_only_the_checkpoint",
    "- **Turn**": MODEL,
    "- **Plan**": "model/test_crashes.py a_crash_at_each_step",
    "- **Pin**": "e2e/test_crash.py a_pinned_turn_is_what_the_replay_gives",
    "- **Outcome**": "e2e/test_crash.py a_published_outcome_is_applied",
    "- **Settled**": "spout/restarts/test_restarts.py a_settling_that_was_cut_short",
    "- **Epoch**": "checkpoint/store/test_fencing.py a_paused_older_run_can_write_nothing",
    "- **Run**": MODEL,
    "- **Home**": "spout/restarts/test_other_checkpoints.py another_stream_under",
    "- **Fence**": "test_sinks.py a_fenced_transaction",
    "1. **Plan.**": "model/test_crashes.py a_crash_at_each_step |" + MODEL,
    "2. **Read.**": "spout/reader/test_task.py a_task_that_is_repeated_writes_the_same_dead_letters",
    "3. **Pin.**": "e2e/test_batches.py actions_on_one_batch | e2e/test_batches.py a_failed_task |"
    "e2e/test_batches.py a_speculative_task | e2e/test_crash.py a_pinned_turn_is_what_the_replay_gives",
    "4. **Your code.**": "e2e/test_partial_actions.py plain_functions_ack_only_what_ran",
    "5. **Outcome.**": "e2e/test_crash.py a_published_outcome_is_applied |"
    "e2e/test_takeover.py a_driver_that_slept_through_a_whole_run_publishes_nothing",
    "6. **Settle.**": "spout/planner/settling/test_finished_batch.py a_turn_that_nobody_has_pinned |"
    "spout/planner/settling/test_finished_batch.py a_batch_of_a_judging_run_without_an_outcome |"
    "model/test_kinds.py a_batch_in_hand_when_the_kind_changes | model/test_committer.py nothing_is_lost_whoever",
    "7. **Retry.**": "e2e/test_failing_records.py a_failing_record_holds_nothing_back",
    "| before Spark logged": "spout/restarts/test_restarts.py a_batch_planned_and_never_logged",
    "| after that, until": "e2e/test_crash.py a_replayed_batch_has_the_identical_rows",
    "| after Spark has committed": "spout/restarts/test_restarts.py a_batch_finished_but_not_settled |"
    "spout/restarts/test_restarts.py a_settling_that_was_cut_short",
    "The tests kill": "e2e/test_crash.py it_died_where_it_was_to",
    "| the same txid has": "spec/test_spec.py each_rule_has_its_story",
    "| no record is passed": "spec/test_spec.py each_rule_has_its_story",
    "| a finished batch is": "spec/test_spec.py each_rule_has_its_story",
    "| a record that fails its": "spec/test_spec.py each_rule_has_its_story",
    "| a record is once": "spec/test_spec.py each_rule_has_its_story",
    "| the newest start": "spec/test_spec.py each_rule_has_its_story",
    "| no txid is used": "spec/test_spec.py each_rule_has_its_story",
    "What is not promised": "spec/test_spec.py each_rule_has_its_story",
    "| `opaque`": "spout/test_scripted_source.py an_opaque_batch_goes_on_with_what_is_left",
    "| `transactional`": "spout/test_scripted_source.py a_transactional_batch_whose_records_are_gone |"
    + MODEL,
    "| `nontransactional`": "runbook/test_runbook_stopped.py two_readings_of_a_nontransactional_turn |"
    + MODEL,
    "Retention is 24": "runbook/test_runbook_stopped.py a_replay_whose_records_are_gone",
    "1. **Replace by txid": "test_sinks.py a_folder_for_each | test_sinks.py a_fenced_transaction",
    "2. **Undo rows": "bolt/tracking/test_current_batch.py what_operators_and_sink_refuse_comes_back",
    "3. **Make map functions": "bolt/tracking/test_reports.py failures_merge_whatever_the_order",
    "A sink that replaces stays": "e2e/test_topology.py a_replay_applies_the_verdict |" + MODEL,
    "The epoch is checked": "e2e/test_takeover.py a_driver_that_slept_before_its_batch_writes_nothing |"
    "bolt/test_stale_batch.py rows_of_another_run_are_not_handed_over",
    "| [a folder": "test_sinks.py a_folder_for_each | test_sinks.py a_late_task_of_an_attempt",
    "| [a Delta": "test_sinks.py a_delta_table | test_sinks.py a_late_task_of_an_attempt",
    "| [an Iceberg": "test_sinks.py an_iceberg_table | test_sinks.py a_late_task_of_an_attempt",
    "| [a table of": "test_sinks.py a_table_of_a_database | test_sinks.py a_late_task_of_an_attempt",
    "| [a fenced": "test_sinks.py a_fenced_transaction",
    "| [a staging": "test_sinks.py a_staging_table | test_sinks.py a_task_that_ran_twice_and_one_that_is_late",
    "| [a Trident state": "test_sinks.py a_state_of_trident | trident/test_late_tasks.py of_the_same_batch",
    "| Spark's file sink": "e2e/test_takeover.py a_driver_that_slept_inside_spark_s_file_sink |" + MODEL,
    "| a transaction without": "test_sinks.py a_transaction_without_the_fence",
    "| a folder for each": "test_sinks.py folders_that_the_page_warns_of",
    "| a sink that only": "test_sinks.py folders_that_the_page_warns_of | test_sinks.py a_late_task_that_appends",
    "**Spark's file sink and": "e2e/test_older_checkpoint.py spark_s_file_sink_leaves_out |"
    "model/test_kinds.py a_batch_that_was_read_and_not_written",
    "| Both are new": "spout/restarts/test_restarts.py latest_is_resolved_once",
    "| Spark's is new, and": "spout/test_query_by_hand.py a_new_checkpoint_has_a_batch_0",
    "| Spark's is new, Zoo": "spout/restarts/test_restarts.py a_batch_begun_elsewhere_comes_first",
    "| Spark's is one batch ahead, and ZooKeeper has that batch's plan |": "model/test_restores.py a_remedy_is_played",
    "| Spark's is one batch ahead, ZooKeeper has that batch's plan, and your": (
        "spout/planner/settling/test_finished_batch.py zookeeper_from_a_copy_made_before_the_outcome"
    ),
    "| Spark's is one batch ahead, ZooKeeper has that batch's plan but": "model/test_kinds.py "
    "a_copy_made_between_plan_and_pins_stops_a_query | model/test_kinds.py the_first_batch_ever_of_a_query",
    "| The same, and your": "model/test_kinds.py a_copy_made_between_plan_and_pins_is_said |"
    "model/test_kinds.py a_plain_query_that_runs_nothing_of_a_batch_goes_on",
    "| Spark has begun": "model/test_kinds.py a_copy_made_between_plan_and_pins_when_spark_has_begun",
    "| Spark has committed a": "spout/restarts/test_state_lost.py zookeeper_wiped |"
    "spout/test_run_review.py a_batch_of_which_nothing_was_run",
    "| Spark has a batch in hand": "model/test_restores.py the_played_case |"
    "model/test_restores.py no_txid_has_other_rows_with_a_spout",
    "| The last file": "e2e/test_older_checkpoint.py the_last_file_of_a_checkpoint_is_torn",
    "| Spark's is behind": "spout/restarts/test_other_checkpoints.py an_older_copy |"
    "e2e/test_older_checkpoint.py a_skipped_batch_is_not_written",
    "| A second Spark": "spout/restarts/test_other_checkpoints.py a_batch_that_another_checkpoint_has_planned_over",
    "| Spark's offset belongs to another": "spout/restarts/test_other_checkpoints.py another_stream_under",
    "| Spark's offset belongs to a stream": "spout/restarts/test_other_checkpoints.py a_recreated_stream |"
    "e2e/test_recreated.py a_query_goes_on_with_the_new_stream",
    "| Somebody deletes a pin": "spout/restarts/test_missing_nodes.py a_pin_or_plan_that_is_deleted",
    "| ZooKeeper's data disappears": "spout/restarts/test_zookeeper_away.py zookeeper_wiped_while_the_query_runs",
    "| A node is corrupt": "spout/test_bad_nodes.py a_damaged_node_stops_the_start_with_its_path",
    "| A newer release": "checkpoint/model/test_releases.py a_field_of_a_later_release_is_ignored |"
    "checkpoint/model/test_releases.py a_node_of_a_later_version",
    "Each error names": "spout/planner/test_reconciliation.py each_case_has_one_outcome |" + MODEL,
    "If both are older": "model/test_restores.py another_place_in_the_sink_loses_nothing |"
    "spout/restarts/test_state_lost.py zookeeper_wiped_and_no_spark_checkpoint",
    "**A plain query that leaves": "model/test_committer.py nothing_is_lost_whoever",
    "Between two starts": "model/test_kinds.py a_batch_in_hand | e2e/test_stopping.py a_query_that_changes_its_kind",
    "- **To a plain query**": "model/test_kinds.py a_batch_in_hand_when_the_kind_changes |"
    "model/test_committer.py nothing_is_lost_whoever",
    "- **To a query that": "model/test_kinds.py a_driver_that_judges_warns_of_what_a_plain_query_has_read",
    "A sink that replaces by txid": "model/test_kinds.py a_plain_query_that_runs_nothing_of_a_batch_that_was_judged |"
    + MODEL,
    "- A batch was read by": "model/test_kinds.py a_copy_made_between_two_kinds |"
    "model/test_committer.py nothing_is_lost_whoever",
    "- Trident has published": "model/test_kinds.py a_verdict_that_was_never_applied |"
    "model/test_committer.py nothing_is_lost_whoever",
    "A driver that decides notes": "model/test_committer.py a_note_that_an_older_driver_takes_back",
    "The newest start": "checkpoint/store/test_fencing.py a_paused_older_run_can_write_nothing |"
    "spout/planner/settling/test_finished_batch.py a_run_that_is_replaced_while_it_loads",
    "Two queries with": "e2e/test_takeover.py two_loads_of_one_query |"
    "checkpoint/store/test_fencing.py runs_that_keep_taking_over_are_refused",
    "- **Order across": "spout/reader/test_task.py rows_come_in_the_order_of_the_plan",
    "- **Order between": "spout/test_reshard.py any_history_is_read_once_and_in_order |"
    "spout/test_in_step.py no_row_of_a_backlog_is_late",
    "- **Any order in": "spout/test_unreadable.py rows_without_a_partition_key",
    "- **A single dead": "spout/reader/test_task.py a_task_that_is_repeated_or_cut_otherwise |"
    "spout/failed_records/test_dead_letters.py a_replay_replaces_its_file",
    "- **Records that expire": "spout/test_data_loss.py what_was_looked_at_within_retention",
    "With `failOnDataLoss=true`": "spout/test_data_loss.py a_loss_is_said_and_the_query_goes_on",
    "| A checkpoint is older": "spout/test_data_loss.py a_loss_stops_the_query",
    "| A shard was never": "spout/test_data_loss.py a_loss_stops_the_query",
    "| Records expired between": "spout/test_scripted_source.py records_that_expired_between |"
    "spout/test_scripted_source.py records_that_expired_while_the_machine_stood_still",
    "| A position from": "spout/test_data_loss.py a_loss_stops_the_query",
    "| A parent shard": "spout/test_run_review.py a_parent_that_goes_before_it_was_ever_read",
    "| A shard disappeared after it was read": "spout/test_run_review.py a_shard_that_goes_between_two_listings",
    "| A shard disappeared after its": "spout/test_run_review.py a_planned_shard_that_goes_before_it_is_read",
    "| `startingPosition`": "spout/test_batch_read.py a_shard_that_a_place_names |"
    "spout/test_data_loss.py a_loss_stops_the_query",
    "| Records of a batch": "spout/test_batch_ends.py records_that_expire_between_load_and_read |"
    "spout/test_batch_ends.py records_that_expire_beneath_a_slow_reader | e2e/test_batch_frames.py a_batch_that_loses",
    "| The same in a batch": "spout/test_batch_ends.py the_first_hour_of_a_full_stream",
    "| The record of `AT_SEQUENCE_NUMBER`": "spout/test_batch_ends.py a_start_by_a_number_that_has_expired",
    "| A shard of a batch": "spout/test_batch_read.py a_shard_that_expires_after_the_batch_was_planned",
    "| The stream of a batch": "spout/test_batch_ends.py a_stream_that_was_created_again_is_an_error |"
    "e2e/test_batch_frames.py a_batch_that_loses",
    "| A closed shard of a batch": "spout/test_batch_ends.py children_that_are_never_listed",
    "| The stream was deleted": "spout/test_data_loss.py a_stream_recreated |"
    "e2e/test_recreated.py a_query_goes_on_with_the_new_stream",
    "An idle shard": "spout/test_scripted_source.py a_stream_that_is_idle_for_longer_than_its_retention",
}

INTRODUCTIONS = ("The next start", "The source gives", "Both store", "A batch (", "| the job", "| `spout`")
INTRODUCTIONS += ("[The words]", "[Guarantees]", "| sink |", "| situation |", "| promise |")


def parts_of(text: str) -> list[str]:
    """The parts of a page, without its headings and the lines below those of tables."""
    found = re.split(r"\n\n+|\n(?=\||- |\d+\. )", text)
    return [part for part in found if not re.match(r"#|\|[-| ]*\Z", part)]


@cache
def names_in(file: str) -> list[str]:
    return re.findall(r"^def test_(\w+)", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_each_part_of_the_guarantees_has_its_tests() -> None:
    pages = (ROOT / "docs" / name for name in ("glossary.md", "guarantees.md"))
    parts = [part for page in pages for part in parts_of(page.read_text(encoding="utf-8"))]
    for part in parts:
        starts = [start for start in (*TESTS, *INTRODUCTIONS) if part.strip().startswith(start)]
        assert len(starts) == 1, f"name the tests of: {part}"
    assert [start for start in TESTS if not any(part.strip().startswith(start) for part in parts)] == []


def test_the_tests_of_the_guarantees_are_there() -> None:
    for start, tests in TESTS.items():
        for test in tests.split("|"):
            file, _, name = test.strip().partition(" ")
            assert any(one.startswith(name) for one in names_in(file)), f"{start}: there is no {test.strip()}"
