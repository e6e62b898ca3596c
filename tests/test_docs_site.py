"""The site that `make docs` builds: its links lead somewhere, and it needs nothing from elsewhere.

In each run test_readme.py follows the links of the pages, and test_public_pages.py finds every public name.
"""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = (
    "kinesis_trident",
    "kinesis_trident.errors",
    "kinesis_trident.decoders",
    "kinesis_trident.testing",
    "kinesis_trident.trident",
    "kinesis_trident.trident.maps",
)
LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
DIAGRAMS = [
    (page, source)
    for page in sorted((ROOT / "docs").glob("*.md"))
    for source in re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
]

DEFINED = {
    "FencedError": "#fencederror",
    "delta": "sinks.html",
    "postgres": "sinks.html",
    "retryLimit": "#retrylimit",
    "upsert": "sinks.html",
}
"""The page, or section, that a search for a word finds first."""

TORN = """() => {
    const torn = [...document.querySelectorAll('.md-typeset__scrollwrap')]
        .filter((wrap) => wrap.scrollWidth > wrap.clientWidth + 1).map((wrap) => wrap.innerText.slice(0, 60));
    const range = document.createRange();
    const texts = document.createTreeWalker(document.querySelector('.md-content'), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode;
        for (const word of text.parentElement.closest('pre') ? [] : text.data.matchAll(/\\w{2,}/g)) {
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (range.getClientRects().length > 1) torn.push(word[0]);
        }
    }
    return torn;
}"""
"""The tables of a page that scroll sideways, and the words that break where they have no parts."""


class Html(HTMLParser):
    """The links, the ids, and what a browser loads of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.loads: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values and tag != "meta"}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag == "link" and values.get("rel") not in {"canonical", "next", "prev"}:
            self.loads.add(values["href"])
        if LOADS.get(tag, "") in values:
            self.loads.add(values[LOADS[tag]])


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; `strict` in mkdocs.yml makes each warning an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {path: Html(path) for path in sorted(site.rglob("*.html"))}


def test_each_page_of_the_documentation_is_in_the_site(site: Path, pages: dict[Path, Html]) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert site / page.relative_to(ROOT / "docs").with_suffix(".html") in pages
    for example in (ROOT / "examples").glob("*.py"):
        assert (
            example.read_text().splitlines()[0].strip('"').split(":")[0].split("`")[0]
            in (site / "examples" / f"{example.stem}.html").read_text()
        )


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_every_public_name(pages: dict[Path, Html], module: str) -> None:
    names = {f"{module}.{name}" for name in import_module(module).__all__} - {"kinesis_trident.__version__"}
    assert [name for name in names if not any(name in page.ids for page in pages.values())] == []


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Html]) -> None:
    broken = []
    for path, page in pages.items():
        # The page of an unknown address is shown at any address: its links begin with a slash.
        if path.name == "404.html":
            continue
        for link in page.links:
            target, anchor = urlsplit(link)._replace(fragment="").geturl(), unquote(urlsplit(link).fragment)
            if urlsplit(link).scheme:
                continue
            linked = (path.parent / unquote(target)).resolve() if target else path
            linked = linked / "index.html" if linked.is_dir() else linked
            found = linked.exists() and (not anchor or linked not in pages or anchor in pages[linked].ids)
            if not found:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_no_page_loads_from_another_host(site: Path, pages: dict[Path, Html]) -> None:
    loads = {load for page in pages.values() for load in page.loads}
    assert any(load.endswith(".css") for load in loads)
    for sheet in site.rglob("*.css"):
        loads |= set(re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", sheet.read_text()))
    for picture in site.rglob("*.svg"):
        loads |= set(re.findall(r"(?:href|src)=\"([^\"#]+)", picture.read_text()))
    assert [load for load in loads if urlsplit(load).netloc] == []


@pytest.mark.parametrize(("page", "source"), DIAGRAMS, ids=lambda one: getattr(one, "stem", ""))
def test_diagrams_show_what_their_text_says(site: Path, page: Path, source: str) -> None:
    shown = " ".join(path.read_text() for path in site.glob(f"diagrams/{page.stem}-*.svg"))
    labels = re.findall(r"participant \w+ as (.+)|\[\"?(.+?)\"?\]|: (.+)", source)
    words = {
        word for label in labels for word in re.findall(r"[A-Za-z]{3,}", " ".join(label).replace("<br>", " "))
    }
    assert words
    assert [word for word in words if word not in shown] == []


def test_a_browser_finds_a_word_and_asks_nobody_else(
    site: Path, pages: dict[Path, Html], chromium: Path, tmp_path: Path
) -> None:
    handler = functools.partial(Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            asked: list[str] = []
            context.on("request", lambda request: asked.append(request.url))
            view = context.new_page()
            view.goto(f"{address}/index.html")
            view.screenshot(path=tmp_path / "start.png")
            for path in sorted({page.stem for page, _ in DIAGRAMS}):
                view.goto(f"{address}/{path}.html")
                view.screenshot(path=tmp_path / f"{path}.png", full_page=True)
            view.goto(f"{address}/index.html?q=maxRetryingRecords")
            result = view.locator(".md-search-result__link", has_text="maxRetryingRecords").first
            expect(result).to_be_visible(timeout=60_000)
            result.click()
            expect(view.locator(".md-content", has_text="maxRetryingRecords")).to_be_visible()
            for word, page in DEFINED.items():
                view.goto(f"{address}/index.html?q={word}")
                # A page comes with those of its sections that have the word.
                first = view.locator(".md-search-result__item").first.locator(f'a[href*="{page}"]').first
                expect(first).to_be_attached(timeout=60_000)
            view.set_viewport_size({"width": 390, "height": 844})
            for path in sorted(path.relative_to(site).with_suffix("").as_posix() for path in pages):
                view.goto(f"{address}/{path}.html")
                view.screenshot(path=tmp_path / f"{path.replace('/', '-')}-phone.png")
                assert view.evaluate("document.documentElement.scrollWidth") <= 390, path
                assert view.evaluate(TORN) == [], path
            view.goto(f"{address}/how-it-works.html")
            view.locator("a:has(.diagram)").first.click()
            # Enlarged: it is not shrunk to the width of the phone.
            assert view.locator("svg").first.bounding_box()["width"] > 780  # type: ignore[index]
            browser.close()
        server.shutdown()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert any(url.endswith("search_index.json") for url in asked)
