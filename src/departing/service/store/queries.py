"""Queries and writes of the service, written once for SQLite and PostgreSQL with `?` as the placeholder.

Tables and migrations are in `schema.py`, session settings in `connection.py` and `postgres.py`.

Statements that PostgreSQL alone understands have the prefix `PG_`.
"""

# Keys of the table `meta`.
SCHEMA_KEY = "schema"
WRITE_CHECK_KEY = "alive"  # PostgreSQL: written to find out whether the database can be written
HEARTBEAT_KEY = "heartbeat"  # the latest time at which the service was up
GAPS_KEY = "gaps"  # times in which it was down
IDENTITY_KEY = "identity"  # SQLite: random ID of the store, shared by its copies
REMNANTS_KEY = "remnants"  # SQLite: names were forgotten since the file was last written again
COMMITS_KEY = "commits"  # SQLite: number of group commits, to notice lost ones
PINNED_KEY = "pinned"
SHADOW_KEY = "shadow"
DEPARTURES_KEY = "departures"  # the definition of departure
MISSING_FEEDBACK_KEY = "missing_feedback"
SEGMENT_COLUMNS_KEY = "segment_columns"  # features of which the name of a segment is composed
DRIFT_KEY = "drift"  # detected changes, and the time from which the next ones are looked for
HALF_LIFE_KEY = "half_life"  # in seconds, of the weight of users in training
UNIT_KEY = "unit"  # of rewards
REWARD_KEY = "reward {}"  # the assumed reward of a click in an added category, by its index
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
USER_COUNT = "SELECT count(*) FROM users"
NEXT_USER_NUMBER = "SELECT coalesce(max(number), -1) + 1 FROM users"
PG_FOR_UPDATE = " FOR UPDATE NOWAIT"  # appended to a query
PG_SKIP_LOCKED = " FOR UPDATE SKIP LOCKED"
PG_EXISTING = "SELECT number FROM users WHERE number = ANY(?)"
PG_USER_NUMBERS = "SELECT number, name FROM users WHERE name = ANY(?)"
PG_LOCK_USERS = "SELECT number, state FROM users WHERE number = ANY(?)" + PG_SKIP_LOCKED

# Decisions and feedback.
DECISION = "SELECT * FROM decisions WHERE event = ?"
DECISION_BY_CLIENT_EVENT_ID = "SELECT * FROM decisions WHERE key = ?"
CLIENT_EVENT_IDS = "SELECT key FROM decisions WHERE number = ? AND key IS NOT NULL"
FORGET_CLIENT_EVENT_IDS = "UPDATE decisions SET key = NULL WHERE number = ?"
REMOVE_DEPARTURE = "DELETE FROM departures WHERE number = ?"
NEXT_EVENT = "SELECT coalesce(max(event), 0) + 1 FROM decisions"
FEEDBACK = "SELECT clicked, departed, reward FROM feedback WHERE event = ?"
_EXACT = "iif({0} IS NULL, NULL, printf('%!.17g', {0}))"  # a float in JSON, which SQLite would round to 15 digits
_DECISION_JSON = (
    f"json_array(event, key, number, {_EXACT.format('time')}, category, {_EXACT.format('propensity')}, version, "
    "policy_category, shadow, epoch, experiment, arm)"
)
_IN_JSON = "IN (SELECT value FROM json_each(?))"
DECISIONS_JSON = f"SELECT json_group_array({_DECISION_JSON}) FROM decisions WHERE event {_IN_JSON}"
DECISIONS_BY_CLIENT_EVENT_ID_JSON = f"SELECT json_group_array({_DECISION_JSON}) FROM decisions WHERE key {_IN_JSON}"
USERS_JSON = f"SELECT json_group_array(hex(state)) FROM users WHERE number {_IN_JSON}"
_FEEDBACK_JSON = f"json_array(event, clicked, departed, {_EXACT.format('reward')})"
FEEDBACK_JSON = f"SELECT json_group_array({_FEEDBACK_JSON}) FROM feedback WHERE event {_IN_JSON}"
PG_DECISIONS = "SELECT * FROM decisions WHERE event = ANY(?)"
PG_DECISIONS_BY_CLIENT_EVENT_ID = "SELECT * FROM decisions WHERE key = ANY(?) AND key IS NOT NULL"
PG_FEEDBACK = "SELECT event, clicked, departed, reward FROM feedback WHERE event = ANY(?)"
_HISTORY = (
    "SELECT d.event, d.key, d.epoch, d.time, d.category, f.clicked, f.departed, f.reward "
    "FROM decisions d LEFT JOIN feedback f USING (event) "
)
USER_HISTORY = f"{_HISTORY} WHERE d.number = ? ORDER BY d.event DESC LIMIT ?"
LATEST_HISTORY = f"{_HISTORY} ORDER BY d.event DESC LIMIT ?"
_LOG = """
SELECT u.name, d.time, d.category, f.clicked, d.propensity, d.version, d.experiment, d.arm,
       u.segment, f.reward, d.event, d.key, d.epoch,
       p.number IS NOT NULL, d.event = (SELECT max(event) FROM decisions l WHERE l.number = d.number)
FROM decisions d JOIN users u ON u.number = d.number LEFT JOIN feedback f USING (event)
LEFT JOIN departures p ON p.number = d.number {} ORDER BY d.event
"""
LOG, SHADOW_LOG = _LOG.format(""), _LOG.format("WHERE d.shadow = 1")
SHADOW_MATCHES = "SELECT count(*), count(*) FILTER (WHERE category = policy_category) FROM decisions WHERE shadow = 1"
SHADOW_DEPARTURES = "SELECT count(*) FROM departures WHERE number IN (SELECT number FROM decisions WHERE shadow = 1)"

# Statistics of the dashboard, of every n-th user from a number on. The index `users_arrived` finds the number.
LATEST_USER = "SELECT coalesce(max(number), -1) FROM users"
FIRST_ARRIVAL_SINCE = "SELECT number FROM users WHERE arrived >= ? ORDER BY arrived, number LIMIT 1"
_SAMPLE = """
WITH RECURSIVE sample(n) AS (SELECT CAST(? AS BIGINT) UNION ALL SELECT n + ? FROM sample WHERE n < ?)
{} FROM sample JOIN users u ON u.number = n {}
"""
FORGOTTEN = "forgotten "  # prefix of the names of forgotten users
_FORGOTTEN = f"substr(u.name, 1, {len(FORGOTTEN)}) = '{FORGOTTEN}'"
SAMPLED_USERS = _SAMPLE.format(
    "SELECT u.state, u.number, u.arrived, u.last_seen, u.departed, u.version, u.clicks, u.steps, "
    f"CASE WHEN {_FORGOTTEN} THEN 1 ELSE 0 END",
    "ORDER BY n",
)
# Whether the version of a user may not be the one that decided first.
VERSIONS_CHANGE = (
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM experiments) OR EXISTS (SELECT 1 FROM decisions WHERE shadow = 1)"
)
# The version of the first recommendation, -1 if the caller decided: the end of an experiment gives active users
# another version.
SAMPLED_VERSIONS = _SAMPLE.format(
    "SELECT u.number, (SELECT CASE d.shadow WHEN 1 THEN -1 ELSE d.version END FROM decisions d "
    "WHERE d.number = u.number ORDER BY d.event LIMIT 1)",
    "WHERE u.arrived <= ?",
)
# Recommendations and clicks up to a time after the arrival, of users who were active after it, have not departed, or
# were forgotten: `clicks` lacks the latest click of users who were active when they were forgotten.
# Subqueries, because PostgreSQL would read all decisions for a join.
SAMPLED_STEPS = _SAMPLE.format(
    "SELECT u.number, (SELECT count(*) FROM decisions d WHERE d.number = u.number AND d.time <= u.arrived + ?), "
    "(SELECT count(*) FROM decisions d WHERE d.number = u.number AND (SELECT f.clicked FROM feedback f "
    "WHERE f.event = d.event AND f.time <= u.arrived + ?) = 1)",
    f"WHERE u.arrived <= ? AND (u.departed = 0 OR u.last_seen > u.arrived + ? OR {_FORGOTTEN})",
)
# Rewards up to a time after the arrival.
SAMPLED_REWARDS = _SAMPLE.format(
    "SELECT u.number, (SELECT coalesce(sum((SELECT f.reward FROM feedback f WHERE f.event = d.event AND f.time <= "
    "u.arrived + ?)), 0) FROM decisions d WHERE d.number = u.number)",
    "WHERE u.arrived <= ?",
)
# First recommendations that the policy made, whether they were clicked within a time, and the time of the second one.
SAMPLED_FIRST = _SAMPLE.format(
    "SELECT u.state, u.arrived, u.segment, d.category, (SELECT f.clicked FROM feedback f WHERE f.event = d.event AND "
    "f.time <= d.time + ?), (SELECT s.time FROM decisions s WHERE s.number = u.number AND s.event > d.event "
    "ORDER BY s.event LIMIT 1)",
    "JOIN decisions d ON d.event = (SELECT min(e.event) FROM decisions e WHERE e.number = u.number) "
    "WHERE u.arrived > ? AND u.arrived <= ? AND d.shadow = 0 ORDER BY u.arrived, u.number",
)
ARRIVED_COUNTS = _SAMPLE.format("SELECT u.counts, count(*)", "WHERE u.arrived <= ? GROUP BY u.counts")
CATEGORIES_SINCE = "SELECT DISTINCT category FROM decisions WHERE event > ?"

# Training data: distinct settled counts, of all users or of every n-th.
_PENDING = "departed = 0 AND arrived > ?"  # departures by inactivity may not be known yet
COUNTS = f"SELECT counts, count(*) FROM users WHERE NOT ({_PENDING}) GROUP BY counts"
SAMPLED_COUNTS = f"SELECT counts, count(*) * ? FROM users WHERE number % ? = 0 AND NOT ({_PENDING}) GROUP BY counts"
# The same with the segment, and with the age of the users in steps, which their weight depends on.
AGED_COUNTS = f"""
SELECT counts, segment, CAST((? - arrived) / ? AS BIGINT) AS age, count(*) * ? FROM users
WHERE number % ? = 0 AND NOT ({_PENDING}) GROUP BY counts, segment, age
"""
AGED_SEGMENTS = """
SELECT segment, CAST((? - arrived) / ? AS BIGINT) AS age, count(*) FROM users WHERE segment IS NOT NULL
GROUP BY segment, age
"""
AGED_REWARDS = """
SELECT d.category, CAST((? - f.time) / ? AS BIGINT) AS age, count(*), sum(f.reward)
FROM feedback f JOIN decisions d ON d.event = f.event WHERE f.reward IS NOT NULL GROUP BY d.category, age
"""
PENDING_COUNT = f"SELECT count(*) FROM users WHERE {_PENDING}"
PENDING_STATES = f"SELECT state FROM users WHERE {_PENDING} AND number % ? = 0"

# Categories, segments, policy versions and settings.
CATEGORIES = "SELECT name, retired FROM categories ORDER BY category"
ADD_CATEGORY = "INSERT INTO categories VALUES (?, ?, ?, NULL)"
RETIRE_CATEGORY = "UPDATE categories SET retired = ? WHERE name = ?"
SEGMENTS = "SELECT name FROM segments"
ADD_SEGMENT = "INSERT INTO segments VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
POLICIES_AFTER = "SELECT * FROM policies WHERE version > ? ORDER BY version"
LATEST_POLICY = "SELECT coalesce(max(version), -1) FROM policies"
ADD_POLICY = "INSERT INTO policies VALUES (?, ?, ?, ?)"
UPLOAD_POLICY = (  # the trainer, another process, may publish at the same time
    "INSERT INTO policies SELECT coalesce(max(version), -1) + 1, CAST(? AS DOUBLE PRECISION), CAST(? AS TEXT), "
    "CAST(? AS TEXT) FROM policies"
)
ALLOCATIONS = "SELECT version, users FROM allocations ORDER BY position"
CLEAR_ALLOCATIONS = "DELETE FROM allocations"
ADD_ALLOCATION = "INSERT INTO allocations VALUES (?, ?, ?)"
SETTINGS = f"SELECT key, value FROM meta WHERE key <> '{LEARNER_KEY}'"
SETTING = "SELECT value FROM meta WHERE key = ?"
ASSUMED_REWARDS = "SELECT CAST(substr(key, 8) AS BIGINT), value FROM meta WHERE key LIKE 'reward %'"
SET = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
SET_IF_ABSENT = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
UNSET = "DELETE FROM meta WHERE key = ?"
UNSET_LIKE = "DELETE FROM meta WHERE key LIKE ?"
COUNTERS = "SELECT name, sum(value) FROM counters WHERE worker <> ? GROUP BY name"
HEARTBEAT = f"SELECT key, value FROM meta WHERE key IN ('{HEARTBEAT_KEY}', '{GAPS_KEY}')"
LATEST_TIMES = (  # in stores without a heartbeat
    "SELECT max(last_seen) FROM users WHERE departed = 0",
    "SELECT time FROM decisions ORDER BY event DESC LIMIT 1",
)
ALL_COUNTERS = "SELECT name, value FROM counters"  # of a SQLite store, which has one worker
PG_WORKER_COUNTERS = "SELECT name, value FROM counters WHERE worker = ?"

# Experiments. The assignment of a user who returns has the number of the first visit, the entry.
EXPERIMENTS = "SELECT document FROM experiments ORDER BY id"
SAVE_EXPERIMENT = (
    "INSERT INTO experiments VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET document = excluded.document"
)
ARM_USERS = "SELECT stage, arm, count(*) FROM assignments WHERE experiment = ? AND entry = number GROUP BY stage, arm"
_OUTCOMES = """
SELECT a.time, a.number, a.stage, a.arm, (
    SELECT {} FROM assignments v JOIN decisions d ON d.number = v.number {}
)
FROM assignments a WHERE a.experiment = ? AND a.entry = a.number AND (a.time, a.number) > (?, ?) AND a.time <= ?
ORDER BY a.time, a.number LIMIT ?
"""
_OF_ENTRY = "v.entry = a.number AND v.experiment = a.experiment"
CLICK_OUTCOMES = _OUTCOMES.format(
    "count(*)", f"JOIN feedback f ON f.event = d.event WHERE {_OF_ENTRY} AND f.clicked = 1 AND f.time <= a.time + ?"
)
REWARD_OUTCOMES = _OUTCOMES.format(
    "coalesce(sum(f.reward), 0)", f"JOIN feedback f ON f.event = d.event WHERE {_OF_ENTRY} AND f.time <= a.time + ?"
)
RETURN_OUTCOMES = _OUTCOMES.format("count(*)", f"WHERE {_OF_ENTRY} AND d.time > a.time + ? AND d.time <= a.time + ?")

# Sequences and locks of PostgreSQL.
PG_NEXT = "SELECT nextval(?) FROM generate_series(1, ?)"
PG_NEXT_USER_NUMBER = "SELECT last_value + CAST(is_called AS int) FROM numbers"
PG_TRAINER_LOCK = "SELECT pg_try_advisory_lock(hashtext('departing'), hashtext(current_schema()))"
PG_CREATION_LOCK = "SELECT pg_advisory_xact_lock(hashtext('departing tables'))"
PG_HAS_TABLES = "SELECT 1 WHERE to_regclass('meta') IS NOT NULL"
PG_TABLES_ID = "SELECT CAST(to_regclass('meta') AS oid)"  # another one after the tables were restored
PG_READ_ONLY_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
HAS_TABLES = "SELECT 1 FROM sqlite_schema LIMIT 1"
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"
TRUNCATE_WAL = "PRAGMA wal_checkpoint(TRUNCATE)"

# Statements that come in bulk: table, types of the columns, and what to do with a row that exists.
_TABLES = {
    "decisions": ("int text int real int real int int int int int text", ""),
    "users": (
        "int text bytes bytes int real int int int real text",
        " ON CONFLICT (number) DO UPDATE SET name = excluded.name, state = excluded.state, counts = excluded.counts, "
        "departed = excluded.departed, last_seen = excluded.last_seen, version = excluded.version, "
        "clicks = excluded.clicks, steps = excluded.steps",
    ),
    "feedback": (
        "int real int int real",
        " ON CONFLICT (event) DO UPDATE SET departed = excluded.departed, reward = excluded.reward",
    ),
    "departures": ("int real text", " ON CONFLICT (number) DO NOTHING"),
    "assignments": ("int int int text int real", " ON CONFLICT (number) DO NOTHING"),
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


ADD_DECISION, SAVE_USER, SAVE_FEEDBACK, ADD_DEPARTURE, ADD_ASSIGNMENT, SAVE_COUNTER = map(
    _insertion, ("decisions", "users", "feedback", "departures", "assignments", "counters")
)
PG_BULK_SQL = {_insertion(table): _json_insertion(table) for table in _TABLES}
BULK = frozenset(PG_BULK_SQL)
