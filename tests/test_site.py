"""The site: every link, figure and script it names is in it, and nothing is fetched from elsewhere."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from fedlib.algorithms import ALGORITHMS
from fedlib.core.paths import ROOT
from fedlib.core.spec import RunSpec
from fedlib.runs.record import Record
from fedlib.runs.store import Store
from fedlib.workbook import site
from fedlib.workbook.notebooks import find

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """What a page refers to, what it loads, and the anchors it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given.get("id")}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "link") and (source := given.get("src") or given.get("href")):
            self.loads.append(source)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    store = Store(ROOT / "papers" / "runs")
    return site.build(find(), tmp_path_factory.mktemp("built") / "site", store).parent


def missing(out, path, pages) -> list[str]:
    """What a page names and the site does not have."""
    found = []
    for link in pages[path].links + pages[path].loads:
        where = urlsplit(link)
        if where.scheme in ("http", "https", "mailto", "data"):
            continue
        target = (path.parent / unquote(where.path)).resolve() if where.path else path
        there = target.is_file() and target.is_relative_to(out)
        if not there or (where.fragment and target in pages and unquote(where.fragment) not in pages[target].anchors):
            found.append(f"{path.relative_to(out)}: {link}")
    return found


def test_the_whole_site_holds_together_without_a_network(out):
    pages = {path: Page(path) for path in out.rglob("*.html")}
    assert not [line for path in pages for line in missing(out, path, pages)]
    assert not [src for page in pages.values() for src in page.loads if urlsplit(src).scheme in ("http", "https")]
    for nb in find():
        page = out / "notebooks" / f"{nb.name}.html"
        figures = page.read_text(encoding="utf-8").count("<img") if page.exists() else -1
        pictures = sum("image/png" in o.get("data", {}) for c in nb.node.cells for o in c.get("outputs", ()))
        assert figures >= pictures, f"{nb.name} shows {figures} of its {pictures} figures"


def test_the_start_page_has_the_scoreboard_and_every_paper_its_notebooks(out):
    start = (out / "index.html").read_text(encoding="utf-8")
    assert "not reproduced" in start and 'href="papers/claims.html"' in start
    assert "an effect of" in (out / "papers" / "claims.html").read_text(encoding="utf-8")
    for nb in find():
        contents = out / "papers" / nb.paper / "README.html"
        assert f"notebooks/{nb.name}.html" in contents.read_text(encoding="utf-8")


def test_the_gallery_has_every_algorithm_and_where_it_is_used(out):
    page = (out / "algorithms.html").read_text(encoding="utf-8")
    assert not [name for name in ALGORITHMS.entries if f">{name}<" not in page]
    assert "notebooks/fedlap/figure01_no_stragglers.html" in page


def test_cost_is_measured_against_the_same_run_of_fedavg(tmp_path):
    store = Store(tmp_path)
    base = RunSpec(dataset="digits", model="mlp", partition="iid", rounds=1)
    partition = {"fingerprint": "", "sizes": []}
    prox = "fedprox(mu=0.1)"
    runs = (1, "fedavg", 10), (1, prox, 12), (1, "fedprox+lws", 99), (2, "fedavg", 20), (2, prox, 20), (3, prox, 99)
    for seed, algorithm, seconds in runs:
        spec = base.replace(algorithm=algorithm, seed=seed)
        store.put(Record.of_run(spec, {"accuracy": [0.5], "round": [1]}, partition, "", {}, seconds))
    assert site.costs(store) == {"fedprox": (pytest.approx(1.1), 2)}


# In a frame as wide as a phone, since a headless window is never narrower than 500 pixels: the page reports itself.
PROBE = """<script>addEventListener("load", () => setTimeout(() => parent.postMessage({
    over: document.documentElement.scrollWidth - innerWidth,
    broken: [...document.images].filter(i => i.complete && !i.naturalWidth).length,
    maths: document.querySelectorAll("mjx-container").length,
    wrong: document.querySelectorAll("mjx-merror").length}, "*"), 4000))</script>"""
TABLE = "notebooks/fedlws/table01_main_results"
FRAME = """<iframe width="390" height="800" src="{}"></iframe><script>
addEventListener("message", e => document.title = JSON.stringify(e.data))</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("name", ["index", "algorithms", "papers/claims", "papers/fedlws/README", TABLE])
def test_pages_work_in_a_browser_as_wide_as_a_phone(out, name):
    page = out / f"{name}.html"
    probe, frame = page.with_name("probe.html"), page.with_name("frame.html")
    probe.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    frame.write_text(FRAME.format(probe.name), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=15000", "--enable-logging=stderr"]
    command = [CHROMIUM, *options, "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    told = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    assert told["over"] <= 0 and told["broken"] == 0 and told["wrong"] == 0
    assert told["maths"] > 0 or name != TABLE
