"""The trials of `doctor` in ZooKeeper and Kinesis, each with its result and what to do."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, NoAuthError, NoNodeError
from kazoo.security import ANYONE_ID_UNSAFE

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.run_status import StatusNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_layouts, streams_of
from kinesis_trident.checkpoint.zookeeper.client import connect, disconnect
from kinesis_trident.checkpoint.zookeeper.operations import REQUEST_LIMIT, explain_refusal
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.stream_names import stream_of
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.machine import Result, try_servers
from kinesis_trident.console.snapshot import Snapshot, take_snapshot
from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.console.text import duration, now_ms

if TYPE_CHECKING:
    from kinesis_trident.spout.kinesis import Kinesis, Page, StreamInfo
    from kinesis_trident.spout.kinesis.client import BotoKinesis
    from kinesis_trident.spout.options.source import SourceOptions

_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_SLOW_MS = 500
_SKEW_MS = 5_000


class Examination:
    """The trials, one after the other; a later one uses what an earlier one found.

    Attributes:
        stream: of the application, if it reads one.
    """

    def __init__(self) -> None:
        self.stream: str | None = None
        self._seen: dict[str, tuple[Snapshot, int]] = {}

    def of_zookeeper(self, target: Target, application: str | None) -> list[Result]:
        """Try ZooKeeper: to connect, to write, its clock, its health, and an application's nodes there."""
        before = time.monotonic()
        try:
            client = connect(target.zookeeper)
        except KinesisTridentError as error:
            remedy = "check the hosts, the network and the login"
            return [Result("zookeeper", "failed", str(error), remedy), *try_servers(target.zookeeper)]
        took = round((time.monotonic() - before) * 1000)
        results = [Result("zookeeper", "ok", f"connected to {target.zookeeper.hosts} in {duration(took)}")]
        try:
            results += self._health(client)
            results.append(self._writes(client, Layout.root_path(target.root) or "/", "write"))
            if application is not None:
                results += self._application(client, target)
        except (KazooException, KinesisTridentError) as error:
            results.append(Result("zookeeper", "failed", str(error) or type(error).__name__, "check its log"))
        finally:
            disconnect(client)
        return results

    def of_kinesis(self, options: SourceOptions, consumer: str | None = None) -> list[Result]:
        """Try each call that a query makes, with its credentials; to subscribe only with a `consumer`."""
        from kinesis_trident.spout.kinesis import AccessDeniedError
        from kinesis_trident.spout.kinesis.client import kinesis_client

        try:
            kinesis = kinesis_client(options)
        except KinesisTridentError as error:
            return [
                Result("kinesis", "failed", str(error), "check the region, the profile and the credentials")
            ]
        results: list[Result] = []
        stream = options.streams[0]

        def tried(name: str, call: Callable[[], Any], says: Callable[[Any], str]) -> Any:
            try:
                found = call()
            except KinesisTridentError as error:
                # Any other error says by itself what to do.
                denied = isinstance(error, AccessDeniedError)
                remedy = f"allow kinesis:{name} on the stream" if denied else ""
                results.append(Result(name, "failed", str(error), remedy))
                return None
            results.append(Result(name, "ok", says(found)))
            return found

        before = now_ms()
        info = tried(
            "DescribeStreamSummary",
            lambda: kinesis.describe(stream),
            lambda one: f"{one.name} is {one.status}, retention {one.retention_hours} h",
        )
        after = now_ms()
        shards = tried(
            "ListShards", lambda: kinesis.list_shards(stream), lambda some: count_noun(len(some), "shard")
        )
        if shards:
            page = self._try_reads(kinesis, stream, shards[0].id, tried)
            if page is not None and page.records.num_rows:
                tried("positions", lambda: _read_on(kinesis, stream, shards[0].id, page), str)
            else:
                results.append(Result("positions", "skipped", "there is no record to go on from", ""))
        else:
            results.append(Result("GetRecords", "skipped", "there is no shard to read", ""))
        if info is not None:
            results += self._compare(info, before, after)
        arn = None if info is None else info.arn
        results += _dry_runs(kinesis, options, consumer, arn, shards[0].id if shards else None)
        return results

    def _try_reads(self, kinesis: Kinesis, stream: str, shard: str, tried: Callable[..., Any]) -> Page | None:
        iterator = tried(
            "GetShardIterator",
            lambda: kinesis.iterator(stream, shard, "TRIM_HORIZON"),
            lambda _: f"of {shard}",
        )
        if iterator is None:
            return None
        page: Page | None = tried(
            "GetRecords",
            lambda: kinesis.get_records(iterator, 2),
            lambda page: f"{count_noun(page.records.num_rows, 'record')} of {shard}",
        )
        return page

    def _compare(self, info: StreamInfo, before: int, after: int) -> Iterator[Result]:
        # The server says its time in whole seconds.
        yield clock_result("clock against Kinesis", before - 1000, info.server_time, after)
        if info.name in self._seen:
            yield from retention_result(*self._seen[info.name], info)

    def _health(self, client: KazooClient) -> Iterator[Result]:
        try:
            answer = client.command(b"mntr")
        except (KazooException, OSError):
            answer = ""
        facts = dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
        state = facts.get("zk_server_state")
        if state is None:
            yield Result(
                "zookeeper's health",
                "skipped",
                "the server does not answer mntr",
                "add 4lw.commands.whitelist=mntr to its configuration",
            )
            return
        waits = int(facts.get("zk_outstanding_requests", "0"))
        latency = float(facts.get("zk_avg_latency", "0"))
        slow = waits > 100 or latency > _SLOW_MS
        yield Result(
            "zookeeper's health",
            "warning" if slow else "ok",
            f"{state}, version {facts.get('zk_version', 'unknown').partition('-')[0]}, {waits} requests waiting, "
            f"{latency:g} ms on average, {facts.get('zk_znode_count', '?')} nodes",
            "look at its disk and its heap" if slow else "",
        )

    def _writes(self, client: KazooClient, parent: str, name: str) -> Result:
        """Create, change and delete a node below another: the query must, and ZooKeeper dates it by its own clock."""
        path = f"{parent.rstrip('/')}/doctor-{uuid.uuid4().hex}"
        did = "create"
        begun, before = time.monotonic(), now_ms()
        try:
            client.create(path, b"", ephemeral=True)
            took, after = round((time.monotonic() - begun) * 1000), now_ms()
            did = "change"
            stat = client.set(path, b"doctor")
            did = f"write {REQUEST_LIMIT // 1024} KiB at once to"
            client.set(path, bytes(REQUEST_LIMIT - len(path) - 80))
            did = "delete"
            client.delete(path)
        except NoNodeError:
            return Result(name, "skipped", f"{parent} does not exist yet: the first query makes it")
        except KazooException as error:
            if isinstance(error, ConnectionLoss) and did.startswith("write"):
                return Result(
                    name,
                    "failed",
                    f"the server closes the connection at a request of {REQUEST_LIMIT // 1024} KiB below {parent}",
                    "let each server take 1 MiB: -Djute.maxbuffer=1048575",
                )
            if not isinstance(error, NoAuthError):
                return Result(name, "failed", *explain_refusal(parent, error))
            return Result(
                name,
                "failed",
                f"cannot {did} a node below {parent}: {type(error).__name__}",
                "give the login of the query (--digest, --sasl), or have an administrator set the ACL of the node",
            )
        skew = clock_result("clock against ZooKeeper", before, stat.ctime, after)
        if skew.state != "ok":
            return skew
        return Result(
            name,
            "warning" if took > _SLOW_MS else "ok",
            f"took {duration(took)}; {skew.says}",
            "look at ZooKeeper's disk" if took > _SLOW_MS else "",
        )

    def _application(self, client: KazooClient, target: Target) -> Iterator[Result]:
        session = Session(client, target.zookeeper.session_timeout)
        path = Layout.application_path(target.root, target.application)
        writes = self._writes(client, path, "write to the application")
        if writes.state != "skipped":
            yield writes
        layouts = find_layouts(session, target.root, target.application)
        if not layouts:
            yield Result(
                "application",
                "warning",
                f"{target.application!r} has no state below {target.root}",
                "that is right before its first start; else check the name and --root",
            )
        for layout in layouts:
            store = SourceStore(client, layout)
            yield self._writes(client, layout.base, "write to its home")
            streams = streams_of(store)
            if len(streams) == 1:
                (self.stream,) = streams
            acl = session.acls([layout.base])[0] or []
            everyone = any(one.id == ANYONE_ID_UNSAFE and one.perms & 14 for one in acl)
            login = target.zookeeper.digest or target.zookeeper.sasl
            yield Result(
                "acl",
                "warning" if everyone else "ok",
                f"{layout.base} may be changed by {'everyone' if everyone else 'its owner alone'}",
                ("" if login else "give the query a login (docs/security.md), and ")
                + "start the query once with its login: it closes the nodes that are open",
            )
            snapshot = take_snapshot(store)
            self._seen |= dict.fromkeys(streams, (snapshot, now_ms()))
            yield Result(
                "nodes",
                "failed" if snapshot.problems else "ok",
                "; ".join(snapshot.problems) or f"all nodes of {layout.base} can be read",
                f"{target.command('status')} says what to do",
            )


def _read_on(kinesis: Kinesis, stream: str, shard: str, page: Page) -> str:
    """Go on at a record of a page with a new iterator, as a query does after each start; return what was found.

    Raises:
        ConsoleError: another record than the page has follows.
    """
    numbers = page.records.column("sequenceNumber").to_pylist()
    kind = "AFTER" if len(numbers) > 1 else "AT"
    position, expected = f"{kind}_SEQUENCE_NUMBER {numbers[0]}", numbers[-1]
    again = kinesis.get_records(kinesis.iterator(stream, shard, position), 1)
    found = again.records.column("sequenceNumber").to_pylist()
    if found != [expected]:
        msg = (
            f"{position} of {shard} gives {found[0] if found else 'no record'}, where the page before has record "
            f"{expected}: this server does not find its own sequence numbers, and a query would lose records. Use "
            "another one, see docs/platforms.md"
        )
        raise ConsoleError(msg)
    return f"{position} of {shard} gives the record that follows"


def _dry_runs(
    kinesis: BotoKinesis, options: SourceOptions, consumer: str | None, stream: str | None, shard: str | None
) -> Iterator[Result]:
    """Try the calls that would write, or end a subscription, without carrying them out."""
    from kinesis_trident.spout.kinesis.aws_session import create_client

    letters = stream_of(options.dead_letter or "")
    if letters is not None:
        client = create_client("kinesis", options, endpoint_url=options.endpoint_url)
        record = {"Data": b"{}", "PartitionKey": "doctor"}
        yield dry_run(client, "PutRecords", letters, StreamName=letters, Records=[record])
    if consumer is not None and stream is not None and shard is not None:
        try:
            arn = kinesis.describe_consumer(stream, consumer).arn
        except KinesisTridentError as error:
            yield Result(
                "SubscribeToShard", "failed", str(error), "register the consumer, or start the query once"
            )
            return
        yield dry_run(
            create_client("kinesis", options, endpoint_url=options.endpoint_url),
            "SubscribeToShard",
            consumer,
            ConsumerARN=arn,
            ShardId=shard,
            StartingPosition={"Type": "LATEST"},
        )


def dry_run(client: Any, call: str, what: str, *, trusted: bool = False, **parameters: Any) -> Result:
    """Ask Kinesis whether it would carry out a call.

    Args:
        client: of boto3.
        call: such as PutRecords.
        what: the stream or consumer, for people.
        trusted: the endpoint knows `DryRun`; one that does not would carry the call out, so only AWS's are asked.
        parameters: of the call.
    """
    import botocore
    from botocore import xform_name
    from botocore.exceptions import BotoCoreError, ClientError

    if not trusted and not (urlsplit(client.meta.endpoint_url).hostname or "").endswith(_AWS):
        return Result(call, "skipped", f"not tried on {what}: only AWS is sure to know a dry run", "")
    shape = client.meta.service_model.operation_model(call).input_shape
    if "DryRun" not in shape.members:
        return Result(
            call, "skipped", f"not tried on {what}: botocore {botocore.__version__} has no dry run of it", ""
        )
    try:
        getattr(client, xform_name(call))(**parameters, DryRun=True)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code != "DryRunOperationException":
            remedy = f"allow kinesis:{call} on {what}" if "AccessDenied" in code else ""
            return Result(call, "failed", f"{what}: {error}", remedy)
    except BotoCoreError as error:
        return Result(call, "failed", f"{what}: {error}", "")
    return Result(call, "ok", f"{what} (a dry run)")


def retention_result(snapshot: Snapshot, now: int, info: StreamInfo) -> Iterator[Result]:
    """Compare a stream's retention with its oldest unread record, if that is known; `now` is in epoch milliseconds."""
    # What was left of a stream that is not read now expires too, and the status does not speak of it.
    status = snapshot.status if info.name in snapshot.active else None
    status = msgspec.structs.replace(
        status or StatusNode(epoch=0, time=0), retention={info.name: info.retention_hours}
    )
    keys = {shard: snapshot.key_of(shard) for shard in snapshot.shard_ids}
    shards = frozenset(shard for shard, key in keys.items() if key is not None and key.stream == info.name)
    seen = replace(snapshot, status=status, active=(info.name,)).only(shards, [info.name])
    facts = HomeFacts(seen, now)
    lag, lefts = facts.oldest_ms, [one.figures.retention_left_ms for one in facts.shards.values()]
    if lag is not None:
        left = min((left for left in lefts if left is not None), default=lag)
        state = "ok" if left >= lag else "warning" if left else "failed"
        age = f"the oldest unread record is {duration(lag)} old" if lag else "all is read"
        paused = f"; {count_noun(len(facts.paused), 'shard is', 'shards are')} paused" if facts.paused else ""
        said = f"{info.retention_hours} h, and {age}{paused}"
        yield Result("retention", state, said, "raise the stream's retention, or read faster")


def clock_result(name: str, before: int, theirs: int, after: int) -> Result:
    """Compare this machine's clock with a server's: as far as a request can tell, however long it took.

    Args:
        name: of the result.
        before: this machine's time when the request began, in epoch milliseconds.
        theirs: the server's time at some moment of the request.
        after: this machine's time when it had ended.
    """
    skew = max(0, before - theirs) - max(0, theirs - after)
    far = abs(skew) > _SKEW_MS
    way = "ahead" if skew > 0 else "behind"
    return Result(
        name,
        "warning" if far else "ok",
        f"this machine is {duration(abs(skew))} {way}" if far else "the clocks agree",
        "set the machine's clock (NTP): lags and due times are wrong by as much" if far else "",
    )
