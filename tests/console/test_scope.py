"""A command keeps to the streams and shards that it was given, or is refused with words that can be typed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from command_line import Command
from kazoo.client import KazooClient
from samples_console import NOW, PLAN, Dead, NoKinesis, letter, pin, records
from web_site import buttons_of, offered

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    ExternalNode,
    InflightNode,
    Plan,
    Replay,
    SettledNode,
    ShardLineage,
    ShardsNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.model.run_status import StatusNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.changes import copy_of
from kinesis_trident.console.web.app import Site, _carry_out
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.spout.testing import ScriptedKinesis
from kinesis_trident.tracker.position_keys import keys_of_texts, pack_in_parts
from kinesis_trident.tracker.records import Noted, Run

A, B = "shardId-000000000000", "shardId-000000000001"
STREAMS = ("orders", "payments")
RUN = Run("20", "20", 1, attempt=2, due=NOW, failures=(Noted(NOW, "ValueError: bad amount"),))
DEAD = Run("40", "40", 1, attempt=4, failures=(Noted(NOW, "KeyError: x"),))

WORLDS = {
    "one home": {"orders@1": ("orders",)},
    "two homes": {"orders@1": ("orders",), "payments@1": ("payments",)},
    "shared": {"@streams": STREAMS},
    "shared beside one": {"@streams": STREAMS, "clicks@1": ("clicks",)},
}
"""The streams of each home. All have shards of the same ids."""

CHOICES = {
    "none": [],
    "stream": ["--stream", "orders"],
    "id": ["--shard", A],
    "label": ["--shard", f"orders/{A}"],
}

Words = Callable[["World"], list[str]]


@dataclass(frozen=True)
class World:
    """An application and the shards that a choice means in it."""

    client: KazooClient
    app: str
    folder: Path
    letters: Path
    homes: dict[str, tuple[str, ...]]

    @property
    def stores(self) -> list[SourceStore]:
        return [
            SourceStore(self.client, Layout("/kinesis-trident", self.app).of_element(element))
            for element in self.homes
        ]

    @property
    def shards(self) -> set[ShardKey]:
        return {
            ShardKey(stream, 1, shard)
            for streams in self.homes.values()
            for stream in streams
            for shard in (A, B)
        }

    def meant(self, choice: list[str]) -> set[ShardKey]:
        """Read a choice as people do, apart from the code under test."""
        given = dict(zip(choice[::2], choice[1::2], strict=True))
        every = sorted({key.stream for key in self.shards})
        streams = given["--stream"].split(",") if "--stream" in given else every
        return {
            key
            for key in self.shards
            if key.stream in streams and given.get("--shard") in (None, key.shard, key.source)
        }

    def nodes(self) -> dict[str, int]:
        """Return all nodes of the application with the transaction that wrote them last."""
        level, found = [f"/kinesis-trident/{self.app}"], {}
        while level:
            for path in level:
                stat = self.client.exists(path)
                found |= {path: stat.mzxid} if stat else {}
            level = [
                f"{path}/{name}" for path in level if path in found for name in self.client.get_children(path)
            ]
        return found

    def written(self, before: dict[str, int]) -> set[str]:
        after = self.nodes()
        return {path for path in {*before, *after} if before.get(path) != after.get(path)}

    def check_written(self, paths: set[str], meant: set[ShardKey]) -> None:
        """Check that the nodes are of homes of what is meant, and those of shards of nothing else."""
        for store in self.stores:
            base = store.layout.base
            mine = {path.removeprefix(f"{base}/") for path in paths if path.startswith(f"{base}/")}
            keys = {key for key in meant if key.stream in self.homes[base.rpartition("/")[2]]}
            assert not mine or keys, mine
            names = {store.layout.external_of(store.layout.name_of(key)).rpartition("/")[2] for key in keys}
            for path in mine:
                kind, _, rest = path.partition("/")
                if rest and kind in ("checkpoints", "inflight", "deadletters", "external"):
                    assert rest.partition("/")[0] in names, path


@pytest.fixture
def world(request: pytest.FixtureRequest, client: KazooClient, app: str, tmp_path: Path) -> World:
    made = World(client, app, tmp_path, tmp_path / "dead", WORLDS[request.param])
    for store in made.stores:
        layout = store.layout
        epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
        streams = made.homes[layout.element]
        if layout.several:
            store.streams.put(StreamsNode(streams=dict.fromkeys(streams, 1), active=streams), epoch)
        keys = {layout.name_of(key): key for key in made.shards if key.stream in streams}
        node = CheckpointNode(checkpoint="50", txid=7, position="AFTER_SEQUENCE_NUMBER 50", read=50)
        store.shards.settle(
            dict.fromkeys(keys, (node, InflightNode(txid=7, waiting=(RUN,), dead=(DEAD,)))),
            {
                name: DeadLettersNode(count=1, target=str(made.letters), last=(letter(f"{key.source}:10"),))
                for name, key in keys.items()
            },
            ShardsNode(shards=dict.fromkeys(keys, ShardLineage())),
            SettledNode(txid=7, plan="p7"),
            epoch,
        )
        client.delete(layout.owner)
    writer = DeadLetterWriter(Dead(str(made.letters), app), kinesis=NoKinesis())
    for stream in sorted({key.stream for key in made.shards}):
        for txid in (3, 4, 5):
            run = Run(str(100 * txid), str(100 * txid), 1, attempt=4)
            letters = {shard: [(run, [records(100 * txid, 1)], False)] for shard in (A, B)}
            writer.write(stream=stream, txid=txid, letters=letters)
    return made


def exported(world: World) -> list[str]:
    """Write a file of all homes by the command itself, before anything is chosen."""
    return ["checkpoints", world.app, "import", str(world.folder / "all.jsonl"), "--yes", "--force"]


def asked(world: World) -> None:
    for store in world.stores:
        for key in world.shards:
            if key.stream in world.homes[store.layout.element]:
                store.external.add(store.layout.name_of(key), ExternalNode(op="replay", records=("10",)))


def planned(world: World) -> None:
    for store in world.stores:
        keys = sorted(key for key in world.shards if key.stream in world.homes[store.layout.element])
        names = {store.layout.name_of(key): "AFTER_SEQUENCE_NUMBER 50" for key in keys}
        plan = Plan(
            txid=8,
            plan=PLAN.plan,
            streams={key.stream: 1 for key in keys},
            positions=names,
            read=tuple(names),
        )
        store.batches.put(plan, 1)
        for name in names:
            store.batches.create_pin(name, pin(name, 10), 1)


def kept(world: World) -> None:
    """Keep a backup of the same name in each home."""
    for store in world.stores:
        store.client.create(f"{store.layout.backups}/kept", encode(copy_of(store)), makepath=True)


def replayed(world: World) -> None:
    """Mark the letter of each shard as replayed before."""
    done = Replay(NOW, pack_in_parts(keys_of_texts(["10"])), 6, "done")
    for store in world.stores:
        for name, node in store.shards.dead_letters().items():
            path = store.layout.deadletters_of(name)
            store.client.set(path, encode(msgspec.structs.replace(node, replays=(done,))))


CHANGES: dict[str, Words] = {
    "set": lambda world: ["checkpoints", world.app, "set", "TRIM_HORIZON", "--yes", "--force"],
    "import": exported,
    "import a backup": lambda world: ["checkpoints", world.app, "import", "kept", "--yes", "--force"],
    "abandon": lambda world: ["checkpoints", world.app, "abandon-batch", "--yes", "--force"],
    "abandon to letters": lambda world: [
        *("checkpoints", world.app, "abandon-batch", "--dead-letter", "--yes", "--force")
    ],
    "retry all": lambda world: ["retries", world.app, "now", "--all"],
    "retry a reason": lambda world: ["retries", world.app, "now", "--reason", "bad amount"],
    "retry one": lambda world: ["retries", world.app, "now", f"orders/{A}:20"],
    "replay all": lambda world: ["dead-letters", world.app, "replay", "--all"],
    "replay since": lambda world: ["dead-letters", world.app, "replay", "--since", "2020-01-01"],
    "replay a reason": lambda world: ["dead-letters", world.app, "replay", "--reason", "bad amount"],
    "replay again": lambda world: ["dead-letters", world.app, "replay", "--again"],
    "replay exhausted": lambda world: ["dead-letters", world.app, "replay", "--exhausted"],
    "replay a folder": lambda world: ["dead-letters", world.app, "replay", "--from", str(world.letters)],
    "replay one": lambda world: ["dead-letters", world.app, "replay", f"orders/{A}:10"],
    "cancel all": lambda world: ["dead-letters", world.app, "cancel", "--all"],
    "cancel one": lambda world: ["dead-letters", world.app, "cancel", f"orders/{A}:10"],
    "rename": lambda world: ["rename", world.app, f"{world.app}-new", "--yes", "--force"],
    "export to another system": lambda world: ["export", world.app, *storm(world)],
    "forget": lambda world: ["forget", world.app, "--yes", "--backup", str(world.folder / "gone.jsonl")],
}
ONE_SHARD = {"set"}
WITHOUT_SHARD = {"forget", "rename", "export to another system"}


def storm(world: World) -> list[str]:
    return ["--storm", "storm-kinesis", "--prefix", f"/storm/{world.app}"]


def proposals(error: str) -> list[list[str]]:
    """Return the options that an error proposes, in the words in which it prints them."""
    if "Leave --stream out" in error:
        return [[]]
    found = [list(pair) for pair in re.findall(r"(--(?:stream|shard)) ([\w,/@.-]+)", error)]
    if listed := re.search(r"Name it with --shard: (.*)", error) or re.search(
        r"; it has (.*?)\. Choose", error
    ):
        found += [["--shard", label] for label in listed[1].split(", ")]
    return found


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("action", CHANGES)
@pytest.mark.parametrize("world", ["one home", "two homes", "shared"], indirect=True)
def test_a_change_writes_what_was_meant_or_proposes_what_can_be_typed(
    world: World, command: Command, action: str, choice: str
) -> None:
    chosen = CHOICES[choice]
    if action in WITHOUT_SHARD and "--shard" in chosen:
        pytest.skip("the command has no such option")
    assert command("checkpoints", world.app, "export", str(world.folder / "all.jsonl"))[0] == 0
    if action.startswith("abandon"):
        planned(world)
    if action.startswith("cancel"):
        asked(world)
    if action == "import a backup":
        kept(world)
    if action == "replay again":
        replayed(world)
    words = CHANGES[action](world)
    before = world.nodes()
    code, out, err = command(*words, *chosen)
    meant = world.meant(chosen)
    if code == 0:
        written = world.written(before)
        assert written, out
        if action.endswith("one"):
            meant &= {ShardKey("orders", 1, A)}
        world.check_written(written, meant)
        # One of several shards or homes was not picked for the user.
        if action in ONE_SHARD or "--shard" in chosen:
            assert len(meant) == 1
        if action.startswith(("import", "abandon")):
            assert sum(store.layout.base in " ".join(written) for store in world.stores) == 1
        return
    assert world.written(before) == set()
    if "their checkpoints are not written one by one. Export from an application that reads one" in err:
        assert "@streams" in world.homes
        return
    ways = proposals(err)
    assert ways, err
    for way in ways:
        before = world.nodes()
        code, _, error = command(*words, *way)
        assert code == 0, (err, error)
        world.check_written(world.written(before), world.meant(way))


@pytest.mark.parametrize("world", ["one home", "two homes", "shared"], indirect=True)
def test_an_import_from_another_system_is_about_the_stream_that_it_names(
    world: World, command: Command, client: KazooClient
) -> None:
    """It needs --stream; a home of several streams is refused with what to do, and nothing is written."""
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders", 2)
        # As the homes have it.
        kinesis._stream("orders").created = 1
        numbers = [str(kinesis.put("orders", shard, b"1")) for shard in (A, B)]
        for shard, number in zip((A, B), numbers, strict=True):
            path = f"/storm/{world.app}/orders/{shard}"
            client.create(path, json.dumps({"committedSequenceNumber": number}).encode(), makepath=True)
        words = ["import", world.app, *storm(world), "--yes", "--force"]
        at = ["--region", "us-east-1", "--endpoint", kinesis.endpoint_url]
        before = world.nodes()
        assert command(*words, *at)[0] == 2
        code, _, err = command(*words, "--stream", "orders", *at)
        if "@streams" in world.homes:
            assert (code, "Import under another applicationName" in err) == (1, True)
            words[1] = f"{world.app}-new"
            assert command(*words, "--stream", "orders", *at)[0] == 0
            assert world.written(before) == set()
            return
        assert (code, "--overwrite" in err) == (1, True)
        assert world.written(before) == set()
        assert command(*words, "--stream", "orders", "--overwrite", *at)[0] == 0
        meant = world.meant(["--stream", "orders"])
        world.check_written(world.written(before), meant)
        (store,) = (one for one in world.stores if one.layout.element == "orders@1")
        positions = {shard: node.position for shard, node in store.shards.checkpoints().items()}
        assert positions == {
            shard: f"AFTER_SEQUENCE_NUMBER {number}" for shard, number in zip((A, B), numbers, strict=True)
        }


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_button_of_the_page_is_about_what_stands_beside_it(world: World, site: Site) -> None:
    seen = set()
    for home in offered(site, world.app)[1].split("<article ")[1:]:
        streams = re.search('aria-label="(.*?)"', home)[1].split(", ")
        for fields in buttons_of(home):
            before = world.nodes()
            said = _carry_out(site, world.app, fields)
            source = fields.get("id", "").partition(":")[0]
            meant = {
                key for key in world.shards if key.stream in streams and source in ("", key.shard, key.source)
            }
            assert said.startswith(f"{count_noun(len(meant), 'record')} will be ")
            written = world.written(before)
            world.check_written(written, meant)
            asked_for = [path for path in written if re.search("/external/[^/]+/[^/]+$", path)]
            assert len(asked_for) == len(meant)
            # The next one may ask for the same record.
            for path in asked_for:
                world.client.delete(path)
            seen.add((home, fields["action"], "id" in fields))
    kinds = {("retry", False), ("retry", True), ("dead-letter", True), ("replay", True)}
    assert {kind[1:] for kind in seen} == kinds
    assert len(seen) == len(kinds) * len(world.homes)


def source_of(row: dict[str, str]) -> str:
    return str(row.get("message_id") or row.get("messageId")).partition(":")[0]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("world", ["one home", "two homes", "shared"], indirect=True)
def test_a_look_shows_what_was_meant(world: World, command: Command, choice: str) -> None:
    chosen = CHOICES[choice]
    sources = {key.source for key in world.meant(chosen)}
    labels = {key.shard if "@streams" not in world.homes else key.source for key in world.meant(chosen)}
    for view in (["checkpoints"], ["inflight"], ["shards"]):
        code, out, err = command(*view, world.app, *chosen, "--json")
        assert code == 0, err
        rows = [row["shard"] for line in out.splitlines() for row in json.loads(line)["rows"]]
        assert set(rows) == labels
        assert len([row for row in rows if view != ["inflight"]]) in (0, len(sources))
    lists = (
        ["retries", world.app, "list"],
        ["dead-letters", world.app],
        ["dead-letters", world.app, "export"],
    )
    for words in lists:
        as_json = ["--json"] if words[-1] != "export" else []
        code, out, err = command(*words, *chosen, *as_json)
        assert code == 0, err
        found = [json.loads(line) for line in out.splitlines()]
        rows = [row for one in found for row in one.get("rows", [one])]
        assert {source_of(row) for row in rows} == sources
    code, out, err = command("dead-letters", world.app, "export", "--from", str(world.letters), *chosen)
    assert {source_of(json.loads(line)) for line in out.splitlines()} == sources
    code, out, err = command("checkpoints", world.app, "export", *chosen)
    copies = [json.loads(line) for line in out.splitlines()]
    assert sum(
        len(one[kind]) for one in copies for kind in ("checkpoints", "inflight", "lineage")
    ) == 3 * len(sources)
    for one in map(json.loads, command("status", world.app, *chosen, "--json")[1].splitlines()):
        assert (one["retrying"], one["exhausted"]) == (one["shards"], one["shards"])
        assert set(one["streams"]) <= {key.stream for key in world.meant(chosen)}


@pytest.mark.parametrize("choice", ["none", "stream"])
@pytest.mark.parametrize("world", ["one home", "two homes", "shared"], indirect=True)
def test_letters_of_streams_that_are_not_meant_are_not_compacted(
    world: World, command: Command, choice: str
) -> None:
    def files() -> dict[str, list[str]]:
        return {
            stream: sorted(path.name for path in world.letters.rglob("*.jsonl") if stream in str(path))
            for stream in STREAMS
        }

    before = files()
    code, out, err = command(
        "dead-letters", world.app, "compact", "--from", str(world.letters), *CHOICES[choice]
    )
    assert code == 0, err
    streams = {key.stream for key in world.meant(CHOICES[choice])}
    assert {line.partition(":")[0] for line in out.splitlines()} == streams
    assert {stream for stream in STREAMS if files()[stream] != before[stream]} == streams
    assert {letter.stream for letter in read_dead_letters(world.letters)} == {
        key.stream for key in world.shards
    }


@pytest.mark.parametrize("world", ["shared beside one"], indirect=True)
def test_the_way_out_of_a_batch_is_printed_with_its_home(world: World, command: Command) -> None:
    planned(world)
    words = ["set", "TRIM_HORIZON", "--shard", f"payments/{A}", "--yes"]
    err = command("checkpoints", world.app, *words)[2]
    (line,) = re.findall("kinesis-trident (checkpoints .* abandon-batch .*)", err)
    before = world.nodes()
    code, out, err = command(*shlex.split(line), "--yes")
    assert code == 0, err
    assert f"of {world.app}, which reads orders, payments together" in out
    meant = world.meant(["--stream", "orders,payments"])
    assert meant == {key for key in world.shards if key.stream != "clicks"}
    world.check_written(world.written(before), meant)


@pytest.mark.parametrize("world", ["shared", "two homes"], indirect=True)
def test_the_way_to_withdraw_what_waits_leaves_other_streams_alone(world: World, command: Command) -> None:
    ids = [f"orders/{shard}:{number}" for shard in (A, B) for number in (10, 20)]
    others = [f"payments/{shard}:10" for shard in (A, B)]
    assert command("dead-letters", world.app, "replay", *others)[0] == 0
    assert command("dead-letters", world.app, "replay", *ids)[0] == 0
    code, _, err = command("dead-letters", world.app, "replay", *ids)
    assert (code, "asked for already" in err) == (1, True)
    (line,) = re.findall("kinesis-trident (dead-letters .*?) withdraws it", err)
    code, out, err = command(*shlex.split(line))
    assert (code, "4 records will not be delivered again" in out) == (0, True), (out, err)
    assert "asked for already" in command("dead-letters", world.app, "replay", *others)[2]


@pytest.mark.parametrize("world", ["shared"], indirect=True)
def test_a_shard_that_is_named_with_another_stream_is_refused(world: World, command: Command) -> None:
    words = ["--stream", "payments", "--shard", f"orders/{A}"]
    code, _, err = command("retries", world.app, "now", "--all", *words)
    assert (code, proposals(err)) == (1, [["--shard", f"payments/{shard}"] for shard in (A, B)])
    code, _, err = command("retries", world.app, "now", f"orders/{A}:20", *words[:2])
    assert (code, f"orders/{A}:20 is not of stream payments" in err) == (1, True)
    code, _, err = command("status", world.app, "--stream", "orders,clicks")
    assert (code, "does not read stream 'clicks'; it reads orders, payments" in err) == (1, True)


@pytest.mark.parametrize("world", ["shared"], indirect=True)
def test_of_a_stream_that_was_created_again_a_label_means_the_new_one(world: World, command: Command) -> None:
    (store,) = world.stores
    old = store.layout.name_of(ShardKey("orders", 0, A))
    lineage = store.shards.lineage()
    assert lineage is not None
    store.shards.put_lineage(ShardsNode(shards={**lineage.shards, old: ShardLineage()}), 1)
    for named, name in ((f"orders/{A}", store.layout.name_of(ShardKey("orders", 1, A))), (old, old)):
        words = ["checkpoints", world.app, "set", "TRIM_HORIZON", "--yes", "--force", "--shard", named]
        before = world.nodes()
        assert command(*words)[0] == 0
        written = world.written(before)
        assert {path for path in written if path.startswith(f"{store.layout.checkpoints}/")} == {
            store.layout.checkpoint_of(name)
        }


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("world", ["one home", "two homes", "shared"], indirect=True)
def test_the_rates_of_an_application_are_not_those_of_a_part(
    world: World, command: Command, choice: str
) -> None:
    planned(world)
    for store in world.stores:
        epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
        lags, reads = (
            tuple((NOW + 60_000 * at, 1_000) for at in range(10)),
            tuple(600 * at for at in range(10)),
        )
        store.status.put(StatusNode(epoch=epoch, time=NOW, settled=7, lags=lags, reads=reads), epoch)
    meant = world.meant(CHOICES[choice])
    for one in map(json.loads, command("status", world.app, *CHOICES[choice], "--json")[1].splitlines()):
        (store,) = (store for store in world.stores if store.layout.base == one["home"])
        mine = {key for key in world.shards if key.stream in world.homes[store.layout.element]}
        assert (one["read_rate"], one["lag_growth"]) == ((10, 0) if mine <= meant else (None, None))
        # One retried, one exhausted, and ten of the batch in each shard.
        assert one["inflight"] == 12 * one["shards"] == 12 * len(mine & meant)
        assert one["batch"]["phase"].endswith("read, not settled")


@pytest.mark.parametrize("choice", ["none", "stream"])
@pytest.mark.parametrize("world", ["one home", "two homes", "shared", "shared beside one"], indirect=True)
def test_what_a_finding_recommends_is_about_the_streams_of_the_finding(
    world: World, command: Command, choice: str
) -> None:
    found = [
        json.loads(line) for line in command("status", world.app, *CHOICES[choice], "--json")[1].splitlines()
    ]
    for one in found:
        remedies = " ".join(finding["remedy"] for finding in one["findings"])
        (line,) = re.findall(
            r"kinesis-trident (dead-letters \S+ replay --all.*?) delivers them again", remedies
        )
        before = world.nodes()
        code, _, err = command(*shlex.split(line))
        assert code == 0, err
        world.check_written(
            world.written(before), {key for key in world.shards if key.stream in one["streams"]}
        )
        (line,) = re.findall(r"kinesis-trident (retries \S+.*?) shows all reasons", remedies)
        shown = json.loads(command(*shlex.split(line), "--json")[1])
        assert sum(row["count"] for row in shown["rows"]) == one["retrying"]


def test_what_is_left_of_a_stream_that_was_created_again_is_not_asked_for_as_of_the_new_one(
    client: KazooClient, app: str, command: Command
) -> None:
    store = SourceStore(client, Layout("/kinesis-trident", app).of_element("@streams"))
    epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
    store.streams.put(StreamsNode(streams={"orders": 2, "payments": 1}, active=("orders",)), epoch)
    gone, there = (store.layout.name_of(ShardKey("orders", created, A)) for created in (1, 2))
    runs = {gone: Run("10", "10", 1), there: Run("20", "20", 1)}
    node = CheckpointNode(checkpoint="50", txid=7, position="AFTER_SEQUENCE_NUMBER 50", read=50)
    store.shards.settle(
        {name: (node, InflightNode(txid=7, waiting=(run,))) for name, run in runs.items()},
        {
            name: DeadLettersNode(count=1, target="skip", last=(letter(f"orders/{A}:{number}"),))
            for name, number in ((gone, 30), (there, 40))
        },
        ShardsNode(shards=dict.fromkeys(runs, ShardLineage())),
        SettledNode(txid=7, plan="p7"),
        epoch,
    )
    client.delete(store.layout.owner)
    for words in (("retries", app, "now"), ("dead-letters", app, "replay")):
        code, out, err = command(*words, "--all", "--json")
        assert (code, out and json.loads(out)["records"]) == (0, 1), err
    asked = store.external.read().asked[there].values()
    assert [node.records for node in asked] == [("20",), ("40",)]
    code, _, err = command("dead-letters", app, "cancel", "--all", "--shard", gone)
    assert (code, f"nothing of shard {gone} that was asked for" in err) == (1, True)
    assert len(store.external.read().asked[there]) == 2
    for words in (("retries", app, "now"), ("dead-letters", app, "replay")):
        assert command(*words, "--all", "--shard", gone)[0] == 1
