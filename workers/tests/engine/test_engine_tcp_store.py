"""Encode's bounded store, the memory under both ends, and the counters between encode's processes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tcp_peers import LAYOUT, Encode, embedding, identity

from mmdisagg_workers.engine.tcp_handoff.counters import CounterReader, Counters
from mmdisagg_workers.engine.tcp_handoff.memory import ALIGNMENT, Arena, ArenaView, Block, MappedEmbedding

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


def test_what_was_fetched_gives_way_before_what_is_still_to_be_fetched(three):
    three.publish(0, 1, 2)
    three.store.fetched(identity(2))
    three.publish(3)
    assert there(three) == [0, 1, 3]


def test_what_is_announced_again_is_to_be_fetched_again(three):
    three.publish(0, 1, 2)
    for number in (0, 1, 2):
        three.store.fetched(identity(number))
    three.publish(0)
    three.publish(3, 4)
    assert there(three) == [0, 3, 4]
    assert three.counts["published"] == 5


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
        assert not three.store.publish(identity(3), embedding(3))
    assert three.counts["unpublished"] == 1
    three.publish(3)


def test_what_could_never_fit_evicts_nothing(three):
    three.publish(0, 1, 2)
    assert not three.store.publish(identity(9), torch.zeros(4 * 4, 8))
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
