from departing.model.examples import blog
from departing.planning.plot.threshold_plot import draw_thresholds, threshold_values
from departing.plotting.figures import render


def test_value_peaks_at_six_steps():
    assert threshold_values(blog(), 1, 0, 12).argmax() == 6


def test_plots_are_reproducible():
    first, second = (render(draw_thresholds(blog(), 1, 0), "png") for _ in range(2))
    assert first == second
    assert first[:8] == b"\x89PNG\r\n\x1a\n"
