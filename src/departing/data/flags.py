"""Flags of a log, clicks and departures, as SQL: known words, numbers, and values named by the caller."""

from collections.abc import Sequence

from departing.model.tables import literal

YES = ("1", "true", "t", "yes", "y")
NO = ("0", "false", "f", "no", "n")
FLAG_WORDS = {
    "clicked": ((*YES, "click", "clicked"), (*NO, "no click", "no_click", "no-click", "not clicked")),
    "departed": ((*YES, "depart", "departed", "left"), (*NO, "stay", "stayed")),
}
WHITESPACE = literal("".join(filter(str.isspace, map(chr, range(0x3001)))))  # U+3000 is the last one of Unicode
# Text that pandas, spreadsheets and dumps of databases write for a missing value.
MISSING_WORDS = (
    *("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "NaT"),
    *("NULL", "Null", "null", "None", "\\N"),
)


def is_missing_text(column: str, words: Sequence[str] = MISSING_WORDS) -> str:
    """Condition for text that is missing: NULL, blank, or one of `words`.

    CASE spares most values the slower tests, AND would not.
    """
    plain, listed = "false", ", ".join(map(literal, ("", *words)))
    if words:
        longest = max(map(len, words))
        plain = f"CASE WHEN strlen({column}) > {longest} THEN false ELSE {column} IN ({listed}) END"
    return (
        f"CASE WHEN {column} BETWEEN '!' AND '~' THEN {plain} "
        f"ELSE {column} IS NULL OR trim({column}, {WHITESPACE}) IN ({listed}) END"
    )


def label(column: str) -> str:
    """A value as text in lower case without surrounding whitespace, in which labels are compared."""
    return f"lower(trim({column}::VARCHAR, {WHITESPACE}))"


def parse_flag(field: str, kind: str, values: Sequence[str] | None, missing: str) -> tuple[str, str]:
    """SQL of a flag as true, false or NULL, and of a number in its place that is neither 0 nor 1.

    If `values` are named, these are true and all others that are not `missing` are false.
    """
    column = f"{field}_"
    number = f"TRY_CAST({column} AS DOUBLE)" if kind == "text" else f"{column}::DOUBLE"
    if values is not None:
        is_true = " OR ".join(is_value(column, number, value) for value in values)
        return f"CASE WHEN {missing} THEN NULL ELSE {is_true} END", "NULL"
    if kind == "boolean":
        return column, "NULL"
    cases = ""
    if kind == "text":
        for value, words in zip(("true", "false"), FLAG_WORDS[field], strict=True):
            cases += f"WHEN {label(column)} IN ({', '.join(map(literal, words))}) THEN {value} "
    flag = f"CASE {cases}WHEN {number} = 1 THEN true WHEN {number} = 0 THEN false END"
    return flag, f"CASE WHEN {flag} IS NULL AND isfinite({number}) THEN {column}::VARCHAR END"


def is_value(column: str, number: str, value: str) -> str:
    """Condition for a value that the caller named: equal as a label, or as a number."""
    condition = f"{label(column)} = {literal(value.strip().lower())}"
    try:
        return f"({condition} OR coalesce({number} = {literal(repr(float(value)))}::DOUBLE, false))"
    except ValueError:
        return condition
