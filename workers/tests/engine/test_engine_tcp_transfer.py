"""Embeddings from store to consumer over real sockets: right ones arrive, everything else is refused."""

import socket
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tcp_peers import (
    HOST,
    LAYOUT,
    SHORT,
    TOKEN,
    Encode,
    Scripted,
    arrivals,
    content,
    embedding,
    eventually,
    identity,
    settle,
)

from mmdisagg_workers.engine.tcp_handoff import arrivals as arrivals_module
from mmdisagg_workers.engine.tcp_handoff import server as server_module
from mmdisagg_workers.engine.tcp_handoff.arrivals import THREADS_PER_PEER, State, Wanted
from mmdisagg_workers.engine.tcp_handoff.client import Peer
from mmdisagg_workers.engine.tcp_handoff.connection import Connection, greet_client
from mmdisagg_workers.engine.tcp_handoff.protocol import (
    HELLO_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    REQUEST_BYTES,
    Greeting,
    HandoffError,
    Layout,
    PeerUnreachableError,
    Request,
    Verb,
    encode_reply,
    proof,
)

HERE, FAILED = State.HERE, State.FAILED
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def encode():
    made = Encode()
    yield made
    made.server.close()


@pytest.fixture
def scripted():
    made = []

    def make(script):
        made.append(Scripted(script))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_embedding_arrives_bit_for_bit(encode, dtype):
    sent = torch.randn(300, 1000).to(dtype)
    encode.store.publish(identity(1), sent)
    layout = Layout(str(dtype).removeprefix("torch."), 300, 1000)
    here = arrivals(1 << 22)
    (arrival,) = here.take([encode.wanted(1, layout)])
    assert settle(arrival) == [HERE]
    assert torch.equal(content(here, arrival), sent)
    counts = here.take_counts()
    assert (counts["misses"], counts["fetched_bytes"]) == (1, layout.size)
    assert counts["fetch_seconds"] > 0
    eventually(lambda: encode.counts["serves"] == 1)
    assert encode.counts["served_bytes"] == layout.size


def test_many_embeddings_of_one_peer_share_a_few_connections(encode):
    numbers = range(40)
    encode.publish(*numbers)
    here = arrivals()
    taken = here.take([encode.wanted(number) for number in numbers])
    assert settle(*taken) == [HERE] * 40
    assert all(torch.equal(content(here, a), embedding(n)) for n, a in zip(numbers, taken, strict=True))
    eventually(lambda: not here._lines)


def test_one_embedding_for_two_requests_is_fetched_once(encode):
    encode.publish(1)
    here = arrivals()
    (first,), (second,) = here.take([encode.wanted(1)]), here.take([encode.wanted(1)])
    assert first is second
    settle(first)
    eventually(lambda: encode.counts["serves"] == 1)
    counts = here.take_counts()
    assert (counts["misses"], counts["hits"]) == (1, 1)
    assert here.take_counts() == {}


def test_two_consumers_at_once_both_get_it(encode):
    encode.publish(*range(8))
    both = arrivals(), arrivals()
    taken = [here.take([encode.wanted(n) for n in range(8)]) for here in both]
    assert settle(*taken[0], *taken[1]) == [HERE] * 16
    assert torch.equal(content(both[0], taken[0][5]), content(both[1], taken[1][5]))


def test_an_absent_embedding_fails_alone(encode, caplog):
    encode.publish(1)
    here = arrivals()
    gone, there = here.take([encode.wanted(2), encode.wanted(1)])
    assert settle(gone, there) == [FAILED, HERE]
    assert "no longer has it" in caplog.text
    assert here.take_counts()["fetch_failures"] == 1
    assert encode.counts["serve_misses"] == 1


def test_what_failed_is_fetched_anew_when_it_is_wanted_again(encode):
    here = arrivals()
    (first,) = here.take([encode.wanted(1)])
    assert settle(first) == [FAILED]
    encode.publish(1)
    (second,) = here.take([encode.wanted(1)])
    assert settle(second) == [HERE]


@pytest.mark.parametrize(
    "layout",
    [Layout("float16", 4, 8), Layout("float32", 5, 8), Layout("float32", 4, 9), Layout("bfloat16", 8, 8)],
)
def test_another_dtype_or_shape_than_the_prompt_needs_is_refused(encode, layout, caplog):
    encode.publish(1)
    (arrival,) = arrivals().take([encode.wanted(1, layout)])
    assert settle(arrival) == [FAILED]
    assert "the prompt needs" in caplog.text


def test_a_peer_that_is_gone_fails_everything_that_should_come_from_it(encode):
    with socket.create_server((HOST, 0)) as closed:
        gone = Peer(HOST, closed.getsockname()[1])
    encode.publish(1)
    here = arrivals()
    lost = here.take([Wanted(identity(n), LAYOUT, gone) for n in range(20, 40)])
    (fine,) = here.take([encode.wanted(1)])
    assert settle(*lost, fine) == [FAILED] * 20 + [HERE]


def test_a_peer_that_does_not_answer_is_waited_for_once_not_for_each_embedding(encode, monkeypatch):
    attempts = []

    def unanswered(*arguments):
        attempts.append(arguments)
        time.sleep(0.05)
        raise PeerUnreachableError("no answer")

    monkeypatch.setattr(arrivals_module, "PeerConnection", unanswered)
    assert settle(*arrivals().take([encode.wanted(n) for n in range(40)])) == [FAILED] * 40
    assert len(attempts) <= THREADS_PER_PEER


def test_a_client_without_the_token_gets_nothing(encode, caplog):
    encode.publish(1)
    (arrival,) = arrivals(token="another-token-of-more-than-32-characters").take([encode.wanted(1)])
    assert settle(arrival) == [FAILED]
    assert "maybe its stage token is another" in caplog.text
    eventually(lambda: encode.counts["refused_connections"] == 1)
    assert "does not know the stage token" in caplog.text
    assert not encode.counts["serves"]


def test_a_server_without_the_token_is_not_believed(caplog):
    other = Encode(token="another-token-of-more-than-32-characters")
    other.publish(1)
    (arrival,) = arrivals().take([other.wanted(1)])
    assert settle(arrival) == [FAILED]
    other.server.close()


def test_the_token_and_its_proofs_never_travel_twice(encode, scripted):
    """What one connection shows proves nothing on the next: nonces differ."""
    seen = []

    def record(connection):
        connection.sendall(Greeting(bytes(32)).encode())
        seen.append(connection.recv(PROOF_BYTES, socket.MSG_WAITALL))

    spy = scripted(record)
    here = arrivals()
    for number in (1, 2):
        settle(*here.take([spy.wanted(number)]))
    assert len(seen[0]) == PROOF_BYTES
    assert seen[0] != seen[1]
    assert TOKEN.encode() not in b"".join(seen)
    with socket.create_connection((HOST, encode.peer.port)) as replay:
        replay.recv(HELLO_BYTES, socket.MSG_WAITALL)
        replay.sendall(seen[0] + Request(Verb.FETCH, identity(1)).encode())
        assert received(replay) == b""


def received(sock):
    data = b""
    try:
        while chunk := sock.recv(1 << 16):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def authenticated(then):
    """A peer that knows the token and then answers a request with `then(connection)`."""

    def script(sock):
        with Connection(sock.dup(), SHORT) as connection:
            try:
                greet_client(connection, TOKEN)
                connection.read(REQUEST_BYTES)
                then(sock)
            except (HandoffError, OSError):
                pass

    return script


def truncated(sock):
    sock.sendall(encode_reply(LAYOUT) + bytes(LAYOUT.size - 1))


def oversized(sock):
    sock.sendall(encode_reply(Layout("float32", 4, 1 << 30)) + bytes(LAYOUT.size * 2))


def unknown_status(sock):
    sock.sendall(b"\x07" + encode_reply(LAYOUT)[1:])


def silent(sock):
    time.sleep(SHORT * 1.5)


@pytest.mark.parametrize("wrong", [truncated, oversized, unknown_status, silent], ids=lambda f: f.__name__)
def test_a_wrong_reply_fails_the_fetch_in_bounded_time(scripted, wrong):
    peer = scripted(authenticated(wrong))
    started = time.monotonic()
    (arrival,) = arrivals().take([peer.wanted(1)])
    assert settle(arrival) == [FAILED]
    assert time.monotonic() - started < 6 * SHORT


def test_a_peer_that_dies_in_the_middle_fails_the_fetch(scripted):
    layout = Layout("float32", 1000, 1000)

    def die(sock):
        sock.sendall(encode_reply(layout) + bytes(1_500_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    peer = scripted(authenticated(die))
    here = arrivals(1 << 23)
    (arrival,) = here.take([Wanted(identity(1), layout, peer.peer)])
    assert settle(arrival) == [FAILED]
    assert here._arena.allocate(1 << 23) is not None, "its memory is free again"


def test_a_slow_peer_blocks_neither_the_scheduler_nor_other_peers(encode, scripted):
    encode.publish(1)
    slow = scripted(authenticated(silent))
    here = arrivals()
    started = time.monotonic()
    waiting = here.take([slow.wanted(n) for n in range(30, 30 + 3 * THREADS_PER_PEER)])
    (fine,) = here.take([encode.wanted(1)])
    assert time.monotonic() - started < SHORT / 2
    assert settle(fine) == [HERE]
    assert any(arrival.state is State.COMING for arrival in waiting)
    assert settle(*waiting) == [FAILED] * len(waiting)


def test_a_consumer_that_reads_nothing_is_dropped_and_its_embedding_can_be_evicted():
    encode = Encode(capacity=1 << 24)
    encode.store.publish(identity(1), torch.zeros(4096, 1000))
    with authentic(encode) as connection:
        connection.send(Request(Verb.FETCH, identity(1)).encode())
        eventually(lambda: encode.counts["refused_connections"] == 1)
    assert encode.store.publish(identity(2), torch.zeros(4096, 1000)) is not None
    encode.server.close()


def authentic(encode):
    from mmdisagg_workers.engine.tcp_handoff.connection import greet_server

    connection = Connection.open(HOST, encode.peer.port, 5)
    greet_server(connection, TOKEN)
    return connection


def test_an_authentic_client_that_asks_nonsense_is_refused(encode, caplog):
    with authentic(encode) as connection:
        connection.send(b"\0../../etc/passwd".ljust(REQUEST_BYTES, b"\0"))
        eventually(lambda: encode.counts["refused_connections"] == 1)
    assert "no request" in caplog.text


def test_authentic_clients_are_bounded_and_the_next_is_served_when_one_ends(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    encode = Encode()
    encode.publish(1)
    idle = [authentic(encode) for _ in range(2)]
    (arrival,) = arrivals(seconds=10 * SHORT).take([encode.wanted(1)])
    time.sleep(SHORT / 4)
    assert arrival.state is State.COMING
    idle[0].close()
    assert settle(arrival) == [HERE]
    idle[1].close()
    encode.server.close()


def test_an_authentic_client_waits_for_a_place_in_bounded_time(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    encode = Encode()
    with authentic(encode) as busy:
        for _ in range(4):
            busy.send(Request(Verb.RELEASE, identity(9)).encode())
            time.sleep(SHORT / 2)
        with authentic(encode) as second:
            for _ in range(3):
                time.sleep(SHORT / 2)
                busy.send(Request(Verb.RELEASE, identity(9)).encode())
            assert received(second._socket) == b""
    encode.server.close()


def test_whoever_proves_nothing_shuts_nobody_out(monkeypatch):
    """As many silent connections as there may be, and always a new one: no fetch waits for their deadline."""
    monkeypatch.setattr(server_module, "MAX_STRANGERS", 3)
    encode = Encode(seconds=30)
    encode.publish(*range(20))
    here, silent = arrivals(seconds=5), []
    for number in range(20):
        silent += [socket.create_connection((HOST, encode.peer.port)) for _ in range(3)]
        started = time.monotonic()
        assert settle(*here.take([encode.wanted(number)])) == [HERE]
        assert time.monotonic() - started < 2
    eventually(lambda: len(encode.server._strangers) <= 3)
    assert received(silent[0])[HELLO_BYTES:] == b""
    for one in silent:
        one.close()
    encode.server.close()


def test_strangers_take_no_place_from_whoever_has_proven_itself(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_STRANGERS", 1)
    encode = Encode(seconds=30)
    encode.publish(1)
    with authentic(encode) as proven:
        eventually(lambda: not encode.server._strangers)
        silent = [socket.create_connection((HOST, encode.peer.port)) for _ in range(3)]
        assert received(silent[0])[HELLO_BYTES:] == b"", "the older ones are gone"
        proven.send(Request(Verb.FETCH, identity(1)).encode())
        assert len(proven.read(REPLY_BYTES + LAYOUT.size)) == REPLY_BYTES + LAYOUT.size
    for one in silent:
        one.close()
    encode.server.close()


def test_a_closed_server_frees_its_port_and_its_thread(encode):
    encode.server.close()
    encode.server.close()
    with socket.create_server((HOST, encode.peer.port)):
        pass
    eventually(lambda: not encode.server._acceptor.is_alive())


def test_a_fetch_ends_the_reservation_that_it_names_and_no_other(encode):
    encode.store.reserve({7: identity(1), 8: identity(1)})
    encode.publish(1)
    here = arrivals()
    settle(*here.take([Wanted(identity(1), LAYOUT, encode.peer, 7)]))
    eventually(lambda: encode.ended == [7])
    assert encode.store.end(8)


def test_an_embedding_that_is_here_already_ends_the_reservation_without_a_fetch(encode):
    encode.store.reserve({7: identity(1), 8: identity(1)})
    encode.publish(1)
    here = arrivals()
    settle(*here.take([Wanted(identity(1), LAYOUT, encode.peer, 7)]))
    here.take([Wanted(identity(1), LAYOUT, encode.peer, 8)])
    for _ in range(3):
        here.release(identity(1), encode.peer, 7)
        here.release(identity(1), encode.peer, 8)
    eventually(lambda: sorted(encode.ended) == [7, 8])
    eventually(lambda: not here._lines)
    assert encode.counts["serves"] == 1


def test_a_reservation_that_a_fetch_ends_is_not_released_too(encode):
    encode.publish(1)
    here = arrivals()
    settle(*here.take([Wanted(identity(1), LAYOUT, encode.peer, 7)]))
    eventually(lambda: not here._lines)
    here.release(identity(1), encode.peer, 7)
    assert not here._lines


def test_a_fetch_that_failed_ends_no_reservation(encode):
    encode.store.reserve({7: identity(1)})
    here = arrivals()
    assert settle(*here.take([Wanted(identity(1), LAYOUT, encode.peer, 7)])) == [FAILED]
    assert encode.store.end(7)
    assert encode.ended == []


def test_a_release_that_cannot_be_sent_harms_nothing(encode):
    with socket.create_server((HOST, 0)) as closed:
        gone = Peer(HOST, closed.getsockname()[1])
    here = arrivals()
    here.release(identity(1), gone, 7)
    eventually(lambda: not here._lines)
    assert here.take_counts() == {}


def test_room_for_three_serves_ten_in_turn_and_counts_what_it_fetched_again():
    encode = Encode()
    encode.publish(*range(10))
    here = arrivals(3 * LAYOUT.size)
    for number in [*range(10), *range(10)]:
        (arrival,) = here.take([encode.wanted(number)])
        assert settle(arrival) == [HERE]
        assert torch.equal(content(here, arrival), embedding(number))
        here.give_back(arrival)
    counts = here.take_counts()
    assert (counts["misses"], counts["refetches"], counts["evictions"]) == (20, 10, 17)
    encode.server.close()


def test_a_request_takes_all_its_embeddings_or_none(encode):
    encode.publish(*range(6))
    here = arrivals(3 * LAYOUT.size)
    first = here.take([encode.wanted(n) for n in (0, 1)])
    assert settle(*first) == [HERE, HERE]
    assert here.take([encode.wanted(n) for n in (2, 3)]) is None
    assert here.take([encode.wanted(n) for n in (0, 1, 4)]) is not None, "what is there counts once"
    for arrival in first:
        here.give_back(arrival)
    assert here.take([encode.wanted(n) for n in (2, 3)]) is None, "the third request still holds them"


def test_making_room_for_one_picture_never_evicts_another_of_the_request(encode):
    encode.publish(*range(4))
    here = arrivals(3 * LAYOUT.size)
    held = here.take([encode.wanted(n) for n in (1, 2)])
    (unused,) = here.take([encode.wanted(0)])
    settle(*held, unused)
    here.give_back(unused)
    assert here.take([encode.wanted(n) for n in (0, 3)]) is None
    assert here.take([encode.wanted(0)]) == [unused]


def test_media_that_could_never_fit_are_an_error(encode):
    with pytest.raises(HandoffError, match="capacity"):
        arrivals(3 * LAYOUT.size).take([encode.wanted(n) for n in range(4)])


def test_one_identity_has_one_layout(encode):
    encode.publish(1)
    here = arrivals()
    settle(*here.take([encode.wanted(1)]))
    with pytest.raises(HandoffError, match="elsewhere"):
        here.take([encode.wanted(1, Layout("float16", 4, 8))])


@pytest.fixture(scope="module")
def fuzzed():
    made = Encode()
    made.publish(1)
    yield made
    made.server.close()


prefixes = st.sampled_from([b"", b"mmdisagg", b"mmdisagg\0\1", b"mmdisagg\0\2", b"GET / HTTP/1.1\r\n"])


@pytest.mark.timeout(900)
@fuzz
@given(prefixes, st.binary(max_size=400))
def test_foreign_bytes_on_the_port_get_the_greeting_and_nothing_else(fuzzed, prefix, tail):
    with socket.create_connection((HOST, fuzzed.peer.port)) as foreign:
        foreign.sendall(prefix + tail)
        foreign.shutdown(socket.SHUT_WR)
        assert len(received(foreign)) == HELLO_BYTES


@pytest.mark.timeout(900)
@fuzz
@given(st.sampled_from([b"", b"\0", b"\1"]), st.binary(max_size=REQUEST_BYTES * 2 - 1))
def test_foreign_requests_of_an_authentic_client_get_no_embedding(fuzzed, verb, data):
    with authentic(fuzzed) as connection:
        connection.send(verb + data)
        connection._socket.shutdown(socket.SHUT_WR)
        found = received(connection._socket)
    assert len(found) in (0, 41, 82)
    assert found[:1] in (b"", b"\x01")


def test_the_port_still_serves_after_all_that(fuzzed):
    here = arrivals()
    (arrival,) = here.take([fuzzed.wanted(1)])
    assert settle(arrival) == [HERE]


@pytest.fixture(scope="module")
def patient():
    """One consumer for all lies."""
    return arrivals()


class Replies:
    """What the scripted peer of the next test sends: as if it were the server, from some point on."""

    data = b""
    after_handshake = False


@pytest.fixture(scope="module")
def liar():
    def script(sock):
        if Replies.after_handshake:
            authenticated(lambda s: s.sendall(Replies.data))(sock)
        else:
            sock.sendall(Replies.data)

    made = Scripted(script)
    yield made
    made.close()


@pytest.mark.timeout(900)
@fuzz
@given(st.booleans(), prefixes, st.binary(max_size=300))
def test_foreign_bytes_from_a_peer_fail_the_fetch_alone(liar, patient, after, prefix, tail):
    Replies.after_handshake, Replies.data = after, prefix + tail
    (arrival,) = patient.take([liar.wanted(1)])
    assert settle(arrival) == [FAILED]


def test_proofs_depend_on_side_token_and_both_nonces():
    base = (TOKEN, b"client", b"1" * 32, b"2" * 32)
    others = [
        (TOKEN, b"server", b"1" * 32, b"2" * 32),
        ("x" + TOKEN, b"client", b"1" * 32, b"2" * 32),
        (TOKEN, b"client", b"3" * 32, b"2" * 32),
        (TOKEN, b"client", b"1" * 32, b"3" * 32),
    ]
    assert len({proof(*arguments) for arguments in (base, *others)}) == 5
