"""Tables in Markdown and the plot, from the kept results."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import departing as dp
from benchmarks.peer_learners import instances, study
from benchmarks.peer_learners.block import Block
from benchmarks.peer_learners.settings import SETTINGS
from departing.plotting.figures import GREY, INK, PALETTE, panels, save
from departing.simulation.regret_curve import log_checkpoints

PAGE = Path(__file__).parents[2] / "docs" / "limitations" / "peers.md"
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "peers.png"
LABELS = {
    "vw-epsilon-click": "VW, epsilon-greedy, click",
    "vw-bag-click": "VW, bagging, click",
    "vw-rnd-click": "VW, RND, click",
    "vw-epsilon-return": "VW, epsilon-greedy, return",
    "vw-bag-return": "VW, bagging, return",
    "vw-rnd-return": "VW, RND, return",
    "thompson-mabwiser": "MABWiser, Thompson, no context",
    "linucb-click": "MABWiser, LinUCB, click",
    "lints-click": "MABWiser, LinTS, click",
    "linucb-return": "MABWiser, LinUCB, return",
    "lints-return": "MABWiser, LinTS, return",
    "ppo": "SB3, PPO",
    "thompson-fixed": "departing, Thompson over fixed categories",
    "lattice": "departing, LatticeUCB",
    "bayes": "departing, Bayes",
}
# Lines of the plot: peer, colour, style, label.
LINES = (
    ("vw-epsilon-return", PALETTE[1], "-", "VW, epsilon-greedy, return"),
    ("vw-bag-return", PALETTE[1], "--", "VW, bagging, return"),
    ("vw-rnd-return", PALETTE[1], ":", "VW, RND, return"),
    ("linucb-click", PALETTE[2], "-", "MABWiser, LinUCB, click"),
    ("lints-return", PALETTE[2], "--", "MABWiser, LinTS, return"),
    ("thompson-mabwiser", PALETTE[2], ":", "MABWiser, Thompson, no context"),
    ("ppo", PALETTE[3], "-", "SB3, PPO"),
    ("lattice", PALETTE[0], "--", "departing, LatticeUCB"),
    ("bayes", PALETTE[0], "-", "departing, Bayes"),
)
COLUMNS = {"blog": ["blog"], "hard": ["hard"]} | {c: [f"{c}/0", f"{c}/1"] for c in instances.CLASSES}


def curves(peer, name):
    """Return the regret of all runs at the checkpoints, `[runs, C]`."""
    runs = study.load(peer)["runs"].get(name, {})
    return np.array([run["regret"] for run in runs.values()])


def _cells(peer, at, show):
    """Return one cell for each column: `show` of the means over the instances of each seed, `[seeds]`."""
    i = int(np.searchsorted(log_checkpoints(instances.USERS), at))
    cells = []
    for names in COLUMNS.values():
        found = [curves(peer, name) for name in names]
        ready = all(len(each) for each in found)
        fewest = min(map(len, found))
        cells.append(show(np.mean([each[:fewest, i] for each in found], axis=0)) if ready else "")
    return cells


def _mean(regrets):
    return f"{regrets.mean():,.0f}"


def _mean_and_error(regrets):
    error = regrets.std(ddof=1) / np.sqrt(len(regrets)) if len(regrets) > 1 else np.nan
    return f"{regrets.mean():,.0f} ± {error:,.0f}"


def _references(users):
    """Return rows of the uniform and the best fixed policy."""
    rows = {"uniformly random": [], "best fixed category": []}
    for names in COLUMNS.values():
        losses = []
        for name in names:
            instance, best = instances.instance(name), instances.optimum(name)[0]
            block = Block(instance)
            uniform = np.full((len(block.states), instance.n_categories), 1 / instance.n_categories)
            losses.append((best - block.value(uniform), best - instance.best_fixed[1]))
        for row, loss in zip(rows.values(), np.mean(losses, axis=0), strict=True):
            row.append(f"{max(loss, 0) * users:,.0f}")
    return rows


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _peers():
    return [peer for peer in LABELS if study.load(peer)["runs"]]


def _largest():
    """Return rows of the largest regret of any run of a column."""
    rows = []
    for peer in _peers():
        found = [[curves(peer, name) for name in names] for names in COLUMNS.values()]
        worst = [max((each[:, -1].max() for each in column if len(each)), default=np.nan) for column in found]
        rows.append([LABELS[peer], *(f"{value:,.0f}" for value in worst)])
    return rows


def _times():
    """Return rows of mean CPU seconds per run."""
    rows = []
    for peer in _peers():
        runs = study.load(peer)["runs"]
        cells = [[run["cpu"] for name in names for run in runs.get(name, {}).values()] for names in COLUMNS.values()]
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
    tables, head = {}, list(COLUMNS)
    for users, show in ((10**3, _mean), (10**4, _mean), (10**6, _mean_and_error)):
        rows = [[name, *cells] for name, cells in _references(users).items()]
        rows += [[LABELS[peer], *_cells(peer, users, show)] for peer in _peers()]
        tables[f"regret, {users:,} users"] = _table(["", *head], rows)
    tables["largest regret"] = _table(["", *head], _largest())
    tables["CPU time"] = _table(["", *head], _times())
    columns = ["peer", "instance", "blocks", "every step", "runs, every step", "CPU seconds per run, every step"]
    tables["online"] = _table(columns, _online())
    settings = [
        [LABELS[peer], f"`{json.dumps(study.load(peer)['setting'])}`"] for peer in _peers() if peer in SETTINGS
    ]
    return tables | {"settings": _table(["peer", "setting"], settings)}


def write_page(path=PAGE):
    """Replace the tables of the page, each between two comments with its name, and draw the plot."""
    page = path.read_text(encoding="utf-8")
    for name, table in all_tables().items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = page.split(start)
        page = before + start + "\n\n" + table + "\n\n" + end + rest.split(end)[1]
    path.write_text(page, encoding="utf-8")
    plot()


def plot(path=IMAGE):
    """Draw the mean regret curves on the two examples, with the lower bound."""
    figure, at = Figure(figsize=(11, 5.2), layout="constrained"), log_checkpoints(instances.USERS)
    for axes, name in zip(panels(figure, 2), ("blog", "hard"), strict=True):
        for peer, colour, style, label in LINES:
            if len(runs := curves(peer, name)):
                width = 2.6 if peer == "bayes" else 1.6
                axes.plot(at, runs.mean(axis=0), color=colour, linestyle=style, linewidth=width, label=label)
        bound = dp.regret_bound(instances.instance(name), instances.USERS)
        axes.plot(bound.curve_users, bound.curve, color=INK, linewidth=1.2, label="lower bound of any learner")
        fixed = instances.optimum(name)[0] - instances.instance(name).best_fixed[1]
        axes.plot(at, at * fixed, color=GREY, linewidth=1.2, linestyle="--", label="best fixed category")
        axes.set(xscale="log", yscale="log", xlim=(10, at[-1]), title=name, xlabel="users", ylim=(0.3, None))
    figure.axes[0].set_ylabel("regret (clicks), mean of the runs")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return save(figure, path)
