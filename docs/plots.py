"""Draw the plots of the README and the docs: `python docs/plots.py [MOVIELENS]`.

With the folder of MovieLens latest-small, the plots made from it are drawn as well. The plots of learners come from
`departing study`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from doctest import DocTestParser
from pathlib import Path

from departing.model.examples import blog, magazine
from departing.planning.plan import plan
from departing.planning.plot.plan_plot import draw_plan
from departing.planning.plot.threshold_plot import draw_beliefs, draw_thresholds
from departing.plotting.figures import save
from departing.policy.schedule import Threshold

IMAGES = Path(__file__).parent.resolve() / "images"
COMMANDS = {  # as on the pages, and the plots that they write
    "quickstart": "",
    "sample-log magazine --users 5e4 --days 60 -o events.parquet": "",
    "fit events.parquet --inactive-after 14days --types 1-4 --plot fitting.png": "fitting.png",
    "fit oulad --types 3 --bootstrap 0 --plot oulad.png": "oulad.png",
    "learn hard bayes --users 1e6 --bound --plot learning-run.png": "learning-run.png",
}
SHOP_REPORT = (
    "report shop.csv --time ts --segment country,device --reward revenue --unit euro --inactive-after auto "
    "-o shop-report.html"
)
MOVIELENS_COMMANDS = {
    "movielens ml-latest-small --types 3 --depart 0.5 --plot drama.png": "drama.png",
    "movielens ml-latest-small --genres Children,Horror --types 3 --depart 0.5 -o cinema.toml --plot types.png": (
        "types.png"
    ),
    "plan cinema.toml --plot plan.png": "plan.png",
    "learn cinema.toml bayes:types=3 --users 1e4 --plot learn.png": "learn.png",
    "movielens ml-latest-small --genres Children,Horror --depart 0.5 --replay -o replay.toml --plot replay.png": (
        "replay.png"
    ),
}


def run_page(page: str) -> None:
    """Run the Python examples of a page in the current folder."""
    names: dict[str, object] = {}
    for example in DocTestParser().get_examples((IMAGES.parent / page).read_text(encoding="utf-8")):
        exec(example.source, names)


def run_commands(commands: dict[str, str], prefix: str = "") -> None:
    """Run commands in the current folder, and keep the plots they write."""
    for command, plot in commands.items():
        arguments = [sys.executable, "-m", "departing", *command.split(), "--json"]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        if plot:
            shutil.copyfile(plot, IMAGES / f"{prefix}{plot}")


def screenshot(page_file: str, image: str, height: int) -> None:
    """Save the top of a page as Chromium shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": height})
        page.goto(Path(page_file).resolve().as_uri())
        page.screenshot(path=IMAGES / image)
        browser.close()


if __name__ == "__main__":
    instance = blog()
    sports, economics = instance.category_index("sports"), instance.category_index("economics")
    best = Threshold(first=sports, steps=6, then=economics)
    IMAGES.mkdir(exist_ok=True)
    save(draw_thresholds(instance, sports, economics), IMAGES / "switching.png", 130)
    save(draw_beliefs(instance, best), IMAGES / "beliefs.png", 130)
    save(draw_plan(plan(magazine(), gap=1e-3, seconds=600)), IMAGES / "plan.png", 110)
    movielens = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_commands(COMMANDS)
        screenshot("departing-quickstart.html", "report.png", 1085)
        run_page("howto/ab-test.md")
        shutil.copyfile("ab-test.png", IMAGES / "ab-test.png")
        run_page("tutorials/shop.md")
        for name in ("shop-plan.png", "shop-learning.png"):
            shutil.copyfile(name, IMAGES / name)
        run_commands({SHOP_REPORT: ""})
        screenshot("shop-report.html", "shop-report.png", 1085)
        if movielens is not None:
            Path("ml-latest-small").symlink_to(movielens)
            run_commands(MOVIELENS_COMMANDS, "movielens-")
