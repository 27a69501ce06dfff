"""The pages in a real browser: contents, requests and speed."""

import itertools
import shutil
import time
from random import Random
from statistics import median
from urllib.parse import urlsplit

import pytest

import departing as dp
from departing.model.examples import magazine
from helpers.servers import serving

CHROMIUM = shutil.which("chromium")
NEEDED = "needs a browser; install it (Debian: chromium; pip install playwright)"
playwright = pytest.importorskip("playwright.sync_api", reason=NEEDED)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=NEEDED),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
EVIL = "<img src=x onerror=document.title='evil'>"
CATEGORIES = ("--categories", f"news,sports,{EVIL}")
LOOKS = [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("pages"), "--learn", "--seed", "1", *CATEGORIES) as running:
        yield running


def until(page, expression):
    """Wait for an expression to become true; the page's security policy forbids `wait_for_function`."""
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


class Open:
    """A page whose errors and requested hosts are recorded."""

    def __init__(self, browser, address, width=1280, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page, self.errors, self.hosts = self.context.new_page(), [], set()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.goto(address)

    def __enter__(self):
        return self.page

    def __exit__(self, *details):
        host = urlsplit(self.page.url).netloc
        assert self.hosts <= {host, ""}  # downloads have no host
        assert self.errors == []
        assert self.page.title() != "evil"
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        self.context.close()


def visit(server, users, seed=0):
    """Users with the click probabilities of the magazine, who depart after half of their no-clicks."""
    rng, clicks = Random(seed), 0
    instance = magazine()
    with server.client() as client:
        for user in range(users):
            user_type = rng.choices(range(3), instance.prior)[0]
            for _ in range(20):
                shown = client.recommend(f"user {seed} {user}")
                category = ["news", "sports", EVIL].index(shown["category"])
                clicked = rng.random() < float(instance.click[category, user_type])
                clicks += clicked
                departed = not clicked and rng.random() < 0.5
                client.feedback(shown["event"], clicked, departed)
                if departed:
                    break
            else:
                client.depart(f"user {seed} {user}")
    return clicks


def changed(page, act):
    """Act and wait until the new plan is drawn."""
    with page.expect_response("**/v1/explore"):
        act()
    until(page, "!busy && dirty === null")


def slide(page, label, value):
    changed(page, lambda: page.get_by_label(label, exact=True).fill(str(value)))


def value(page):
    return float(page.locator("#value").text_content())


def instance_of(page):
    return dp.Instance.from_dict(page.evaluate("instance()"))


def opened(browser, server, **options):
    explorer = Open(browser, server.url + "/explorer", **options)
    until(explorer.page, "result !== null && !busy")
    return explorer


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_dashboard_of_a_new_service(browser, tmp_path, width, scheme):
    with (
        serving(tmp_path, "--instance", "magazine") as server,
        Open(browser, server.url, width, scheme) as page,
    ):
        page.locator("#tiles").get_by_text("active users").wait_for()
        assert page.get_by_text("No user has departed yet.").is_visible()
        assert page.get_by_text("No recommendations yet.").is_visible()
        assert not page.locator("#learning").is_visible()
        assert "Start with music" in page.locator("#tree-text").text_content()


@pytest.mark.slow
def test_the_dashboard_shows_the_activity_of_users(browser, server):
    clicks = visit(server, 60)
    for width, scheme in LOOKS:
        with Open(browser, server.url, width, scheme) as page:
            until(page, "now !== null && samples.length > 1")
            names, numbers = (page.locator(f".tile {tag}").all_text_contents() for tag in ("span", "b"))
            tiles = dict(zip(names, numbers, strict=True))
            assert tiles["users"] == "60"
            assert tiles["active users"] == "0"
            assert int(tiles["clicks"]) == clicks
            assert page.locator("#clicks circle").count() >= 1
            assert page.locator("#survival polyline").count() == 1
            assert page.locator("#rates polyline").count() == 2
            assert page.locator("#latest tr").count() == 8
            assert EVIL in page.locator("#departures").text_content()
            assert page.locator("img").count() == 0


@pytest.mark.slow
def test_both_pages_require_a_key(browser, tmp_path):
    with serving(tmp_path, "--instance", "blog", environment={"DEPARTING_ADMIN_KEY": "secret"}) as server:
        context = browser.new_context()
        for path, ready in (("/", "now !== null"), ("/explorer", "result !== null")):
            page = context.new_page()
            page.goto(server.url + path)
            page.get_by_label("admin key").fill("wrong")
            page.keyboard.press("Enter")
            page.wait_for_timeout(300)
            assert not page.evaluate(ready)
            page.get_by_label("admin key").fill("secret")
            page.keyboard.press("Enter")
            until(page, ready)
            assert not page.get_by_label("admin key").is_visible()
        context.close()


def test_a_slider_changes_the_plan(browser, server):
    with opened(browser, server) as page:
        seen = {value(page)}
        for label, to in (
            ("category 1, type 1: click probability", 0.9),
            ("category 2, type 2: departure probability after no click", 0.05),
        ):
            slide(page, label, to)
            best = dp.plan(instance_of(page), gap=1e-6)
            assert value(page) == pytest.approx(best.value, rel=3e-4)
            assert value(page) not in seen
            seen.add(value(page))
        for n, to in itertools.product((1, 2), (0.13, 1.0, 0.5, 0.0)):
            slide(page, f"prior of type {n}", to)
            prior = page.evaluate("state.prior")
            assert prior[n - 1] == to
            assert sum(prior) == pytest.approx(1, abs=1e-12)
            assert value(page) == pytest.approx(dp.plan(instance_of(page), gap=1e-6).value, rel=3e-4)


def test_moving_one_prior_keeps_the_proportions_of_the_others(browser, server):
    with opened(browser, server) as page:
        changed(page, lambda: page.get_by_text("Add type").click())
        slide(page, "prior of type 3", 0.5)
        before = page.evaluate("state.prior")
        for to in (0.9, 1.0, 0.5):
            slide(page, "prior of type 3", to)
        assert page.evaluate("state.prior") == pytest.approx(before, abs=1e-3)


def test_types_and_categories_can_be_added_named_and_removed(browser, server):
    with opened(browser, server, width=390) as page:
        for noun, button in (("type", "Add type"), ("category", "Add category")):
            for _ in range(3):
                changed(page, page.get_by_text(button).click)
            assert page.get_by_text(button).is_disabled()
            changed(page, lambda noun=noun: page.get_by_label(f"name of {noun} 5").fill(EVIL))
        changed(page, lambda: page.get_by_label("users may also depart after a click").check())
        instance = instance_of(page)
        assert (instance.n_types, instance.n_categories) == (5, 5)
        assert instance.depart_on_click.all()
        assert instance.types[4] == instance.categories[4] == EVIL
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for noun in ("type", "category"):
            for _ in range(4):
                changed(page, page.get_by_role("button", name=f"Remove {noun} ").first.click)
            assert page.get_by_role("button", name=f"Remove {noun} ").is_disabled()
        assert page.locator("img").count() == 0
        assert EVIL in page.locator("#tree").text_content()
        assert value(page) == pytest.approx(dp.plan(instance_of(page)).value, rel=3e-4)


def test_an_invalid_instance_shows_an_error_until_it_is_corrected(browser, server):
    explorer = opened(browser, server)
    with explorer as page:
        page.get_by_label("name of type 1").fill("choosy")
        page.get_by_text("has the name 'choosy' twice").wait_for()
        changed(page, lambda: page.get_by_label("name of type 1").fill("keen"))
        assert not page.locator("#trouble").is_visible()
        explorer.errors.clear()  # the browser logs the rejected request


def test_a_change_is_drawn_within_300_ms(browser, server):
    with opened(browser, server) as page:
        for i in range(15):
            slide(page, "category 1, type 1: click probability", 0.5 + 0.02 * i)
        page.wait_for_timeout(100)
        took = page.evaluate("performance.getEntriesByName('redraw').map(entry => entry.duration)")[1:]
        print(f"drawn within {median(took):.0f} ms (median of {len(took)}; at most {max(took):.0f} ms)")
        assert len(took) == 15
        assert median(took) < 300


@pytest.mark.slow
def test_a_link_restores_the_view(browser, server):
    with opened(browser, server) as page:
        changed(page, lambda: page.get_by_text("Add category").click())
        changed(page, lambda: page.get_by_label("users may also depart after a click").check())
        changed(page, lambda: page.get_by_label("name of category 3").fill("a,b;c&d=e #ü"))
        slide(page, "category 3, type 1: departure probability after a click", 0.31)
        page.wait_for_timeout(400)
        link, instance, best = page.url, instance_of(page), value(page)
    again = Open(browser, link)
    with again as page:
        until(page, "result !== null && !busy")
        assert instance_of(page) == instance
        assert value(page) == pytest.approx(best, rel=1e-3)  # planning stops at a time limit
        assert (
            page.get_by_label("category 3, type 1: departure probability after a click", exact=True).input_value()
            == "0.31"
        )
    for bad in ("#nonsense", "#prior=1&click=2&depart=1&type=a&category=b", "#prior=0.5&type=a&type=b"):
        with Open(browser, server.url + "/explorer" + bad) as page:
            until(page, "result !== null && !busy")
            assert "The link contains no valid instance" in page.locator("#trouble").text_content()


def test_files_are_saved_and_loaded(browser, server, tmp_path):
    magazine().save(tmp_path / "magazine.toml")
    magazine().save(tmp_path / "magazine.json")
    (tmp_path / "bad.toml").write_text("prior = [0.5]")
    explorer = opened(browser, server)
    with explorer as page:
        for name in ("magazine.toml", "magazine.json"):
            slide(page, "category 1, type 1: click probability", 0.77)
            page.get_by_label("Load file").set_input_files(tmp_path / name)
            until(page, "state.click[0][0] === 0.85 && !busy && dirty === null")
            assert instance_of(page) == magazine()
        slide(page, "category 2, type 3: click probability", 0.66)
        with page.expect_download() as coming:
            page.get_by_text("Save as TOML").click()
        coming.value.save_as(tmp_path / "saved.toml")
        assert coming.value.suggested_filename == "instance.toml"
        saved = dp.Instance.load(tmp_path / "saved.toml")
        assert saved == instance_of(page)
        assert saved.click[1, 2] == 0.66
        page.get_by_label("Load file").set_input_files(tmp_path / "bad.toml")
        page.get_by_text("bad.toml: The instance lacks the field 'click'.").wait_for()
        assert instance_of(page) == saved
        explorer.errors.clear()  # the browser logs the rejected request


def test_the_explorer_is_usable_by_keyboard_and_fully_labelled(browser, server):
    with opened(browser, server) as page:
        page.get_by_label("category 1, type 1: click probability", exact=True).focus()
        changed(page, lambda: page.keyboard.press("ArrowRight"))
        assert instance_of(page).click[0, 0] == pytest.approx(0.81)
        nameless = page.evaluate(
            "[...document.querySelectorAll('input')].filter(e => !e.ariaLabel && !e.labels.length).length"
        )
        assert nameless == 0
        assert page.locator("svg:not([aria-label])").count() == 0


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_pages_link_to_each_other(browser, server, width, scheme):
    with opened(browser, server, width=width, scheme=scheme) as page:
        page.get_by_role("link", name="Dashboard").click()
        page.locator("#tiles").get_by_text("active users").wait_for()
        page.get_by_role("link", name="Explorer").click()
        until(page, "result !== null && !busy")
