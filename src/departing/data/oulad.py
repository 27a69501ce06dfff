"""Bundled dataset: assessments submitted by students of the Open University until they withdrew.

Derived from the Open University Learning Analytics dataset (CC BY 4.0) by scripts/make_oulad.py; OULAD-LICENCE.txt
beside the file states the authors and the changes.
"""

from departing.data.log import Log, read_log
from departing.data.sources import OULAD


def oulad(category: str = "category") -> Log:
    """Read the bundled log of 27,851 students of the Open University.

    A user is a student in one presentation of a module, a step an assessment, a click its submission. A student
    departs by unregistering before the next assessment is due.

    Parameters
    ----------
    category : {"category", "module"}
        Column of the categories: how an assessment is marked, by a tutor (TMA) or by computer (CMA), or the module.

    Returns
    -------
    Log

    Examples
    --------
    >>> oulad()
    <Log of 27,851 users, 22,521 of them censored, with 217,223 events in 2 categories, 493 distinct counts>
    """
    return read_log(OULAD, category=category)
