"""The runbook's errors of bolts and of Trident's operations, most of them in topologies that run in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import boto3
import numpy as np
import pyarrow as pa
import pytest
import samples
import sqlalchemy as sa
from deltalake import DeltaTable
from job_environment import REGION
from local_rows import local_rows, order_rows
from night import Night, entry
from pyspark.sql import DataFrame
from servers import MariaDBServer

from kinesis_trident import (
    BasicBolt,
    FailedException,
    GlueDecoder,
    KinesisSpout,
    Outcomes,
    TopologyBuilder,
    TopologyError,
    begin_fenced,
    string_scheme,
    write_delta,
)
from kinesis_trident.bolt.errors import (
    BatchFailedError,
    FenceHeldError,
    NotCoveredError,
    NotOfThisBatchError,
    OperatorError,
    OtherHomeError,
    SchemaRegistryError,
    SinkError,
    StaleBatchError,
    TableChangedError,
    TargetAwayError,
    TwiceError,
    WorkerDiedError,
)
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.reliable import _Writer
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.tracking.carriers import Carrier
from kinesis_trident.bolt.tracking.coverage import SOURCE
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.testing import run_topology
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.trident import (
    ArrowFunction,
    Count,
    Function,
    MemoryMapState,
    OperationError,
    TridentTopology,
)

A = "shardId-000000000000"


def spout() -> KinesisSpout:
    return KinesisSpout(
        streamName="orders",
        applicationName="orders-job",
        zookeeper__hosts="zk1:2181",
        scheme=string_scheme("order"),
    )


class Parse(BasicBolt):
    """Makes a customer and an amount of an order; some orders it cannot take."""

    fields = "customer string, amount int"

    def execute(self, tup: Any, collector: Any) -> None:
        customer, _, amount = tup["order"].partition(" ")
        if not amount:
            collector.emit([customer])
        if amount == "0":
            msg = "an order of nothing"
            raise FailedException(msg)
        collector.emit([customer, int(amount)])


def bolts() -> TopologyBuilder:
    topology = TopologyBuilder()
    topology.set_spout("orders", spout())
    topology.set_bolt("parse", Parse()).shuffle_grouping("orders")
    return topology


@pytest.fixture
def store(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[SourceStore]:
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    yield SourceStore(client, Layout("/kinesis-trident", app, "orders", 1_767_225_600_000))
    client.stop()
    client.close()


@entry("FailedException")
def test_a_bolt_that_fails_a_tuple(night: Night) -> None:
    result = run_topology(bolts(), {"orders": ["ada 12", "bob 0"]})
    (failed,) = result.failed
    night.shows(failed.reason)
    night.tries("the other records of the batch are done")
    assert result.acked["orders"] == ["ada 12"]


@entry("EmitError")
def test_a_bolt_that_emits_too_few_values(night: Night) -> None:
    (failed,) = run_topology(bolts(), {"orders": ["bob"]}).failed
    night.shows(failed.reason)
    night.tries("one value for each field")
    assert run_topology(bolts(), {"orders": ["bob 5"]}).emitted["parse"] == [("bob", 5)]


@entry("TopologyError")
def test_a_bolt_that_takes_from_nobody(night: Night) -> None:
    topology = bolts()
    topology.set_bolt("bill", Parse()).fields_grouping("parse", "client")
    with night.raises(TopologyError):
        topology.check(2)
    night.tries("Name a component, a stream or a field that is there")
    again = bolts()
    again.set_bolt("bill", Parse()).fields_grouping("parse", "customer")
    again.check(2)


@entry("OperatorError")
def test_a_sink_of_a_wrong_shape(night: Night) -> None:
    def write(rows: DataFrame) -> None:
        rows.show()

    with night.raises(OperatorError):
        _Writer(write)
    night.tries("`(df, txid)`")
    assert not _Writer(lambda df, txid: None).with_outcomes


class Save(Function):
    """Fails the batch as long as the warehouse is closed."""

    closed = True

    def execute(self, tup: Any, collector: Any) -> None:
        if Save.closed:
            msg = "the warehouse is closed"
            raise FailedException(msg)
        collector.emit([tup["order"]])


@entry("BatchFailedError")
def test_an_operation_that_asks_for_a_replay_each_time(night: Night) -> None:
    topology = TridentTopology()
    saved = topology.new_stream("orders", spout()).each(["order"], Save(), ["saved"])
    saved.group_by(["saved"]).persistent_aggregate(MemoryMapState.opaque(), Count(), ["count"])
    with night.raises(BatchFailedError):
        run_topology(topology, {"orders": ["ada 12"]})
    night.tries("start the query again")
    Save.closed = False
    assert run_topology(topology, {"orders": ["ada 12"]}).states == {
        "persistent_aggregate(Count)": {("ada 12",): 1}
    }


class Length(ArrowFunction):
    """The orders as they are; which row each comes from is off by `wrong`."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        rows = pa.RecordBatch.from_arrays([batch.column(0)], ["n"])
        return rows, np.arange(batch.num_rows) + self.wrong


@entry("OperationError")
def test_an_operation_whose_result_does_not_fit(night: Night) -> None:
    def counted(operation: ArrowFunction) -> TridentTopology:
        topology = TridentTopology()
        topology.new_stream("orders", spout()).each(["order"], operation, ["n"]).aggregate(Count(), ["count"])
        return topology

    with night.raises(OperationError):
        run_topology(counted(Length(99)), {"orders": ["ada 12"]})
    night.tries("Correct the operation")
    assert run_topology(counted(Length(0)), {"orders": ["ada 12"]}).emitted["aggregate(Count)"] == [(1,)]


@entry("NotCoveredError")
def test_an_operator_that_did_not_see_every_record(night: Night, store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("worker-7", 4711, 1)
    store.batches.put(samples.plan(), epoch)
    batch = CurrentBatch.newest(store)
    with night.raises(NotCoveredError):
        batch.facts.require_covered({"parse": (SOURCE,)}, {}, {A: samples.pin(epoch)})


@entry("NotOfThisBatchError")
def test_a_sink_that_fails_a_row_of_another_batch(night: Night) -> None:
    plan, pins = samples.plan(), {A: samples.pin(1)}
    with night.raises(NotOfThisBatchError):
        Verdict.of(plan, pins, {}, {f"orders/{A}:17": Failure.said("too late")}, "orders/{}".format)
    night.tries("Fail only rows of the DataFrame")
    refused = {f"orders/{A}:9": Failure.said("too late")}
    verdict = Verdict.of(plan, pins, {}, refused, "orders/{}".format)
    assert verdict.not_done[A][0].reason == "too late"


@entry("StaleBatchError")
def test_a_batch_that_is_not_in_zookeeper(night: Night, store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("worker-7", 4711, 1)
    with night.raises(StaleBatchError):
        CurrentBatch.newest(store)
    night.tries("Start the query again")
    store.batches.put(samples.plan(), epoch)
    assert CurrentBatch.newest(store).txid == 1


@entry("SinkError")
def test_a_database_that_is_not_there(night: Night, mariadb_server: MariaDBServer) -> None:
    url = mariadb_server.url.replace("mysql:", "mysql+pymysql:")
    missing, engine = (sa.create_engine(one) for one in (url.replace("/test", "/nowhere"), url))
    batch = Outcomes(1, "orders-job", 7)
    with night.raises(SinkError), begin_fenced(missing, batch):
        pass
    night.tries("start the query again")
    with begin_fenced(engine, batch) as connection:
        assert connection.exec_driver_sql("SELECT epoch FROM kt_fence").scalar() == 1
    for one in (missing, engine):
        one.dispose()


@entry("TableChangedError")
def test_another_writer_changes_a_table_meanwhile(night: Night, tmp_path: Path) -> None:
    table = str(tmp_path)

    def alter() -> None:
        DeltaTable(table).alter.set_table_properties({"delta.checkpointInterval": "50"})

    write_delta(local_rows(order_rows("a")), Outcomes(1, "orders-job", 6), table)
    with night.raises(TableChangedError):
        write_delta(local_rows(order_rows("b"), after=alter), Outcomes(1, "orders-job", 7), table)
    night.tries("start the query again")
    write_delta(local_rows(order_rows("b")), Outcomes(2, "orders-job", 7), table)
    assert sorted(DeltaTable(table).to_pyarrow_table()["order_id"].to_pylist()) == ["a", "b"]


@entry("OtherHomeError")
def test_two_queries_of_one_name_on_two_streams(night: Night, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    orders, payments = "orders@1767225600000", "payments@1767225600000"
    with begin_fenced(engine, Outcomes(1, "orders-job", 1, home=orders)):
        pass
    with (
        night.raises(OtherHomeError),
        begin_fenced(engine, Outcomes(1, "orders-job", 1, home=payments)),
    ):
        pass
    night.tries("Give each query its own `applicationName`")
    with begin_fenced(engine, Outcomes(1, "payments-job", 1, home=payments)) as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM kt_fence").scalar() == 2
    engine.dispose()


@entry("TwiceError")
def test_a_sink_that_is_called_twice_for_one_table(night: Night, tmp_path: Path) -> None:
    attempt, table = Outcomes(1, "orders-job", 7), str(tmp_path)
    write_delta(local_rows(order_rows("a")), attempt, table)
    with night.raises(TwiceError):
        write_delta(local_rows(order_rows("b")), attempt, table)
    night.tries("Join the rows by `df.unionByName`")
    write_delta(local_rows(order_rows("ab")), Outcomes(2, "orders-job", 7), table)
    assert sorted(DeltaTable(table).to_pyarrow_table()["order_id"].to_pylist()) == ["a", "b"]


@entry("TargetAwayError")
def test_a_transaction_that_the_database_ended(night: Night, mariadb_server: MariaDBServer) -> None:
    engine = sa.create_engine(mariadb_server.url.replace("mysql:", "mysql+pymysql:"))
    batch = Outcomes(1, "orders-job", 7)
    with night.raises(TargetAwayError), begin_fenced(engine, batch) as connection:
        session = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
        with engine.connect() as other:
            other.exec_driver_sql(f"KILL {session}")
        connection.exec_driver_sql("SELECT 1")
    night.tries("start the query again")
    with begin_fenced(engine, batch) as connection:
        assert connection.exec_driver_sql("SELECT epoch FROM kt_fence").scalar() == 1
    engine.dispose()


@entry("FenceHeldError")
def test_a_transaction_that_another_run_holds_open(night: Night, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    older, newer = sa.create_engine(url), sa.create_engine(url, connect_args={"timeout": 0.1})
    with ExitStack() as process:
        process.enter_context(begin_fenced(older, Outcomes(1, "orders-job", 7)))
        with night.raises(FenceHeldError), begin_fenced(newer, Outcomes(2, "orders-job", 7)):
            pass
        night.tries("end the other run's process")
    with begin_fenced(newer, Outcomes(2, "orders-job", 7)) as connection:
        assert connection.exec_driver_sql("SELECT epoch FROM kt_fence").scalar() == 2
    for engine in (older, newer):
        engine.dispose()


@entry("WorkerDiedError")
def test_workers_that_end_again_and_again(night: Night) -> None:
    batch = SimpleNamespace(
        txid=7, verdict=None, deadly={}, say_judging=lambda: None, check_epoch=lambda: None
    )

    def attempt(*_: object) -> None:
        msg = "Python worker exited unexpectedly (crashed)"
        raise RuntimeError(msg)

    options = SourceOptions.parse({"streamName": "s", "applicationName": "a", "zookeeper.hosts": "z"})
    handler = BatchHandler(
        options,
        attempt,
        0,
        isolate=lambda *_: cast(Any, SimpleNamespace(deadly=dict)),
        carrier=cast(Carrier, object()),
    )
    with night.raises(WorkerDiedError):
        handler.process(cast(DataFrame, None), cast(CurrentBatch, batch))


@entry("SchemaRegistryError")
def test_a_registry_that_does_not_answer(night: Night, kinesis_server: EmbeddedKinesis) -> None:
    glue = boto3.client("glue", endpoint_url=kinesis_server.endpoint_url, region_name=REGION)
    definition = '{"properties": {"order_id": {"type": "string"}}}'
    answer = glue.create_schema(
        SchemaName=f"orders-{uuid.uuid4().hex}",
        DataFormat="JSON",
        Compatibility="NONE",
        SchemaDefinition=definition,
    )
    record = b"\3\0" + uuid.UUID(answer["SchemaVersionId"]).bytes + b'{"order_id": "a"}'
    batch = pa.RecordBatch.from_pydict({"data": [record]})
    night.names = {answer["SchemaVersionId"]: "0d4c7a50-6e5a-4a1e-8f0e-3f9a8a5c1b2d"}
    away = GlueDecoder(region=REGION, endpoint_url="http://127.0.0.1:9")
    with night.raises(SchemaRegistryError):
        step_for(away, "order_id string", ConnectionOptions(client_num_retries=0))(batch)
    night.tries("Give `GlueDecoder` the registry's `region` and `endpoint_url`")
    there = GlueDecoder(region=REGION, endpoint_url=kinesis_server.endpoint_url)
    judged = step_for(there, "order_id string", ConnectionOptions())(batch)
    assert judged.rows.to_pylist() == [{"order_id": "a"}]
