"""The site: a lesson's page gives nothing away before it is asked for, and a browser finds all."""

import json
import re
import runpy
import shutil
from urllib.parse import unquote

import pytest
import yaml

from lab import course, stub
from lab.author import build
from lab.author.site import __main__ as site
from lab.author.site import overviews, pages, reference
from lab.course import ROOT
from lab.desk import ipynb
from lab.judge.plugin import NotProvenHere

K01 = course.find("k01_vector_add")
FOLD = re.compile(r"<details>.*?</details>", re.S)


@pytest.fixture(scope="module")
def page():
    return pages.lesson_page(K01)


def texts(cells):
    return [ipynb.source(cell) for cell in cells]


# ---- a lesson's page


def test_its_cells_are_the_notebooks(page):
    """But for the line about the lesson, and the folds."""
    own = [cell for cell in page["cells"] if not cell["id"].startswith(("about", "folds-"))]
    stubbed = build.make(K01)[0]["cells"]
    assert sorted(texts(own)) == sorted(texts(stubbed))
    assert texts(own)[0].lstrip().startswith("# k01")


def test_each_exercise_has_its_hints_and_then_the_solution_in_folds(page):
    folds = [ipynb.source(cell) for cell in page["cells"] if cell["id"].startswith("folds-")]
    assert len(folds) == len(K01.exercises)
    for exercise, text in zip(sorted(K01.exercises, key=order_in(page)), folds, strict=True):
        found = FOLD.findall(text)
        assert [re.search("<summary>(.*)</summary>", fold)[1] for fold in found] == [
            *(f"Hint {n}" for n in range(1, len(exercise.hints) + 1)), "The course's solution"]
        for hint, fold in zip(exercise.hints, found, strict=False):
            assert hint in fold
        own = stub.extract(K01.sources[exercise.language], exercise.name, exercise.language)
        assert own.rstrip() in found[-1]


def order_in(page):
    cells = "\n".join(texts(page["cells"]))
    return lambda exercise: cells.index(f'lesson.check("{exercise.name}")')


def test_outside_the_folds_stands_what_the_notebook_has():
    for lesson in course.lessons()[::9]:
        shown = "\n".join(FOLD.sub("", text) for text in texts(pages.lesson_page(lesson)["cells"]))
        given = "\n".join(texts(build.make(lesson)[0]["cells"]))
        assert set(shown.splitlines()) - set(given.splitlines()) <= {pages.about(lesson), ""}


def test_outputs_are_what_the_solution_printed_and_drew(page):
    kinds = [kind for cell in page["cells"] for output in cell.get("outputs", ())
             for kind in output.get("data", {"stream": 0})]
    assert {"image/png", "stream"} <= set(kinds) and "text/html" not in kinds
    checks = [cell for cell in page["cells"] if ipynb.source(cell).startswith("lesson.check")]
    assert checks and not any(cell["outputs"] for cell in checks)


def test_what_answers_a_prediction_is_seen_after_a_click():
    cells = pages.lesson_page(course.find("s32"))["cells"]
    asked = next(i for i, cell in enumerate(cells) if "def predict_" in ipynb.source(cell)
                 and cell["cell_type"] == "code")
    after = next(cell for cell in cells[asked + 1:] if cell.get("outputs"))
    before = next(cell for cell in cells if cell.get("outputs"))
    assert after["metadata"] == {"tags": ["hide-output"]} and before["metadata"] == {}


# ---- the other pages


def test_the_glossary_has_the_terms_with_their_sentences():
    text = overviews.glossary()
    entries = dict(re.findall(r"^(\S.*)\n: (.*)$", text, re.M))
    assert len(entries) > 200
    for term, words, lesson in (("warp", "32 neighbouring threads", "k01"),
                                ("bandwidth", "in bytes a second", "r01")):
        assert words in entries[term] and f"[{lesson}](" in entries[term]


@pytest.mark.parametrize(("paragraph", "after", "says"), [
    ("One. The **gap** is rounding. Three.", "", "The **gap** is rounding."),
    ("- First (of two.) A **b**\nis c", "", "A **b** is c"),
    ("- The **gap** is", "$$a\n= b$$", "The **gap** is $a = b$"),
    ("The **gap** is.", "$$a$$", "The **gap** is.")])
def test_a_sentence(paragraph, after, says):
    assert overviews.sentence(paragraph, overviews.TERM.search(paragraph), after) == says


def test_the_map_has_each_lesson_and_a_line_for_each_need():
    drawn = overviews.lesson_map()
    assert all(f'href="{lesson.floor}/{lesson.id}.html"' in drawn for lesson in course.lessons())
    assert drawn.count("<path") == sum(len(lesson.needs) for lesson in course.lessons())


def test_what_is_proven_is_what_the_proofs_say():
    row = json.loads((ROOT / "proofs" / "layer1_kernels.json").read_text())[K01.id]
    said = next(line for line in overviews.proven().splitlines() if "[k01]" in line)
    assert f"| {row['proofs']} | {row['mutants']} | {row['twins']} | {row['date']} |" in said


def test_where_says_what_a_lesson_is_written_in():
    rows = overviews.where().splitlines()
    k01, s21 = (next(row for row in rows if f"[{name}]" in row) for name in ("k01", "s21"))
    assert "CUDA C, Triton | checked in the simulator" in k01
    assert "Python | runs as it is, on several processes" in s21


def test_the_reference_has_signatures_and_docstrings():
    text = reference.names_of("day01_roofline", "Day 1")
    assert "### attainable\n\n```text\nattainable(" in text
    assert text.count("```") % 2 == 0
    assert "`check`" in reference.commands()


def test_links_to_files_that_are_no_pages_are_their_names():
    text = site.as_page(ROOT / "lab" / "grading" / "README.md")
    assert "`lab/grading/slurm.sh`" in text and "](slurm.sh)" not in text
    assert "](/roofline.png)" in site.as_page(ROOT / "benchmarks" / "README.md")


def test_the_workflow_publishes_what_is_made():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "site.yml").read_text("utf-8"))
    steps = workflow["jobs"]["site"]["steps"]
    assert "make site" in [step.get("run") for step in steps]
    published = [step["with"]["path"] for step in steps if "pages-artifact" in step.get("uses", "")]
    assert published == [str((site.FOLDER / "html").relative_to(ROOT))]


def test_buttons_open_a_pages_notebook_elsewhere(monkeypatch):
    conf = ROOT / "lab" / "author" / "site" / "conf.py"
    assert "launch_buttons" not in runpy.run_path(str(conf))["html_theme_options"]
    monkeypatch.setenv("SITE_REPOSITORY", "https://github.com/somebody/three-floors")
    options = runpy.run_path(str(conf))["html_theme_options"]
    assert options["launch_buttons"].keys() >= {"colab_url", "binderhub_url"}
    for lesson in course.lessons():
        page = f"{lesson.floor}/{lesson.id}.ipynb"
        assert ROOT / options["path_to_docs"] / page == lesson.notebook


# ---- in a browser


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The site, made without a warning: among them are links that lead nowhere."""
    folder = tmp_path_factory.mktemp("site")
    assert site.main(folder) == 0
    yield folder / "html"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def browser():
    from layer3_system.bench import screenshot

    driver = screenshot.browser(performance=True)
    if driver is None:
        raise NotProvenHere("not proven here: needs chromium and chromedriver")
    yield driver
    driver.quit()


def asked_for(browser):
    """The addresses that the browser has asked for since it was last asked."""
    events = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events
            if event["method"] == "Network.requestWillBeSent"]


@pytest.mark.slow
def test_a_browser_finds_all_on_this_machine(html, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    asked_for(browser)
    browser.get(f"file://{html}/search.html?q=bank+conflict")
    hits = WebDriverWait(browser, 60).until(
        lambda d: d.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    assert any("k02_transpose" in hit.get_attribute("href") for hit in hits)
    browser.get(hits[0].get_attribute("href"))
    assert "bank conflict" in browser.find_element(By.TAG_NAME, "body").text.lower()
    too_wide = []
    browser.set_window_size(390, 900)
    for path in sorted(set(html.rglob("*.html")) - set(html.glob("_static/*"))):
        browser.get(f"file://{path}")
        if browser.execute_script(
                "return document.documentElement.scrollWidth > window.innerWidth"):
            too_wide.append(path.name)
    assert too_wide == []
    colours = []
    for mode in ("light", "dark"):
        browser.execute_script(f"document.documentElement.dataset.theme = '{mode}'")
        colours.append(browser.execute_script(
            "return getComputedStyle(document.body).backgroundColor"))
    assert len(set(colours)) == 2
    requests = asked_for(browser)
    assert len(requests) > 20
    assert [url for url in requests if not url.startswith((f"file://{html}", "data:"))] == []
    assert all((html / unquote(url.removeprefix(f"file://{html}/")).split("?")[0].split("#")[0])
               .exists() for url in requests if url.startswith("file:"))
