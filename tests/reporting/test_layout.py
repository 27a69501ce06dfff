"""The page in a browser: nothing is wider than the screen, on phones and desktops, light and dark."""

import shutil

import numpy as np
import pytest

from helpers.report_logs import NAMES, make_log, make_report

CHROMIUM = shutil.which("chromium")
NEEDED = "needs a browser; install it (Debian: chromium; pip install playwright)"
playwright = pytest.importorskip("playwright.sync_api", reason=NEEDED)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NEEDED)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages with long names in several scripts, with many categories, and with a misfit."""
    folder = tmp_path_factory.mktemp("pages")
    click = np.where(np.arange(16)[:, None] % 2 == np.arange(2), 0.7, 0.2)
    logs = {
        "names": make_log(2000, [[0.8, 0.2], [0.2, 0.7], [0.3, 0.3], [0.1, 0.1]], 0.5, 1, NAMES),
        "many": make_log(1000, click, 0.4, 2, [f"category-{a:03}-{'x' * 4 * a}" for a in range(16)]),
        "misfit": make_log(3000, [[0.9, 0.3], [0.3, 0.9]], 0.3, 3, fall=0.8),
    }
    logs["misfit"].loc[logs["misfit"].index[::50], "category"] = ""
    logs["segments"] = make_log(1500, [[0.8, 0.2], [0.2, 0.7]], 0.5, 4)
    logs["segments"]["segment"] = np.array(["de/mobile phone", "fr/desktop computer"])[logs["segments"]["user"] % 2]
    for name, log in logs.items():
        make_report(log, types=2, **({"segment": "segment"} if name == "segments" else {})).save(
            folder / f"{name}.html"
        )
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen(browser, pages, width, scheme):
    for path in sorted(pages.iterdir()):
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        requests, errors = [], []
        page.on("request", lambda request, to=requests: to.append(request.url))
        page.on("pageerror", lambda error, to=errors: to.append(error))
        page.goto(path.as_uri())
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), path.name
        assert requests == [path.as_uri()]
        assert errors == []
        # The verdict is on the first screen.
        assert page.locator("h1").bounding_box()["y"] < 400
        # Tables about the data break their lines.
        tables = "[...document.querySelectorAll('table.facts, table.sentences')]"
        assert page.evaluate(f"{tables}.every(table => table.offsetWidth <= document.body.clientWidth)"), path.name
        # The cells of labelled tables are all visible without scrolling.
        cells = "[...document.querySelectorAll('table.labelled td')].filter(cell => cell.offsetParent !== null)"
        assert page.evaluate(f"{cells}.every(cell => cell.getBoundingClientRect().right <= innerWidth)"), path.name
        page.close()
