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
PROJECT = ("CHANGELOG", "SECURITY")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cell_text(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown: its text, or its code and what that has shown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    shown = ["".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"]]
    return "\n\n".join([f"```python\n{source}\n```", *(f"```text\n{one}\n```" for one in shown)])


@cache
def draw(source: str) -> str:
    """Return the SVG of a diagram; it needs no network and no browser."""
    return mermaidx.render(source, theme="neutral").svg()


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
    for file in list(files.documentation_pages()):
        for number, source in enumerate(DIAGRAM.findall(file.content_string)):
            files.append(File.generated(config, picture(file, number), content=draw(source)))
    return files


def picture(file: File, number: int) -> str:
    """Return where the picture of a page's diagram stands in the site."""
    return f"diagrams/{Path(file.src_uri).stem}-{number}.svg"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put pictures in the place of diagrams, and the site's pages in the place of the examples."""
    numbers = iter(range(len(DIAGRAM.findall(markdown))))

    def image(found: re.Match[str]) -> str:
        (title,) = re.findall(r"^ *accTitle: (.*)$", found[1], re.MULTILINE)
        return f"![{title}]({picture(page.file, next(numbers))}){{ .diagram }}"

    markdown = DIAGRAM.sub(image, markdown)
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.(?:py|ipynb)\)", r"](examples/\1.md)", markdown)
    return re.sub(rf"\]\(\.\./({'|'.join(PROJECT)})\.md", r"](project/\1.md", markdown)
