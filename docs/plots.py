"""Draws the pictures of the README and the docs: `python docs/plots.py [MOVIELENS]`.

With the folder of MovieLens latest-small also those made of it. Pictures of learners come from `departing study`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from departing.model.examples import blog, magazine
from departing.planning.plan import plan
from departing.planning.plot.plan_plot import draw
from departing.planning.plot.threshold_plot import draw_beliefs, draw_thresholds
from departing.plotting.figures import save
from departing.policy.schedule import Threshold

IMAGES = Path(__file__).parent.resolve() / "images"
COMMANDS = {  # as the pages have them, and the pictures they make
    "sample-log magazine --users 5e4 --days 60 -o events.parquet": "",
    "fit events.parquet --inactive-after 14days --types 1-4 --picture fitting.png": "fitting.png",
    "fit oulad --types 3 --bootstrap 0 --picture oulad.png": "oulad.png",
}
OF_FILMS = {
    "movielens ml-latest-small --types 3 --depart 0.5 --picture drama.png": "drama.png",
    "movielens ml-latest-small --genres Children,Horror --types 3 --depart 0.5 -o cinema.toml --picture types.png": (
        "types.png"
    ),
    "plan cinema.toml --picture plan.png": "plan.png",
    "learn cinema.toml bayes:types=3 --users 1e4 --picture learn.png": "learn.png",
    "movielens ml-latest-small --genres Children,Horror --depart 0.5 --replay -o replay.toml --picture replay.png": (
        "replay.png"
    ),
}


def draw_by_commands(commands: dict[str, str], prefix: str = "") -> None:
    """Run commands in the folder we are in, and keep the pictures they make."""
    for command, made in commands.items():
        subprocess.run(["departing", *command.split(), "--json"], check=True, stdout=subprocess.DEVNULL)
        if made:
            shutil.copyfile(made, IMAGES / f"{prefix}{made}")


if __name__ == "__main__":
    instance = blog()
    sports, economics = instance.category_index("sports"), instance.category_index("economics")
    best = Threshold(first=sports, steps=6, then=economics)
    IMAGES.mkdir(exist_ok=True)
    save(draw_thresholds(instance, sports, economics), IMAGES / "switching.png", 130)
    save(draw_beliefs(instance, best), IMAGES / "beliefs.png", 130)
    save(draw(plan(magazine())), IMAGES / "plan.png", 110)
    films = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw_by_commands(COMMANDS)
        if films is not None:
            Path("ml-latest-small").symlink_to(films)
            draw_by_commands(OF_FILMS, "movielens-")
