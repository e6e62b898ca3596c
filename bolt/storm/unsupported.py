"""Storm's methods and settings that Spark has no place for: each is refused with what to use in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinesis_trident.bolt.errors import TopologyError

__all__ = ["BOLT_DECLARER", "BUILDER", "check_configuration", "refuse"]

_TASKS = "A task is Spark's, with one executor core at a time"

BOLT_DECLARER = {
    "set_num_tasks": f"{_TASKS}. Give the number of tasks to set_bolt(name, bolt, parallelism)",
    "set_max_task_parallelism": f"{_TASKS}. Give the number of tasks to set_bolt(name, bolt, parallelism)",
    "set_max_spout_pending": "A micro-batch is the limit. Set the spout's option maxRecordsPerTrigger",
    "set_debug": "Bolts run in Spark's workers. Log in the bolt, and read the executors' logs",
    "set_memory_load": "Spark places tasks. Set spark.executor.memory and spark.executor.pyspark.memory",
    "set_cpu_load": "Spark places tasks. Set spark.executor.cores and spark.task.cpus",
    "add_resource": "Spark places tasks. Set spark.executor.resource.<name>.amount",
    "add_shared_memory": "Tasks share no memory. Use a Spark broadcast variable in a transform, or a store",
    "grouping": "Groupings have methods of their own. Call shuffle_grouping(...) or another, or custom_grouping(...)",
}
"""Methods of Storm's BoltDeclarer."""

BUILDER = {
    "set_state_spout": "There are no state spouts. Take the state in prepare(), or join it in a transform",
    "add_worker_hook": "Workers are Spark's. Do it in prepare() of a bolt, which is called in each task",
    "create_topology": "The topology is one streaming query. Call start(checkpointLocation=...)",
}
"""Methods of Storm's TopologyBuilder."""

_SETTINGS = {
    "topology.tick.tuple.freq.secs": "Set tickInterval, such as '10s'",
    "topology.acker.executors": "Give ackers=0 to TopologyBuilder, or nothing",
    "topology.ackers": "Give ackers=0 to TopologyBuilder, or nothing",
    "topology.max.spout.pending": "Set the spout's option maxRecordsPerTrigger",
    "topology.message.timeout.secs": "A tuple has time until its micro-batch ends, so there is no timeout",
    "topology.enable.message.timeouts": "A tuple has time until its micro-batch ends, so there is no timeout",
    "topology.tasks": "Give the number of tasks to set_bolt(name, bolt, parallelism)",
    "topology.max.task.parallelism": "Give the number of tasks to set_bolt(name, bolt, parallelism)",
    "topology.workers": "Set the number of Spark's executors, spark.executor.instances",
}


def refuse(what: str, method: str, methods: Mapping[str, str]) -> None:
    """Refuse a method of Storm's that is not here, in Storm's spelling too.

    Raises:
        TopologyError: it is one of `methods`, which have what to use in its place.
    """
    ours = "".join(f"_{one.lower()}" if one.isupper() else one for one in method)
    if ours in methods:
        msg = f"{what}: there is no {method}() on Spark. {methods[ours]}"
        raise TopologyError(msg)


def check_configuration(what: str, names: Iterable[object]) -> None:
    """Check that a configuration has no setting of Storm's that would have no effect.

    Raises:
        TopologyError: it has one, or a name is not a text.
    """
    for name in names:
        if not isinstance(name, str):
            msg = f"{what}: {name!r} is not the name of a configuration entry. Give a text"
            raise TopologyError(msg)
        if name in _SETTINGS:
            msg = f"{what}: the setting {name!r} has no effect on Spark. {_SETTINGS[name]}"
            raise TopologyError(msg)
