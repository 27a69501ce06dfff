"""A slow, obvious reader of event logs, row by row: the reference for `read_log`."""

import hashlib
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

YES = {"1", "true", "t", "yes", "y"}
NO = {"0", "false", "f", "no", "n"}
CLICKED = YES | {"click", "clicked"}, NO | {"no click", "no_click", "no-click", "not clicked"}
DEPARTED = YES | {"depart", "departed", "left"}, NO | {"stay", "stayed"}


def missing(value):
    return value is None or (isinstance(value, str) and not value.strip(" ")) or value != value


def number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def flag(value, words):
    if missing(value):
        return None
    word = str(value).strip(" ").lower()
    if word in words[0] or number(value) == 1:
        return True
    return False if word in words[1] or number(value) == 0 else None


def moment(value):
    """A time as (micro)units from an origin, or None."""
    if isinstance(value, int):
        return value * 10**6
    if isinstance(value, datetime):
        value = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if number(value) is not None and math.isfinite(number(value)):
        return round(number(value) * 10**6)
    return None


def text_moment(value):
    if not re.match(r"\d{4}-\d\d-\d\d", value):
        return None
    try:
        return moment(datetime.fromisoformat(value.strip()))
    except ValueError:
        return None


def shuffled(user, events, names, inactive, departs_by_inactivity):
    """The sorted events of a user with those at the same time in the order of MD5 hashes."""
    numbers, keyed = Counter(), []
    for event in events:
        what = names.index(event[2]), event[3]
        numbers[what] += 1
        text = f"{numbers[what]} {what[0]} {str(event[3]).lower()} {user}"
        known = event[1] if inactive is None else event[1] == 2
        keyed.append((event[0], known, int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little"), event))
    keyed.sort(key=lambda key: key[:3])
    no_clicks = [key for key in keyed if key[0] == keyed[-1][0] and not key[3][3]]
    if departs_by_inactivity and no_clicks:
        keyed.remove(no_clicks[-1])
        keyed.append(no_clicks[-1])
    return [key[3] for key in keyed]


def read_row_by_row(
    rows,
    *,
    has_departed,
    inactive=None,
    categories=None,
    keep_duplicates=False,
    has_propensity=False,
    horizon=None,
):
    """Read dictionaries with the keys user, time, category, clicked, departed, propensity and others.

    Returns category names, a Counter of (steps, pending steps) as sorted tuples, a Counter of irregularities, and
    all episodes.
    """
    kinds, users, times, until = Counter(), defaultdict(list), [], {}
    texts = [row["time"] for row in rows if isinstance(row["time"], str)]
    clock = sum(text_moment(t) is not None for t in texts) > sum(moment(t) is not None for t in texts)
    if clock:
        moments = [t for t in texts if text_moment(t) is not None]
        zoned = [t for t in moments if re.search(r":[0-9.]+\s*(z|[+-]\d\d(:?\d\d)?)$", t.lower())]
        if zoned:
            kinds["time without a zone among times with a zone"] += len(moments) - len(zoned)
    for row in rows:
        time = (text_moment if clock and isinstance(row["time"], str) else moment)(row["time"])
        if time is not None:
            times.append(time)
        clicked = flag(row["clicked"], CLICKED)
        reason = (
            ("user is missing" if missing(row["user"]) else None)
            or ("time is missing" if missing(row["time"]) else None)
            or ("time cannot be parsed" if time is None else None)
            or ("category is missing" if missing(row["category"]) else None)
            or (
                "category is not in `categories`"
                if categories is not None and str(row["category"]) not in categories
                else None
            )
            or ("clicked is missing" if missing(row["clicked"]) else None)
            or ("clicked cannot be parsed" if clicked is None else None)
        )
        if reason:
            kinds[reason] += 1
            if time is not None and not missing(row["user"]):
                until[row["user"]] = max(until.get(row["user"], time), time)
            continue
        departed = flag(row["departed"], DEPARTED) if has_departed else None
        if has_departed and departed is None:
            kinds["departed is missing" if missing(row["departed"]) else "departed cannot be parsed"] += 1
        propensity = number(row["propensity"]) if has_propensity and not missing(row["propensity"]) else None
        if has_propensity and missing(row["propensity"]):
            kinds["propensity is missing"] += 1
        elif has_propensity and not (propensity is not None and 0 < propensity <= 1):
            kinds["propensity is not in (0, 1]"] += 1
            propensity = None
        place = {False: 0, None: 1, True: 2}[departed]
        users[row["user"]].append(
            (time, place, str(row["category"]), clicked, propensity, tuple(map(str, row.values())))
        )
    names = list(categories) if categories is not None else sorted({e[2] for mine in users.values() for e in mine})
    histories, episodes = Counter(), []
    for user in sorted(users):
        mine, seen = [], set()
        inf = math.inf
        for event in sorted(
            users[user], key=lambda e: (e[0], e[1], names.index(e[2]), e[3], inf if e[4] is None else e[4])
        ):
            if not keep_duplicates and event[-1] in seen:
                kinds["duplicate row"] += 1
                continue
            seen.add(event[-1])
            mine.append(event)
        leaving = [i for i, event in enumerate(mine) if event[1] == 2]
        if leaving:
            kinds["event after the user's departure"] += len(mine) - leaving[0] - 1
            mine = mine[: leaving[0] + 1]
        same = Counter(event[0] for event in mine)
        kinds["same time as another event of the user"] += sum(n for n in same.values() if n > 1)
        recent = inactive is not None and max(times) - mine[-1][0] < inactive
        later = not leaving and not recent and user in until and until[user] > mine[-1][0]
        kinds["rejected row after the user's last event"] += later
        finished = len(mine) == horizon
        recent, later = recent or finished, later and not finished
        gone = bool(leaving) or (inactive is not None and not later and not recent)
        mine = shuffled(user, mine, names, inactive, gone and not leaving)
        gone = gone and not (leaving and recent)  # no evidence in the last period
        steps = []
        for i, (time, place, category, clicked, propensity, _) in enumerate(mine):
            last = i == len(mine) - 1
            outcome = (3 if gone and last else 0) if clicked else (2 if gone and last else 1)
            known = not (last and place == 1) if inactive is None else max(times) - time >= inactive
            known = known and not (last and finished)
            unknown = not gone and not known and not later
            steps.append((names.index(category), outcome, propensity, 1 if unknown and leaving else unknown))
        episodes.append(steps)
        pending = tuple(sorted((k, o) for k, o, _, unknown in steps if unknown))
        histories[tuple(sorted((k, o) for k, o, _, _ in steps)), pending] += 1
    return names, histories, Counter({kind: n for kind, n in kinds.items() if n}), episodes


def histories_of(log):
    """The histories of a log in the form of `read_row_by_row`."""
    histories = Counter()
    for counts, users, pending in zip(log.counts, log.multiplicity, log.pending, strict=True):
        steps, unknown = (
            tuple((k, o) for k, row in enumerate(table) for o, n in enumerate(row) for _ in range(n))
            for table in (counts, pending)
        )
        histories[steps, unknown] += int(users)
    return histories


def steps_of(log, users=100_000):
    """The episodes of a log in the form of `read_row_by_row`."""
    episodes = []
    for part in log.episodes(users=users):
        for i in range(len(part)):
            assert part.user[i] in (len(episodes) - 1, len(episodes))
            if part.user[i] == len(episodes):
                episodes.append([])
            assert part.step[i] == len(episodes[-1])
            propensity = None if math.isnan(part.propensity[i]) else float(part.propensity[i])
            episodes[-1].append((int(part.category[i]), int(part.outcome[i]), propensity, bool(part.pending[i])))
    return episodes
