"""The built pages, as a browser has them: `nox -s docs` builds and opens them."""

import os
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

SITE = Path(os.environ.get("GPUMAP_SITE", "not built"))
# A telephone's and a laptop's, in pixels.
WIDTHS = (390, 1280)
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")

pytestmark = pytest.mark.skipif(
    not SITE.is_dir(), reason="the pages are not built (nox -s docs does it)"
)


class Links(HTMLParser):
    """Where a page's links lead, and what they can lead to in it."""

    def __init__(self, page: Path) -> None:
        """Read a page."""
        super().__init__()
        self.hrefs: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's name, and a link's address."""
        found = dict(attrs)
        self.names.add(found.get("id") or "")
        if tag == "a":
            self.hrefs.append(found.get("href") or "")


def pages() -> list[Path]:
    """Return the built pages."""
    return sorted(SITE.resolve().rglob("*.html"))


def test_every_internal_link_leads_to_a_page_and_a_place_in_it() -> None:
    """A link without a scheme names a built file, and an element that it has."""
    known = {page: Links(page) for page in pages()}
    lost: list[str] = []
    for page, links in known.items():
        for href in links.hrefs:
            name, anchor = map(unquote, urldefrag(href))
            if name.startswith(("http:", "https:")):
                continue
            target = (page.parent / name).resolve() if name else page
            names = known[target].names if target in known else {""}
            if not target.exists() or anchor not in {*names, ""}:
                lost.append(f"{page.name}: {href}")
    assert len(known) > 1
    assert lost == []


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Yield a headless Chromium."""
    reason = "playwright is not installed"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as player:
        # Chromium's own sandbox does not run as root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = player.chromium.launch(executable_path=program, args=options)
        yield chromium
        chromium.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_opens_without_an_error(browser: object, width: int) -> None:
    """Nothing is in the console, asked of the network, or wider than the window."""
    from playwright.sync_api import Browser  # noqa: PLC0415 - as installed

    assert isinstance(browser, Browser)
    page = browser.new_page(viewport={"width": width, "height": 800})
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(f"{page.url}: {said.text}"))
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on(
        "request",
        lambda asked: (
            None
            if asked.url.startswith(("file:", "data:"))
            else wrong.append(f"{page.url}: asks for {asked.url}")
        ),
    )
    for path in pages():
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wrong.append(f"{page.url}: is wider than {width} pixels")
    page.close()
    assert wrong == []
