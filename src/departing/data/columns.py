"""Columns of a log: those that the caller names, and others under their usual names."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from departing.model.errors import InputError
from departing.model.names import list_names

OPTIONAL = ("departed", "propensity")
# Usual names in lower case without punctuation, in tiers: the first tier that occurs decides, and two columns of one
# tier are ambiguous. A log with user_id, device_id and session_id has its users in user_id.
USUAL_NAMES = {
    "user": (
        "user userid uid useruid uuid userkey iduser",
        "member memberid visitor visitorid customer customerid client clientid account accountid subscriber "
        "subscriberid reader readerid viewer viewerid listener listenerid student studentid idstudent person "
        "personid player playerid profileid username login",
        "device deviceid cookie cookieid anonymousid distinctid fullvisitorid userpseudoid",
        "session sessionid visit visitid",
    ),
    "time": (
        "time timestamp ts datetime eventtime eventtimestamp eventts eventdatetime timestampms timestamputc "
        "datetimeutc timems tsms unixtime unixtimestamp epoch epochms",
        "at createdat occurredat shownat servedat sentat viewedat clickedat loggedat receivedat eventat "
        "impressiontime requesttime servertime",
        "date day eventdate dt",
    ),
    "category": (
        "category itemcategory categoryname itemcategoryname contentcategory articlecategory productcategory cat",
        "categoryid itemcategoryid catid",
        "genre topic section channel subject department theme itemtype contenttype",
        "arm",
    ),
    "clicked": ("clicked click isclick isclicked clicks wasclicked hasclicked didclick clickflag", "reward"),
    "departed": (
        "departed departure hasdeparted isdeparted departs churned churn haschurned ischurned left hasleft isleft "
        "unsubscribed quit exited",
    ),
    "propensity": (
        "propensity propensityscore pscore prob probability actionprob actionprobability loggingprob "
        "loggingprobability loggingpropensity",
    ),
}


def find_columns(
    named: Mapping[str, str | None], available: Sequence[str], source: str, is_inactivity_given: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Map every field to its column; also return a sentence for every column that was found under a usual name.

    A field whose default name is no column is looked up under its usual names. Optional fields may be absent. The
    column of departures is looked up only if no inactivity period is given, which defines departures already.
    """
    fields = {field: name for field, name in named.items() if name is not None and name in available}
    guessed: list[str] = []
    missing: dict[str, str] = {}
    for field, name in named.items():
        if name is None or field in fields:
            continue
        if name != field or field not in USUAL_NAMES:
            missing[field] = name
            continue
        taken = {*fields.values(), *(other for other in named.values() if other is not None)}
        candidates = usual_columns(field, [each for each in available if each not in taken])
        if field == "departed" and is_inactivity_given:
            candidates = []
        if len(candidates) == 1:
            fields[field] = candidates[0]
            guessed.append(f"Column {candidates[0]!r} is used for {field}.")
        elif field == "propensity" and candidates:
            guessed.append(f"Columns {list_names(candidates)} may hold propensities; none is used, name one.")
        elif candidates:
            raise InputError(
                f"Several columns of {source} may be the {field}: {list_names(candidates)}; name one, such as "
                f"`{field}`={candidates[0]!r}."
            )
        elif field not in OPTIONAL:
            missing[field] = name
    if missing:
        raise InputError(_missing(missing, named, available, [*fields.values()], source))
    return {field: fields[field] for field in named if field in fields}, tuple(guessed)


def usual_columns(
    field: str, columns: Sequence[str], names: Mapping[str, tuple[str, ...]] = USUAL_NAMES
) -> list[str]:
    """The columns of the first tier of usual names that occurs.

    >>> usual_columns("user", ["Device-ID", "session_id", "User ID"]), usual_columns("time", ["date", "x"])
    (['User ID'], ['date'])
    """
    for tier in names[field]:
        found = [each for each in columns if re.sub(r"[\W_]", "", each).lower() in tier.split()]
        if found:
            return found
    return []


def _missing(
    missing: Mapping[str, str],
    named: Mapping[str, str | None],
    available: Sequence[str],
    used: Sequence[str],
    source: str,
) -> str:
    """Sentence about missing columns, with the option that names each."""
    free = [name for name in available if name not in used]
    lowered = {each.lower(): each for each in free}
    labels = {field: "segment" if field.startswith("segment_") else field for field in missing}
    proposed: dict[str, str | None] = {}
    for field, name in missing.items():
        similar = get_close_matches(name.lower(), list(lowered), 1)
        proposed[field] = lowered[similar[0]] if similar else None
    steps = [
        f"`{field}`={'COLUMN' if name is None else repr(name)}"
        for field, name in proposed.items()
        if labels[field] == field
    ]
    if "segment" in labels.values():  # all columns of segments are one argument
        columns = [proposed.get(field, name) for field, name in named.items() if field.startswith("segment_")]
        (one, *others) = [name or "COLUMN" for name in columns]
        steps.append(f"`segment`={','.join([one, *others]) if others or one == 'COLUMN' else repr(one)}")
    pairs = " and ".join(f"{name!r} for {labels[field]}" for field, name in missing.items())
    many = len(missing) > 1
    return (
        f"There {'are no columns' if many else 'is no column'} {pairs} in {source}; its columns are "
        f"{list_names(available)}. Name {'them' if many else 'it'} by {' '.join(steps)}."
    )
