"""The tables of the documentation that come from the code. `PYTHONPATH=tests python -m doc_tables` writes them."""

from __future__ import annotations

import ast
import datetime
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import get_args
from uuid import UUID

from altering import ENDS
from border_paths import matrix_rows
from claims import CLAIMS, UNHELD
from meanwhile import DEEDS
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType
from spark_settings import setting_rows
from spec.page import draw, render, render_stories
from spec.told import tell
from who_writes import RECORDED, callers, touched_by, writers

from kinesis_trident.bolt.sinks.kinds import KINDS, NOT_FINITE, ColumnKind
from kinesis_trident.bolt.steps.poison import POISONS
from kinesis_trident.checkpoint.model.home import HOME
from kinesis_trident.checkpoint.model.standing import TABLE as STANDINGS, InStep, Looks, Share
from kinesis_trident.console.metrics.table import METRICS
from kinesis_trident.spout.options import sink, source
from kinesis_trident.spout.options.effects import effect_of
from kinesis_trident.spout.options.table import Option, other_options
from kinesis_trident.spout.planner.choose import RULES, Do
from kinesis_trident.spout.sink.columns import TAKEN as KINESIS_COLUMNS

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class DocTable:
    """A table between two comments of a page."""

    page: str
    begin: str
    end: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def render(self) -> str:
        """Return the table as Markdown."""
        lines = [f"| {' | '.join(row)} |" for row in (self.header, *self.rows)]
        return "\n".join([lines[0], "|---" * len(self.header) + "|", *lines[1:]]) + "\n"

    def read(self) -> str:
        """Return what the page has between the comments."""
        return self._parts()[1]

    def write(self) -> None:
        """Put the table into the page."""
        before, _, after = self._parts()
        text = f"{before}<!-- {self.begin} -->\n{self.render()}<!-- {self.end} -->{after}"
        (DOCS / self.page).write_text(text, encoding="utf-8")

    def _parts(self) -> tuple[str, str, str]:
        before, rest = (DOCS / self.page).read_text(encoding="utf-8").split(f"<!-- {self.begin} -->\n")
        old, after = rest.split(f"<!-- {self.end} -->")
        return before, old, after


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def linked(sentence: str) -> str:
    """Return a sentence of the code whose pages, as in `docs/deploying.md, Memory`, are links of a page."""

    def link(found: re.Match[str]) -> str:
        page, heading = found.groups()
        return f"[{heading}]({page}.md#{heading.lower()})" if heading else f"[{page}]({page}.md)"

    return re.sub(r"docs/([\w-]+)\.md(?:, (\w+))?", link, sentence)


def describe_effect(key: str) -> str:
    """Return a sentence for the documentation; empty if the option has an effect anywhere."""
    effect = effect_of(key)
    said = []
    if effect.when:
        said.append(f"It has an effect with {effect.describe_condition('`')} only.")
    if not effect.batch:
        is_refused = bool(effect.refused)
        said.append(f"It is for a query only{'; a batch refuses it' if is_refused else ''}.")
    if not effect.stream:
        said.append("It is for a batch only; a query refuses it.")
    return " ".join(said)


def option_row(option: Option) -> tuple[str, str, str]:
    """Return an option's key, its sentence, and its default and other names."""
    default = f"Default: `{option.default}`. " * (option.default is not None)
    aliases = f"Also accepted as: {quoted(option.aliases)}." * bool(option.aliases)
    # Options of a write have an effect wherever they are taken.
    effect = describe_effect(option.part_of or option.key) if option in source.TABLE else ""
    return (
        f"`{option.key}`",
        linked(option.sentence),
        " ".join(filter(None, [(default + aliases).strip(), effect])),
    )


OPTION_GROUPS = {
    "streamName": "The stream",
    "region": "Connection and credentials",
    "applicationName": "Application and ZooKeeper",
    "startingPosition": "Where it starts and ends",
    "spout": "Guarantee and acks",
    "retryLimit": "Retries and dead letters",
    "deaggregate": "The size of a batch",
    "maxFetchTime": "Reading a shard",
    "shardsPerTask": "Tasks",
    "consumerMode": "Enhanced fan-out",
    "describeShardInterval": "Shards that split and merge",
    "failOnDataLoss": "When something is lost, and the log",
}
"""The first option of each group, which ends where the next begins."""


class OptionsByGroup(DocTable):
    """The options as a section each, which has an anchor, fits a phone, and is what a search for its name finds."""

    def render(self) -> str:
        """Return the sections as Markdown."""
        lines = []
        for key, sentence, facts in self.rows:
            group = OPTION_GROUPS.get(key.strip("`"))
            lines += [f"## {group}", ""] if group else []
            lines += [f"### {key}", "", sentence, ""]
            lines += [facts, ""] if facts else []
        return "\n".join(lines)


OPTIONS_TABLE = OptionsByGroup(
    "options.md",
    "options: rendered from spout/options/source.py",
    "end of options",
    (),
    [option_row(option) for option in source.TABLE],
)
READING = {option.key for option in source.TABLE}
"""The options that reading has too: their page is options.md."""

WRITE_OPTIONS_TABLE = DocTable(
    "writing.md",
    "options: rendered from spout/options/sink.py",
    "end of options",
    ("option", "what it does"),
    [
        (key, f"{sentence} {facts}".strip())
        for key, sentence, facts in map(option_row, sink.TABLE)
        if key.strip("`") not in READING
    ],
)
OTHER_OPTIONS_TABLE = DocTable(
    "options.md",
    "other options: rendered from spout/options/other_connectors.toml",
    "end of other options",
    ("option elsewhere", "here"),
    [(quoted(other.names), linked(other.sentence)) for other in other_options()],
)
METRICS_TABLE = DocTable(
    "metrics.md",
    "metrics: rendered from console/metrics/table.py",
    "end of metrics",
    ("metric", "kind", "labels", "from", ""),
    [(f"`{one.name}`", one.kind, quoted(one.labels), ", ".join(one.places), one.sentence) for one in METRICS],
)

HELD = [one for one in STANDINGS if not one.reads and one.share is not Share.ZERO]
"""The causes that people see as a shard's standing."""

STANDINGS_TABLE = DocTable(
    "console.md",
    "standings: rendered from checkpoint/model/standing.py",
    "end of standings",
    ("standing", "why the shard is not read"),
    [(f"`{one.word}`", one.sentence) for one in HELD],
)

LOOKS = {
    Looks.NEVER: "never",
    Looks.SELDOM: "once an hour",
    Looks.UNTIL_KNOWN: "at its pace, and until the age of its next record is known",
    Looks.PACE: "at its pace",
}
STEPS = {
    InStep.NO: "no",
    InStep.AT_TIP: "not behind its last look",
    InStep.A_WHILE: "yes, at most 5 minutes",
    InStep.YES: "yes",
}
SHARES = {
    Share.ZERO: "0",
    Share.LEFT_OUT: "in no sum",
    Share.APART: "told by itself",
    Share.COUNTED: "counted",
}
CAUSES_TABLE = DocTable(
    "architecture.md",
    "causes: rendered from checkpoint/model/standing.py",
    "end of causes",
    (
        "cause",
        "",
        "is read",
        "is looked at",
        "others wait for it",
        "a drain waits for it",
        "its lag",
        "may expire",
    ),
    [
        (
            f"`{one.word}`",
            one.sentence,
            "yes" if one.reads else "no",
            LOOKS[one.looks],
            STEPS[one.step],
            "yes" if one.drain else "no",
            SHARES[one.share],
            "yes" if one.expiry else "no",
        )
        for one in STANDINGS
    ],
)


def answers_of(rule: Callable[..., object]) -> str:
    """Return what a rule of `choose` answers, in the order of its code."""
    code = ast.parse(inspect.getsource(rule)).body[0]
    steps = {word for some in get_args(Do) for word in get_args(some)}
    kinds = {
        "Planned": "the plan",
        "Wait": "a wait",
        "look": "a look",
        "look_at_due": "a look",
        "refuse_exhausted": "the error",
    }
    found = []
    for node in ast.walk(code):
        match node:
            case ast.Constant(str(word)) if word in steps:
                found.append(f"`{word}`")
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if name in kinds:
                found.append(kinds[name])
            case ast.Raise():
                found.append("the error")
    return ", ".join(dict.fromkeys(found))


RULES_TABLE = DocTable(
    "architecture.md",
    "rules: rendered from spout/planner/choose.py",
    "end of rules",
    ("rule", "it applies when", "its answer"),
    [
        (f"`{rule.__name__}`", " ".join((rule.__doc__ or "").split()).rstrip("."), answers_of(rule))
        for rule in RULES
    ],
)

NODES_TABLE = DocTable(
    "zookeeper.md",
    "nodes: rendered from checkpoint/model/home.py",
    "end of nodes",
    ("node", "content", "it goes when"),
    [(f"`{spec.path}`", spec.sentence, spec.until.value) for spec in HOME],
)
FATES_TABLE = DocTable(
    "protocol/nodes.md",
    "fates: rendered from checkpoint/model/home.py",
    "end of fates",
    ("node", "read together with others", "it is missing"),
    [(f"`{spec.path}`", spec.joining.value, spec.absence.value) for spec in HOME],
)

MEANWHILE_TABLE = DocTable(
    "sinks.md",
    "meanwhile: rendered from tests/meanwhile.py",
    "end of meanwhile",
    ("another writer", "Delta: the batch", "Iceberg: the batch"),
    [deed.row() for deed in DEEDS],
)

ALTERING_TABLE = DocTable(
    "sinks.md",
    "altering: rendered from tests/altering.py",
    "end of altering",
    ("another session", "the batch"),
    list(ENDS.items()),
)


def tests_row(page: str, words: str, tests: str) -> tuple[str, str]:
    """Return a promise, with its page, and the tests that hold it."""
    each = [test.strip().partition(" ") for test in tests.split("|")]
    return f"{words} ([{page[:-3]}](../{page}))", "<br>".join(
        f"`tests/{file}`: {name}..." for file, _, name in each
    )


CLAIMS_TABLE = DocTable(
    "reliability/claims.md",
    "claims: rendered from tests/claims.py",
    "end of claims",
    ("promise", "tests"),
    [tests_row(*claim) for claim in CLAIMS],
)
UNHELD_TABLE = DocTable(
    "reliability/claims.md",
    "unheld: rendered from tests/claims.py",
    "end of unheld",
    ("promise", "why no test holds it"),
    [(f"{words} ([{page[:-3]}](../{page}))", why) for page, words, why in UNHELD],
)

SQL_WORDS = {
    str: "text",
    UUID: "UUID",
    bool: "boolean",
    int: "whole number",
    float: "float",
    Decimal: "decimal",
    datetime.date: "date",
    datetime.datetime: "timestamp",
    bytes: "bytes",
}
"""The Python types of the values of a database's columns."""


def kind_row(of: type[DataType], kind: ColumnKind) -> tuple[str, str, str, str, str]:
    """Return the name of a type, and what the sinks take of it."""
    made = {ArrayType: "array", MapType: "map", StructType: "struct", DecimalType: "decimal"}.get(
        of
    ) or of().simpleString()
    poison = POISONS[of].words if of in POISONS else ""
    if kind.strict:
        poison = f"{NOT_FINITE.words}, where it counts"
    elif not kind.sql:
        poison = "as for what is in it"
    taken = [name for name, types in KINESIS_COLUMNS.items() if of in types]
    return (
        f"`{made}`",
        "yes" * kind.partitions,
        ", ".join(SQL_WORDS[one] for one in kind.sql) or "none",
        quoted(taken) or "none",
        poison,
    )


KINDS_TABLE = DocTable(
    "sinks.md",
    "types: rendered from bolt/sinks/kinds.py",
    "end of types",
    (
        "type",
        "`partition_by`",
        "`merge_into`: columns that take it",
        "Kinesis: as column",
        "a row fails alone if its value is",
    ),
    [kind_row(of, kind) for of, kind in KINDS.items()],
)

BORDER_TABLE = DocTable(
    "functions.md",
    "types: rendered from tests/border_paths.py",
    "end of types",
    ("type", "given as", "by pandas", "a record fails alone, for example"),
    matrix_rows(),
)

SETTINGS_TABLE = DocTable(
    "spark.md",
    "settings: rendered from tests/spark_settings.py",
    "end of settings",
    ("setting", "what was played with it"),
    setting_rows(),
)


class ProtocolPage(DocTable):
    """The rules of the commit protocol, with what goes wrong without each."""

    def render(self) -> str:
        """Return the sections as Markdown."""
        return render()


class StoriesPage(DocTable):
    """The stories of the rules, step by step."""

    def render(self) -> str:
        """Return the drawings as Markdown."""
        return render_stories(lambda story: draw(tell(story)))


PROTOCOL_PAGE = ProtocolPage("protocol.md", "rules: rendered from tests/spec", "end of rules", (), ())
STORIES_PAGE = StoriesPage(
    "protocol/stories.md", "stories: rendered from tests/spec", "end of stories", (), ()
)

CODE_TABLES: dict[str, tuple[Sequence[str], Callable[[], Sequence[Sequence[str]]]]] = {
    "writers": (("write of the store", "process", "in"), writers),
    "states": (("call of", "in"), partial(callers, "ShardState")),
    "due times": (("call of", "in"), partial(callers, "decide", within="tracker/")),
    **{change: (("folder", "files", ""), partial(touched_by, change)) for change in RECORDED},
}
"""The header and the rows of each table of architecture.md that is read from all modules, which takes a second."""


def code_table(name: str) -> DocTable:
    """Return a table of `CODE_TABLES`."""
    header, rows = CODE_TABLES[name]
    return DocTable("architecture.md", f"{name}: rendered from the code", f"end of {name}", header, rows())


if __name__ == "__main__":
    for table in [*globals().values(), *map(code_table, CODE_TABLES)]:
        if isinstance(table, DocTable):
            table.write()
