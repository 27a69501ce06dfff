"""Queries and writes of the service, written once for SQLite and PostgreSQL with `?` as the placeholder.

Tables and migrations are in `schema.py`, session settings in `connection.py` and `postgres.py`.

Statements that PostgreSQL alone understands have the prefix `PG_`.
"""

# Keys of the table `meta`.
SCHEMA_KEY = "schema"
RESERVED_EVENTS_KEY = "mark"  # SQLite: the event number up to which numbers may be in use
WRITE_CHECK_KEY = "alive"  # PostgreSQL: written to find out whether the database can be written
PINNED_KEY = "pinned"
SHADOW_KEY = "shadow"
INSTANCE_KEY = "instance"  # the instance with which the service was started
LEARNER_KEY = "learner"
ALLOWED_KEY = "allowed"  # categories that were available when the trainer last published
FIRST_USER_KEY = "first {}"  # the user number from which on the trials of a version count
SQLITE_WORKER = "one"  # ID of the only process that serves from a file, in the table `counters`

# Users. `users_active` indexes `last_seen` of users who have not departed.
USER_BY_NAME = "SELECT state FROM users WHERE name = ?"
USER_BY_NUMBER = "SELECT state FROM users WHERE number = ?"
INACTIVE_USERS = "SELECT state FROM users WHERE departed = 0 AND last_seen < ? ORDER BY last_seen LIMIT ?"
ACTIVE_USERS = "SELECT count(*) FROM users WHERE departed = 0"
USER_TOTALS = "SELECT count(*), coalesce(sum(departed), 0) FROM users"
USER_COUNT = "SELECT count(*) FROM users"
NEXT_USER_NUMBER = "SELECT coalesce(max(number), -1) + 1 FROM users"
PG_FOR_UPDATE = " FOR UPDATE"  # appended to a query
PG_SKIP_LOCKED = " FOR UPDATE SKIP LOCKED"
PG_USER_NUMBERS = "SELECT number, name FROM users WHERE name = ANY(?)"
PG_LOCK_USERS = "SELECT state FROM users WHERE number = ANY(?) ORDER BY number FOR UPDATE"

# Decisions and feedback.
DECISION = "SELECT * FROM decisions WHERE event = ?"
DECISION_BY_CLIENT_EVENT_ID = "SELECT * FROM decisions WHERE key = ?"
CLIENT_EVENT_IDS = "SELECT event, key FROM decisions WHERE number = ? AND key IS NOT NULL"
FORGET_CLIENT_EVENT_IDS = "UPDATE decisions SET key = NULL WHERE number = ?"
NEXT_EVENT = "SELECT coalesce(max(event), 0) + 1 FROM decisions"
FEEDBACK = "SELECT clicked, departed FROM feedback WHERE event = ?"
PG_DECISIONS = "SELECT * FROM decisions WHERE event = ANY(?)"
PG_DECISIONS_BY_CLIENT_EVENT_ID = "SELECT * FROM decisions WHERE key = ANY(?) AND key IS NOT NULL"
PG_FEEDBACK = "SELECT event, clicked, departed FROM feedback WHERE event = ANY(?)"
_HISTORY = (
    "SELECT d.event, d.key, d.time, d.category, f.clicked, f.departed "
    "FROM decisions d LEFT JOIN feedback f USING (event) "
)
USER_HISTORY = f"{_HISTORY} WHERE d.number = ? ORDER BY d.event DESC LIMIT ?"
LATEST_HISTORY = f"{_HISTORY} ORDER BY d.event DESC LIMIT ?"
_LOG = """
SELECT u.name, d.time, d.category, f.clicked, d.propensity, d.version, d.event, d.key, f.departed,
       p.number IS NOT NULL, d.event = (SELECT max(event) FROM decisions l WHERE l.number = d.number)
FROM decisions d JOIN users u ON u.number = d.number LEFT JOIN feedback f USING (event)
LEFT JOIN departures p ON p.number = d.number {} ORDER BY d.event
"""
LOG, SHADOW_LOG = _LOG.format(""), _LOG.format("WHERE d.shadow = 1")
SHADOW_MATCHES = "SELECT count(*), count(*) FILTER (WHERE category = policy_category) FROM decisions WHERE shadow = 1"
SHADOW_DEPARTURES = "SELECT count(*) FROM departures WHERE number IN (SELECT number FROM decisions WHERE shadow = 1)"

# Statistics of the dashboard, of users from a number on.
LATEST_USER = "SELECT coalesce(max(number), 0) FROM users"
RECENT_COUNTS = "SELECT counts, count(*) FROM users WHERE number >= ? GROUP BY counts"
RECENT_STEPS = "SELECT steps, count(*) FROM users WHERE number >= ? AND departed = 1 GROUP BY steps"
_DEPARTED = "FROM departures p JOIN users u ON u.number = p.number WHERE p.number >= ?"
FIRST_DEPARTURE = f"SELECT min(p.time) {_DEPARTED}"
CLICKS_OVER_TIME = (
    "SELECT CAST(1000 * (p.time - ?) AS BIGINT) / ? AS span, u.version, count(*), sum(u.clicks), "
    f"sum(u.clicks * u.clicks) {_DEPARTED} GROUP BY span, u.version ORDER BY span, u.version"
)

# Training data: distinct settled counts, of all users or of every n-th.
COUNTS = "SELECT counts, count(*) FROM users GROUP BY counts"
SAMPLED_COUNTS = "SELECT counts, count(*) * ? FROM users WHERE number % ? = 0 GROUP BY counts"

# Categories, policy versions and settings.
CATEGORIES = "SELECT name, retired FROM categories ORDER BY category"
ADD_CATEGORY = "INSERT INTO categories VALUES (?, ?, ?, NULL)"
RETIRE_CATEGORY = "UPDATE categories SET retired = ? WHERE name = ?"
POLICIES_AFTER = "SELECT * FROM policies WHERE version > ? ORDER BY version"
LATEST_POLICY = "SELECT coalesce(max(version), -1) FROM policies"
ADD_POLICY = "INSERT INTO policies VALUES (?, ?, ?, ?)"
ALLOCATIONS = "SELECT version, users FROM allocations ORDER BY position"
CLEAR_ALLOCATIONS = "DELETE FROM allocations"
ADD_ALLOCATION = "INSERT INTO allocations VALUES (?, ?, ?)"
SETTINGS = f"SELECT key, value FROM meta WHERE key <> '{LEARNER_KEY}'"
SETTING = "SELECT value FROM meta WHERE key = ?"
SET = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
SET_IF_ABSENT = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
UNSET = "DELETE FROM meta WHERE key = ?"
UNSET_LIKE = "DELETE FROM meta WHERE key LIKE ?"
COUNTERS = "SELECT name, sum(value) FROM counters WHERE worker <> ? GROUP BY name"
OWN_COUNTERS = "SELECT name, value FROM counters"

# Sequences and locks of PostgreSQL.
PG_NEXT = "SELECT nextval(?) FROM generate_series(1, ?)"
PG_NEXT_USER_NUMBER = "SELECT last_value + CAST(is_called AS int) FROM numbers"
PG_TRAINER_LOCK = "SELECT pg_try_advisory_lock(hashtext('departing'), hashtext(current_schema()))"
PG_CREATION_LOCK = "SELECT pg_advisory_xact_lock(hashtext('departing tables'))"
PG_HAS_TABLES = "SELECT 1 WHERE to_regclass('meta') IS NOT NULL"
PG_READ_ONLY_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
HAS_TABLES = "SELECT 1 FROM sqlite_schema LIMIT 1"
TRUNCATE_WAL = "PRAGMA wal_checkpoint(TRUNCATE)"

# Statements that come in bulk: table, types of the columns, and what to do with a row that exists.
_TABLES = {
    "decisions": ("int text int real int real int int int", ""),
    "users": (
        "int text bytes bytes int real int int int",
        " ON CONFLICT (number) DO UPDATE SET name = excluded.name, state = excluded.state, counts = excluded.counts, "
        "departed = excluded.departed, last_seen = excluded.last_seen, version = excluded.version, "
        "clicks = excluded.clicks, steps = excluded.steps",
    ),
    "feedback": ("int real int int", " ON CONFLICT (event) DO UPDATE SET departed = excluded.departed"),
    "departures": ("int real text", " ON CONFLICT (number) DO NOTHING"),
    "counters": ("text text int", " ON CONFLICT (worker, name) DO UPDATE SET value = excluded.value"),
}
_CASTS = {"int": "({})::bigint", "real": "({})::float8", "text": "{}", "bytes": "decode({}, 'base64')"}


def _insertion(table: str) -> str:
    types, conflict = _TABLES[table]
    return f"INSERT INTO {table} VALUES ({', '.join('?' for _ in types.split())}){conflict}"


def _json_insertion(table: str) -> str:
    """Return the same insertion for PostgreSQL, with all rows in one JSON document."""
    types, conflict = _TABLES[table]
    columns = ", ".join(_CASTS[kind].format(f"v ->> {i}") for i, kind in enumerate(types.split()))
    return f"INSERT INTO {table} SELECT {columns} FROM jsonb_array_elements(%s::jsonb) v{conflict}"


ADD_DECISION, SAVE_USER, SAVE_FEEDBACK, ADD_DEPARTURE, SAVE_COUNTER = map(
    _insertion, ("decisions", "users", "feedback", "departures", "counters")
)
PG_BULK_SQL = {_insertion(table): _json_insertion(table) for table in _TABLES}
BULK = frozenset(PG_BULK_SQL)
