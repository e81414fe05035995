"""The live page in a headless Chromium: what it shows of an engine, and its prompt box."""

import socket
import threading

import httpx
import pytest

from lab.judge.plugin import NotProvenHere
from layer3_system import (
    Bridge,
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    SamplingParams,
    Scheduler,
)
from layer3_system.bench import screenshot
from layer3_system.file_tier import FileTier, HostOverFile
from layer3_system.s11_kv_offload import TieredPool
from layer3_system.server import live
from layer3_system.server.app import Listener, make_app
from layer3_system.tiers import TieredPages
from tests.layer3_system.server.http_server import until
from tests.layer3_system.server.test_server_shutdown import running

pytestmark = pytest.mark.slow           # a browser starts, and draws
MANY = 10_000           # steps, more than all answers take


class Ascii(MockLlama):
    """No text ends by itself."""

    def forward(self, step, cache, every=False):
        logits = super().forward(step, cache, every)
        logits[:, 128:] = -20
        return logits


class Held(Bridge):
    """It reads its mail, and has its engine do no more steps than the test lets through, so that
    there is time to look."""

    def __init__(self, *given):
        super().__init__(*given)
        self.gate = threading.Semaphore(60)

    def read_mail(self):
        while super().read_mail():
            if self.gate.acquire(timeout=0.01):
                return True
        return False


@pytest.fixture(scope="module")
def browser():
    driver = screenshot.browser()
    if driver is None:
        raise NotProvenHere("not proven here: needs chromium and chromedriver")
    yield driver
    driver.quit()


class Site:
    """A page on a server of its own."""

    def __init__(self, browser, key=None, pool=None):
        pool = pool or PrefixPool(64, 16)
        self.engine = Engine(Ascii(), ByteTokenizer(), pool, Scheduler(pool, 4, 64))
        if isinstance(pool, TieredPool):
            self.engine.pages = TieredPages(self.engine.pages, pool.host)
        self.app = make_app(self.engine, "mock", key=key, kind=Held)
        self.bridge = self.app.state.bridge
        listening = socket.create_server(("127.0.0.1", 0))
        self.listener = Listener(self.app)
        self.thread = threading.Thread(target=self.listener.run,
                                       kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        self.browser = browser
        browser.get(f"http://127.0.0.1:{listening.getsockname()[1]}/")

    def find(self, id):
        return self.browser.find_element("id", id)

    def write(self, id, text):
        self.find(id).clear()
        self.find(id).send_keys(str(text))

    def submit(self, *prompts):
        """Ask for 300 tokens after each prompt, as another client does."""
        asked = SamplingParams(300, ignore_eos=True)
        self.bridge.loop.call_soon_threadsafe(self.bridge.submit, "other", prompts, asked)

    def painted(self, id):
        """How many colours a picture has."""
        return self.browser.execute_script(
            "const c = document.getElementById(arguments[0]);"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "const seen = new Set();"
            "for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 4).join());"
            "return seen.size", id)

    def end(self):
        """With all that it still writes."""
        self.bridge.loop.call_soon_threadsafe(self.bridge.end_all)
        self.listener.should_exit = True
        self.thread.join(300)
        assert not self.thread.is_alive()


@pytest.fixture
def site(browser):
    found = Site(browser)
    yield found
    found.end()


def test_what_the_engine_does(site, monkeypatch):
    """Figures, the map of pages, the steps and the list of requests."""
    monkeypatch.setattr(live, "BACK", 60.0)         # seconds: the figures stay while it is held
    until(lambda: "mock" in site.find("model").text)
    empty = site.painted("map")
    site.submit([1] * 40, [1] * 40, [2] * 20, [3] * 9, [4] * 9, [5] * 9)
    until(lambda: site.find("running").text == "4" and site.find("waiting").text == "2")
    until(lambda: "2 of them shared" in site.find("pages_key").text)
    rows = site.find("requests").text.splitlines()
    assert len(rows) == 6 and sum("running" in row for row in rows) == 4
    assert site.painted("map") > empty + 4 and site.painted("steps") > 4
    until(lambda: float(site.find("throughput").text) > 0)
    assert site.find("ttft").text.endswith("s") and site.find("trouble").text == ""


def test_memory_below_the_pages(browser, tmp_path):
    """How full host memory and a file are."""
    file = FileTier(tmp_path / "kv", 40, 1024, bytes(32))
    site = Site(browser, pool=TieredPool(64, 16, None, HostOverFile(8, file)))
    until(lambda: "in host memory: 0 of 8 pages" in site.find("tiers").text)
    assert "in a file: 0 of 40 pages" in site.find("tiers").text
    site.end()


def test_both_kinds_of_process(browser):
    """A button for each; the chosen one's pages are shown."""
    with running("--prefill", "1", "--decode", "1", "--pages", "40") as server:
        browser.get(server.url)
        names = "return [...document.querySelectorAll('#workers button')].map(b => b.textContent)"
        until(lambda: [name.split(":")[0] for name in browser.execute_script(names)]
              == ["prefill 0", "decode 0"])
        until(lambda: "40 pages of 16 tokens" in browser.find_element("id", "pages_key").text)
        answer = httpx.post(f"{server.url}/v1/completions", timeout=300, trust_env=False,
                            json={"model": "small", "prompt": "Once upon a time", "max_tokens": 9})
        assert answer.status_code == 200
        chosen = "button[aria-pressed=true]"
        for name, steps in (("decode", "9"), ("prefill", "1")):
            browser.execute_script("[...document.querySelectorAll('#workers button')].find("
                                   "b => b.textContent.startsWith(arguments[0])).click()", name)
            assert browser.execute_script(
                f"return document.querySelector('{chosen}').textContent").startswith(name)
            until(lambda: browser.find_element("tag name", "body").get_attribute(
                "data-step") == steps)                          # noqa: B023  (called here)


def test_the_prompt_box(site):
    """An answer grows as it is written; Stop ends it and gives back its pages."""
    site.write("prompt", "Once upon a time")
    site.write("most", 400)
    site.browser.find_element("css selector", "#ask button").click()
    until(lambda: len(site.find("answer").text) > 40)
    assert site.find("answer").text.startswith("Once upon a time")
    site.find("stop").click()
    until(lambda: not site.engine.busy)
    assert site.engine.pool.used == 0


def test_several_answers(site):
    site.write("count", 3)
    site.write("most", 20)
    site.browser.find_element("css selector", "#ask button").click()
    until(lambda: len(site.browser.find_elements("css selector", "#answer p")) == 3)
    until(lambda: not site.engine.busy and all(
        len(p.text) > 17 for p in site.browser.find_elements("css selector", "#answer p")))


def test_what_is_refused_is_told(site):
    site.write("most", 4000)
    site.browser.find_element("css selector", "#ask button").click()
    until(lambda: "max_tokens: expected at most" in site.find("answer").text)


def test_a_key(browser):
    site = Site(browser, key="secret")
    until(lambda: "API key is missing" in site.find("trouble").text)
    site.write("secret", "secret")
    until(lambda: "mock" in site.find("model").text and site.find("trouble").text == "")
    assert site.browser.find_element("tag name", "body").get_attribute("class") == ""
    site.end()
    until(lambda: "does not answer; the state below is from" in site.find("trouble").text)
    assert site.browser.find_element("tag name", "body").get_attribute("class") == "gone"
    assert site.find("figures").value_of_css_property("opacity") == "0.35"


def test_nothing_from_anywhere_else(site):
    """No network but the server's own, and no script that fails."""
    until(lambda: site.find("running").text == "0")
    loaded = site.browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)")
    own = site.browser.current_url
    assert loaded and all(name.startswith((own, "data:")) for name in loaded)
    said = [line["message"] for line in site.browser.get_log("browser")
            if line["level"] == "SEVERE" and own in line["message"]]
    assert said == []


def test_stop_ends_all_that_was_sent(site):
    until(lambda: "mock" in site.find("model").text)
    site.write("most", 400)
    send = site.browser.find_element("css selector", "#ask button")
    send.click()
    scheduler = site.engine.scheduler
    until(lambda: len(scheduler.running) == 1)
    send.click()
    until(lambda: len([*scheduler.running, *scheduler.waiting]) == 2)
    site.bridge.gate.release(10)                    # for the second one's prompt
    until(lambda: len(scheduler.running) == 2)
    site.find("stop").click()
    until(lambda: not site.engine.busy)             # though it may do no step
    assert not site.find("stop").is_enabled()


def test_no_two_requests_look_the_same(site):
    """Ten colours, then the same with stripes.
    A colour is free when its request is gone."""
    site.submit(*([token] * 9 for token in range(34)))
    swatches = ("return [...document.querySelectorAll('#requests canvas')]"
                ".map(c => c.toDataURL())")
    until(lambda: len(site.browser.execute_script(swatches)) == 34)
    assert len(set(site.browser.execute_script(swatches))) == 34


def test_a_colour_is_free_when_its_request_is_gone(site):
    until(lambda: "mock" in site.find("model").text)
    assert site.browser.execute_script("""
        const request = {}, state = ids => ({
          requests: Object.fromEntries(ids.map(id => [id, request])), steps: []});
        const first = ["a", "b", "c"].map(placeOf);
        forget(state(["a", "c"]));
        return [...first, placeOf("d"), placeOf("c")]""") == [0, 1, 2, 1, 2]


def test_which_requests_are_yours(site):
    until(lambda: "mock" in site.find("model").text)
    site.submit([1] * 9, [2] * 9, [3] * 9, [4] * 9)
    until(lambda: site.find("running").text == "4")
    site.browser.find_element("css selector", "#ask button").click()
    until(lambda: len(site.find("requests").text.splitlines()) == 5)
    own = [row for row in site.find("requests").text.splitlines() if "yours" in row]
    assert len(own) == 1 and "waiting" in own[0] and "other" not in own[0]


def test_curves_have_their_range(site):
    until(lambda: site.find("running").text == "0")
    site.submit([1] * 40, [2] * 20, [3] * 9)
    until(lambda: site.find("running_range").text == "0 to 3")
    site.bridge.gate.release(MANY)
    until(lambda: site.find("tpot_range").text.endswith("s"))


def test_nothing_scrolls_sideways_on_a_phone(site):
    until(lambda: "mock" in site.find("model").text)
    site.submit([1] * 40, [2] * 20)
    until(lambda: site.find("requests").text)
    site.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False})
    try:
        wide = site.browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360
    finally:
        site.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
