"""Promises of every store, held to all of them alike."""

import asyncio
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.export import write_log
from departing.service.store.base import OverloadedError, Prefetch, StoreError
from departing.service.store.cache import Decision
from departing.service.store.connection import connect
from departing.service.user import RecordedFeedback, User, add_step, apply_feedback, confirm_stay, depart
from helpers.load import wait_until
from helpers.services import NAMES, contents, publish_as_trainer, recommend, run, service, store_classes

STORES = store_classes()
ADDRESSES = {
    "SqliteStore": lambda request, folder: folder / "store.sqlite",
    "PostgresStore": lambda request, folder: request.getfixturevalue("postgres").new(),
}


class AbortError(BaseException):
    """An exception that is no error, as KeyboardInterrupt."""


ERRORS = [
    dp.InputError("invalid"),
    StoreError("unavailable"),
    RuntimeError("unexpected"),
    AbortError("aborted"),
    asyncio.CancelledError("cancelled"),
]


def test_every_store_has_an_address_to_test_it_at():
    assert {store.__name__ for store in STORES} == set(ADDRESSES)


@pytest.fixture(params=STORES, ids=lambda store: store.__name__)
def store_class(request):
    return request.param


@pytest.fixture
def address(request, store_class, tmp_path):
    return ADDRESSES[store_class.__name__](request, tmp_path)


@pytest.fixture
def open_store(store_class, address):
    """Open the store again and again; one is open at a time unless the store is shared."""
    with ExitStack() as stack:

        def open_again():
            store = store_class(address)
            stack.callback(lambda: suppress_closed(store))
            return store

        yield open_again


def suppress_closed(store):
    with suppress(Exception):
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


def call(store, function, *prefetch, **options):
    return run(store.transaction(function, *prefetch, **options))


def new_user(tx, name):
    user = User(tx.store.new_user_number(), name, 0, [], [])
    tx.add_user(user)
    tx.count("new_users")
    return user


def decide(tx, user, key=None, time=1.0, category=0):
    event = tx.store.new_event_number()
    confirm_stay(user)
    add_step(user, event, category, time)
    tx.record_decision(user, Decision(event, key, user.number, time, category, 0.5, 0, category))
    return event


def click(tx, user, event):
    feedback = RecordedFeedback(True, None)
    apply_feedback(user, event, feedback, 2.0)
    tx.record_feedback(user, event, feedback, 2.0)


def leave(tx, user):
    depart(user, "no-click")
    tx.record_departure(user, 3.0, "reported")


def fill(tx):
    """Two users with an event each, of which the first has feedback."""
    ann, bob = new_user(tx, "ann"), new_user(tx, "bob")
    first, second = decide(tx, ann, "ann 1"), decide(tx, bob, "bob 1", time=0.5)
    click(tx, ann, first)
    return first, second


def change_everything(tx, first, second, reads_rows=True):
    """Write by every method of a transaction, in some stores with a query in between that sends writes to disk."""
    ann, bob, eve = tx.user("ann"), tx.user("bob"), new_user(tx, "eve")
    if reads_rows:
        tx.forget_client_event_ids([ann])
    decide(tx, eve, "eve 1")
    decide(tx, ann, "ann 2")
    click(tx, bob, second)
    leave(tx, bob)
    tx.rename_user(ann, "renamed")
    tx.write("INSERT INTO meta VALUES (?, ?)", "setting", "changed")
    tx.count("clicks")


def state(store, first, second):
    """Everything that transactions can see, and the figures in memory."""

    def read(tx):
        return [
            *(tx.user(name) for name in ("ann", "bob", "eve", "renamed")),
            *(tx.user_by_number(number) for number in range(4)),
            *(tx.decision(event) for event in (first, second, second + 1, second + 2)),
            *(tx.decision_by_client_event_id(key) for key in ("ann 1", "ann 2", "bob 1", "eve 1")),
            *(tx.feedback(event) for event in (first, second)),
            tx.inactive_users(10.0, 10),
            tx.settings().get("setting"),
            tx.totals(),
            tx.active_users,
        ]

    seen = call(store, read)
    return seen, dict(store.counters), store.active_users, contents(store)


class TestExceptions:
    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    @pytest.mark.parametrize("reads_rows", [False, True])
    @pytest.mark.parametrize("prefetch", [False, True])
    def test_nothing_of_a_call_that_raises_is_left_in_memory_or_on_disk(self, store, error, reads_rows, prefetch):
        events = call(store, fill)
        before = state(store, *events)

        def fails(tx):
            change_everything(tx, *events, reads_rows)
            raise error

        needed = (
            Prefetch(users=("ann", "bob", "eve"), client_event_id="eve 1", new_event=True) if prefetch else Prefetch()
        )
        with pytest.raises(type(error), match=str(error)):
            call(store, fails, needed)
        assert state(store, *events) == before

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    @pytest.mark.parametrize("reads_rows", [False, True])
    def test_calls_at_the_same_time_are_kept(self, store, error, reads_rows):
        def succeeds(name):
            return lambda tx: (tx.save_user(tx.user("ann")), decide(tx, new_user(tx, name), f"key of {name}"))[1]

        def fails(tx):
            ann = tx.user("ann")
            decide(tx, ann, "key of ann")
            tx.rename_user(ann, "renamed")
            decide(tx, new_user(tx, "lost"), "key of lost")
            if reads_rows:
                tx.rows("SELECT count(*) FROM users")
            raise error

        async def calls():
            await store.transaction(lambda tx: new_user(tx, "ann"))
            functions = [succeeds("bob"), fails, succeeds("carl"), fails, succeeds("eve")]
            prefetch = Prefetch(users=("ann", "bob", "carl", "eve", "lost"), new_event=True)
            return await asyncio.gather(
                *(store.transaction(each, prefetch) for each in functions), return_exceptions=True
            )

        results = run(calls())
        assert [type(result) for result in results] == [int, type(error), int, type(error), int]
        assert store.counters["new_users"] == store.active_users == 4
        with store.read() as snapshot:
            assert snapshot.execute("SELECT steps FROM users WHERE name = 'ann'") == [(0,)]
            names = {name for (name,) in snapshot.execute("SELECT name FROM users")}
            keys = {key for (key,) in snapshot.execute("SELECT key FROM decisions")}
        assert names == {"ann", "bob", "carl", "eve"}
        assert keys == {"key of bob", "key of carl", "key of eve"}

    def test_a_call_after_a_failed_one_can_use_the_same_names_and_ids(self, store):
        def fails(tx):
            decide(tx, new_user(tx, "ann"), "same")
            raise RuntimeError

        with pytest.raises(RuntimeError):
            call(store, fails)
        event = call(store, lambda tx: decide(tx, new_user(tx, "ann"), "same"))
        assert call(store, lambda tx: tx.decision_by_client_event_id("same")).event_number == event
        with store.read() as snapshot:
            assert snapshot.execute("SELECT event FROM decisions") == [(event,)]

    def test_changes_in_memory_are_undone_after_an_exception_only(self, store):
        memory = {"a": 1, "b": 2}

        def changes(tx, error=None):
            tx.assign(memory, "a", 5)
            tx.assign(memory, "a", 6)
            tx.discard(memory, "b")
            tx.assign(memory, "c", 7)
            if error:
                raise error

        with pytest.raises(RuntimeError):
            call(store, lambda tx: changes(tx, RuntimeError()))
        assert memory == {"a": 1, "b": 2}
        call(store, changes)
        assert memory == {"a": 6, "c": 7}

    def test_a_change_that_is_not_saved_is_not_kept(self, store):
        call(store, fill)

        def forgets_to_save(tx):
            tx.user("ann").counts.append(7)
            tx.user("ann").departed = True

        before = call(store, lambda tx: tx.user("ann"))
        call(store, forgets_to_save)
        assert call(store, lambda tx: tx.user("ann")) == before

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_a_rollout_is_as_before_after_a_failed_change(self, address, error):
        with service(address, explore=1.0, instance=magazine()) as served:
            before = served.rollout.state
            publish_as_trainer(address, {1: dp.Fixed(1)})

            def fails(tx):
                served.rollout.refresh(tx)
                served.rollout.add_category(tx, "golf", 0.0)
                served.rollout.retire_category(tx, "news", 0.0)
                served.rollout.set_shadow(tx, True)
                served.rollout.pin(tx, 1)
                raise error

            with pytest.raises(type(error)):
                call(served.store, fails)
            assert served.rollout.state == before
            assert recommend(served, "ann").category in magazine().categories
            assert run(served.refresh())  # what was adopted in vain is adopted again
            assert run(served.policy()).version == 1
        with service(address, names=[]) as again:
            assert run(again.categories()).categories[0].retired is False
            assert len(again.rollout.state.names) == 3


class TestDurability:
    def test_a_durable_call_is_on_disk_when_it_returns(self, store):
        first, second = call(store, fill)
        with store.read() as snapshot:
            assert snapshot.execute("SELECT event, key FROM decisions ORDER BY event") == [
                (first, "ann 1"),
                (second, "bob 1"),
            ]
            assert snapshot.execute("SELECT event, clicked, departed FROM feedback") == [(first, 1, None)]

    def test_a_store_that_is_opened_again_has_the_same_state(self, open_store):
        store = open_store()
        events = call(store, fill)
        call(store, lambda tx: change_everything(tx, *events))
        seen, counters, active, tables = state(store, *events)
        store.close()
        again = open_store()
        seen_again, _, active_again, tables_again = state(again, *events)
        assert (seen_again, active_again, tables_again) == (seen, active, tables)
        assert call(again, lambda tx: dict(tx.totals())) == counters == {"new_users": 3, "clicks": 1}

    def test_closing_writes_calls_that_nobody_waited_for(self, open_store):
        store = open_store()
        call(store, fill, durable=False)
        store.close()
        assert call(open_store(), lambda tx: tx.user("ann").name) == "ann"

    def test_later_feedback_can_add_a_departure(self, store):
        first, _ = call(store, fill)

        def adds(tx):
            tx.record_feedback(tx.user("ann"), first, RecordedFeedback(True, True), 9.0)

        call(store, adds)
        assert call(store, lambda tx: tx.feedback(first)) == RecordedFeedback(True, True)
        with store.read() as snapshot:
            assert snapshot.execute("SELECT * FROM feedback") == [(first, 2.0, 1, 1, None)]  # at the first time

    def test_a_snapshot_does_not_see_later_calls(self, store):
        call(store, fill)
        with store.read() as snapshot:
            before = snapshot.execute("SELECT name FROM users ORDER BY name")
            call(store, lambda tx: new_user(tx, "eve"))
            assert snapshot.execute("SELECT name FROM users ORDER BY name") == before
        with store.read() as snapshot:
            assert snapshot.execute("SELECT count(*) FROM users") == [(3,)]


@contextmanager
def stalled(store):
    """Keep the database from committing, by a lock of another connection."""
    with closing(connect(store.address)) as other, ExitStack() as stack:
        stack.enter_context(other.transaction())
        if store.shared:
            other.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
        yield


class TestStall:
    def test_what_is_not_on_disk_is_counted_and_its_age_grows(self, store):
        assert (store.unwritten, store.oldest_unwritten) == (0, 0.0)

        async def calls():
            with stalled(store):
                waiting = asyncio.gather(
                    *(store.transaction(lambda tx, i=i: new_user(tx, f"u{i}")) for i in range(3))
                )
                while store.oldest_unwritten < 0.3:
                    await asyncio.sleep(0.01)
                counted = store.unwritten
            await waiting
            return counted

        assert run(calls()) == 3
        wait_until(lambda: (store.unwritten, store.oldest_unwritten) == (0, 0.0))
        assert store.failure is None

    def test_calls_of_a_stalled_store_fail_in_time_and_can_be_repeated(self, store, monkeypatch):
        monkeypatch.setattr("departing.service.store.writer.MAX_UNWRITTEN_SECONDS", 0.5)
        monkeypatch.setattr("departing.service.store.postgres.MAX_WAITING_SECONDS", 0.5)

        def add(tx):
            return tx.user("ann") or new_user(tx, "ann")

        async def calls():
            with stalled(store):
                first = asyncio.create_task(store.transaction(add))
                while not store.unwritten:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)  # until a database transaction has begun, which the next call cannot join
                with pytest.raises(OverloadedError) as refused:
                    await store.transaction(add, Prefetch(users=("ann",)))
                assert refused.value.retry_after > 0
            with suppress(OverloadedError):
                await first
            while store.failure is not None:
                await asyncio.sleep(0.01)
            await store.transaction(add, Prefetch(users=("ann",)))

        run(calls())
        with store.read() as snapshot:
            assert snapshot.execute("SELECT name FROM users") == [("ann",)]

    def test_a_batch_of_feedback_is_recorded_once(self, address):
        with service(address) as served:
            events = [recommend(served, f"u{i % 9}").event for i in range(120)]
        rows = [m.Feedback(event, i % 2 == 0) for i, event in enumerate(events)]
        with service(address, names=[]) as again:

            async def calls():
                return await asyncio.gather(again.feedback(rows), again.feedback(rows[::-1]))

            assert all(result.accepted for results in run(calls()) for result in results)
            totals = run(again.totals())
            assert (totals["feedback"], totals["clicks"], totals["repeated_feedback"]) == (120, 60, 120)


class TestIds:
    def test_calls_with_the_same_id_at_once_make_one_decision(self, store):
        call(store, lambda tx: new_user(tx, "ann"))

        def once(tx):
            existing = tx.decision_by_client_event_id("same")
            return decide(tx, tx.user("ann"), "same") if existing is None else existing.event_number

        async def calls():
            prefetch = Prefetch(users=("ann",), client_event_id="same", new_event=True)
            return await asyncio.gather(*(store.transaction(once, prefetch) for _ in range(20)))

        assert len(set(run(calls()))) == 1
        with store.read() as snapshot:
            assert snapshot.execute("SELECT count(*) FROM decisions") == [(1,)]
            assert snapshot.execute("SELECT steps FROM users") == [(1,)]

    def test_the_same_recommendation_and_feedback_count_once(self, address):
        with service(address) as served:
            first = recommend(served, "ann", event="mine", explain=True)
            assert recommend(served, "ann", event="mine", explain=True) == first
            row = m.Feedback("mine", True)
            assert [result.accepted for result in run(served.feedback([row, row]))] == [True, True]
            assert run(served.totals()) == {
                "new_users": 1,
                "recommendations": 1,
                "feedback": 1,
                "clicks": 1,
                "repeated_feedback": 1,
            }

    def test_a_departure_that_is_added_to_feedback_counts_as_no_further_feedback(self, address):
        with service(address) as served:
            event = recommend(served, "ann").event
            for row in (m.Feedback(event, True), m.Feedback(event, True, True), m.Feedback(event, True, True)):
                assert run(served.feedback([row]))[0].accepted
            totals, names = run(served.totals()), ("feedback", "completed_feedback", "repeated_feedback", "clicks")
            assert [totals[name] for name in names] == [1, 1, 1, 1]
            with served.store.read() as snapshot:
                assert snapshot.execute("SELECT count(*) FROM feedback") == [(1,)]

    def test_feedback_is_known_where_the_client_repeats_an_event_id(self, store):
        first, _ = call(store, fill)
        prefetch = Prefetch(users=("ann",), client_event_id="ann 1", new_event=True)
        assert call(store, lambda tx: tx.feedback(first), prefetch) == RecordedFeedback(True, None)

    def test_numbers_of_events_and_users_increase_even_after_a_restart(self, open_store):
        def numbers(tx):
            expected = tx.store.next_user_number()
            user = new_user(tx, f"user {tx.store.new_event_number()}")
            assert user.number >= expected
            return decide(tx, user), user.number

        store = open_store()
        given = [call(store, numbers) for _ in range(3)]
        store.close()
        store = open_store()
        given += [call(store, numbers) for _ in range(3)]
        for each in zip(*given, strict=True):
            assert list(each) == sorted(set(each))

    def test_users_are_numbered_from_zero_without_gaps(self, store):
        assert [call(store, lambda tx, i=i: new_user(tx, f"u{i}").number) for i in range(5)] == list(range(5))

    def test_forgotten_ids_are_gone_from_memory_and_disk(self, store):
        first, _ = call(store, fill)
        call(store, lambda tx: tx.forget_client_event_ids([tx.user("ann")]))
        assert call(store, lambda tx: tx.decision_by_client_event_id("ann 1")) is None
        assert call(store, lambda tx: tx.decision(first)).client_event_id is None
        assert call(store, lambda tx: tx.decision_by_client_event_id("bob 1")) is not None
        with store.read() as snapshot:
            assert snapshot.execute("SELECT key FROM decisions ORDER BY event") == [(None,), ("bob 1",)]

    def test_forgotten_ids_are_gone_also_if_they_are_not_on_disk_yet(self, store):
        async def calls():
            first, _ = await store.transaction(fill, durable=False)
            await store.transaction(lambda tx: tx.forget_client_event_ids([tx.user("ann")]), durable=False)
            seen = await store.transaction(lambda tx: tx.decision_by_client_event_id("ann 1"), durable=False)
            assert seen is None
            decision = await store.transaction(lambda tx: tx.decision(first), durable=False)
            assert decision.client_event_id is None
            await store.transaction(lambda tx: None)

        run(calls())
        assert not {"ann 1"} & {*store.cache.event_numbers, *store.cache.event_numbers.old}
        with store.read() as snapshot:
            assert snapshot.execute("SELECT key FROM decisions ORDER BY event") == [(None,), ("bob 1",)]


class TestUsers:
    def test_a_name_is_free_after_renaming(self, store):
        call(store, fill)

        def rename(tx):
            tx.rename_user(tx.user("ann"), "earlier ann")
            assert tx.user("ann") is None
            return new_user(tx, "ann").number

        number = call(store, rename, Prefetch(users=("ann",), new_event=True))
        assert call(store, lambda tx: tx.user("ann").number) == number
        earlier = call(store, lambda tx: tx.user("earlier ann"))
        assert earlier.number != number
        assert call(store, lambda tx: tx.user_by_number(earlier.number).name) == "earlier ann"
        with store.read() as snapshot:
            names = [name for (name,) in snapshot.execute("SELECT name FROM users ORDER BY number")]
        assert names == ["earlier ann", "bob", "ann"]

    def test_inactive_users_come_in_the_order_of_their_last_request(self, store):
        def fill_and_leave(tx):
            for i, seen in enumerate([5.0, 3.0, 9.0, 1.0, 4.0]):
                decide(tx, new_user(tx, f"u{i}"), time=seen)
            leave(tx, tx.user("u4"))

        call(store, fill_and_leave)
        names = call(store, lambda tx: [user.name for user in tx.inactive_users(6.0, 10)])
        assert names == ["u3", "u1", "u0"]
        assert call(store, lambda tx: [user.name for user in tx.inactive_users(6.0, 2)]) == ["u3", "u1"]

    def test_active_users_are_those_who_have_not_departed(self, open_store):
        store = open_store()
        call(store, fill)
        assert store.active_users == 2
        call(store, lambda tx: leave(tx, tx.user("bob")))
        assert store.active_users == 1
        store.recount_active_users()
        assert store.active_users == 1
        store.close()
        assert open_store().active_users == 1


def test_all_stores_export_the_same_log(request, tmp_path):
    logs = {}
    for store_class in STORES:
        name = store_class.__name__
        with service(ADDRESSES[name](request, tmp_path), inactive_after=5.0, explore=0.3) as served:
            served.store.epoch = 7
            for step in range(40):
                served.clock.time += 0.5 if step % 10 else 7.0
                shown = recommend(served, f"user {step % 4}", event=f"client {step}" if step % 3 == 0 else None)
                row = m.Feedback(shown.event, step % 2 == 0, [None, False, True][step % 7 % 3])
                if step % 5:
                    run(served.feedback([row]))
                run(served.flush())
                run(served.sweep())
            run(served.forget("user 1"))
            run(served.flush())
            with (tmp_path / f"{name}.jsonl").open("wb") as file:
                write_log(served.store.read, "no-click", "jsonl", file)
            logs[name] = [
                line.partition(b'"time"')[2] for line in (tmp_path / f"{name}.jsonl").read_bytes().splitlines()
            ]
            assert len(logs[name]) == 40
            assert set(served.rollout.state.names) == set(NAMES)
    first, *others = logs.values()
    assert all(log == first for log in others)


def test_totals_do_not_depend_on_counters_that_are_added_meanwhile(store):
    class Growing(Counter):
        """Counters to which another thread adds while they are iterated."""

        def items(self):
            for item in super().items():
                self[f"problems_{len(self)}"] += 1
                yield item

    store.counters = Growing(recommendations=2)
    assert run(store.transaction(lambda tx: tx.totals()))["recommendations"] == 2
