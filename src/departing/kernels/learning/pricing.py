"""Pricing of all policies on the lattice of counts: expected clicks plus multiples of Kullback-Leibler divergences.

A node stands for the counts of clicks and stays of an active user. Its `weights[M]` are the probabilities of one
history with these counts, by type. A node is expanded, with `child[K, 2]` after a click and after a stay (-1 if
that is impossible), or a leaf, where an upper bound stands for everything that follows.
"""

from math import inf, log

import numpy as np

from departing.kernels.compiling import inner, kernel
from departing.kernels.hash_table import find_slot, row_key


@kernel
def expand_nodes(leaves, go, possible, counts, depth, weights, parent, step, child, slots, multipliers, size, row):
    """Create the children of `leaves[n]` and return the number of nodes.

    `go[K, 2, M]` are the probabilities of a click and of a stay after which the user is active, `possible[K, 2]`
    tells which can happen. `parent` and `step` (2 category + outcome) are one way to reach a node. The arrays must
    have space for 2 K more nodes per leaf; `row[2 K]` is scratch.
    """
    for node in leaves:
        for j in range(row.shape[0]):
            row[j] = counts[node, j]
        for a in range(go.shape[0]):
            for o in range(2):
                if not possible[a, o]:
                    continue
                row[2 * a + o] += 1
                slot = find_slot(slots, counts, row, row_key(row, multipliers))
                if slots[slot] < 0:
                    for j in range(row.shape[0]):
                        counts[size, j] = row[j]
                    for x in range(weights.shape[1]):
                        weights[size, x] = weights[node, x] * go[a, o, x]
                    depth[size], parent[size], step[size] = depth[node] + 1, node, 2 * a + o
                    slots[slot] = size
                    size += 1
                child[node, a, o] = slots[slot]
                row[2 * a + o] -= 1
    return size


@inner
def _step_divergence(weights, belief, here, there):
    """Divergence of the outcome of one step, times the weight of the history.

    `here[4, M]` and `there[4, M]` are the outcome probabilities of the instance and of the alternative.
    """
    total, divergence = 0.0, 0.0
    for x in range(len(weights)):
        total += weights[x]
    for o in range(4):
        p, q = 0.0, 0.0
        for x in range(len(weights)):
            p += weights[x] * here[o, x]
        for y in range(len(belief)):
            q += belief[y] * there[o, y]
        if p > 0.0:
            divergence += p * log(p / (total * q)) if q > 0.0 else inf
    return divergence


@inner
def _update(belief, probabilities, out):
    """Belief after an outcome with these probabilities, `[M]`."""
    total = 0.0
    for y in range(len(belief)):
        out[y] = belief[y] * probabilities[y]
        total += out[y]
    for y in range(len(belief)):
        out[y] = out[y] / total if total > 0.0 else belief[y]  # the divergence of such a step is infinite


@inner
def _belief_divergence(weights, belief, matched, type_divergence, excess):
    """Upper bound on the divergence that not knowing the types adds after a node, times the weight of the history.

    For each type x the smallest of three bounds, where the divergence of the matched types is added elsewhere:
    -log belief[matched[x]]; by convexity the mean of `excess[x, y]`, by how much more x differs from y than from its
    match; and the smallest sum of -log belief[y] and `type_divergence[x, y]`, the divergence of x and y.
    """
    bound = 0.0
    for x in range(len(weights)):
        if weights[x] <= 0.0:
            continue
        least, mean = -log(belief[matched[x]]) if belief[matched[x]] > 0.0 else inf, 0.0
        for y in range(len(belief)):
            if belief[y] > 0.0:
                least = min(least, type_divergence[x, y] - log(belief[y]))
                mean += belief[y] * excess[x, y]
        bound += weights[x] * min(least, mean)
    return bound


@kernel
def add_divergences(
    start, end, parent, step, weights, here, prior, there, matched, type_divergence, excess, belief, divergence, tail
):
    """Fill the beliefs, step divergences and tail bounds of one alternative for the nodes from `start` to `end`.

    `here[K, 4, M]` and `there[K, 4, N]` are the outcome probabilities of the instance and of the alternative, whose
    `prior[N]` is the belief at the root. Results are `belief[n, N]`, `divergence[n, K]` and `tail[n]`.
    """
    for i in range(start, end):
        if i == 0:
            for y in range(len(prior)):
                belief[0, y] = prior[y]
        else:
            _update(belief[parent[i]], there[step[i] // 2, step[i] % 2], belief[i])
        for a in range(here.shape[0]):
            divergence[i, a] = _step_divergence(weights[i], belief[i], here[a], there[a])
        tail[i] = _belief_divergence(weights[i], belief[i], matched, type_divergence, excess)


@kernel
def price(order, child, expanded, reward, leaf, value, category):
    """Backward induction: `value[n]` becomes the largest sum of rewards from each node on, `category[n]` attains it.

    Nodes come in `order`, deepest first; `reward[n, K]` belongs to a step, `leaf[n]` to a leaf.
    """
    for i in order:
        if not expanded[i]:
            value[i] = leaf[i]
            continue
        best, chosen = -inf, 0
        for a in range(reward.shape[1]):
            total = reward[i, a]
            for o in range(2):
                if child[i, a, o] >= 0:
                    total += value[child[i, a, o]]
            if total > best:
                best, chosen = total, a
        value[i], category[i] = best, chosen


@kernel
def compromise(order, child, expanded, rewards, leaves, share, values, category):
    """Backward induction for `share` times the clicks under one instance plus the rest of those under another.

    `rewards[2, n, K]` and `leaves[2, n, K]` are the expected clicks under the two instances, of a step and of the
    same category from a leaf on. `values[2, n]` become those of the best policy, `category[n]` that policy.
    """
    for i in order:
        best = -inf
        for a in range(rewards.shape[2]):
            if expanded[i]:
                first, second = rewards[0, i, a], rewards[1, i, a]
                for o in range(2):
                    if child[i, a, o] >= 0:
                        first += values[0, child[i, a, o]]
                        second += values[1, child[i, a, o]]
            else:
                first, second = leaves[0, i, a], leaves[1, i, a]
            total = share * first + (1.0 - share) * second
            if total > best:
                best = total
                values[0, i], values[1, i], category[i] = first, second, a


@kernel
def path_weights(parent, step, prior, go, weights):
    """Fill `weights[n, M]`, the probability of one history of each node by type, for `go[K, 2, M]`."""
    for x in range(len(prior)):
        weights[0, x] = prior[x]
    for i in range(1, len(weights)):
        for x in range(len(prior)):
            weights[i, x] = weights[parent[i], x] * go[step[i] // 2, step[i] % 2, x]


@kernel
def reachable(child, expanded, category, histories, nodes):
    """Nodes that a policy reaches, in the order of steps, and the number of histories that lead to each.

    `histories[n]` must be zero and is zero again afterwards; `nodes[n]` is scratch. Returns copies.
    """
    n, i = 1, 0
    nodes[0], histories[0] = 0, 1.0
    while i < n:
        node = nodes[i]
        if expanded[node]:
            for o in range(2):
                after = child[node, category[node], o]
                if after >= 0:
                    if histories[after] == 0.0:
                        nodes[n] = after
                        n += 1
                    histories[after] += histories[node]
        i += 1
    number = np.empty(n)
    for i in range(n):
        number[i] = histories[nodes[i]]
        histories[nodes[i]] = 0.0
    return nodes[:n].copy(), number


@kernel
def graph_children(nodes, child, expanded, category, place):
    """Children `[n, 2]` of the nodes of a policy as indices into `nodes`, -1 for none; `place[n]` is scratch."""
    for i in range(len(nodes)):
        place[nodes[i]] = i
    children = np.full((len(nodes), 2), -1)
    for i in range(len(nodes)):
        if expanded[nodes[i]]:
            for o in range(2):
                after = child[nodes[i], category[nodes[i]], o]
                if after >= 0:
                    children[i, o] = place[after]
    return children


@kernel
def policy_divergences(
    number,
    weights,
    expanded,
    category,
    children,
    here,
    prior,
    there,
    matched,
    type_divergence,
    excess,
    from_leaf,
    leaf_category,
):
    """Divergence of one policy from an alternative, in nats; from leaves on an upper bound or an estimate.

    The policy has the nodes of `reachable`: `number[n]` histories, `weights[n, M]`, `expanded[n]`, `category[n]` and
    `children[n, 2]`. The alternative is given by `prior[N]` and `there[K, 4, N]`; `from_leaf[K, M]` is the divergence
    of matched types if one category is recommended from then on. With `leaf_category[M]` the types are known at
    leaves, and the result is an upper bound; if it is empty, leaves keep their category, and it is an estimate.
    """
    n, n_types = weights.shape
    result, belief, known = 0.0, np.empty((n, len(prior))), len(leaf_category) > 0
    for y in range(len(prior)):
        belief[0, y] = prior[y]
    for i in range(n):
        a = category[i]
        if expanded[i]:
            result += number[i] * _step_divergence(weights[i], belief[i], here[a], there[a])
            for o in range(2):
                if children[i, o] >= 0:
                    _update(belief[i], there[a, o], belief[children[i, o]])
        else:
            tail = _belief_divergence(weights[i], belief[i], matched, type_divergence, excess) if known else 0.0
            for x in range(n_types):
                tail += weights[i, x] * from_leaf[leaf_category[x] if known else a, x]
            result += number[i] * tail
    return result


@kernel
def policy_outcomes(expanded, category, children, priors, probabilities, fixed):
    """Probabilities of the observable paths, `[S, 4 n]`, and value, `[S]`, of one policy under S instances.

    `priors[S, M]`, outcome `probabilities[S, K, 4, M]` and values of fixed policies `fixed[S, K, M]`. A path ends
    with a departure, or at a leaf (first of its four entries), from which on the category of the leaf is recommended.
    """
    n, n_types = len(category), priors.shape[1]
    paths, values, reach = np.zeros((len(priors), 4 * n)), np.zeros(len(priors)), np.empty((n, n_types))
    for s in range(len(priors)):
        for i in range(n):
            for x in range(n_types):
                reach[i, x] = priors[s, x] if i == 0 else 0.0
        for i in range(n):
            a = category[i]
            if not expanded[i]:
                for x in range(n_types):
                    paths[s, 4 * i] += reach[i, x]
                    values[s] += reach[i, x] * fixed[s, a, x]
                continue
            for o in range(4):
                total = 0.0
                for x in range(n_types):
                    flow = reach[i, x] * probabilities[s, a, o, x]
                    total += flow
                    if o < 2 and children[i, o] >= 0:
                        reach[children[i, o], x] += flow
                if o in (0, 3):
                    values[s] += total
                if o >= 2:
                    paths[s, 4 * i + o] = total
    return paths, values


@inner
def _minimum(gaps, losses, s, weight):
    """Minimum over policies of weight × gap + (1 - weight) × loss."""
    least = inf
    for i in range(len(gaps)):
        least = min(least, weight * gaps[i] + (1.0 - weight) * losses[i, s])
    return least


@kernel
def highest_minima(gaps, losses):
    """Weights `[S]` in [0, 1] at which the minimum over policies is largest, and these minima `[S]`.

    The minimum is that of weight × `gaps[P]` + (1 - weight) × `losses[P, S]`, a concave function of the weight that
    is largest at 0, at 1, or where the lines of two policies cross.
    """
    weights, levels = np.zeros(losses.shape[1]), np.empty(losses.shape[1])
    for s in range(losses.shape[1]):
        levels[s] = _minimum(gaps, losses, s, 0.0)
        level = _minimum(gaps, losses, s, 1.0)
        if level > levels[s]:
            weights[s], levels[s] = 1.0, level
        for i in range(len(gaps)):
            for j in range(i):
                slope = (gaps[i] - losses[i, s]) - (gaps[j] - losses[j, s])
                if slope == 0.0:
                    continue
                weight = (losses[j, s] - losses[i, s]) / slope
                if 0.0 < weight < 1.0:
                    level = _minimum(gaps, losses, s, weight)
                    if level > levels[s]:
                        weights[s], levels[s] = weight, level
    return weights, levels
