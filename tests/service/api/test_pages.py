"""The pages in a real browser: contents, requests and speed."""

import itertools
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from statistics import median
from urllib.parse import urlsplit

import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service import messages as m
from helpers.servers import serving
from helpers.services import publish, run, service

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
    with serving(
        tmp_path_factory.mktemp("pages"), "--learn", "--departures", "reported", "--seed", "1", *CATEGORIES
    ) as running:
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
        assert page.get_by_text("Waiting for 50 users").count() == 2
        assert page.get_by_text("a user who returns counts once. So far there are 0, returns included.").count() == 1
        assert page.get_by_text("Waiting for the first recommendation.").is_visible()
        assert page.locator("#departures").get_by_text("not shown yet").count() == 3
        assert not page.locator("#learning").is_visible()
        assert "Start with music" in page.locator("#tree-text").text_content()


@pytest.mark.slow
def test_the_dashboard_shows_the_activity_of_users(browser, server):
    clicks = visit(server, 60)
    for width, scheme in LOOKS:
        with Open(browser, server.url, width, scheme) as page:
            until(page, "now !== null && samples.length > 1 && now.follow_up.over_time.length > 0")
            names, numbers = (page.locator(f".tile {tag}").all_text_contents() for tag in ("span", "b"))
            tiles = dict(zip(names, numbers, strict=True))
            assert tiles["users"] == "60"
            assert tiles["active users"] == "0"
            assert int(tiles["clicks"]) == clicks
            assert page.locator("#clicks circle").count() >= 1
            assert page.locator("#survival polyline").count() == 2  # the curve and its band
            assert page.locator("#rates polyline").count() == 2
            assert page.locator("#latest tr").count() == 8
            assert EVIL in page.locator("#departures").text_content()
            assert page.locator("img").count() == 0
            check_bars(page, "#departures")


def percentages(page, element):
    """The percentages beside the bars of an element; 0 for bars without one."""
    texts = page.locator(f"{element} .what span:last-child").all_text_contents()
    return [float(text.split("%")[0]) if "%" in text else 0.0 for text in texts]


def check_bars(page, element):
    """Check that the width of every bar is its percentage of the track: 100 % fills the track."""
    widths = page.eval_on_selector_all(
        f"{element} .track",
        "tracks => tracks.map(track => [track.clientWidth, track.firstChild.getBoundingClientRect().width])",
    )
    assert widths
    assert min(track for track, _ in widths) > 100
    assert [100 * width / track for track, width in widths] == pytest.approx(percentages(page, element), abs=0.6)


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


def test_all_pages_have_the_same_menu(browser, server):
    menus = []
    for path in ("/", "/experiments", "/explorer"):
        with Open(browser, server.url + path) as page:
            menus.append(page.locator("nav a").all_text_contents())
    assert menus == [["Dashboard", "Experiments", "Explorer"]] * 3


def test_numbers_of_one_figure_have_equal_digits(browser, server):
    with Open(browser, server.url) as page:
        assert page.evaluate("alike(6, 5.337, 6.81)") == ["6.00", "5.34", "6.81"]
        assert page.evaluate("[alike(0, 0), alike(12.34, 9.8), alike(0.0123, 0.001)]") == [
            *(["0", "0"], ["12.3", "9.8"], ["0.0123", "0.0010"]),
        ]
        assert page.evaluate("[range(6.8121, 6.8122), range(6, 7.25)]") == ["6.81", "6.00 to 7.25"]


def test_the_dashboard_says_what_a_learning_service_waits_for(browser, server):
    with Open(browser, server.url) as page:
        until(page, "now !== null")
        figure = "(curve => { now.learning_curve = curve; regret(); return $('learning').textContent; })"
        page.evaluate("now.policy.source = 'initial'")
        assert "compiles the planner, which takes up to a minute." in page.evaluate(f"{figure}([])")
        page.evaluate("now.learning = true; now.policy.source = 'learned'; now.users = 1; now.policy.lower = 1")
        assert "fewer do not tell the regret. So far there is 1." in page.evaluate(f"{figure}([])")
        page.evaluate("now.types = [{name: 'type 0', share: 1, description: 'love news'}]; types(); tiles()")
        assert "fewer do not tell the types" in page.locator("#types-note").text_content()
        assert "love news" not in page.locator("#types").text_content()
        assert page.locator(".tile").last.text_content() == "–clicks per visit under the fitted model"
        point = {"version": 1, "time": 0, "users": 20, "lower": 1, "upper": 2, "expected_regret": 0.1}
        assert "Early values can be far too low" in page.evaluate(f"{figure}([{point}])")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_pages_link_to_each_other(browser, server, width, scheme):
    with opened(browser, server, width=width, scheme=scheme) as page:
        page.get_by_role("link", name="Dashboard").click()
        page.locator("#tiles").get_by_text("active users").wait_for()
        page.get_by_role("link", name="Explorer").click()
        until(page, "result !== null && !busy")


def yesterday(store, users):
    """Create a store with the visits of a day ago, whose outcomes are all known."""
    with service(store, instance=magazine(), explore=1.0) as served:
        served.clock.time = time.time() - 86400.0
        run(visit_and_depart(served, users))


async def visit_and_depart(served, users):
    """Visits in which users depart after category 0 always, after category 1 in half of the cases, else never."""
    rng, order = Random(0), {name: number for number, name in enumerate(magazine().categories)}
    for user in range(users):
        for _ in range(5):
            shown = await served.recommend(m.RecommendRequest(f"user {user}"))
            departed = rng.random() < (1.0, 0.5, 0.0)[order[shown.category]]
            await served.feedback([m.Feedback(shown.event, False, departed)])
            if departed:
                break


def test_the_bars_of_types_and_departures_are_scaled_to_100_percent(browser, tmp_path):
    store = tmp_path / "store.sqlite"
    with ThreadPoolExecutor() as pool:  # the browser has the event loop of this thread
        pool.submit(yesterday, store, 300).result()
    options = ("--instance", "magazine", "--departures", "reported")
    with serving(tmp_path, *options, store=store) as server, Open(browser, server.url) as page:
        until(page, "now !== null")
        for element in ("#types", "#departures"):
            check_bars(page, element)
        shown = {element: percentages(page, element) for element in ("#types", "#departures")}
        assert shown["#types"] == pytest.approx([100 * share for share in magazine().prior], abs=0.6)
        always, half, never = shown["#departures"]
        assert (always, never) == (100, 0)
        assert 35 < half < 65


@pytest.mark.parametrize(
    ("action", "question", "state", "current"),
    [
        ("stop", "End the experiment? New users get the control's policy", "stopped", 0),
        ("complete", "Give the treatment to all new users and end the experiment?", "completed", 1),
    ],
)
def test_an_experiment_is_stopped_or_completed_on_its_page(browser, tmp_path, action, question, state, current):
    options, questions = ("--instance", "magazine", "--departures", "reported"), []
    with serving(tmp_path, *options) as running, running.client() as client:
        client.publish({"kind": "fixed", "category": "sport"})
        client.start_experiment(1, share=0.5)
        with Open(browser, f"{running.url}/experiments") as page:

            def answer(dialog):
                questions.append(dialog.message)
                dialog.dismiss() if len(questions) == 1 else dialog.accept()

            page.on("dialog", answer)
            until(page, "!document.getElementById('actions').hidden")
            page.click(f"#{action}")  # the first question is answered with no
            assert client.experiments()[0]["state"] == "running"
            page.click(f"#{action}")
            until(page, f"document.getElementById('title').textContent.endsWith('({state})')")
            assert page.is_hidden("#ramp")
            assert page.is_visible("#rollback") == (action == "stop")
            assert page.is_visible("#new")
        assert len(questions) == 2
        assert all(each.startswith(question) for each in questions)
        (experiment,) = client.experiments()
        assert experiment["state"] == state
        assert [(each["action"], each["actor"]) for each in experiment["changes"][1:]] == [(action, "page")]
        assert client.policy()["version"] == current
        assert {client.recommend(f"new {i}")["version"] for i in range(20)} == {current}


@pytest.mark.parametrize(("width", "scheme"), LOOKS[1:2])
def test_an_experiment_is_started_ramped_and_rolled_back_on_its_page(browser, tmp_path, width, scheme):
    keys = {"DEPARTING_CLIENT_KEY": "client", "DEPARTING_ADMIN_KEY": "admin"}
    policy = tmp_path / "policy.json"
    dp.plan(magazine(), gap=1.0).save(policy)
    options = ("--instance", "magazine", "--departures", "reported")
    with serving(tmp_path, *options, environment=keys) as running, running.client("admin") as client:
        client.publish({"kind": "fixed", "category": "sport"})
        opened_page, questions = Open(browser, f"{running.url}/experiments", width, scheme), []
        with opened_page as page:
            page.on("dialog", lambda dialog: (questions.append(dialog.message), dialog.accept()))
            page.fill("#key", "admin")
            page.click("#login button")
            until(page, "!document.getElementById('new').hidden")
            opened_page.errors.clear()  # the browser logs the request without a key
            assert page.inner_text("#list-note") == "No experiments yet."
            page.set_input_files("#file", policy)
            until(page, "document.getElementById('published').textContent === 'Published as version 2.'")
            page.select_option("#treatment", "1")
            page.fill("#share", "50")
            page.fill("#window", "0.0003")
            page.fill("#name", EVIL)
            page.click("#start button")
            until(page, "!document.getElementById('about').hidden")
            assert page.inner_text("#title") == f"Experiment 1: {EVIL} (running)"
            assert "waiting for 100 users per arm" in page.inner_text("#summary")
            for i in range(300):
                client.feedback(client.recommend(f"user {i}")["event"], clicked=i % 3 == 0, departed=True)
            until(page, "document.querySelectorAll('#clicks_per_user polygon').length === 1")
            assert "It stays valid however often you look." in page.inner_text("#clicks_per_user-note")
            page.fill("#ramp-share", "80")
            page.click("#ramp")
            until(page, "document.getElementById('changes').children.length === 2")
            page.click("#rollback")
            until(page, "document.getElementById('title').textContent.endsWith('(rolled back)')")
            assert "rolled back" in page.inner_text("#list")
            assert page.is_visible("#new")
        assert questions[:2] == ["Give version 1 to 50 % of new users?", "Give the treatment to 80 % of new users?"]
        changes = client.experiments()[0]["changes"]
        assert [(each["action"], each["actor"]) for each in changes] == [
            (action, "page") for action in ("start", "ramp", "rollback")
        ]


def test_durations_and_shadow_mode_on_the_page_of_experiments(browser, tmp_path):
    options = ("--instance", "magazine", "--departures", "reported", "--shadow")
    with (
        serving(tmp_path, *options) as running,
        running.client() as client,
        Open(browser, f"{running.url}/experiments") as page,
    ):
        until(page, "document.getElementById('control').textContent.includes('the caller')")
        client.call("POST", "/v1/shadow", {"enabled": False})
        until(page, "document.getElementById('control').textContent.includes('as now')")
        client.publish({"kind": "fixed", "category": "sport"})
        client.start_experiment(1, share=0.5, window=86_400.0, return_period=3600.0)
        until(page, "!document.getElementById('about').hidden")
        text = page.inner_text("#ratio")
        assert "within 1 day of the first recommendation" in text
        assert "within 1 hour after that" in text
        spans = page.evaluate("[0.5, 1, 60, 90, 7200, 1209600].map(duration)")
        assert spans == ["0.5 seconds", "1 second", "1 minute", "1.5 minutes", "2 hours", "14 days"]


def test_errors_options_and_rolled_back_versions_on_the_page_of_experiments(browser, tmp_path):
    options = ("--instance", "magazine", "--departures", "reported")
    questions = []
    with serving(tmp_path, *options) as running, running.client() as client:
        for category in ("news", "sport"):
            client.publish({"kind": "fixed", "category": category})
        number = client.start_experiment(2, share=0.5)["experiment"]
        client.change_experiment(number, "rollback")
        opened_page = Open(browser, f"{running.url}/experiments", width=390)
        with opened_page as page:
            page.on("dialog", lambda dialog: (questions.append(dialog.message), dialog.accept()))
            until(page, "!document.getElementById('new').hidden")
            assert page.input_value("#treatment") == ""
            assert "version 2 (uploaded, rolled back): " in page.inner_text("#treatment")
            assert "version 0 (instance, 7.07 clicks per visit): " in page.inner_text("#treatment")
            page.select_option("#treatment", "0")
            page.click("#start button")
            until(page, "document.getElementById('trouble').textContent.includes('are both version 0')")
            with page.expect_response("**/v1/experiments/1"):
                pass
            page.wait_for_timeout(300)
            assert "are both version 0" in page.inner_text("#trouble")  # until the next action
            opened_page.errors.clear()  # the browser logs the rejected request
            page.select_option("#treatment", "2")
            page.click("summary")
            for field, text in (("share", "100"), ("return-period", "2"), ("planned-users", "500"), ("salt", "s")):
                page.fill(f"#{field}", text)
            page.uncheck("#guardrail")
            page.check("#force")
            page.click("#start button")
            until(page, "document.getElementById('title').textContent.endsWith('(running)')")
            assert page.is_hidden("#trouble")
            assert questions[-1].endswith("so there is no readout and no automatic rollback.")
            assert "The share is 100 %" in page.inner_text("#summary")
            assert "match the shares" not in page.inner_text("#ratio")  # there are no users
            started = client.experiments()[0]
            assert (started["return_period"], started["planned_users"], started["salt"]) == (7200, 500, "s")
            assert not started["guardrail"]
            page.click("#stop")
            until(page, "document.getElementById('title').textContent.endsWith('(stopped)')")
            page.click("#rollback")
            until(page, "document.getElementById('title').textContent.endsWith('(rolled back)')")
            assert page.evaluate(
                "[...document.querySelectorAll('#list td:nth-child(2)')].every(td => { const range = new Range(); "
                "range.selectNodeContents(td); return range.getClientRects().length === 1; })"
            )
            assert page.input_value("#treatment") == ""


def explored(store):
    """Create a store with a version that explores."""
    with service(store, ["news", "sports", EVIL], departures_reported=True) as served:
        publish(served, dp.Fixed(1), source="exploration", lower=1.0, upper=2.0)


def test_the_page_of_experiments_of_a_learning_service_offers_the_latest_version(browser, tmp_path):
    with ThreadPoolExecutor() as pool:  # the browser has the event loop of this thread
        pool.submit(explored, tmp_path / "store.sqlite").result()
    with serving(tmp_path, "--learn", "--departures", "reported", *CATEGORIES) as running, running.client() as client:
        version = str(client.publish({"kind": "fixed", "category": "news"})["version"])
        with Open(browser, f"{running.url}/experiments") as page:
            page.on("dialog", lambda dialog: dialog.accept())
            until(page, "!document.getElementById('new').hidden")
            assert page.input_value("#treatment") == ""
            assert "choose a version" in page.inner_text("#treatment")
            assert "exploration" not in page.inner_text("#new")
            page.select_option("#treatment", "latest")
            page.select_option("#control", version)
            page.fill("#holdout", "5")
            page.click("#start button")
            until(page, "document.getElementById('title').textContent.endsWith('(running)')")
            assert "control users (control and holdout)" in page.inner_text("#clicks_per_user-note")
        started = client.experiments()[0]
        assert (started["treatment"], started["control"]) == ("latest", int(version))
