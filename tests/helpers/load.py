"""Load on a server over many connections, through all failures, and checks of the store afterwards."""

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import closing
from uuid import uuid4

import msgspec
import numpy as np

from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.service.event_id import format_event_id
from departing.service.store.connection import connect, is_postgres
from departing.service.workers.evidence import histogram

LONG = os.environ.get("DEPARTING_LONG", "") not in ("", "0")


def wait_until(true, seconds=60.0, describe=lambda: "the condition was not met in time"):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)


def kind(address):
    """The kind of store at an address."""
    return "postgres" if is_postgres(address) else "sqlite"


def response_of(port, method, path, body=None):
    """Send a request over a new connection; return status, headers and document."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read())


def request(port, method, path, body=None):
    """Send a request over a new connection; return status and document."""
    status, _, document = response_of(port, method, path, body)
    return status, document


class Load:
    """Threads that send requests for the same users; each retries until it gets a response or is stopped."""

    def __init__(self, server, threads=8, users=40, keyed=True, departing=0.1, seed=None, feedback=True):
        self.server, self.users, self.keyed, self.departing, self.feedback = server, users, keyed, departing, feedback
        self.acknowledged, self.events = {}, []  # accepted feedback by event, and event IDs in order
        self.times, self.rejections = {}, Counter()  # of the responses with an event, and codes of rejected feedback
        self.statuses, self.messages, self.lost, self.unexpected = Counter(), set(), 0, []
        self._stop = threading.Event()
        rng = random.Random(seed)
        self._threads = [threading.Thread(target=self._drive, args=(rng.random(),)) for _ in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self):
        """Stop all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.unexpected, self.unexpected[:3]

    def more(self, n=50, seconds=60.0):
        """Continue until `n` more rows of feedback are accepted."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= before + n, seconds, lambda: self._describe(before))

    def _describe(self, before):
        """Describe the responses, for the message of a test that waits in vain."""
        n = len(self.acknowledged) - before
        return f"only {n} more accepted: {self.statuses}, {self.lost} lost, {self.rejections}, {self.messages}"

    def _drive(self, seed):
        rng = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        with closing(connection):
            while not self._stop.is_set():
                self._visit(connection, rng)
                if rng.random() < 0.05:
                    connection.close()  # the next connection may reach another worker

    def _visit(self, connection, rng):
        body = {"user": f"user {rng.randrange(self.users)}"} | ({"event": uuid4().hex} if self.keyed else {})
        shown = self._send(connection, "/v1/recommend", body)
        if shown is None:
            return
        self.times[shown["event"]] = time.monotonic()
        self.events.append(shown["event"])
        if not self.feedback:
            return
        departed = True if rng.random() < self.departing else rng.choice([None, False])
        body = {"event": shown["event"], "clicked": rng.random() < 0.5, "departed": departed}
        feedback = self._send(connection, "/v1/feedback", body)
        if feedback is not None and feedback["accepted"]:
            self.acknowledged[shown["event"]] = (body["clicked"], departed)
        elif feedback is not None:
            self.rejections[feedback["code"]] += 1

    def _send(self, connection, path, body):
        """The response, after as many attempts as it takes; requests without an event ID are not repeated."""
        while not self._stop.is_set():
            try:
                connection.request("POST", path, json.dumps(body).encode())
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.lost += 1
            else:
                self.statuses[response.status] += 1
                if response.status == 200:
                    return json.loads(text)
                self.messages.add(json.loads(text)["detail"])
                if response.status != 503:
                    self.unexpected.append((response.status, text))
                    return None
            if not self.keyed:
                return None
            self._stop.wait(0.05)
        return None


def check(address, acknowledged):
    """Check that acknowledged feedback is stored, and that users' counts follow from decisions and feedback."""
    with closing(connect(address)) as database:
        query = "SELECT key, epoch, event, clicked, feedback.departed FROM decisions LEFT JOIN feedback USING (event)"
        stored = {
            key or format_event_id(epoch, event): feedback for key, epoch, event, *feedback in database.execute(query)
        }
        names = database.execute("SELECT name FROM categories")
        ((duplicates,),) = database.execute("SELECT count(*) - count(DISTINCT name) FROM users")
        steps = database.execute(
            "SELECT count(*) FROM users u WHERE steps <> (SELECT count(*) FROM decisions d WHERE d.number = u.number)"
        )
        counts, users = histogram(database, len(names))
        counted = dict(database.execute("SELECT name, sum(value) FROM counters GROUP BY name"))
        ((feedback, clicked),) = database.execute("SELECT count(*), coalesce(sum(clicked), 0) FROM feedback")
        ((departures,),) = database.execute("SELECT count(*) FROM departures")
        ((new_users,),) = database.execute("SELECT count(*) FROM users")
    exact = {"new_users": new_users, "recommendations": len(stored), "departures": departures}
    exact |= {"feedback": feedback, "clicks": clicked}
    assert {name: int(counted.get(name, 0)) for name in exact} == exact
    lost = [event for event, row in acknowledged.items() if event not in stored or not _agree(row, stored[event])]
    assert not lost, f"{len(lost)} of {len(acknowledged)} rows of feedback were lost"
    assert (duplicates, steps) == (0, [(0,)])
    recomputed, stored_counts = recount(address)
    assert recomputed == stored_counts
    known = Counter(tuple(row) for row in recomputed.values() if any(row))
    assert known == {tuple(row.reshape(-1).tolist()): n for row, n in zip(counts, users.tolist(), strict=True)}


def _agree(feedback, stored):
    """True if stored feedback is the acknowledged one; a no-click after a departure is accepted but not stored."""
    if stored[0] is None:
        return not feedback[0]
    return feedback[0] == bool(stored[0]) and (feedback[1] is None or feedback[1] == stored[1])


def recount(address):
    """Counts of all users, recomputed from decisions, feedback and departures, and the stored ones.

    The rule, with missing feedback as no-click: every recommendation before the latest one of a user is a click or a
    stay. The latest one counts as a departure if the user has departed. Otherwise its outcome is open, also after
    feedback with `departed` false, because the user may depart before the next request.
    """
    with closing(connect(address)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM categories ORDER BY category")]
        departed_users = {user for (user,) in database.execute("SELECT number FROM departures")}
        steps = {}
        query = "SELECT number, category, clicked FROM decisions LEFT JOIN feedback USING (event) ORDER BY event"
        for user, category, clicked in database.execute(query):
            steps.setdefault(user, []).append((category, clicked))
        stored = {
            number: msgspec.msgpack.decode(blob)
            for number, blob in database.execute("SELECT number, counts FROM users")
        }
    recomputed = {}
    for user, visit in steps.items():
        counts = np.zeros((len(names), 4), int)
        *earlier, latest = visit
        for category, clicked in earlier:  # the next request shows that the user stayed
            counts[category, CLICK if clicked else STAY] += 1
        if user in departed_users:
            category, clicked = latest
            counts[category, CLICK_DEPART if clicked else DEPART] += 1
        recomputed[user] = counts.reshape(-1).tolist()
    return recomputed, {user: (list(row) + [0] * 4 * len(names))[: 4 * len(names)] for user, row in stored.items()}
