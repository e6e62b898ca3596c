"""The promises of the documentation, each with the tests that hold it: `docs/reliability/claims.md` has them.

The guarantees have a table of their own, which is complete: `tests/test_guarantees.py`.
"""

from __future__ import annotations

CLAIMS: tuple[tuple[str, str, str], ...] = (
    (
        "positions.md",
        "what a shard is split or merged into until then belongs to it",
        "spout/test_batch_ends.py what_a_split_moves | spout/test_batch_fuzz.py each_record_between",
    ),
    (
        "positions.md",
        "the order of the lineage, parents first; tasks that run side by side do not wait for each other",
        "spout/test_batch_read.py parents_come_before",
    ),
    (
        "positions.md",
        "Shards that `endingPosition` does not name end at `LATEST`",
        "spout/test_batch_ends.py an_end_that_names_one_shard",
    ),
    (
        "positions.md",
        "What comes of a shard with an end of its own",
        "spout/test_batch_ends.py a_parent_with_an_earlier_end | spout/test_batch_fuzz.py each_record_between",
    ),
    (
        "positions.md",
        "A range whose start is its end is empty",
        "spout/test_batch_ends.py a_range_whose_start_is_its_end",
    ),
    (
        "positions.md",
        "A start that is a time ahead of Kinesis' clock",
        "spout/test_scripted_source.py a_start_ahead | spout/test_batch_ends.py a_batch_whose_start_is_ahead",
    ),
    (
        "positions.md",
        "A retention that is raised meanwhile counts for shards that are being read",
        "spout/test_batch_ends.py a_retention_that_is_raised",
    ),
    (
        "positions.md",
        "`maxBytesPerTrigger`, which would not limit it, are errors",
        "spout/options/test_effects.py an_option_without",
    ),
    (
        "options.md",
        "no micro-batch is created without records, but for batch 0 of a new Spark checkpoint",
        "e2e/test_waiting.py a_query_with_nothing_to_read",
    ),
    (
        "options.md",
        "`transactional` replays a batch identically or stops, `opaque` continues",
        "spout/test_scripted_source.py a_transactional_batch_whose | spout/test_scripted_source.py an_opaque_batch",
    ),
    (
        "console.md",
        "its data and all its reasons are in the file",
        "console/test_cli.py a_folder_that_zookeeper_names",
    ),
    (
        "backfill.md",
        "So each record is read by one of both",
        "spout/test_backfill_then_follow.py each_record_is_in",
    ),
    (
        "backfill.md",
        "LATEST is the time of `load()` by the clock of Kinesis",
        "spout/test_batch_ends.py latest_is_the_time",
    ),
    (
        "fan-out.md",
        "What a turn leaves beyond the bound is dropped",
        "spout/reader/test_buffered_events.py what_is_left_beyond",
    ),
    (
        "aggregates.md",
        "An aggregate has at most 50,000 rows",
        "spout/testing/test_made_aggregates.py no_record_is_left_out",
    ),
    ("acks.md", "Unknown ids are ignored and counted in the log", "spout/test_acks.py an_ack_of_what_waits"),
    (
        "acks.md",
        "What the source would refuse is an error here, too",
        "spout/test_acks.py wrong_ids_are_refused",
    ),
    (
        "acks.md",
        "one that no record ever had, below the position",
        "spout/test_acks.py an_id_that_no_record_ever_had",
    ),
    (
        "retries.md",
        "the list of dead letters names it, as long as it has room",
        "console/test_replayed_letters.py a_skipped_record_is_listed",
    ),
    (
        "fan-out.md",
        "nothing waits may have one event beyond it, so 12 shards may have 12",
        "spout/reader/test_buffered_events.py the_events_of_many_shards",
    ),
    (
        "retries.md",
        "`maxRetryingRecords` is at most 65,536",
        "spout/options/test_source.py what_is_wrong_is_said",
    ),
    (
        "retries.md",
        "A place that cannot be",
        "spout/failed_records/test_places.py a_folder_that | spout/failed_records/test_places.py a_stream_that "
        "| spout/failed_records/test_places.py a_batch_is",
    ),
    (
        "deploying.md",
        "A key that is disabled, or that is to be deleted, is waited for as a throttle is",
        "spout/test_scripted_source.py a_key_that_is_disabled | spout/test_batch_read.py a_batch_waits_for_a_key "
        "| spout/planner/tip/test_tip_probe.py a_key_that_stays",
    ),
    (
        "several-streams.md",
        "those of other accounts are given by `streamARN`",
        "spout/options/test_source.py streams_of_two_accounts",
    ),
    (
        "resharding.md",
        "each has a task of its own in the first batch",
        "spout/test_partition.py few_records_have_one_task",
    ),
)
"""The page, words of it, and the tests: a file, and how the name of one of its tests begins, if it is one."""

UNHELD: tuple[tuple[str, str, str], ...] = (
    (
        "options.md",
        "of which one without an answer takes up to 30 seconds",
        "it is the silence that a socket allows; a test would take as long",
    ),
    (
        "writing.md",
        "which is repeated `clientNumRetries` times where Kinesis does not answer",
        "the waits between are drawn, up to half a minute",
    ),
)
"""The page, words of it, and why no test holds them."""
