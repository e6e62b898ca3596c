"""Ceilings on the forms that one fact has in the product: each goes down as its forms become one value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kinesis_trident.checkpoint.model.facts import ShardFigures
from kinesis_trident.checkpoint.model.home import HOME
from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.console.figures import FIGURES, HomeFigures
from kinesis_trident.console.metrics.table import LAST_BATCH, RUN, SHARD
from kinesis_trident.console.rules import RULES

FOLDERS = ("bolt", "checkpoint", "console", "kinesis_trident/common", "spout", "tracker", "trident")
"""All of the product."""

NODES = frozenset(spec.name for spec in HOME)
ROOT = Path(__file__).resolve().parent.parent


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    """Return the parsed modules of a folder of the product, by path."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def names_in(folder: str, name: str) -> Iterator[str]:
    """Yield the path and line of each use of a name in a folder, outside of imports."""
    for path, tree in trees(folder).items():
        for node in ast.walk(tree):
            if (isinstance(node, ast.Name) and node.id == name) or (
                isinstance(node, ast.Attribute) and node.attr == name
            ):
                yield f"{path}:{node.lineno}"


def names_of(tree: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yield each use of a name in an expression."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name)


def modules_with(*texts: str) -> set[str]:
    """Return the modules of bolts and Trident with a text that has one of these in it."""
    return {
        path
        for folder in ("bolt", "trident")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(text in node.value for text in texts)
    }


def lines_of(folder: str) -> int:
    """Return the number of lines of a folder of the product."""
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


def test_types_of_the_tracker_are_named() -> None:
    assert list(names_in("tracker", "Any")) == []


def test_the_nodes_of_a_topology_never_change() -> None:
    nodes = [
        node
        for node in ast.walk(trees("trident")["trident/build/nodes.py"])
        if isinstance(node, ast.ClassDef) and node.name.endswith("Node")
    ]
    decorators = [ast.unparse(one.decorator_list[0]) for one in nodes]
    assert len(nodes) >= 14
    assert sum("frozen=True" not in decorator for decorator in decorators) == 0


def test_one_value_is_asked_what_follows_from_a_grouping() -> None:
    """`Move` compares kinds of groupings; bolts and Trident's streams ask it."""
    asked = [
        f"{path}:{node.lineno}"
        for folder in ("bolt", "trident")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(list(names_of(one, "Grouping")) for one in node.comparators)
    ]
    assert not [at for at in asked if not at.startswith("bolt/moves.py")]
    assert len(asked) <= 4


def test_few_places_hold_a_number_of_tasks() -> None:
    """A `Move` does, for the nodes of Trident and the groupings of bolts; the others are what a run or a task gets."""
    names = {"tasks", "parallelism", "partitions"}
    holders = [
        f"{path}: {node.name}"
        for folder in ("bolt", "trident")
        for path, tree in trees(folder).items()
        if path.startswith(("bolt/moves", "bolt/storm", "trident/build", "trident/run"))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) in names
        # A list has the tasks to which tuples go, not how many there are.
        if ast.unparse(one.annotation) != "list[int]"
    ]
    assert len(holders) <= 9, holders


def test_one_memory_says_that_a_batch_comes_again() -> None:
    """The runs of a driver compare batches; the others compare a report, or a settled batch, with one."""
    comparing = {
        path
        for folder in ("bolt", "trident")
        for path, tree in trees(folder).items()
        if path.startswith(("bolt/storm", "bolt/tracking", "trident/run"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(
            "txid" in {getattr(one, "id", ""), getattr(one, "attr", "")}
            for side in (node.left, *node.comparators)
            for one in ast.walk(side)
        )
    }
    others = {"bolt/tracking/current_batch.py", "bolt/tracking/judged_facts.py"}
    assert comparing - others == {"bolt/tracking/batch_run.py"}


def test_one_pipeline_turns_reports_into_what_is_not_done() -> None:
    """For bolts, `reliable` and Trident, on the source and on other DataFrames; one value goes on from there."""

    def callers(*names: str) -> set[str]:
        return {
            path
            for folder in ("bolt", "trident")
            for path, tree in trees(folder).items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
        }

    assert callers("failures", "find_uncovered") == {"bolt/tracking/judged_facts.py"}
    assert callers("BatchOutcome", "Few", "MessageId") | callers("KeyRanges") <= {"bolt/tracking/verdict.py"}
    passed_on = {
        f"{path}: {node.name}"
        for folder in ("bolt", "trident")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and re.search(r"Mapping\[str, (Sequence|Iterable|tuple)\[.*NotDone", ast.unparse(node.args))
    }
    assert passed_on == {
        "bolt/failed_share.py: of",
        "bolt/storm/redelivery.py: note",
        "bolt/tracking/verdict.py: of",
        "bolt/tracking/verdict.py: ranges_of",
    }


def test_one_class_holds_rows_for_several_readers() -> None:
    """It frees them however an attempt ends: nobody else caches or stores a frame."""
    keeping = {
        path
        for folder in FOLDERS
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            getattr(node.func, "attr", "") in {"persist", "cache", "localCheckpoint"}
            or getattr(node.func, "id", "") in {"store_rows", "free_rows"}
        )
        and not ast.unparse(node.func).endswith("held.cache")
    }
    assert keeping <= {"bolt/tracking/held.py", "kinesis_trident/common/private_names.py"}


def test_one_module_lays_several_streams_side_by_side() -> None:
    """For the streams of a bolt, several spouts, the consumers of one stream in Trident and `multi_reduce`."""
    assert modules_with("__stream", "__of") == {"bolt/tagged.py"}


def test_one_module_says_which_names_are_valid() -> None:
    """Of fields, components and streams; the schemas of `reliable().map` have a rule of their own."""
    says = modules_with("begins with '__'", "is named twice", "name is not valid")
    assert says - {"bolt/steps/kinds.py"} <= {"bolt/names.py"}


def test_a_module_is_described_by_what_it_does_or_is() -> None:
    """Its docstring begins with a verb or a noun: a question leaves the answer to the reader."""
    asked = [
        path
        for folder in FOLDERS
        for path, tree in trees(folder).items()
        if re.match(r"(What|How|Who|Whether|Where|Which|When)\b", ast.get_docstring(tree) or "")
    ]
    assert asked == []


def test_functions_and_constructors_are_short() -> None:
    """A function is read on one screen, and a constructor names no more than a person keeps in mind."""
    functions = [
        (path, node)
        for folder in FOLDERS
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {(path, node.name) for path, node in functions if (node.end_lineno or 0) - node.lineno + 1 > 80}
    assert not long
    wide = {
        f"{path}:{node.lineno}"
        for path, node in functions
        if node.name == "__init__" and len([*node.args.args, *node.args.kwonlyargs]) - 1 > 9
    }
    assert not wide


def test_one_table_says_why_a_shard_is_not_read() -> None:
    """`Standing` has the flags; what it is made of is asked where it is made, stored, or told."""
    asked = {
        name: {at.rpartition(":")[0] for folder in ("spout", "console") for at in names_in(folder, name)}
        for name in ("blocked", "parked", "closed_to", "has_ended", "is_read", "is_waiting")
    }
    assert asked["parked"] == {"spout/planner/shards/source_shards.py"}
    assert not asked["closed_to"] | asked["is_read"] | asked["is_waiting"]
    # That of the run before, which is no shard.
    assert asked["has_ended"] == {"spout/planner/run.py"}
    assert asked["blocked"] <= {
        # Of a progress, whose figures say it.
        "console/metrics/queries.py",
        "console/rules/shards.py",
        "spout/planner/plan.py",
        "spout/planner/settling/external_requests.py",
        "spout/planner/shards/source_shards.py",
        "spout/planner/watching/life_log.py",
    }


def test_a_finding_is_declared_once() -> None:
    """With its severity, what is said of it and what to do: whoever tells findings goes through the rules."""
    made = {
        path
        for path, tree in trees("console").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"
    }
    assert made == {"console/rules/rule.py"}
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))


def test_a_figure_is_declared_once() -> None:
    """With how it is computed: a face reads its value, and computes none."""
    assert [*FIGURES] == [*HomeFigures.__struct_fields__]
    asking = {
        path
        for path, tree in trees("console").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and {"total_lag", "lag_growth", "rates"} & {one.name for one in node.names}
    }
    assert asking == {"console/figures.py"}
    # The page has the words of its tiles from the rows; what was read, and failed by kind, stands below its rate.
    templates = ROOT / "console/web/templates"
    for name, figures in (("application.html", "status"), ("list.html", "row")):
        named = re.findall(rf"\b{figures}\.(\w+)", (templates / name).read_text())
        assert {*named} & {*FIGURES} - {"connected"} <= {"read", "failed"}, name
    fields = {*ShardFigures.__struct_fields__, "held"}
    assert {*SHARD} <= fields
    assert {*RUN, *LAST_BATCH} <= {*RunCounts.__struct_fields__}
    assert lines_of("console") <= 11_302


def memories_by_name(folder: str) -> Iterator[str]:
    """Yield the attributes of objects of a folder that are mappings or sets by a name."""
    by_name = re.compile(r"(?:dict|set|Mapping|Counter)\[(?:str|ShardKey)\b")
    for path, tree in trees(folder).items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Attribute)
                and by_name.match(ast.unparse(node.annotation))
            ):
                yield f"{path}: {ast.unparse(node.target)}"


def test_what_is_known_of_a_shard_is_in_few_places() -> None:
    """What `Shards` and `Sights` know of a shard goes with it; each other memory must forget it by itself."""
    others = {
        # By stream, by reason, by path, and what `prefetch` has found beside the last batch.
        # Of the last listings, the first numbers.
        "spout/planner/state.py: self._ignored",
        "spout/planner/streams.py: self.digits",
        "spout/planner/streams.py: self.firsts",
        "spout/planner/tip/prefetch.py: self._found",
        "spout/planner/watching/life_log.py: self._dead",
        "spout/planner/watching/life_log.py: self._failed",
    }
    assert set(memories_by_name("spout/planner")) == others


def test_planner_and_tracker_do_not_grow() -> None:
    assert lines_of("spout/planner") <= 7_868
    assert lines_of("tracker") <= 4_430


def test_an_answer_of_a_shard_is_one_value() -> None:
    """No flag of a pager says what its last answer was: the two that there are tell of its subscription."""
    pagers = "\n".join(
        ast.unparse(node)
        for tree in trees("spout/reader").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Pager")
    )
    flags = re.findall(r"^ +(?:self\.)?([a-z]\w*)(?:: bool)? = (?:True|False)$", pagers, re.MULTILINE)
    flags += re.findall(r"@property\n +def (\w+)\(self\) -> bool", pagers)
    assert set(flags) <= {"in_use", "may_stay_open"}


def test_an_action_is_a_command_of_its_own() -> None:
    """It has a help and options of its own, where one function for all has a table of what goes with what."""
    found = [
        f"{path}: {node.arg}"
        for path, tree in trees("console/commands").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and node.annotation is not None
        and "Action" in ast.unparse(node.annotation)
    ]
    assert found == []
    assert lines_of("console/commands") <= 2_365


def is_path(node: ast.AST) -> bool:
    """Return whether an expression is a path that a layout gives."""
    match node:
        case ast.Attribute(ast.Name("layout" | "self") | ast.Attribute(_, "layout" | "_layout"), name):
            return name in NODES
    return False


def test_nodes_are_listed_in_one_place() -> None:
    """A kind of node that a list forgets is lost, or stays for ever: who needs several kinds asks the table."""
    listing = {
        path
        for path, tree in trees("checkpoint").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple | ast.List | ast.Dict)
        and sum(is_path(part) for part in ast.walk(node)) > 2
    }
    assert listing == set()


_ERRORS_OF_DATABASES = {
    *(
        "DataError",
        "IntegrityError",
        "InterfaceError",
        "InternalError",
        "OperationalError",
        "ProgrammingError",
    ),
    *("connection_invalidated", "pgcode", "sqlite_errorname", "sqlstate"),
}
_CODES_OF_DATABASES = {"40P01", "55P03", "SQLITE_BUSY", 1213, "no such table"}


def test_one_module_knows_what_an_error_of_a_database_means() -> None:
    folders = ("bolt", "console", "spout", "trident", "kinesis_trident/common")
    knowing = {
        path
        for folder in folders
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in _ERRORS_OF_DATABASES)
        or (isinstance(node, ast.Constant) and node.value in _CODES_OF_DATABASES)
    }
    assert knowing == {"kinesis_trident/common/database.py"}


def test_no_loop_on_a_store_is_without_a_bound() -> None:
    endless = [
        f"{path}:{node.lineno}"
        for path, tree in trees("trident/stores").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
    ]
    # Below the stores are the protocols of two: a pipeline that ends with its commands, and two readers of a socket.
    assert [where for where in endless if where.count("/") == 2] == []


def choices_in(module: ast.Module) -> Iterator[ast.Compare]:
    """Yield the comparisons with a stream or shard that a user may have named, or not: what such an option means."""
    for scope in ast.walk(module):
        if not isinstance(scope, ast.FunctionDef | ast.ClassDef):
            continue
        holder = "self." if isinstance(scope, ast.ClassDef) else ""
        fields = (one for one in scope.body if isinstance(one, ast.AnnAssign))
        given = scope.args.args + scope.args.kwonlyargs if isinstance(scope, ast.FunctionDef) else ()
        named = {ast.unparse(one.target): one.annotation for one in fields}
        named |= {one.arg: one.annotation for one in given if one.annotation}
        chosen = {"target.stream"}
        for name, annotation in named.items():
            if name in ("stream", "shard") and ast.unparse(annotation) in ("str | None", "Stream", "Shard"):
                chosen.add(holder + name)
        for node in ast.walk(scope):
            if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
                parts = (
                    ast.unparse(part) for side in (node.left, *node.comparators) for part in ast.walk(side)
                )
                if chosen.intersection(parts):
                    yield node


def test_one_module_of_the_console_says_what_streams_and_shards_a_command_means() -> None:
    filters = [path for path, module in trees("console").items() if any(choices_in(module))]
    assert filters == ["console/scope.py"]


def test_one_implementation_of_a_folder() -> None:
    """Each one would have rules of its own for names, secrets, modes, and files that are whole or not there."""
    marks = ("from_uri", "LocalFileSystem", "FileSelector", "fsync")
    found = {use.partition(":")[0] for folder in FOLDERS for mark in marks for use in names_in(folder, mark)}
    assert found == {"kinesis_trident/common/folder.py"}


def test_one_table_says_what_a_state_can_store() -> None:
    """By Spark type, in a column, and by value: whoever else looked at a type would have a rule of its own."""
    rules = {
        path
        for path in trees("trident")
        for name in ("is_finite", "isfinite", "BinaryType", "MapType", "Ext")
        if any(where.startswith(f"{path}:") for where in names_in(path.rpartition("/")[0], name))
    }
    others = {
        # Keys, the types that users' values have, and those that Spark aggregates.
        "trident/stores/key_text.py",
        "trident/build/first_values.py",
        "trident/run/arrow_aggregation.py",
        "trident/testing/local_operations.py",
        "trident/build/fields.py",
    }
    assert rules - others == {"trident/maps/storable.py"}


def forms_at_sinks(name: str) -> Iterator[str]:
    """Yield what has a part of this name at the sinks: classes with such a field, arguments, and mappings by hand."""
    for path, tree in (trees("bolt/sinks") | {"bolt/mark.py": trees("bolt")["bolt/mark.py"]}).items():
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(body=body):
                    fields = [one.target for one in body if isinstance(one, ast.AnnAssign)]
                    parts = [field.id for field in fields if isinstance(field, ast.Name)]
                case ast.arguments(args=args, kwonlyargs=more):
                    parts = [one.arg for one in (*args, *more)]
                case ast.Dict(keys=keys):
                    parts = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
                case _:
                    continue
            if name in parts:
                yield f"{path}:{node.lineno if hasattr(node, 'lineno') else node}"


def test_a_batch_has_one_identity_at_sinks_and_one_mark() -> None:
    assert len(list(forms_at_sinks("txid"))) <= 2


def test_message_ids_are_made_and_read_in_one_place() -> None:
    """A line elsewhere that puts one together, or takes one apart, has a form of its own."""
    form = re.compile(
        r'message_id\.r?partition|text\.partition\(":"\)\[|(?:source|shard)\}:\{|partition\("\.\."\)|"after [{"]'
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("bolt", "checkpoint", "console", "spout", "tracker", "trident")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if form.search(line) and path.name != "message_id.py"
    ]
    assert found == []


def test_lines_to_type_are_built_in_one_place() -> None:
    """`command_line` adds what leads to the same ZooKeeper, and keeps names apart from options."""
    form = re.compile(
        "kinesis-trident (?:[a-z-]+ APP|[a-z-]+ OLD|$|(?:checkpoints|dead-letters|retries|status) )"
    )
    written = {
        path
        for folder in ("bolt", "checkpoint", "console", "spout", "tracker", "trident")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.Call | ast.Return | ast.Yield | ast.arguments)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and form.search(part.value)
    }
    others = {
        # With the version.
        "console/cli.py",
        "console/commands/servers.py",
        # The name of a command, and usages with placeholders.
        "console/moving/places.py",
        "console/target.py",
        "spout/planner/reconciliation.py",
    }
    assert written - others == set()


def test_one_sentence_names_a_run() -> None:
    """`run_name` does, with its epoch, its host and its process."""
    form = re.compile("pid [{%]")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("bolt", "checkpoint", "console", "spout", "tracker", "trident")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".html")
        for line in path.read_text().splitlines()
        if form.search(line)
    ]
    assert len(found) == 1, found


def test_times_are_read_and_written_for_people_in_one_place() -> None:
    """Stored letters, logs and requests to AWS have forms of their own; nobody else makes a text of a time."""
    others = {
        "bolt/sinks/delta.py",
        "spout/failed_records/dead_letters.py",
        "spout/failed_records/letter_writer.py",
        "spout/failed_records/kept_letters.py",
        "spout/log_lines.py",
        "spout/kinesis/remedies.py",
        "spout/kinesis/wire/signing.py",
    }
    found = {
        use.partition(":")[0]
        for folder in FOLDERS
        for name in ("fromisoformat", "isoformat", "strftime", "strptime")
        for use in names_in(folder, name)
    }
    ours = {one for one in found - others if not one.startswith("spout/testing/")}
    assert ours == {"kinesis_trident/common/times.py"}


def test_no_handler_around_a_users_function_lists_what_it_catches() -> None:
    """All but `KeyboardInterrupt` fails the record: a list would lack the errors of some library."""
    caught = [
        f"{path}:{node.lineno}"
        for folder in ("bolt/steps", "trident/steps")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and isinstance(node.type, ast.Name)
        and node.type.id == "Exception"
    ]
    # They ask what kind of function it is, before any record.
    assert [one for one in caught if not one.startswith("bolt/steps/kinds.py")] == []


_TEXTS_OF_FAILURES = {"text_of", "parse", "is_held"}
"""The functions that make a failure a text, or a text a failure."""


def test_a_failure_is_a_text_only_where_it_is_stored() -> None:
    """`bolt/tracking/failed.py` and `bolt/outcomes.py` write, the tracker reads, and requests do from outside."""
    places = {
        path
        for folder in ("bolt", "console", "spout", "tracker", "trident")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "kinesis_trident.tracker.failure"
        if _TEXTS_OF_FAILURES & {name.name for name in node.names}
    }
    assert len(places) <= 12, sorted(places)


def test_nobody_asks_how_the_text_of_a_failure_begins() -> None:
    words = {"HELD", "HELD_ANEW", "TIMEOUT", "EXPIRED", "LOST", "WORKER_DIED", "TIMED_OUT", "UNREADABLE"}
    asked = [
        f"{path}:{node.lineno}"
        for folder in ("bolt", "console", "spout", "trident", "checkpoint")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "startswith"
        if any(isinstance(one, ast.Constant) and one.value in words for one in node.args)
    ]
    assert asked == []


def test_sinks_have_one_table_of_types() -> None:
    """Its rows are classes of Spark: a table beside it would begin with the names of types."""
    names = {"bigint", "tinyint", "timestamp_ntz", "boolean", "decimal"}
    assert [
        f"{path}:{node.lineno}"
        for path, tree in trees("bolt/sinks").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in names
    ] == []


_REMEDIES = ("Check", "Choose", "Give", "If this", "Log in", "Restore", "Run", "Set", "Start", "Use")


def test_an_error_says_first_what_is_wrong() -> None:
    """A remedy stands behind it: whoever reads the first words only, as of a notification, knows what has happened."""
    reversed_ones = [
        f"{path}:{node.lineno}"
        for folder in ("bolt", "checkpoint", "console", "spout", "tracker", "trident")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "msg"
        # Kinesis' own words, of a double of it.
        if not path.startswith("spout/testing/")
        for text in [node.value.values[0] if isinstance(node.value, ast.JoinedStr) else node.value]
        if isinstance(text, ast.Constant) and str(text.value).startswith(_REMEDIES)
    ]
    assert reversed_ones == []


def test_the_values_of_users_functions_pass_one_border() -> None:
    """`bolt/steps/border.py` reads columns and `fits.py` makes them: other reads are of our own columns only."""
    readers = [
        f"{path}:{node.lineno}"
        for folder in (
            "bolt/steps",
            "bolt/storm",
            "trident/steps",
            "trident/run",
            "trident/build",
            "trident/testing",
        )
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "to_pylist"
    ]
    assert len([one for one in readers if "/border.py" not in one and "/fits.py" not in one]) <= 4, readers


def test_one_module_knows_how_a_place_is_a_stream_and_how_streams_are_named() -> None:
    """Others ask it; texts for people write `kinesis://name`."""
    knowing = {
        path
        for folder in ("kinesis_trident/common", "spout", "bolt", "trident", "console", "checkpoint")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and re.search(r"kinesis://(?!name|NAME)|a-zA-Z0-9_\.-\]\{", str(node.value))
    }
    assert knowing == {"kinesis_trident/common/stream_names.py"}


def test_a_number_is_written_with_its_noun() -> None:
    """`count_noun` knows that one is no plural; the others here are of two numbers, or are at least two."""
    plural = re.compile(
        r"^ (?:(?:other|new|more) )?(?:records|groups|shards|runs|rows|requests|times|tasks|letters)\b"
    )
    found = [
        f"{path}:{node.lineno}"
        for folder in ("bolt", "checkpoint", "console", "spout")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for number, text in zip(node.values, node.values[1:], strict=False)
        if isinstance(number, ast.FormattedValue) and not ast.unparse(number.value).startswith("count_noun")
        if isinstance(text, ast.Constant) and plural.match(str(text.value))
    ]
    assert len(found) <= 25, found


def test_one_pool_sends_what_is_written() -> None:
    """It has the threads and the lock of a write; what a backlog holds and what a busy shard takes is computed."""
    made = {
        f"{path}: {name}"
        for name in ("ThreadPoolExecutor", "Condition", "Semaphore", "Event")
        for path in {at.rpartition(":")[0] for at in names_in("spout/sink", name)}
    }
    assert made == {f"spout/sink/pool.py: {name}" for name in ("ThreadPoolExecutor", "Condition", "Event")}
    assert lines_of("spout/sink") <= 1_441


def test_a_stream_that_is_written_is_known_by_one_object() -> None:
    """Its limit, whether it places records by itself, and its shards, each with its age; one for a process."""
    assert {at.rpartition(":")[0] for at in names_in("spout/sink", "PerProcess")} == {
        "spout/sink/known_stream.py"
    }
    asking = {
        at.rpartition(":")[0] for name in ("describe", "open_shards") for at in names_in("spout/sink", name)
    }
    assert asking == {"spout/sink/known_stream.py"}


def test_windows_exist_once() -> None:
    """Trident's and those of bolts: one function advances them, one value says which panes and windows there are."""
    assert {at.rpartition(":")[0] for at in names_in("trident", "advance")} == {
        "trident/windowing/updater.py"
    }
    assert {
        at.rpartition(":")[0] for name in ("starts_of", "last_end") for at in names_in("trident", name)
    } == {"trident/windowing/windows.py"}
    assert {at.rpartition(":")[0] for at in names_in("trident", "width")} == {"trident/maps/window_shape.py"}
