"""What MkDocs does beside its plugins: diagrams become pictures; linked files outside docs/ become pages."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ("CHANGELOG", "CONTRIBUTING", "SECURITY")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


RUNBOOK = "runbook.md"
BOOSTS = {
    "sinks.md": 4,
    "options.md": 4,
    "runbook": 2,
    "examples": 0.5,
    "architecture.md": 0.5,
    "project": 0.1,
}
"""How much more, or less, a page or a folder counts in the search: where a thing is defined comes first."""


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def runbook_parts() -> dict[str, str]:
    """Return the file of the part that each heading of the runbook is in, by its anchor."""
    text = (ROOT / "docs" / RUNBOOK).read_text(encoding="utf-8")
    parts, part = {}, RUNBOOK
    for level, heading in re.findall(r"^(#{2,3}) (.+)$", text, re.MULTILINE):
        if level == "##" and heading != "Contents":
            part = f"runbook/{anchor_of(heading)}.md"
        parts[anchor_of(heading)] = part
    return parts


def place_of(anchor: str) -> str:
    """Return the link to a heading of the runbook, from a page at the top."""
    return f"{runbook_parts()[anchor]}#{anchor}"


def runbook_pages(text: str) -> dict[str, str]:
    """Return the pages of the runbook: the first has the contents, which lead to one for each part."""
    first, *parts = re.split(r"^## (?!Contents)", text, flags=re.MULTILINE)
    pages = {RUNBOOK: re.sub(r"\]\(#([\w-]+)\)", lambda found: f"]({place_of(found[1])})", first)}
    for part in parts:
        heading, _, body = part.partition("\n")
        path = f"runbook/{anchor_of(heading)}.md"

        def link(found: re.Match[str], path: str = path) -> str:
            target = runbook_parts()[found[1]]
            return f"](#{found[1]})" if target == path else f"](../{target}#{found[1]})"

        # Entries become the second level: they are the contents of the page.
        body = re.sub(r"^### ", "## ", body, flags=re.MULTILINE)
        body = re.sub(r"\]\(#([\w-]+)\)", link, re.sub(r"\]\((?=[\w-]+\.md|\.\./)", "](../", body))
        pages[path] = f"# {heading}\n{body}"
    return pages


def cell_text(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown: its text, or its code and what that has shown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    shown = ["".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"]]
    return "\n\n".join([f"```python\n{source}\n```", *(f"```text\n{one}\n```" for one in shown)])


@cache
def draw(source: str) -> str:
    """Return the SVG of a diagram; it needs no network and no browser.

    Opened by itself it has its own width, so that it is larger than in the page also on a phone.
    """
    drawn = mermaidx.render(source, theme="neutral").svg()
    return re.sub(r'width="100%"(?=[^>]*max-width: ([\d.]+)px)', r'width="\1"', drawn, count=1)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each example and for the project's own pages, and a picture for each diagram of a page."""
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix == ".py":
            text = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        elif path.suffix == ".ipynb":
            text = "\n\n".join(map(cell_text, json.loads(path.read_text(encoding="utf-8"))["cells"]))
        else:
            continue
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
    for name in PROJECT:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](../")
        files.append(File.generated(config, f"project/{name}.md", content=text))
    runbook = files.get_file_from_path(RUNBOOK)
    assert runbook is not None
    for path, text in runbook_pages(runbook.content_string).items():
        if path == RUNBOOK:
            files.remove(runbook)
        files.append(File.generated(config, path, content=text))
    for file in list(files.documentation_pages()):
        for number, source in enumerate(DIAGRAM.findall(file.content_string)):
            files.append(File.generated(config, picture(file, number), content=draw(source)))
    return files


def picture(file: File, number: int) -> str:
    """Return where the picture of a page's diagram stands in the site."""
    return f"diagrams/{Path(file.src_uri).stem}-{number}.svg"


def breakable(text: str, shortest: int) -> str:
    """Return HTML in which names of this many characters or more may break between their parts."""

    def parts(found: re.Match[str]) -> str:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[._/=:,(@])(?=[\w\"{&])", "<wbr>", found[0])

    pieces = re.split(r"(<pre.*?</pre>|<[^>]*>)", text, flags=re.DOTALL)
    pieces[::2] = [re.sub(rf"\S{{{shortest},}}", parts, piece) for piece in pieces[::2]]
    return "".join(pieces)


def labelled(table: str) -> str:
    """Return a table whose cells know the head of their column, for a phone that shows them below each other."""
    heads = [
        re.sub(r"<[^>]*>|\"", "", head).strip() for head in re.findall(r"<th\b.*?</th>", table, re.DOTALL)
    ]
    if len(heads) < 4:
        return table
    rows = re.split(r"(?=<tr\b)", table)
    for number, row in enumerate(rows):
        labels = iter(heads)
        rows[number] = re.sub(r"<td\b", lambda _, labels=labels: f'<td data-label="{next(labels)}"', row)
    return "".join(rows)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let long names break, and label the cells of wide tables."""
    html = re.sub(r"<(td|th|h[12])\b.*?</\1>", lambda cell: breakable(cell[0], 13), html, flags=re.DOTALL)
    html = re.sub(r"<table>.*?</table>", lambda table: labelled(table[0]), html, flags=re.DOTALL)
    return breakable(html, 30)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put pictures in the place of diagrams, and the site's pages in the place of the examples."""
    numbers = iter(range(len(DIAGRAM.findall(markdown))))

    def image(found: re.Match[str]) -> str:
        (title,) = re.findall(r"^ *accTitle: (.*)$", found[1], re.MULTILINE)
        drawn = picture(page.file, next(numbers))
        return f"[![{title}]({drawn}){{ .diagram }}]({drawn})"

    markdown = DIAGRAM.sub(image, markdown)
    markdown = re.sub(
        r"\]\((\.\./|)runbook\.md#([\w-]+)\)", lambda found: f"]({found[1]}{place_of(found[2])})", markdown
    )
    if boost := BOOSTS.get(page.file.src_uri.partition("/")[0]):
        page.meta["search"] = {"boost": boost}
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.(?:py|ipynb)\)", r"](examples/\1.md)", markdown)
    return re.sub(rf"\]\(\.\./({'|'.join(PROJECT)})\.md", r"](project/\1.md", markdown)
