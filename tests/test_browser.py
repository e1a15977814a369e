"""The site in a real browser: headless Chromium, phone and desk, light and dark, without a network."""

import shutil
from pathlib import Path

import pytest

from fedlib.core.paths import ROOT
from fedlib.runs.store import Store
from fedlib.workbook import site
from fedlib.workbook.notebooks import find

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, to drive the browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: make browser, or the machine's package manager"),
]
PAPER = "notebooks/fedlap/figure01_no_stragglers"
PAGES = [
    "index",
    "papers/claims",
    "papers/fedlap/README",
    "papers/synthesis/README",
    "methods/index",
    "methods/lws",
    "docs/api",
    PAPER,
    "README",
]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "site"
    return site.build(find(), folder, Store(ROOT / "papers" / "runs")).parent


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        started = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, out):
    """Open a page; what goes wrong on it is in ``page.wrong``."""
    contexts = []

    def opened(name, width=1400, theme="light", part=""):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme))
        page = contexts[-1].new_page()
        page.wrong = []
        page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: page.wrong.append(str(e)))
        page.on(
            "request", lambda r: page.wrong.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None
        )
        page.goto((out / f"{name}.html").as_uri() + part, wait_until="load")
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_error_request_or_sideways_scroll(visit, name, width, theme):
    page = visit(name, width, theme)
    page.wait_for_timeout(800)
    assert page.wrong == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).length") == 0
    assert page.locator("mjx-merror").count() == 0


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1400, "light")])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(visit, name, width, theme):
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core-python, which carries axe-core")
    page = visit(name, width, theme)
    page.wait_for_timeout(600)
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert not [f"{v['id']}: {v['nodes'][0]['target']} and {len(v['nodes']) - 1} more" for v in serious]


@pytest.mark.parametrize("width", [800, 1313, 1471, 1600])
def test_the_contents_column_is_not_cut(visit, width):
    assert visit(PAPER, width).evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_claims_are_filtered_and_sorted_and_the_address_remembers(visit):
    page = visit("papers/claims")
    rows = page.locator(".explorer tbody tr:visible")
    every = rows.count()
    page.get_by_label("paper", exact=True).select_option("FedLap")
    some = rows.count()
    assert 0 < some < every and "paper=FedLap" in page.url
    page.get_by_label("words in a claim").fill("FashionMNIST")
    assert 0 < rows.count() < some
    page.get_by_role("columnheader", name="we got").click()
    found = [
        float(v)
        for v in rows.locator("td:nth-child(6)").evaluate_all("c => c.map(x => x.dataset.value).filter(Boolean)")
    ]
    assert found == sorted(found)
    again = visit("papers/claims", part="#" + page.url.partition("#")[2])
    assert again.locator(".explorer tbody tr:visible").count() == rows.count()


def test_a_point_of_the_picture_leads_to_its_claim_and_on_to_the_records(visit):
    page = visit("index")
    point = page.locator(".panels a.own").first
    claim = point.get_attribute("href").partition("#")[2]
    point.locator("circle").click(force=True)
    page.wait_for_url(f"**#{claim}")
    assert page.locator(f"#{claim}").is_visible()
    page.get_by_role("link", name="Records behind the numbers").click()
    assert page.locator("#records td code").first.is_visible()
    id = page.locator("#records tr").nth(1).locator("code").inner_text()
    assert (ROOT / "papers" / "runs" / f"{id}.json").is_file()


def test_code_is_folded_until_asked_for(visit):
    page = visit(PAPER)
    code = page.locator("details.hide pre")
    assert code.count() and not code.first.is_visible()
    page.get_by_role("button", name="Show all code").click()
    assert code.first.is_visible()
    page.get_by_role("button", name="Fold all code").click()
    assert not code.first.is_visible()


def test_the_form_writes_the_command(visit):
    page = visit(PAPER)
    page.get_by_text("Run this").click()
    page.locator(".parameters input[data-name=seeds]").fill("1,2,3,4,5")
    page.locator(".parameters input[data-name=scale]").fill("smoke")
    command = page.locator("pre.command").inner_text()
    assert command == f"fedlib run {PAPER.removeprefix('notebooks/')} --scale smoke -p seeds 1,2,3,4,5"


def test_a_table_is_saved_as_csv(visit):
    page = visit(PAPER)
    with page.expect_download() as saved:
        page.get_by_role("button", name="this table as CSV").first.click()
    first = page.locator(".csv:visible + table th").first.inner_text()
    assert Path(saved.value.path()).read_text(encoding="utf-8").startswith(f'"{first}",')


def test_equations_are_typeset(visit):
    page = visit("methods/lws")
    page.wait_for_selector("mjx-container")
    assert page.wrong == []


def test_search_leads_to_the_claims(visit):
    page = visit("search", part="?q=FedDyn")
    page.get_by_role("link", name="Claims with").click()
    assert page.locator(".explorer tbody tr:visible").count() > 0
