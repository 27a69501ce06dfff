"""The first steps of a policy in words and as a tree in HTML."""

from departing.formatting import first_few
from departing.model.instance import CLICK, Instance
from departing.planning.policy_tree import Branch, policy_tree
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Schedule
from departing.reporting.charts import colour_class
from departing.reporting.page import name_html

DEPTH = 4  # steps of the tree: deeper ones do not fit on a phone
MAX_PHASES = 6  # of a schedule in words


def policy_sentences(policy: Policy, instance: Instance) -> list[str]:
    """The first steps of a policy in words, one sentence per rule.

    >>> from departing.policy.schedule import Threshold
    >>> blog = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["economics", "sports"])
    >>> policy_sentences(Threshold(1, 6, 0), blog)
    ['Show sports 6 times, then economics.']
    """
    names = [" ".join(name.split()) for name in instance.categories]
    if isinstance(policy, Fixed):
        return [f"Always show {names[policy.final_category]}."]
    if isinstance(policy, Schedule):
        times = {1: "once", 2: "twice"}
        phases = [f"{names[a]} {times.get(n, f'{n:,} times')}" for a, n in policy.phases]
        return [f"Show {first_few(phases, MAX_PHASES)}, then {names[policy.final_category]}."]
    root = policy_tree(policy, instance, DEPTH)
    if root.committed:
        return [f"Always show {names[root.category]}."]
    if root.children and _constant(root, root.category):
        return [f"Start with {names[root.category]}, and keep showing it after the first clicks and no-clicks."]
    return [f"Start with {names[root.category]}.", *_rules(root, names)]


def _rules(root: Branch, names: list[str]) -> list[str]:
    """Sentences about the second step, and about the third after a no-click, where policies usually switch."""
    rules = []
    for child in root.children:
        after = "clicks" if child.outcome == CLICK else "does not click but stays"
        same = child.category == root.category
        action = "keep showing" if same else "switch to"
        end = " from then on" if child.committed else ""
        rules.append(f"If the user {after}, {action} {names[child.category]}{end}.")
        if child.outcome != CLICK and not child.committed:
            for third in child.children:
                then = "clicks on" if third.outcome == CLICK else "does not click on"
                verb = "stay with" if third.category == child.category else "show"
                end = " from then on" if third.committed else ""
                shown = names[child.category]
                rules.append(f"If the user then {then} {shown}, {verb} {names[third.category]}{end}.")
    return rules


def policy_tree_html(policy: Policy, instance: Instance, ranks: dict[int, int]) -> str:
    """The first steps of a policy as a tree; `ranks` gives the colour of each category."""
    if isinstance(policy, Schedule):
        phases = [*policy.phases, (policy.final_category, 0)][: MAX_PHASES + 1]
        items = "".join(
            f"<li>{_chip(instance, a, ranks)} <span class='note'>"
            f"{'from then on' if not n else f'{n:,} time' + 's' * (n > 1)}</span></li>"
            for a, n in phases
        )
        return f"<ol class='phases'>{items}</ol>"
    return f"<ul class='tree'>{_branch(policy_tree(policy, instance, DEPTH), instance, ranks)}</ul>"


def _constant(branch: Branch, category: int) -> bool:
    """True if the branch and all branches below it recommend `category`."""
    return branch.category == category and all(_constant(child, category) for child in branch.children)


def _branch(branch: Branch, instance: Instance, ranks: dict[int, int]) -> str:
    outcome = "everyone" if branch.outcome is None else "click" if branch.outcome == CLICK else "no click"
    sign = "start" if branch.outcome is None else "yes" if branch.outcome == CLICK else "no"
    share = "" if branch.outcome is None else f"<span class='note'>{branch.share:.0%} of users</span>"
    constant = bool(branch.children) and _constant(branch, branch.category)
    end = "from then on" if branch.committed else "and keep showing it" if constant else ""
    end = end or ("…" if not branch.children and branch.outcome is not None else "")
    always = f"<span class='note'>· {end}</span>" if end else ""
    below = "".join(_branch(child, instance, ranks) for child in branch.children if not constant)
    return (
        f"<li><div class='node'><span class='outcome {sign}'>{outcome}</span> "
        f"{_chip(instance, branch.category, ranks)} {share} {always}</div>{f'<ul>{below}</ul>' if below else ''}</li>"
    )


def _chip(instance: Instance, category: int, ranks: dict[int, int]) -> str:
    colour = colour_class(ranks.get(category, 99))
    return f"<span class='chip'><i class='{colour}'></i>{name_html(instance.categories[category])}</span>"
