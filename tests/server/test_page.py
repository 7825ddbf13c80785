"""The status page in a headless browser. It needs Debian's `chromium` and `chromium-driver`, or the like."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from .live import ASK, Live, serving

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    if BROWSER is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def wait_for(browser: webdriver.Chrome, selector: str, text: str) -> str:
    """The text of an element, once it holds `text`."""

    def found(_: object) -> str | None:
        shown = [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]
        return next((each for each in shown if text in each), None)

    return str(WebDriverWait(browser, 120).until(found))


def test_the_page_shows_what_the_server_does(live: Live, browser: webdriver.Chrome) -> None:
    for _ in range(2):
        live.post("/v1/chat/completions", messages=ASK, temperature=0, max_tokens=5)
    browser.get(live.url)
    assert browser.title == "lily"
    assert wait_for(browser, "#fact-model", "lily-nano") == "lily-nano"
    assert wait_for(browser, "#fact-status", "ready")
    assert wait_for(browser, "#fact-device", "threads")
    assert wait_for(browser, "#fact-context", "2,048 tokens")
    assert "weights" in wait_for(browser, "#fact-memory", "MiB")
    assert "snapshots" in wait_for(browser, "#fact-prefix-cache", "MiB")
    assert "0.0 %" not in wait_for(browser, "#fact-cache-hits", "prompt tokens")
    row = wait_for(browser, "#recent tr", "/v1/chat/completions")
    assert "200" in row and "length" in row
    with live.device_held(), live.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}):
        assert wait_for(browser, "#requests tr", "waiting")
        assert wait_for(browser, "#fact-waiting", "1")
    assert wait_for(browser, "#requests tr", "none")
    live.wait_until_idle()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_what_clients_send_is_not_run_by_the_page(live: Live, browser: webdriver.Chrome) -> None:
    with serving(served_model_names=("<img src=x onerror=document.title='run'>",)) as hostile:
        browser.get(hostile.url)
        wait_for(browser, "#fact-model", "<img")
        assert browser.title == "lily" and not browser.find_elements(By.CSS_SELECTOR, "img")


def test_the_page_asks_for_the_key(browser: webdriver.Chrome) -> None:
    with serving(api_key="open-key") as guarded:
        browser.get(guarded.url)
        wait_for(browser, "#notice", "Show")
        browser.find_element(By.CSS_SELECTOR, "#notice input").send_keys("wrong")
        browser.find_element(By.CSS_SELECTOR, "#notice button").click()
        WebDriverWait(browser, 120).until(
            lambda _: (
                browser.find_elements(By.CSS_SELECTOR, "#notice input")
                and not browser.find_element(By.CSS_SELECTOR, "#notice input").get_attribute("value")
            )
        )
        browser.find_element(By.CSS_SELECTOR, "#notice input").send_keys("open-key")
        browser.find_element(By.CSS_SELECTOR, "#notice button").click()
        assert wait_for(browser, "#fact-status", "ready")
