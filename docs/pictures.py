"""Draws the pictures of the README and the docs."""

from pathlib import Path

from departing.figures import render
from departing.model.examples import blog, magazine
from departing.planning.picture import draw
from departing.planning.plan import plan
from departing.policy.schedule import Threshold
from departing.report.pictures import draw_beliefs, draw_switching

IMAGES = Path(__file__).parent / "images"

if __name__ == "__main__":
    instance = blog()
    sports, economics = instance.category("sports"), instance.category("economics")
    best = Threshold(first=sports, steps=6, then=economics)
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "switching.png").write_bytes(render(draw_switching(instance, sports, economics), "png", 130))
    (IMAGES / "beliefs.png").write_bytes(render(draw_beliefs(instance, best), "png", 130))
    (IMAGES / "plan.png").write_bytes(render(draw(plan(magazine())), "png", 110))
