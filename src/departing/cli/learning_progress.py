"""Progress of learners and studies on a terminal: users or runs, regret so far, and time left."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import log, sqrt
from time import perf_counter
from typing import TYPE_CHECKING, Any

from departing.cli.output import progress_bars
from departing.formatting import format_clicks, format_count, format_time
from departing.studies.definition import Job
from departing.studies.results import Record

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

Clock = Callable[[], float]
HALF_DECADE = sqrt(10.0)
# Seconds and users before the first estimate. An earlier one would be one of the start-up and of blocks of one user.
FIRST_SECONDS, FIRST_USERS = 1.0, 250
REFRESH = 0.1  # seconds between two updates of a bar
MAX_ROWS = 12  # learners of a study with a row each; more do not fit a small terminal


class TimeLeft:
    """Estimate of the time that a run still takes, from the times at which it passed its checkpoints.

    Blocks of learners grow with the users so far, so a decade of users takes about the same time as the one before,
    and the time grows with the logarithm of the users. Engines that handle single users take time in proportion to
    them, and learners with growing tables lie in between. So the time per logarithm of users is taken to grow like
    users to the power p; the last two half decades give p, between 0 and 1. From half of the decades on it was within
    a factor of 2 on all runs tried (Bayes, LatticeUCB, Thompson sampling in blocks and in steps).
    """

    def __init__(self, users: int, clock: Clock = perf_counter) -> None:
        self._users, self._clock = users, clock
        self._started = clock()
        self._logs: list[float] = []
        self._times: list[float] = []
        self._left: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._started

    def reached(self, users: int) -> None:
        """Record that the run has passed a checkpoint, and estimate again."""
        self._logs.append(log(users))
        self._times.append(self.elapsed)
        self._left = self._estimate(users)

    def seconds(self) -> float | None:
        """Seconds left, None before the first estimate."""
        if self._left is None:
            return None
        return max(self._left - (self.elapsed - self._times[-1]), 0.0)

    def _at(self, users: float) -> float:
        """Time at which the run had `users` users, interpolated."""
        i = bisect_left(self._logs, log(users))
        if i == 0:
            return self._times[0]
        part = (log(users) - self._logs[i - 1]) / (self._logs[i] - self._logs[i - 1])
        return self._times[i - 1] + part * (self._times[i] - self._times[i - 1])

    def _estimate(self, users: int) -> float | None:
        early = self._times[-1] < FIRST_SECONDS or users < FIRST_USERS
        if early or self._logs[0] > log(users / 10):
            return None
        middle = self._at(users / HALF_DECADE)
        before, last = middle - self._at(users / 10), self._times[-1] - middle
        if before <= 0 or last <= 0:
            return self._left
        power = min(max(log(last / before) / log(HALF_DECADE), 0.0), 1.0)
        factor = self._users / users
        if power < 1e-3:
            return last * log(factor) / log(HALF_DECADE)
        return float(last * (factor**power - 1) / (1 - HALF_DECADE**-power))


class LearningProgress:
    """Progress of the runs of one learner; without `bars`, no output and no regret so far."""

    def __init__(self, bars: "Bars | None", users: int, runs: int, clock: Clock = perf_counter) -> None:
        self._bars, self._users, self._runs, self._clock = bars, users, runs, clock
        self._time: TimeLeft | None = None
        self._durations: list[float] = []
        self._final: list[float] = []
        self._done, self._regret, self._shown = 0, 0.0, 0.0
        self._task: TaskID | None = None  # last, because the status is shown from now on
        if bars is not None:
            self._task = bars.add_task("planning", total=None, status=self.status)

    @property
    def regret_progress(self) -> Callable[[int, float], None] | None:
        """Argument of `simulate`: None without a terminal, so that no policy is evaluated during the run."""
        return None if self._bars is None else self._reached

    def start(self) -> None:
        """Start the next run."""
        self._time, self._done, self._regret = TimeLeft(self._users, self._clock), 0, 0.0
        number = len(self._durations) + 1
        self._update(description="learning" if self._runs == 1 else f"run {number} of {self._runs}")

    def advance(self, users: int) -> None:
        """Add finished users of the run."""
        self._done += users
        if self._bars is not None and self._clock() - self._shown > REFRESH:
            self._shown = self._clock()
            self._show_share()

    def finish(self) -> None:
        """End the run."""
        if self._time is not None:
            self._durations.append(self._time.elapsed)
            self._final.append(self._regret)
            self._time = None

    def seconds(self) -> float | None:
        """Seconds left of all runs; runs that have not started take as long as the others."""
        left = None if self._time is None else self._time.seconds()
        if self._time is None or left is None:
            return None
        durations = self._durations or [self._time.elapsed + left]
        waiting = self._runs - len(self._durations) - 1
        return left + waiting * sum(durations) / len(durations)

    def status(self) -> str:
        """Users, regret and time left in one line."""
        if self._time is None:
            return ""  # before the first run, or after the last
        parts = [format_count(self._done, "user"), f"regret {format_clicks(self._regret)}"]
        if self._final:
            parts.append(f"mean of {format_count(len(self._final), 'run')} {format_clicks(_mean(self._final))}")
        return ", ".join([*parts, *_left(self.seconds())])

    def _reached(self, users: int, regret: float) -> None:
        assert self._time is not None
        self._time.reached(users)
        self._regret = regret
        self._show_share()

    def _show_share(self) -> None:
        """Set the bar to the share of the time, not of the users: most users are in the last blocks."""
        left = None if self._time is None else self._time.seconds()
        if self._time is not None and left is not None:
            share = self._time.elapsed / (self._time.elapsed + left)
            self._update(completed=(len(self._durations) + share) / self._runs, total=1.0)

    def _update(self, **fields: Any) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, **fields)


class StudyProgress:
    """Progress of a study: one row for each learner with its mean regret, and one for all runs with the time left."""

    def __init__(
        self, bars: "Bars | None", learners: Sequence[str], bound: bool = False, clock: Clock = perf_counter
    ) -> None:
        self._bars, self._bound, self._clock = bars, bound, clock
        self._rows: dict[str, TaskID] = {}
        self._missing: Counter[tuple[str, str]] = Counter()  # runs by learner and group
        self._started = self._finished = clock()  # the start of all runs, and the end of the last one
        self._left: float | None = None  # seconds, at the end of the last run
        self._done = 0
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)  # by learner and group, learner, all
        self._regret: dict[str, list[float]] = defaultdict(list)
        if bars is not None:
            for name in learners if len(learners) <= MAX_ROWS else ():
                self._rows[name] = bars.add_task(
                    name, total=None, visible=False, status=lambda name=name: self.of(name)
                )
            self._all = bars.add_task("planning", total=None, status=self.status)

    def start(self, missing: Sequence[Job]) -> None:
        """Record the runs to execute; their optima are known."""
        self._missing = Counter(_keys(job)[0] for job in missing)
        self._started = self._clock()
        if self._bars is None:
            return
        for name, runs in Counter(job.learner.name for job in missing).items():
            if name in self._rows:
                self._bars.update(self._rows[name], total=runs, visible=True)
        self._bars.update(self._all, description="all", total=len(missing))

    def finish(self, job: Job, record: Record | None) -> None:
        """Add a finished run; a failed one has no record."""
        keys = _keys(job)
        self._missing[keys[0]] -= 1
        self._done += 1
        if record is not None:
            for key in keys:
                self._seconds[key].append(record["seconds"])
            self._regret[job.learner.name].append((record["regret"] or record["realised"])[-1])
        self._finished = self._clock()
        self._left = self._estimate()
        if self._bars is not None:
            self._bars.advance(self._all)
            if job.learner.name in self._rows:
                self._bars.advance(self._rows[job.learner.name])

    def seconds(self) -> float | None:
        """Seconds left, None before the first run has finished."""
        return None if self._left is None else max(self._left - (self._clock() - self._finished), 0.0)

    def _estimate(self) -> float | None:
        """Seconds left: a missing run takes as long as the finished ones of its learner and group, if there are any.

        The elapsed time over the work that is done measures the parallelism, whichever backend executes the runs.
        """
        if not self._seconds[()]:
            return None
        work = 0.0
        for (learner, group), runs in self._missing.items():
            known = next(key for key in ((learner, group), (learner,), ()) if self._seconds[key])
            work += runs * _mean(self._seconds[known])
        return (self._finished - self._started) * work / max(sum(self._seconds[()]), 1e-9)

    def of(self, learner: str) -> str:
        """Runs of a learner, and their mean regret."""
        regret = self._regret[learner]
        return f"{format_count(len(regret), 'run')}, mean regret {format_clicks(_mean(regret))}" if regret else ""

    def status(self) -> str:
        """Runs and time left of the study in one line."""
        missing = self._missing.total()
        if self._bound and self._done and not missing:
            return "computing the lower bounds"
        total = self._done + missing
        return ", ".join([f"{self._done} of {format_count(total, 'run')}", *_left(self.seconds())]) if total else ""


def _keys(job: Job) -> tuple[tuple[str, str], tuple[str], tuple[()]]:
    """Keys under which the duration of a run is stored, the most specific first."""
    return (job.learner.name, job.case.group), (job.learner.name,), ()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _left(seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"{format_time(seconds)} left"]


@contextmanager
def learning_progress(quiet: bool, users: int, runs: int) -> Iterator[LearningProgress]:
    """Progress of runs on stderr if it is a terminal and the command is not `quiet`."""
    with progress_bars(quiet, with_status=True) as bars:
        yield LearningProgress(bars, users, runs)


@contextmanager
def study_progress(quiet: bool, learners: Sequence[str], bound: bool) -> Iterator[StudyProgress]:
    """Progress of a study on stderr if it is a terminal and the command is not `quiet`."""
    with progress_bars(quiet, with_status=True) as bars:
        yield StudyProgress(bars, learners, bound)
