"""Tables in Markdown and the plot, from the kept results."""

import json
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import departing as dp
from benchmarks.peer_learners import instances, study
from benchmarks.peer_learners.block import Block
from benchmarks.peer_learners.settings import SETTINGS
from departing.plotting.figures import GREY, INK, PALETTE, save, tidy
from departing.simulation.regret_curve import log_checkpoints

PAGE = Path(__file__).parents[2] / "docs" / "limitations" / "peers.md"
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "peers.png"
LABELS = {
    "vw-epsilon-click": "VW, epsilon-greedy, click",
    "vw-bag-click": "VW, bagging, click",
    "vw-epsilon-return": "VW, epsilon-greedy, return",
    "vw-bag-return": "VW, bagging, return",
    "vw-rnd-return": "VW, RND, return",
    "thompson-mabwiser": "MABWiser, Thompson (no context)",
    "linucb-click": "MABWiser, LinUCB, click",
    "linucb-return": "MABWiser, LinUCB, return",
    "ppo": "SB3, PPO",
    "thompson-fixed": "departing, Thompson (no context)",
    "lattice": "departing, LatticeUCB",
    "bayes": "departing, Bayes",
}
# Lines of the plot: peer, colour, style.
LINES = (
    ("vw-epsilon-click", PALETTE[1], "-"),
    ("vw-bag-click", PALETTE[1], "--"),
    ("vw-rnd-return", PALETTE[1], ":"),
    ("linucb-click", PALETTE[2], "-"),
    ("thompson-mabwiser", PALETTE[2], ":"),
    ("ppo", PALETTE[3], "-"),
    ("lattice", PALETTE[0], "--"),
    ("bayes", PALETTE[0], "-"),
)
# In the first instance of each class a fixed category happens to be optimal.
COLUMNS = {
    "": ["blog", "hard", *(f"{c}/1" for c in instances.CLASSES)],
    ", first instances": [f"{c}/0" for c in instances.CLASSES],
}
FEW = 10  # runs; a cell with fewer of them says how many


def curves(peer, name):
    """Return the regret of all runs at the checkpoints, `[runs, C]`."""
    runs = study.load(peer)["runs"].get(name, {})
    return np.array([run["regret"] for run in runs.values()])


def _cells(peer, names, at, show):
    """Return one cell for each instance: `show` of the regrets of the runs, `[runs]`."""
    i = int(np.searchsorted(log_checkpoints(instances.USERS), at))
    found = [curves(peer, name) for name in names]
    return [show(each[:, i]) if len(each) else "" for each in found]


def _few(regrets):
    return f" ({len(regrets)})" if len(regrets) < FEW else ""


def _mean(regrets):
    return f"{regrets.mean():,.0f}{_few(regrets)}"


def _mean_and_error(regrets):
    if len(regrets) == 1:
        return _mean(regrets)
    return f"{regrets.mean():,.0f} ± {regrets.std(ddof=1) / np.sqrt(len(regrets)):,.0f}{_few(regrets)}"


def _largest(regrets):
    return f"{regrets.max():,.0f}{_few(regrets)}"


@cache
def _losses(name):
    """Return the loss per user of the uniform, the best fixed and the greedy policy, the instance being known."""
    instance, best = instances.instance(name), instances.optimum(name)[0]
    block = Block(instance)
    uniform = block.value(np.full((len(block.states), instance.n_categories), 1 / instance.n_categories))
    greedy = dp.evaluate(instance, "greedy").value
    return [best - value for value in (uniform, instance.best_fixed[1], greedy)]


def _references(names, users):
    """Return rows of policies that do not learn."""
    labels = ("uniformly random", "best fixed category", "greedy policy of the known instance")
    losses = np.array([_losses(name) for name in names]).T
    return [[label, *(f"{max(x, 0) * users:,.0f}" for x in row)] for label, row in zip(labels, losses, strict=True)]


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _peers(names):
    """Return the peers and learners with runs on any of these instances."""
    return [peer for peer in LABELS if any(study.load(peer)["runs"].get(name) for name in names)]


def _times(names):
    """Return rows of mean CPU seconds per run."""
    rows = []
    for peer in _peers(names):
        runs = study.load(peer)["runs"]
        cells = [[run["cpu"] for run in runs.get(name, {}).values()] for name in names]
        rows.append([LABELS[peer], *(f"{np.mean(cell):.1f}" if cell else "" for cell in cells)])
    return rows


def _online():
    """Return rows that compare block updates with one update after every step."""
    rows = []
    for peer in LABELS:
        online = study.load(f"{peer}@online")["runs"]
        for name, runs in online.items():
            i = int(np.searchsorted(log_checkpoints(instances.USERS), study.ONLINE_USERS))
            by_step = np.array([run["regret"][-1] for run in runs.values()])
            by_block = curves(peer, name)[:, i] if len(curves(peer, name)) else np.array([np.nan])
            cpu = np.mean([run["cpu"] for run in runs.values()])
            cells = [_mean_and_error(by_block), _mean_and_error(by_step), str(len(by_step)), f"{cpu:.1f}"]
            rows.append([LABELS[peer], name, *cells])
    return rows


def all_tables():
    """Return the tables of the page by name."""
    tables, all_names = {}, instances.names()
    for group, names in COLUMNS.items():
        for users, show in ((10**3, _mean), (10**4, _mean), (10**6, _mean_and_error)):
            rows = [[LABELS[peer], *_cells(peer, names, users, show)] for peer in _peers(names)]
            tables[f"regret, {users:,} users{group}"] = _table(["", *names], [*_references(names, users), *rows])
        rows = [[LABELS[peer], *_cells(peer, names, instances.USERS, _largest)] for peer in _peers(names)]
        tables[f"largest regret{group}"] = _table(["", *names], rows)
    tables["CPU time"] = _table(["", *COLUMNS[""]], _times(COLUMNS[""]))
    if online := _online():
        columns = ["peer", "instance", "blocks", "every step", "runs, every step", "CPU seconds per run, every step"]
        tables["online"] = _table(columns, online)
    settings = [[LABELS[peer], f"`{json.dumps(SETTINGS[peer])}`"] for peer in _peers(all_names) if peer in SETTINGS]
    return tables | {"settings": _table(["peer", "setting"], settings)}


def write_page(path=PAGE):
    """Replace the tables of the page that have results, each between two comments with its name; draw the plot."""
    page = path.read_text(encoding="utf-8")
    for name, table in all_tables().items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = page.split(start)
        page = before + start + "\n\n" + table + "\n\n" + end + rest.split(end)[1]
    path.write_text(page, encoding="utf-8")
    plot()


def plot(path=IMAGE):
    """Draw the mean regret curves on the two examples, with the lower bound; narrow, to be legible on a phone."""
    figure, at = Figure(figsize=(6.4, 10), layout="constrained"), log_checkpoints(instances.USERS)
    for axes, name in zip(figure.subplots(2, 1), ("blog", "hard"), strict=True):
        tidy(axes)
        for peer, colour, style in LINES:
            if len(runs := curves(peer, name)):
                width = 2.6 if peer == "bayes" else 1.6
                axes.plot(at, runs.mean(axis=0), color=colour, linestyle=style, linewidth=width, label=LABELS[peer])
        fixed = instances.optimum(name)[0] - instances.instance(name).best_fixed[1]
        axes.plot(at, at * fixed, color=GREY, linewidth=1.2, linestyle="--", label="best fixed category")
        bound = dp.regret_bound(instances.instance(name), instances.USERS)
        axes.plot(bound.curve_users, bound.curve, color=INK, linewidth=1.2, label="lower bound, see text")
        axes.set(xscale="log", yscale="log", xlim=(10, at[-1]), ylim=(0.3, None))
        axes.set_title(f"{name}: mean regret (clicks)", loc="left", fontsize=12)
    axes.set_xlabel("users", fontsize=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False, fontsize=9.5)
    return save(figure, path)
