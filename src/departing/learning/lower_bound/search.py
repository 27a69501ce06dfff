"""Search for confusing alternatives: instances that the policies of a solution hardly tell from the true one."""

import numpy as np

from departing.kernels.learning.pricing import highest_minima
from departing.learning.lower_bound.alternative import Alternative
from departing.learning.lower_bound.count_lattice import PolicyGraph
from departing.learning.lower_bound.master import Master, MasterSolution, Row
from departing.learning.lower_bound.parameters import Batch, ParameterSpace
from departing.learning.lower_bound.separation import Comparer, Compromises
from departing.model.instance import Floats

STARTS = 400  # random instances per round, of which the best are improved
PICKED = 12  # of these
REFINED = 4  # rows with the largest multipliers, improved as well
OUTER, INNER = 3, 8  # updates of the compared policies, and Gauss-Newton steps for each
DIFFERENCE = 1e-5  # of the numerical derivatives, in logits
MAX_STEP = 1.5  # logits of one Gauss-Newton step
MIN_MARGIN = 0.02  # of the separation above the bound, relative to it
TINY = 1e-140  # smallest path probability: its square does not underflow
VIOLATION = 0.97  # a row is added if less than this share of its nats is there


class AlternativeSearch:
    """Local search for the rows of a master problem.

    An alternative is the better the fewer nats the policies of the solution give against it and the larger its
    separation is: Gauss-Newton steps decrease Σ users × divergence - barrier × log(separation / bound - 1).
    """

    def __init__(self, master: Master, comparer: Comparer, rng: np.random.Generator) -> None:
        self.master, self.comparer, self._rng = master, comparer, rng
        self.space = ParameterSpace(master.lattice.instance)
        self._barrier = 1.0
        self._vectors: dict[tuple[bytes, ...], Floats] = {}
        self._centre = self.space.batch(self.space.centre[None])

    def find(self, bound: float, solution: MasterSolution, barrier: float) -> list[Row]:
        """Alternatives whose nats the solution does not provide.

        Parameters
        ----------
        bound : float
            Bound that the alternatives must separate.
        solution : MasterSolution
        barrier : float
            Weight of the logarithm of the separation, in nats.

        Returns
        -------
        list of Row
        """
        self._barrier = barrier
        rows = []
        for vector in self._starts(bound, solution):
            improved = self._improve(vector, bound, solution)
            if improved is None:
                continue
            vector, compromises = improved
            row = Row(
                Alternative(self.master.lattice.instance, self.space.instance_at(vector)), compromises.separations
            )
            required = self.master.claim.nats(row.separations, bound)
            if required > 0 and self.master.information(row, solution.users) < VIOLATION * required:
                self._vectors[row.alternative.key] = vector
                rows.append(row)
        return rows

    def _starts(self, bound: float, solution: MasterSolution) -> list[Floats]:
        """Promising random vectors, and those of the rows with the largest multipliers."""
        vectors = self.space.sample(self._rng, STARTS)
        batch = self.space.batch(vectors)
        self._set_policies(solution)
        info = sum((n * self._divergence(graph, batch, p) for graph, p, n in self._playing), np.zeros(STARTS))
        gaps = np.array([max(column.gap, 0.0) for column in self.master.columns])
        values = np.array([
            column.graph.coarse.outcomes(batch.priors, batch.probabilities, batch.fixed)[1]
            for column in self.master.columns
        ])  # fmt: skip
        losses = values.max(axis=0) - values
        margin = self._margins(gaps, losses, bound)
        promising = margin > MIN_MARGIN
        score = np.where(promising, info - self._barrier * np.log(np.maximum(margin, MIN_MARGIN)), np.inf)
        starts: list[Floats] = []
        seen = set()
        for s in np.argsort(score, kind="stable"):
            rival = int(values[:, s].argmax())
            if not np.isfinite(score[s]) or len(starts) == PICKED:
                break
            if rival not in seen:
                seen.add(rival)
                starts.append(vectors[s])
        largest = np.argsort(-solution.multipliers, kind="stable")[:REFINED]
        binding = [self.master.rows[j].alternative.key for j in largest if solution.multipliers[j] > 0]
        return starts + [self._vectors[key] for key in binding if key in self._vectors]

    def _set_policies(self, solution: MasterSolution) -> None:
        """Prepare the policies with users: graph, path probabilities under the instance, users."""
        self._playing = []
        for column, users in zip(self.master.columns, solution.users.tolist(), strict=True):
            if users > 0:
                graph = column.graph.coarse
                centre = self._centre
                paths = graph.outcomes(centre.priors, centre.probabilities, centre.fixed)[0][0]
                self._playing.append((graph, paths, users))

    @staticmethod
    def _divergence(graph: PolicyGraph, batch: Batch, own: Floats) -> Floats:
        paths = graph.outcomes(batch.priors, batch.probabilities, batch.fixed)[0]
        used = own > TINY
        return np.asarray((own[used] * np.log(own[used] / np.maximum(paths[:, used], TINY))).sum(axis=1))

    def _margins(self, gaps: Floats, losses: Floats, bound: float) -> Floats:
        """Separations relative to the bound, less 1, `[S]`, for policies with `gaps[P]` and `losses[P, S]`."""
        own, other = (
            self.master.claim.users / bound,
            self.master.claim.users / (bound * self.master.claim.ratio(bound)),
        )
        return np.asarray(highest_minima(gaps * own, losses * other)[1] - 1)

    def _separates(self, compromises: Compromises, bound: float) -> bool:
        return bool(self._margins(compromises.gaps[:, 0], compromises.gaps[:, 1:], bound)[0] > 0)

    def _improve(self, vector: Floats, bound: float, solution: MasterSolution) -> tuple[Floats, Compromises] | None:
        """Improve a start; None if it does not separate."""
        ratio, comparer, last = self.master.claim.ratio(bound), self.comparer, np.inf
        compromises = comparer.compare(self.space.instance_at(vector), ratio)
        for _ in range(OUTER):
            if not self._separates(compromises, bound):
                return None
            moved, objective = self._descend(vector, bound, compromises)
            after = comparer.compare(self.space.instance_at(moved), ratio)
            while not self._separates(after, bound) and np.abs(moved - vector).max() > 1e-3:
                moved = (moved + vector) / 2  # another policy compromises better than those compared
                after = comparer.compare(self.space.instance_at(moved), ratio)
            vector, compromises = moved, after
            if last - objective < 0.02:
                break
            last = objective
        return (vector, compromises) if self._separates(compromises, bound) else None

    def _descend(self, vector: Floats, bound: float, compromises: Compromises) -> tuple[Floats, float]:
        """Gauss-Newton steps with damping, for the policies that determine the separation."""
        graphs = [self.comparer.lattice.graph(policy).coarse for policy in compromises.policies]
        own = compromises.gaps[:, 0]

        def evaluate(point: Floats, derivatives: bool) -> tuple[float, Floats, Floats]:
            n = len(point)
            points = np.vstack([point, point + DIFFERENCE * np.eye(n)]) if derivatives else point[None]
            batch = self.space.batch(points)
            gradient, curvature, objective = np.zeros(n), np.zeros((n, n)), 0.0
            for graph, paths, users in self._playing:
                other = np.maximum(graph.outcomes(batch.priors, batch.probabilities, batch.fixed)[0], TINY)
                used = paths > 1e-14
                p, q = paths[used], other[0, used]
                objective += users * float((p * np.log(p / q)).sum())
                if derivatives:
                    slope = (other[1:, used] - q) / DIFFERENCE
                    gradient -= users * slope @ (p / q)
                    curvature += users * (slope * (p / q**2)) @ slope.T
            values = np.array([graph.outcomes(batch.priors, batch.probabilities, batch.fixed)[1] for graph in graphs])
            margins = self._margins(own, values[0] - values, bound)
            if margins[0] <= 0:
                return np.inf, gradient, curvature
            objective -= self._barrier * float(np.log(margins[0]))
            if derivatives:
                slope = (margins[1:] - margins[0]) / DIFFERENCE / margins[0]
                gradient -= self._barrier * slope
                curvature += self._barrier * np.outer(slope, slope)
            return objective, gradient, curvature

        objective, gradient, curvature = evaluate(vector, True)
        damping = 1.0
        if not np.isfinite(objective):
            return vector, np.inf
        for _ in range(INNER):
            for _ in range(6):
                if not np.isfinite(curvature).all():
                    return vector, objective
                ridge = damping + 1e-10 * float(curvature.diagonal().max())  # more than the rounding errors
                step = np.linalg.solve(curvature + ridge * np.eye(len(vector)), -gradient)
                step *= min(1.0, MAX_STEP / max(float(np.abs(step).max()), 1e-12))
                moved = np.clip(vector + step, self.space.low, self.space.high)
                value = evaluate(moved, False)[0]
                if value < objective - 1e-9:
                    break
                damping = max(damping, 1e-3) * 5
            else:
                break
            vector, before, damping = moved, objective, max(damping / 5, 1e-6)
            objective, gradient, curvature = evaluate(vector, True)
            if before - objective < 1e-3:
                break
        return vector, objective
