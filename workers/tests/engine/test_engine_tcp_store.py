"""Encode's bounded store, the memory under both ends, and the counters between encode's processes."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tcp_peers import LAYOUT, Encode, embedding, identity

from mmdisagg_workers.engine.tcp_handoff import journal as journal_module
from mmdisagg_workers.engine.tcp_handoff.counters import CounterReader, Counters
from mmdisagg_workers.engine.tcp_handoff.journal import Event, Journal, JournalReader
from mmdisagg_workers.engine.tcp_handoff.memory import ALIGNMENT, Arena, ArenaView, Block, MappedEmbedding
from mmdisagg_workers.engine.tcp_handoff.protocol import HandoffError
from mmdisagg_workers.engine.tcp_handoff.reservations import Admission, Reservations
from mmdisagg_workers.engine.tcp_handoff.store import HostStore

SIZE = LAYOUT.size


@pytest.fixture
def three():
    """A store with room for three embeddings."""
    made = Encode(capacity=3 * SIZE)
    yield made
    made.server.close()


def there(encode):
    found = []
    for number in range(10):
        with encode.store.reading(identity(number)) as stored:
            if stored is not None:
                assert bytes(encode.store.content(stored)) == embedding(number).numpy().tobytes()
                found.append(number)
    return found


def test_the_oldest_gives_way(three):
    three.publish(0, 1, 2, 3, 4)
    assert there(three) == [2, 3, 4]
    assert three.counts == {"published": 5, "evictions": 2}


def test_what_was_read_last_goes_last(three):
    three.publish(0, 1, 2)
    with three.store.reading(identity(0)):
        pass
    three.publish(3)
    assert there(three) == [0, 2, 3]


def test_what_is_reserved_stays_until_its_reservation_ends(three):
    three.store.reserve({7: identity(0)})
    three.publish(0, 1, 2, 3, 4)
    assert there(three) == [0, 3, 4]
    assert three.store.end(7)
    assert not three.store.end(7)
    with three.store.reading(identity(3)), three.store.reading(identity(4)):
        three.publish(5)
    assert there(three) == [3, 4, 5]


def test_all_reservations_of_an_embedding_must_end(three):
    three.store.reserve({7: identity(0), 8: identity(0)})
    three.publish(0, 1, 2)
    three.store.end(7)
    three.publish(3, 4, 5)
    assert 0 in there(three)
    three.store.end(8)
    three.publish(6, 7, 8)
    assert there(three) == [6, 7, 8]


def test_when_all_is_reserved_nothing_is_published_and_it_is_counted(three):
    three.store.reserve({n + 1: identity(n) for n in range(3)})
    three.publish(0, 1, 2)
    assert three.store.publish(identity(3), embedding(3)) is None
    assert there(three) == [0, 1, 2]
    assert three.counts["unpublished"] == 1


def test_a_reservation_ends_by_itself_and_publishing_begins_its_time():
    clock = SimpleNamespace(now=0.0)
    store = HostStore(SIZE, lambda name, amount: None, Reservations(30, lambda: clock.now))
    store.reserve({7: identity(0)})
    clock.now = 20
    assert store.publish(identity(0), embedding(0)) == {7}
    clock.now = 49
    assert store.publish(identity(1), embedding(1)) is None
    clock.now = 50
    assert store.publish(identity(1), embedding(1)) is not None


def test_a_publication_is_confirmed_once_for_each_reservation(three):
    three.store.reserve({7: identity(0)})
    assert three.store.publish(identity(0), embedding(0)) == {7}
    three.store.reserve({8: identity(0)})
    assert three.store.publish(identity(0), embedding(0)) == {8}
    assert three.store.publish(identity(0), embedding(0)) == frozenset()


def test_what_is_reserved_makes_room_wherever_it_lies():
    made = Encode(capacity=4 * SIZE)
    made.store.reserve({8: identity(1), 9: identity(3)})
    made.publish(0, 1, 2, 3)
    with made.store.reading(identity(0)):
        assert made.store.publish(identity(9), embedding(9, rows=8)) is None, "0 is being read"
    assert made.store.publish(identity(9), embedding(9, rows=8)) is not None
    for number in (1, 3):
        with made.store.reading(identity(number)) as stored:
            assert bytes(made.store.content(stored)) == embedding(number).numpy().tobytes()
    made.server.close()


def test_what_is_being_read_stays(three):
    three.publish(0, 1, 2)
    with three.store.reading(identity(0)), three.store.reading(identity(1)):
        three.publish(3, 4)
        assert there(three) == [0, 1, 4]
    three.publish(5)
    assert there(three) == [1, 4, 5]


def test_without_room_nothing_is_published_and_it_is_counted(three):
    three.publish(0, 1, 2)
    with (
        three.store.reading(identity(0)),
        three.store.reading(identity(1)),
        three.store.reading(identity(2)),
    ):
        assert three.store.publish(identity(3), embedding(3)) is None
    assert three.counts["unpublished"] == 1
    three.publish(3)


def test_what_could_never_fit_evicts_nothing(three):
    three.publish(0, 1, 2)
    assert three.store.publish(identity(9), torch.zeros(4 * 4, 8)) is None
    assert there(three) == [0, 1, 2]


def test_an_evicted_embedding_is_published_again(three):
    three.publish(0, 1, 2, 3)
    three.publish(0)
    assert there(three) == [0, 2, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=60))
def test_blocks_never_overlap_and_all_memory_comes_back(steps):
    arena = Arena.private(4096)
    held: list[Block] = []
    for release, size in steps:
        if release and held:
            arena.free(held.pop(size % len(held)))
        elif (block := arena.allocate(size)) is not None:
            assert block.start % ALIGNMENT == 0
            assert block.end - block.start >= size
            assert all(block.end <= other.start or other.end <= block.start for other in held)
            held.append(block)
    for block in held:
        arena.free(block)
    assert arena.allocate(4096) == Block(0, 4096)


def test_memory_that_was_used_is_used_again_first():
    arena = Arena.private(1 << 20)
    first = arena.allocate(1000)
    arena.allocate(1000)
    arena.free(first)
    assert arena.allocate(500).start == first.start


def test_another_mapping_sees_what_arrived():
    arena = Arena.shared(1 << 16)
    arena.allocate(100)
    block = arena.allocate(SIZE)
    arena.tensor_of(block, LAYOUT).copy_(embedding(3.0))
    view = ArenaView()
    source = MappedEmbedding(arena.path, arena.capacity, block.start, LAYOUT)
    assert torch.equal(view.tensor(source), embedding(3.0))


def test_a_reader_sees_what_was_counted_since_it_last_asked(tmp_path):
    reader = CounterReader(tmp_path / "c", ["a", "b"])
    assert reader.take() == {}
    counters = Counters(tmp_path / "c", ["a", "b"])
    counters.add("a", 2)
    assert reader.take() == {"a": 2}
    counters.add("b", 0.5)
    counters.add("a")
    assert reader.take() == {"a": 1, "b": 0.5}
    assert reader.take() == {}


def test_the_counters_leave_no_file_behind(tmp_path):
    Counters(tmp_path / "c", ["a"])
    CounterReader(tmp_path / "c", ["a"]).take()
    assert list(tmp_path.iterdir()) == []


def test_a_counting_process_that_was_there_first_leaves_no_file_once_it_has_a_reader(tmp_path):
    Counters(tmp_path / "c", ["a"])
    Journal(tmp_path / "j")
    readers = CounterReader(tmp_path / "c", ["a"]), JournalReader(tmp_path / "j")
    assert list(tmp_path.iterdir()) == []
    assert readers[0].take() == {}


def test_a_journal_is_read_in_order_and_once(tmp_path):
    reader = JournalReader(tmp_path / "j")
    assert list(reader.take()) == []
    journal = Journal(tmp_path / "j")
    journal.write(Event.PUBLISHED, 5)
    journal.write(Event.ENDED, (1 << 48) - 1)
    assert list(reader.take()) == [(Event.PUBLISHED, 5), (Event.ENDED, (1 << 48) - 1)]
    assert list(reader.take()) == []


def test_a_reader_that_is_late_misses_the_oldest_events_only(tmp_path):
    journal, reader = Journal(tmp_path / "j"), JournalReader(tmp_path / "j")
    for number in range(journal_module.RECORDS + 10):
        journal.write(Event.ENDED, number)
    assert [number for _, number in reader.take()] == list(range(10, journal_module.RECORDS + 10))


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def admission(clock):
    """Room for three embeddings."""
    return Admission(3 * SIZE, 30, lambda: clock.now)


def media(*numbers):
    return {identity(number): SIZE for number in numbers}


def test_requests_wait_while_all_room_is_reserved_and_go_on_in_order(admission):
    first = [admission.admit(f"r{n}", media(n)) for n in range(3)]
    assert [set(numbers.values()) for numbers in first] == [{identity(n)} for n in range(3)]
    assert admission.admit("big", media(3, 4)) is None
    assert admission.admit("small", media(5)) is None
    admission.end(*first[0])
    assert admission.admit("small", media(5)) is None, "the first in line is not overtaken"
    assert admission.admit("big", media(3, 4)) is None
    admission.end(*first[1])
    assert len(admission.admit("big", media(3, 4))) == 2


def test_a_picture_whose_room_is_reserved_needs_no_more(admission):
    for n in range(3):
        admission.admit(f"r{n}", media(n))
    assert admission.admit("waits", media(3)) is None
    (number,) = admission.admit("same", media(0))
    assert number not in admission.admit("same", media(0))


def test_a_request_is_reserved_for_once_however_often_it_is_asked_about(admission):
    assert len(admission.admit("r", media(0))) == 1
    assert admission.admit("r", media(0)) == {}


def test_only_what_is_confirmed_is_reported(admission):
    numbers = admission.admit("r", media(0, 1))
    admission.confirm(next(iter(numbers)))
    assert admission.finish("r") == {}
    (number,) = admission.admit("again", media(0))
    admission.confirm(number)
    assert admission.finish("again") == {identity(0): number}
    assert admission.finish("again") == {}


def test_a_request_that_waits_too_long_is_an_error_and_lets_the_next_one_in(admission, clock):
    for n in range(3):
        admission.admit(f"r{n}", media(n))
    assert admission.admit("late", media(3)) is None
    clock.now = 20
    for n in range(3):
        admission.finish(f"r{n}")
    clock.now = 31
    with pytest.raises(HandoffError, match="capacity"):
        admission.admit("late", media(3))
    assert admission.admit("next", media(4)) is None
    clock.now = 50
    assert admission.admit("next", media(4)), "reservations that nobody ended are over"


def test_an_aborted_request_leaves_the_line(admission):
    numbers = [admission.admit(f"r{n}", media(n)) for n in range(3)]
    assert admission.admit("gone", media(3)) is None
    assert admission.admit("next", media(4)) is None
    admission.finish("gone")
    admission.end(*numbers[0])
    assert admission.admit("next", media(4))


def test_the_scheduler_never_counts_less_than_the_worker_keeps(clock):
    """Its reservation begins when the request is finished, after the worker's."""
    scheduler, worker = Admission(SIZE, 30, lambda: clock.now), Reservations(30, lambda: clock.now)
    (number,) = scheduler.admit("r", media(0))
    worker.open(number, identity(0))
    clock.now = 29
    worker.confirm(identity(0))
    clock.now = 29.5
    scheduler.finish("r")
    clock.now = 59.25
    assert not worker.of(identity(0))
    assert scheduler.admit("next", media(1)) is None
    clock.now = 59.5
    assert scheduler.admit("next", media(1))


@given(st.data())
def test_whatever_is_admitted_fits_however_sizes_and_ends_mix(data):
    store = HostStore(40 * 64, lambda name, amount: None, Reservations(1e9))
    admission = Admission(40 * 64, 1e9)
    open_numbers = []
    for step in range(data.draw(st.integers(1, 25))):
        rows = data.draw(st.integers(1, 20))
        numbers = admission.admit(f"r{step}", {identity(step): rows * 32})
        if numbers is None:
            admission.finish(f"r{step}")
        else:
            store.reserve(numbers)
            assert store.publish(identity(step), embedding(step % 100, rows)) == set(numbers)
            open_numbers += numbers
        if open_numbers and data.draw(st.booleans()):
            number = open_numbers.pop(data.draw(st.integers(0, len(open_numbers) - 1)))
            assert store.end(number)
            admission.end(number)
