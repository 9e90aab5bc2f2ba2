"""`make screenshots`: the report of `make demo` as a browser shows it, for README and docs/report.md.

    python docs/screenshots.py PAGE [FOLDER]

Needs Chromium and its driver; on Debian, `apt-get install chromium chromium-driver`.
"""

import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

FOLDER = Path(__file__).parent / "_static"


def main(page: Path, folder: Path) -> None:
    """The top of the page, in light and dark; and the explorer."""
    browser = opened()
    try:
        for scheme in ("dark", "light"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            browser.get(page.resolve().as_uri())
            browser.save_screenshot(str(folder / f"report_{scheme}.png"))
        size = {"width": 1200, "height": 2400, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.find_element(By.CSS_SELECTOR, "#explorer").screenshot(str(folder / "explorer.png"))
    finally:
        browser.quit()


def opened() -> webdriver.Chrome:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("there is no chromium; apt-get install chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
