"""The report in a real browser: it draws what the JSON says, obeys mouse and keyboard, and asks nothing of anybody."""

import json
import shutil
import time

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from coulda.report import Report, write_report
from tests.reports import HOSTILE, explained_report, linear_report, sepsis_report, sokoban_report
from tests.reports_plain import plain_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def sokoban() -> Report:
    return sokoban_report()


def visit(browser, folder, report: Report, *, dark: bool = False, width: int = 1200) -> dict:
    """Open the report's page; returns the JSON that it must show."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    path = folder / "index.html"
    write_report(path, report)
    browser.get_log("browser"), browser.get_log("performance")  # what came before is not ours
    browser.get(path.as_uri())
    return json.loads(msgspec.json.encode(report))


def text(browser, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def number(shown: str) -> float:
    return float(shown.replace("−", "-"))


def step(browser) -> int:
    return int(text(browser, "#step").split()[1])


def press(browser, *keys: str) -> None:
    webdriver.ActionChains(browser).send_keys(*keys).perform()


def click(browser, selector: str) -> None:
    webdriver.ActionChains(browser).click(browser.find_element(By.CSS_SELECTOR, selector)).perform()


def selected(browser) -> int:
    return int(text(browser, "#episodes [aria-selected=true] .number")[1:])


def quiet(browser) -> bool:
    """No message on the console, and no request but for the page itself and what it carries."""
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return bool(sent) and all(url.startswith(("file:", "data:")) for url in sent)


def fits(browser, width: int) -> bool:
    """Against the screen and not `innerWidth`, which a phone's browser widens to what is on the page."""
    return browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_table_shows_the_json(browser, folder, sokoban):
    data = visit(browser, folder, sokoban)
    rows = browser.find_elements(By.CSS_SELECTOR, "#table tr.row")
    assert len(rows) == len(data["table"]["rows"])
    for shown, row in zip(rows, data["table"]["rows"], strict=True):
        cell = shown.find_element(By.CSS_SELECTOR, ".value")
        assert shown.find_element(By.CSS_SELECTOR, ".method").text == row["method"]
        assert float(cell.get_attribute("data-value")) == row["value"]
        assert number(cell.text) == pytest.approx(row["value"], rel=1e-3)
        assert row["verdict"] in shown.find_element(By.CSS_SELECTOR, ".word").text
    assert text(browser, "#headline") == data["summary"][0]
    for found in data["table"]["verdicts"]:
        assert found["why"] in text(browser, "#verdicts")
    assert quiet(browser)


def test_a_tap_tells_the_reasons(browser, folder, sokoban):
    data = visit(browser, folder, sokoban)
    button = browser.find_element(By.CSS_SELECTOR, "#table tr.row button")
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    for finding in data["table"]["rows"][0]["findings"]:
        assert finding["sentence"] in text(browser, "#table .reasons:not([hidden])")


def test_the_explorer_steps_and_its_numbers_are_those_of_the_json(browser, folder, sokoban):
    data = visit(browser, folder, sokoban)
    episode = data["explorer"]["episodes"][0]
    click(browser, ".orders button:last-child")
    click(browser, "#episode-0")
    assert selected(browser) == episode["number"]
    played = episode["counterfactual"][0]
    for t in range(len(played["rewards"]) + 1):
        assert step(browser) == t
        for kind, play in (("fact", episode["factual"]), ("counter", played)):
            shown = browser.find_element(By.CSS_SELECTOR, f".panel.{kind} .now b")
            assert float(shown.get_attribute("data-value")) == pytest.approx(sum(play["rewards"][:t]))
            frame = min(t, len(play["rewards"]))
            tiles = browser.execute_script(
                "return [...document.querySelectorAll(arguments[0])].map((tile) => DIGITS[tile.dataset.tile]).join('')",
                f".panel.{kind} .grid i",
            )
            assert tiles == play["frames"]["tiles"][49 * frame : 49 * frame + 49]
        click(browser, "#forward")
    assert number(text(browser, "#counterfactual-return")) == pytest.approx(sum(played["rewards"]))
    assert quiet(browser)


def test_keys(browser, folder, sokoban):
    data = visit(browser, folder, sokoban)
    click(browser, "#explorer-title")
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert step(browser) == 2
    first = selected(browser)
    press(browser, Keys.ARROW_DOWN)
    assert selected(browser) != first
    assert step(browser) == 0
    press(browser, Keys.ARROW_UP)
    assert selected(browser) == first
    press(browser, "2")
    assert data["explorer"]["policies"][1] in text(browser, ".outcome")
    press(browser, "9")  # there is no such policy
    assert data["explorer"]["policies"][1] in text(browser, ".outcome")
    assert quiet(browser)


def test_play_runs_to_the_end_and_pauses(browser, folder, sokoban):
    visit(browser, folder, sokoban)
    play = browser.find_element(By.ID, "play")
    click(browser, "#play")
    assert play.get_attribute("aria-pressed") == "true"
    deadline = time.time() + 20
    while step(browser) < 2 and time.time() < deadline:
        time.sleep(0.1)
    press(browser, " ")
    reached = step(browser)
    assert reached >= 2
    assert play.get_attribute("aria-pressed") == "false"
    time.sleep(0.8)
    assert step(browser) == reached
    press(browser, " ")
    last = int(text(browser, "#step").split("/")[1])
    deadline = time.time() + 30
    while play.get_attribute("aria-pressed") == "true" and time.time() < deadline:
        time.sleep(0.2)
    assert step(browser) == last


def test_filters_list_the_episodes_that_flip(browser, folder, sokoban):
    data = visit(browser, folder, sokoban)
    found = data["explorer"]
    won = lambda play: sum(play["rewards"]) >= found["threshold"]
    kinds = {"all": [], "lost-won": [], "won-lost": [], "same": []}
    for episode in found["episodes"]:
        before, after = won(episode["factual"]), won(episode["counterfactual"][0])
        kinds["all"].append(episode["number"])
        kinds["same" if before == after else "lost-won" if after else "won-lost"].append(episode["number"])
    assert kinds["lost-won"]  # the expert wins where chance lost
    for kind, numbers in kinds.items():
        click(browser, f"[data-filter={kind}]")
        shown = [int(item.text[1:]) for item in browser.find_elements(By.CSS_SELECTOR, "#episodes .number")]
        assert sorted(shown) == numbers
        if numbers:
            assert selected(browser) in numbers
    assert quiet(browser)


def test_dark_and_light(browser, folder, sokoban):
    luminance = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    visit(browser, folder, sokoban)
    assert browser.execute_script(luminance) > 200
    click(browser, "#theme")
    assert browser.execute_script(luminance) < 60
    visit(browser, folder, sokoban, dark=True)
    assert browser.execute_script(luminance) < 60
    click(browser, "#theme")
    assert browser.execute_script(luminance) > 200


def test_a_phone_does_not_scroll_sideways(browser, folder, sokoban):
    visit(browser, folder, sokoban, width=375)
    assert fits(browser, 375)
    for button in browser.find_elements(By.CSS_SELECTOR, "#table tr.row button"):
        browser.execute_script("arguments[0].click()", button)
    browser.execute_script("go(4)")
    assert fits(browser, 375)
    # The twin: something too wide is noticed.
    browser.execute_script("document.querySelector('main').append(make('div', {id: 'wide'}))")
    browser.execute_script("document.getElementById('wide').style.cssText = 'width: 400px; height: 1px'")
    assert not fits(browser, 375)


def test_a_hostile_title_is_only_text(browser, folder, sokoban):
    hostile = msgspec.structs.replace(sokoban, title=HOSTILE, summary=(HOSTILE,))
    visit(browser, folder, hostile)
    assert text(browser, "#title").startswith("</script><script>alert('title')</script>")
    assert text(browser, "#headline").startswith("</script>")
    assert browser.find_elements(By.CSS_SELECTOR, "h1 img, p img") == []
    assert quiet(browser)  # also no alert: a script that is not the page's own is refused, which the console would tell


@pytest.mark.parametrize("name", ["constructor", "toString", "__proto__", "[/bold]", "\x1b[31m"])
def test_policies_may_be_called_anything(browser, folder, name):
    """Also as every object is: what is known of the truth belongs to the names that are given it."""
    plain = plain_report()
    assert plain.table is not None
    rows = tuple(msgspec.structs.replace(row, policy=name) for row in plain.table.rows)
    explorer = msgspec.structs.replace(plain.explorer, policies=(name,))
    for truth in ({}, {name: 0.25}):
        table = msgspec.structs.replace(plain.table, rows=rows, truth=truth)
        visit(browser, folder, msgspec.structs.replace(plain, table=table, explorer=explorer))
        assert len(browser.find_elements(By.CSS_SELECTOR, "#table tr.row")) == len(rows)
        assert text(browser, "#table .truth") == ("in truth 0.25" if truth else "")
        assert len(browser.find_elements(By.CSS_SELECTOR, "#table i.true")) == len(rows) * len(truth)
        assert quiet(browser)


def test_a_figure_is_drawn_and_its_script_is_not_run(browser, folder, sokoban):
    visit(browser, folder, sokoban)
    assert browser.execute_script("return document.querySelector('.gallery img').naturalWidth") > 0
    assert quiet(browser)


@pytest.fixture(scope="module")
def explained() -> Report:
    return explained_report()


def slider(browser) -> int:
    return int(browser.find_element(By.ID, "changes").get_attribute("value"))


def shown_changes(browser) -> list[tuple[int, str, str]]:
    parts = lambda button: [button.find_element(By.CSS_SELECTOR, kind).text for kind in ("b", ".did", ".instead")]
    return [tuple(parts(button)) for button in browser.find_elements(By.CSS_SELECTOR, ".changed .change")]


def test_a_slider_shows_what_each_number_of_changes_makes_of_an_episode(browser, folder, explained):
    data = visit(browser, folder, explained)
    click(browser, ".orders button:last-child")
    click(browser, "#episode-0")
    episode = data["explorer"]["episodes"][0]
    told = episode["explained"]
    assert slider(browser) == data["explorer"]["changes"] == 4
    for k in range(4, -1, -1):
        assert slider(browser) == k
        expected = [(f"step {c['step']}", f"did {c['did']}", f"instead {c['instead']}") for c in told["changes"][k]]
        assert shown_changes(browser) == expected
        value = browser.find_element(By.ID, "counterfactual-return").get_attribute("data-value")
        assert float(value) == told["values"][k]
        dot = browser.find_element(By.CSS_SELECTOR, ".curve circle").get_attribute("data-value")
        assert float(dot) == told["values"][k]
        marks = browser.find_elements(By.CSS_SELECTOR, ".panels .chart circle.changed-step")
        assert len(marks) == 2 * len(expected)  # on both trajectories
        press(browser, "-")
    assert slider(browser) == 0
    assert "As it was" in text(browser, ".outcome")
    assert told["sentence"] in text(browser, ".doubt")
    bars, lines = (browser.find_elements(By.CSS_SELECTOR, f".running .credit {x}") for x in ("rect", ".interval"))
    for name in ("effect", "low", "high"):
        assert [float(bar.get_attribute(f"data-{name}")) for bar in bars] == told["credit"][name]
    assert len(lines) == len(bars)
    assert max(line.rect["height"] for line in lines) > 5  # drawn scenarios: there is an interval to see
    assert quiet(browser)


def test_keys_and_clicks_find_what_was_changed(browser, folder, explained):
    data = visit(browser, folder, explained)
    click(browser, ".orders button:last-child")
    click(browser, "#episode-0")
    press(browser, "-", "-", "+")
    assert slider(browser) == 3
    changes = data["explorer"]["episodes"][0]["explained"]["changes"][3]
    click(browser, ".changed .change:last-child")
    assert step(browser) == changes[-1]["step"]
    act = f"did {changes[-1]['did']} / instead {changes[-1]['instead']}"
    assert act in text(browser, ".panel.fact")
    assert act in text(browser, ".panel.counter")
    # The slider has the arrows while it has the focus; elsewhere they step.
    browser.execute_script("byId('changes').focus()")
    press(browser, Keys.ARROW_LEFT)
    assert slider(browser) == 2
    press(browser, "+", "+", "+", "+")  # no further than there are
    assert slider(browser) == 4
    click(browser, "#explorer-title")
    press(browser, Keys.ARROW_RIGHT)
    assert slider(browser) == 4
    assert step(browser) == 1
    assert quiet(browser)


def test_explanations_fit_a_phone(browser, folder, explained):
    visit(browser, folder, explained, width=375)
    assert fits(browser, 375)


@pytest.mark.slow
@pytest.mark.parametrize("build", [linear_report, sepsis_report])
def test_series(browser, folder, build):
    report = build()
    for width in (1200, 375):
        data = visit(browser, folder, report, width=width)
        assert fits(browser, width)
        channels = data["explorer"]["scene"]["channels"]
        charts = browser.find_elements(By.CSS_SELECTOR, ".panels .chart:not(.actions)")
        assert len(charts) == len(channels)
        assert len(browser.find_elements(By.CSS_SELECTOR, ".panels .actions")) == 1
        click(browser, ".orders button:last-child")
        click(browser, "#episode-0")
        click(browser, "#forward")
        click(browser, "#forward")
        episode = data["explorer"]["episodes"][0]
        for kind, play in (("fact", episode["factual"]), ("counter", episode["counterfactual"][0])):
            dots = browser.find_elements(By.CSS_SELECTOR, f".panels .chart circle.{kind}")
            shown = [float(dot.get_attribute("data-value")) for dot in dots]
            assert shown == [values[2] for values in play["frames"]["values"]]
            assert f"next: {play['actions'][2]}" in text(browser, f".panel.{kind}")
        assert quiet(browser)
