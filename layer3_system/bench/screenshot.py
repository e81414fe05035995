"""A picture of the live page of a server at work:  python -m layer3_system.bench.screenshot

The small model serves a few stories on few pages; page.png has the picture.
It needs Chromium, its driver, and selenium.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).with_name("page.png")
PORT = 8117
PAGES = 128
SEATS = 6
STORY = ("Once upon a time there was a curious fox named Mira. One winter Mira was given a strange "
         "kite.")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--window-size=1280,1250")


def browser(performance=False):
    """A headless Chromium; None if it or its driver is missing. performance: its log tells what it
    asks for"""
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if not all(programs):
        return None
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for option in OPTIONS:
        options.add_argument(option)
    logs = {"browser": "ALL"} | ({"performance": "ALL"} if performance else {})
    options.set_capability("goog:loggingPrefs", logs)
    return webdriver.Chrome(options, Service(programs[1]))


def ask(place, i):
    """One request; every third wants three answers."""
    body = {"model": "small", "prompt": STORY + " The end." * (i % 5), "max_tokens": 300 + 10 * i,
            "n": 3 if i % 3 == 0 else 1, "seed": i, "ignore_eos": True}
    request = urllib.request.Request(f"{place}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=300).read()


def main():
    chromium = browser()
    if chromium is None:
        sys.exit("chromium and chromedriver are needed and were not found")
    command = [sys.executable, "-m", "layer3_system.server.cli", "--port", str(PORT), "--pages",
               str(PAGES), "--max-seqs", str(SEATS), "--budget", "64"]
    place = f"http://127.0.0.1:{PORT}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        for line in server.stdout:
            if "curl" in line:
                break
        try:
            chromium.get(place)
            for i in range(9):
                threading.Thread(target=ask, args=(place, i), daemon=True).start()
                time.sleep(0.1)
                if i == 5:
                    chromium.find_element("id", "most").clear()
                    chromium.find_element("id", "most").send_keys("300")
                    chromium.find_element("css selector", "#ask button").click()
            time.sleep(1)
            chromium.save_screenshot(PICTURE)
            with Image.open(PICTURE) as picture:        # 256 colours: a third of the bytes
                picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                    PICTURE, optimize=True)
        finally:
            chromium.quit()
            server.terminate()


if __name__ == "__main__":
    main()
