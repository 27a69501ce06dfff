"""Formulas of the paper as printed; the checks compare them with independent computations.

Arguments follow the paper: `p` is a click probability, `depart` the probability Λ of a departure after a no-click, and
`epsilon` the paper's ε. They take and return floats, and fractions where the formula is rational.
"""
