"""The site: its parts are right, and as a whole every link and file it names is in it, nothing from elsewhere."""

import csv
import io
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from fedlib.algorithms import ALGORITHMS
from fedlib.core.paths import ROOT
from fedlib.core.spec import RunSpec
from fedlib.runs.record import Record
from fedlib.runs.store import Store
from fedlib.workbook import headlines, report, site
from fedlib.workbook.notebooks import find
from fedlib.workbook.site import charts, explorer, landing, methods, pages, parts

MEGABYTES = 30


@pytest.fixture(scope="module")
def notebooks():
    return list(find())


@pytest.fixture(scope="module")
def claims(notebooks):
    return report.gather(notebooks)


def test_the_landing_page_has_every_paper_its_main_claim_and_three_doors(notebooks, claims):
    page = landing.landing(notebooks, claims)
    ids = {c["id"]: c for c in claims}
    for paper, fact in parts.facts().items():
        assert fact["paper"] in page and parts.place(ids[fact["claim"]]) in page, paper
    assert all(f'href="{door}"' in page for door in ("papers/claims.html", "methods/index.html", "README.html"))


def test_words_for_the_papers_own_setting_are_said_of_nothing_less(claims):
    assert not [c["id"] for c in claims if "reproduced" in c["verdict"] and c["grade"] != "own"]


def test_the_explorer_has_every_claim_once_and_so_have_its_files(claims):
    page = explorer.explorer(claims)
    assert [page.count(f'<tr id="{c["id"]}"') for c in claims] == [1] * len(claims)
    assert len(explorer.as_csv(claims).splitlines()) >= len(claims) + 1


def test_every_point_of_the_picture_leads_to_its_claim(claims):
    drawn = charts.comparable(claims)
    picture = charts.against_reported("all", drawn)
    assert drawn and picture.count("<a ") == len(drawn) and all(parts.place(c) in picture for c in drawn)


def test_a_guide_that_nobody_wrote_keeps_the_links_of_its_pages():
    nb = find(["synthesis/gamma_direction"])[0]
    assert "(transfer.ipynb)" in nb.node.cells[0].source
    assert "(../../notebooks/synthesis/transfer.ipynb)" in landing.guide("Synthesis", [nb])


def test_every_equation_belongs_to_a_method():
    given = yaml.safe_load((ROOT / "docs" / "equations.yaml").read_text(encoding="utf-8"))
    assert set(given) <= set(ALGORITHMS.entries)


def test_cost_is_measured_against_the_same_run_of_fedavg():
    records = []
    base = RunSpec(dataset="digits", model="mlp", partition="iid", rounds=1)
    partition = {"fingerprint": "", "sizes": []}
    prox = "fedprox(mu=0.1)"
    runs = (1, "fedavg", 10), (1, prox, 12), (1, "fedprox+lws", 99), (2, "fedavg", 20), (2, prox, 20), (3, prox, 99)
    for seed, algorithm, seconds in runs:
        spec = base.replace(algorithm=algorithm, seed=seed)
        records.append(Record.of_run(spec, {"accuracy": [0.5], "round": [1]}, partition, "", {}, seconds))
    assert methods.costs(records) == {"fedprox": (pytest.approx(1.1), 2)}


def test_the_first_picture_is_hollow_below_the_papers_own_setting_and_each_line_a_link(claims):
    ids = {c["id"]: c for c in claims}
    drawn = headlines.picture(claims, parts.place)
    for fact in parts.facts().values():
        chosen = ids[fact["claim"]]
        line = drawn.partition(f'<a href="{parts.place(chosen)}">')[2].partition("</a>")[0]
        hollow = bool(re.search(r'<circle[^>]*fill="white"', line))
        assert "<circle" in line and hollow == (not chosen["grade"].startswith("own")), chosen["id"]


def test_the_style_of_the_small_pictures_leaves_the_first_one_alone():
    css = (ROOT / "docs" / "_static" / "site.css").read_text(encoding="utf-8")
    assert not re.search(r"(^|[},])\s*svg (text|circle|path|polygon)", css)


def test_every_verdict_stands_at_the_head_of_its_page_and_of_many_the_decided_first(notebooks, claims):
    for nb in notebooks:
        mine = [c for c in claims if c["notebook"] == nb.name]
        shown, _, folded = pages.top(nb, mine).partition("<details>")
        assert all(f'href="#{parts.anchor(c)}"' in shown + folded for c in mine), nb.name
        decided = [c for c in mine if parts.side(c) in ("for", "against")]
        assert all(f'href="#{parts.anchor(c)}"' in shown for c in decided), nb.name
        assert bool(folded) == (len(mine) > pages.SHOWN and len(mine) > len(decided)), nb.name


def test_a_page_lists_its_runs_with_seeds_accuracies_and_ids_of_records():
    nb = find(["fedlap/figure01"])[0]
    plan, store = nb.plan(), Store(ROOT / "papers" / "runs")
    found = {job.id: store.get(job.id) for job in plan.values()}
    rows = list(csv.DictReader(io.StringIO(pages.runs(plan, found))))
    assert [row["record"] for row in rows] == [job.id for job in plan.values()]
    for row in rows:
        record = found[row["record"]]
        assert row["accuracy"] == f"{record.accuracy[-1]:.2f}" and int(row["seed"]) == record.spec.seed
        assert f"<td>{row['accuracy']}</td><td><code>{row['record']}</code>" in "".join(pages.lines(plan, found))


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


@pytest.mark.slow
def test_the_whole_site_holds_together_without_a_network(notebooks, tmp_path):
    out = site.build(notebooks, tmp_path / "site", Store(ROOT / "papers" / "runs")).parent
    html = {path: Page(path) for path in out.rglob("*.html")}
    assert not [line for path in html for line in missing(out, path, html)]
    assert not [src for page in html.values() for src in page.loads if urlsplit(src).scheme in ("http", "https")]
    assert sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) < MEGABYTES * 2**20
    for nb in notebooks:
        page = (out / "notebooks" / f"{nb.name}.html").read_text(encoding="utf-8")
        pictures = sum("image/png" in o.get("data", {}) for c in nb.node.cells for o in c.get("outputs", ()))
        assert page.count("<img") >= pictures and 'id="records"' in page, nb.name
        assert 'property="og:description"' in page and f'alt="{nb.title[:9]}' in page or not pictures, nb.name
        assert f"notebooks/{nb.name}.html" in (out / "papers" / nb.paper / "README.html").read_text(encoding="utf-8")
    assert not [m for m in ALGORITHMS.entries if not (out / "methods" / f"{m}.html").is_file()]
