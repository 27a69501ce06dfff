"""Users who ask and answer over many connections, whatever happens to the server, and what must be true then."""

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

from departing.service.store.connection import connect, is_postgres
from departing.service.workers.trainer import histogram

LONG = os.environ.get("DEPARTING_LONG", "") not in ("", "0")


def wait_until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def kind(address):
    """Which kind of store is at an address."""
    return "postgres" if is_postgres(address) else "sqlite"


def ask(port, method, path, body=None):
    """The status and the document of an answer, over a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


class Load:
    """Threads that ask for and answer as users they share; each tries again until it is heard, or told to stop."""

    def __init__(self, server, threads=8, users=40, keyed=True, departing=0.1, seed=None):
        self.server, self.users, self.keyed, self.departing = server, users, keyed, departing
        self.acknowledged, self.given = {}, []  # what was taken, and the names of events, in the order of answers
        self.statuses, self.sentences, self.lost, self.wrong = Counter(), set(), 0, []
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
        """Stop asking; nobody is left waiting."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.wrong, self.wrong[:3]

    def more(self, n=50, seconds=60.0):
        """Go on until so many more were taken."""
        enough = len(self.acknowledged) + n
        wait_until(lambda: len(self.acknowledged) >= enough, seconds)

    def _drive(self, seed):
        rng = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        with closing(connection):
            while not self._stop.is_set():
                self._visit(connection, rng)
                if rng.random() < 0.05:
                    connection.close()  # the next may be to another worker

    def _visit(self, connection, rng):
        body = {"user": f"user {rng.randrange(self.users)}"} | ({"event": uuid4().hex} if self.keyed else {})
        shown = self._heard(connection, "/v1/recommend", body)
        if shown is None:
            return
        self.given.append(shown["event"])
        departed = True if rng.random() < self.departing else rng.choice([None, False])
        answer = {"event": shown["event"], "clicked": rng.random() < 0.5, "departed": departed}
        told = self._heard(connection, "/v1/feedback", answer)
        if told is not None and told["accepted"]:
            self.acknowledged[shown["event"]] = (answer["clicked"], departed)

    def _heard(self, connection, path, body):
        """The answer, after as many tries as it takes; without ids of their own asks are not repeated."""
        while not self._stop.is_set():
            try:
                connection.request("POST", path, json.dumps(body).encode())
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.lost += 1
            else:
                self.statuses[answer.status] += 1
                if answer.status == 200:
                    return json.loads(text)
                self.sentences.add(json.loads(text)["detail"])
                if answer.status != 503:
                    self.wrong.append((answer.status, text))
                    return None
            if not self.keyed:
                return None
            self._stop.wait(0.05)
        return None


def check(address, acknowledged):
    """All that was acknowledged is there, and what is kept of users is what their decisions and feedback tell."""
    with closing(connect(address)) as database:
        query = "SELECT key, event, clicked, feedback.departed FROM decisions LEFT JOIN feedback USING (event)"
        stored = {key or f"e-{event}": told for key, event, *told in database.rows(query)}
        names = database.rows("SELECT name FROM categories")
        ((twice,),) = database.rows("SELECT count(*) - count(DISTINCT name) FROM users")
        steps = database.rows(
            "SELECT count(*) FROM users u WHERE steps <> (SELECT count(*) FROM decisions d WHERE d.number = u.number)"
        )
        counts, users = histogram(database, len(names))
        counted = dict(database.rows("SELECT name, sum(value) FROM counters GROUP BY name"))
        ((told, clicked),) = database.rows("SELECT count(*), coalesce(sum(clicked), 0) FROM feedback")
        ((gone,),) = database.rows("SELECT count(*) FROM departures")
        ((came,),) = database.rows("SELECT count(*) FROM users")
    exact = {"new_users": came, "recommendations": len(stored), "clicks": clicked, "departures": gone}
    assert {name: int(counted.get(name, 0)) for name in exact} == exact
    assert counted.get("feedback", 0) >= told
    lost = [event for event, told in acknowledged.items() if event not in stored or not _agree(told, stored[event])]
    assert not lost, f"{len(lost)} of {len(acknowledged)} were lost"
    assert (twice, steps) == (0, [(0,)])
    found, kept = recount(address)
    assert found == kept
    known = Counter(tuple(row) for row in found.values() if any(row))
    assert known == {tuple(row.reshape(-1).tolist()): n for row, n in zip(counts, users.tolist(), strict=True)}


def _agree(told, stored):
    """Whether what is stored is what was told; a no-click after the user was gone is no news, and not stored."""
    if stored[0] is None:
        return not told[0]
    return told[0] == bool(stored[0]) and (told[1] is None or told[1] == stored[1])


def recount(address):
    """Settled counts of all users by the decisions and feedback alone, a slow twin of what is kept of users."""
    with closing(connect(address)) as database:
        names = [name for (name,) in database.rows("SELECT name FROM categories ORDER BY category")]
        gone = {user for (user,) in database.rows("SELECT number FROM departures")}
        steps = {}
        query = (
            "SELECT number, category, clicked, departed "
            "FROM decisions LEFT JOIN feedback USING (event) ORDER BY event"
        )
        for user, category, clicked, departed in database.rows(query):
            steps.setdefault(user, []).append((category, clicked, departed))
        kept = {
            number: msgspec.msgpack.decode(blob) for number, blob in database.rows("SELECT number, counts FROM users")
        }
    found = {}
    for user, done in steps.items():
        counts = np.zeros((len(names), 4), int)
        for i, (category, clicked, departed) in enumerate(done):
            last = i == len(done) - 1
            if clicked is None and user not in gone and last:
                continue  # still open
            if not last or departed == 0:
                counts[category, 0 if clicked else 1] += 1
            elif user in gone:
                counts[category, 3 if clicked else 2] += 1
        found[user] = counts.reshape(-1).tolist()
    return found, {user: (list(row) + [0] * 4 * len(names))[: 4 * len(names)] for user, row in kept.items()}
