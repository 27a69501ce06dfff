"""A real log in the box: which assessments students handed in, and after which they gave up.

Made of the Open University Learning Analytics dataset (CC BY 4.0) by scripts/make_oulad.py; OULAD-LICENCE.txt, which
lies beside the file, says whose it is and what was changed.
"""

from departing.data.log import Log, read_log
from departing.data.sources import OULAD


def oulad(category: str = "category") -> Log:
    """The log of 27,851 students of the Open University: a step for every assessment that was due to one.

    A user is a student in one presentation of a module. A click is an assessment handed in, a departure is to
    unregister before the next one is due. The column `category` says how the assessment is marked, by a tutor (TMA)
    or by the computer (CMA); the column `module` can be had instead.

    >>> oulad()
    <Log of 27,851 users, 22,521 of them censored, with 217,223 events in 2 categories, 493 distinct counts>
    """
    return read_log(OULAD, category=category)
