"""Bad input at the wire: refused with the right code, naming the field; nothing changed; the daemon lives.

One file: the table of all calls and all fields, so that what is missing from it is seen.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cairn_daemon import KIB, MIB, Node, binary, exit_status, node
from cairn_raw import (
    ALREADY_EXISTS,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    PERSISTED,
    READ,
    RESOURCE_EXHAUSTED,
    CairnError,
    Raw,
    attempt_number,
    header,
    pattern,
    refuses,
    send_fds,
    ttypes,
)
from patience import patient, until

UNIMPLEMENTED = 12


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    """One daemon for all of this: whatever it is told, it must still serve the next test."""
    with node() as instance:
        yield instance
        with instance.writer("epilogue", attempt_number()) as writer:
            writer.save(1, {"x": b"still here"})
            assert writer.load(1, "x") == b"still here"


@pytest.fixture
def writer(shared: Node, request: pytest.FixtureRequest) -> Iterator[Raw]:
    """Writer 0 of 1 of a job of this test's own."""
    job = "j" + "".join(c for c in request.node.name if c.isalnum())[:100]
    with shared.writer(job, attempt_number()) as session:
        yield session


# --- names, jobs, steps, sizes ---

BAD_NAMES = {
    "empty": "",
    "dot-dot": "a/../b",
    "only dot-dot": "..",
    "dot": "a/./b",
    "leading slash": "/etc/passwd",
    "trailing slash": "a/",
    "double slash": "a//b",
    "NUL": "a\0b",
    "newline": "a\nb",
    "DEL": "a\x7fb",
    "513 bytes": "/".join(["n" * 102] * 5)[:513].ljust(513, "n"),
    "component of 201": "c" * 201,
    "component of 201 behind": "a/" + "c" * 201,
    "ours": ".cairn",
    "ours as prefix": ".cairnage/x",
    "ours below": "a/.cairn/0.manifest",
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_bad_name_is_refused_at_create_and_names_the_field(writer: Raw, name: str) -> None:
    assert "name" in refuses(INVALID_ARGUMENT, writer.create, 1, {name: 10})
    refuses(NOT_FOUND, writer.checkpoint, 1)


@pytest.mark.parametrize(
    "name", ["x" * 200, "/".join(["n" * 200, "n" * 200, "n" * 110]), "größe/重み.pt", "..a", "a b"]
)
def test_an_unusual_name_within_the_rules_is_saved_loaded_and_becomes_that_file(
    shared: Node, writer: Raw, name: str
) -> None:
    assert len(name.encode()) <= 512
    writer.save(1, {name: b"good"})
    assert writer.load(1, name) == b"good"
    writer.persist(1)
    assert (shared.storage / writer.job / "1" / name).read_bytes() == b"good"


def test_a_name_that_is_no_utf8_is_refused(shared: Node, writer: Raw) -> None:
    """Thrift strings are bytes on the wire; a client in C may send any."""
    frame = bytearray(raw_call("create", 1))
    spec = (
        b"\x0b\x00\x01"
        + struct.pack(">I", 3)
        + b"\xff\xfe\x41"
        + b"\x0a\x00\x02"
        + struct.pack(">q", 4)
        + b"\x00"
    )
    request = (
        i64(1, 1)
        + i64(2, writer.attempt)
        + i32(3, 0)
        + i32(4, 0)
        + i32(5, 1)
        + b"\x0f\x00\x06\x0c"
        + struct.pack(">I", 1)
        + spec
        + i64(7, 1000)
        + b"\x00"
    )
    frame += i64(1, 900) + b"\x0c\x00\x02" + request + b"\x00"
    writer.transport.write(bytes(frame))
    writer.transport.flush()
    try:
        writer.client.recv_create()
    except ttypes.Error as error:
        assert error.code == INVALID_ARGUMENT and "name" in error.message
    else:
        raise AssertionError("accepted")


def test_a_name_beside_a_directory_of_that_name_is_refused(writer: Raw) -> None:
    with pytest.raises(CairnError) as error:
        writer.create(1, {"a": 1, "a/b": 1})
    assert error.value.code in (INVALID_ARGUMENT, ALREADY_EXISTS)
    assert '"a/b"' in error.value.message and '"a"' in error.value.message
    writer.create(2, {"a": 1})
    with pytest.raises(CairnError) as error:
        writer.create(2, {"a/b": 1})
    assert error.value.code in (INVALID_ARGUMENT, ALREADY_EXISTS)


def test_one_name_twice_in_a_create_is_refused(writer: Raw) -> None:
    twice = [ttypes.ObjectSpec("a", 1), ttypes.ObjectSpec("a", 1)]
    request = ttypes.CreateRequest(1, writer.attempt, 0, 0, 1, twice, 1000, [])
    with pytest.raises(CairnError) as error:
        writer.change("create", request)
    assert error.value.code in (INVALID_ARGUMENT, ALREADY_EXISTS)


BAD_JOBS = ["-run", ".run", "_run", "a/b", "a b", "j" * 129, "run\n", "größe", "..", "a\0"]


@pytest.mark.parametrize("job", BAD_JOBS)
def test_a_job_outside_the_grammar_is_refused(shared: Node, job: str) -> None:
    assert "job" in refuses(INVALID_ARGUMENT, shared.writer, job, attempt_number())
    with shared.session() as session:
        assert "job" in refuses(INVALID_ARGUMENT, session.latest, job)
        assert "job" in refuses(INVALID_ARGUMENT, session.checkpoint, 1, job=job)


def test_nothing_is_waited_for_a_negative_time(writer: Raw) -> None:
    ref, job = writer.ref(1), writer.job
    calls = {
        "latest": [job],
        "stat": [ref, "a"],
        "statCheckpoint": [ref],
        "ls": [job, "", 10],
        "previewPolicy": [ttypes.PreviewRequest(job)],
    }
    for call, arguments in calls.items():
        assert "timeout_ms: -1" in refuses(INVALID_ARGUMENT, writer.do, call, *arguments, -1), call
    changes = {
        "chooseAttempt": [],
        "useCheckpoint": [ref, False],
        "remove": [ref, False, True],
    }
    for call, arguments in changes.items():
        said = refuses(INVALID_ARGUMENT, writer.change, call, *arguments, -1)
        assert "timeout_ms: -1" in said, call


@pytest.mark.parametrize("step", [-1, -2, -(1 << 63)])
def test_a_negative_step_is_refused(writer: Raw, step: int) -> None:
    message = refuses(INVALID_ARGUMENT, writer.create, step, {"a": 1})
    assert "step" in message and str(step) in message
    assert "step" in refuses(INVALID_ARGUMENT, writer.commit, step)


def test_the_greatest_step_is_a_step(writer: Raw) -> None:
    last = (1 << 63) - 1
    writer.save(last, {"a": b"end of time"})
    assert writer.latest().step == last
    assert writer.load(last, "a") == b"end of time"


@pytest.mark.parametrize("length", [-1, -(1 << 63), (1 << 63) - 1, (1 << 43) + 1])
def test_a_length_that_cannot_be_is_refused(writer: Raw, length: int) -> None:
    """2^63 itself travels as the i64 -2^63."""
    assert "length" in refuses(INVALID_ARGUMENT, writer.create, 1, {"a": length})
    refuses(NOT_FOUND, writer.checkpoint, 1)


def test_lengths_whose_sum_overflows_are_refused(writer: Raw) -> None:
    with pytest.raises(CairnError) as error:
        writer.create(1, {f"o{i}": 1 << 43 for i in range(1 << 15)}, timeout_ms=200)
    assert error.value.code in (RESOURCE_EXHAUSTED, INVALID_ARGUMENT)


@pytest.mark.parametrize("admitted", [False, True])
def test_lengths_beyond_every_sum_evict_nobody(shared: Node, writer: Raw, admitted: bool) -> None:
    with shared.writer(f"victim{admitted}", attempt_number()) as victim:
        for step in (1, 2):
            victim.save(step, {"a": bytes(8 * MIB)})
        lengths = {f"o{i:05d}": 1 << 43 for i in range(999)}
        if admitted:
            writer.create(1, {"small": 1})
        message = refuses(
            RESOURCE_EXHAUSTED, writer.create, 1, lengths, timeout_ms=int(patient(60_000))
        )
        assert "never fit" in message
        whole = (1, 1 << 43, 1)
        message = refuses(
            RESOURCE_EXHAUSTED,
            writer.create,
            2,
            {"a": 1},
            to_come=whole,
            timeout_ms=int(patient(60_000)),
        )
        assert "never fit" in message
        assert all(victim.checkpoint(step).facts.resident for step in (1, 2))


def test_beyond_the_budget_is_refused_with_the_arithmetic(shared: Node, writer: Raw) -> None:
    message = refuses(RESOURCE_EXHAUSTED, writer.create, 1, {"a": 65 * MIB}, timeout_ms=200)
    assert str(65 * MIB) in message or "65" in message, message
    assert str(64 * MIB) in message or "64" in message, message


@pytest.mark.parametrize(
    "world",
    [
        {"writer": 0, "world_size": 0},
        {"writer": 1, "world_size": 1},
        {"writer": -1, "world_size": 1},
        {"writer": 0, "world_size": -3},
        {"writer": 0, "world_size": (1 << 20) + 1},
    ],
)
def test_a_writer_outside_its_world_is_refused(writer: Raw, world: dict[str, int]) -> None:
    refuses(INVALID_ARGUMENT, writer.create, 1, {"a": 1}, **world)


def test_what_is_given_up_has_a_world_too(writer: Raw) -> None:
    for of, world_size in ((0, -3), (2, 2), (0, (1 << 20) + 1)):
        request = ttypes.AbortRequest(1, writer.attempt, 0, of, world_size)
        assert "world_size" in refuses(INVALID_ARGUMENT, writer.change, "abort", request)


def test_a_negative_revision_is_refused(writer: Raw) -> None:
    assert "revision" in refuses(INVALID_ARGUMENT, writer.create, 1, {"a": 1}, revision=-1)


def test_an_attempt_of_nothing_or_below_is_refused_at_create(writer: Raw) -> None:
    for attempt in (0, -5):
        assert "attempt" in refuses(INVALID_ARGUMENT, writer.create, 1, {"a": 1}, attempt=attempt)


# --- what does not exist ---


def test_an_unknown_job_is_not_found_and_does_not_come_into_being_by_asking(shared: Node) -> None:
    with shared.session() as session:
        refuses(NOT_FOUND, session.latest, "nosuchjob")
        refuses(NOT_FOUND, session.checkpoint, 1, job="nosuchjob")
        refuses(NOT_FOUND, session.stat, 1, "a", job="nosuchjob")
        refuses(NOT_FOUND, session.open, 1, "a", job="nosuchjob")
        refuses(NOT_FOUND, session.do, "ls", "nosuchjob", "", 100)
        assert "nosuchjob" not in session.do("ls", "", "", 1000).jobs


def test_an_unknown_step_and_name_are_not_found(writer: Raw) -> None:
    writer.save(1, {"a": b"x"})
    refuses(NOT_FOUND, writer.open, 2, "a")
    refuses(NOT_FOUND, writer.open, 1, "b")
    refuses(NOT_FOUND, writer.checkpoint, 1, attempt=writer.attempt + 1)


def test_a_step_in_the_making_cannot_be_opened(writer: Raw) -> None:
    """Promise 3: complete or absent."""
    seals = writer.write(1, {"a": b"half"})
    writer.seal(1, seals)
    refuses(NOT_FOUND, writer.open, 1, "a")
    refuses(NOT_FOUND, writer.latest)


def test_more_objects_than_one_create_may_name_are_refused_by_the_field(writer: Raw) -> None:
    many = {f"o{i}": 1 for i in range(1001)}
    assert "objects: 1001" in refuses(INVALID_ARGUMENT, writer.create, 1, many)
    writer.create(1, {f"o{i}": 1 for i in range(1000)})


def test_a_commit_and_a_seal_may_name_any_number_of_objects(writer: Raw) -> None:
    """They are sealed so many at a time; an object that does not hold fails the call by its name."""
    data = {f"o{i:04}": b"x" for i in range(2500)}
    names = list(data)
    for step in (1, 2):
        seals = []
        for begin in range(0, len(names), 1000):
            batch = names[begin : begin + 1000]
            seals += writer.write(step, {name: data[name] for name in batch})
        if step == 2:
            writer.seal(2, seals)
            seals = []
        else:
            ghost = [*seals, writer.sealed("ghost", b"boo")]
            assert "ghost" in refuses(NOT_FOUND, writer.commit, 1, ghost)
        assert writer.commit(step, seals).complete
        assert writer.load(step, "o2499") == b"x"


@pytest.mark.parametrize("to_come", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), ((1 << 43) + 1, 0, 0)])
def test_what_is_to_come_must_be_a_count(writer: Raw, to_come: tuple[int, int, int]) -> None:
    message = refuses(INVALID_ARGUMENT, writer.create, 1, {"a": 1}, to_come=to_come)
    assert "to_come." in message


# --- seal and commit ---


def test_seal_of_what_was_never_created_is_refused(writer: Raw) -> None:
    refuses(NOT_FOUND, writer.seal, 1, [writer.sealed("ghost", b"boo")])
    writer.create(2, {"real": 4})
    refuses(NOT_FOUND, writer.seal, 2, [writer.sealed("ghost", b"boo")])


def test_seal_twice_with_the_same_content_is_once_and_with_other_content_is_refused(
    writer: Raw,
) -> None:
    (seal,) = writer.write(1, {"a": b"good"})
    writer.seal(1, [seal])
    writer.seal(1, [seal])
    refuses(ALREADY_EXISTS, writer.seal, 1, [writer.sealed("a", b"evil")])
    writer.commit(1)
    assert writer.load(1, "a") == b"good"


def test_commit_twice_is_once(writer: Raw) -> None:
    seals = writer.write(1, {"a": b"good"})
    first = writer.commit(1, seals, call=50)
    assert writer.commit(1, seals, call=50).digest == first.digest
    assert writer.commit(1, seals, call=51).digest == first.digest


def test_a_repeated_call_gets_the_first_answer_and_a_reused_number_does_not_pass(
    writer: Raw,
) -> None:
    first = writer.create(1, {"a": 100}, call=70)
    again = writer.create(1, {"a": 100}, call=70)
    assert [e.lease for e in again.extents] == [e.lease for e in first.extents]
    with pytest.raises(CairnError) as error:
        writer.create(1, {"a": 200}, call=70)
    assert error.value.code in (ALREADY_EXISTS, INVALID_ARGUMENT)


def test_seal_that_does_not_cover_every_byte_is_refused_and_can_be_repaired(writer: Raw) -> None:
    data = pattern("cover", 10_000)
    writer.write(1, {"a": data})
    for covered in (
        [],
        [0, 9_999],
        [1, 10_000],
        [0, 4_000, 4_001, 10_000],
        [4_000, 10_000, 0, 3_999],
    ):
        message = refuses(
            INVALID_ARGUMENT, writer.seal, 1, [writer.sealed("a", data, covered=covered)]
        )
        assert "cover" in message, message
    writer.seal(1, [writer.sealed("a", data, covered=[4_000, 10_000, 0, 4_000])])
    writer.commit(1)
    assert writer.load(1, "a") == data


@pytest.mark.parametrize("covered", [[0], [0, 1, 2], [5, 2], [-1, 100], [0, -1], [0, 1 << 62]])
def test_malformed_coverage_is_refused(writer: Raw, covered: list[int]) -> None:
    writer.write(1, {"a": b"x" * 100})
    refuses(INVALID_ARGUMENT, writer.seal, 1, [writer.sealed("a", b"x" * 100, covered=covered)])


def test_seal_short_of_or_beyond_what_was_created_is_refused(writer: Raw) -> None:
    """Only who said can_pad may seal another length than it asked for."""
    data = b"x" * 5_000
    writer.write(1, {"a": data})
    for length in (-1, 5_001, 1 << 40):
        bad = writer.sealed("a", data, length=length, covered=[0, max(length, 0)])
        refuses(INVALID_ARGUMENT, writer.seal, 1, [bad])
    short = writer.sealed("a", data[:4_999])
    refuses(INVALID_ARGUMENT, writer.seal, 1, [short])


def test_seal_with_the_wrong_number_of_checksums_is_refused(writer: Raw) -> None:
    data = b"x" * 5_000
    writer.write(1, {"a": data})
    for crcs in ([], [1, 2], [0] * 1000):
        refuses(INVALID_ARGUMENT, writer.seal, 1, [writer.sealed("a", data, block_crcs=crcs)])


def test_commit_with_an_object_unsealed_is_refused(writer: Raw) -> None:
    writer.write(1, {"a": b"one", "b": b"two"})
    with pytest.raises(CairnError) as error:
        writer.commit(1, [writer.sealed("a", b"one")])
    assert error.value.code in (INVALID_ARGUMENT, FAILED_PRECONDITION)
    assert '"b"' in error.value.message


# --- who may write what ---


def test_a_world_size_that_differs_within_a_step_of_an_attempt_is_refused(shared: Node) -> None:
    attempt = attempt_number()
    with (
        shared.writer("world", attempt, 0, 2) as first,
        shared.writer("world", attempt, 1, 3) as second,
    ):
        first.create(1, {"a": 1})
        with pytest.raises(CairnError) as error:
            second.create(1, {"b": 1})
        assert error.value.code in (FAILED_PRECONDITION, INVALID_ARGUMENT, ALREADY_EXISTS)
        assert (
            "world_size" in error.value.message
            and "2" in error.value.message
            and "3" in error.value.message
        )


def test_one_name_from_two_writers_is_refused_and_names_the_writer_that_has_it(
    shared: Node,
) -> None:
    attempt = attempt_number()
    with (
        shared.writer("twonames", attempt, 0, 2) as first,
        shared.writer("twonames", attempt, 1, 2) as second,
    ):
        first.create(1, {"model": 1})
        message = refuses(ALREADY_EXISTS, second.create, 1, {"model": 1})
        assert "writer 0" in message, message
        with pytest.raises(CairnError) as error:
            second.create(1, {"model/part": 1})
        assert error.value.code in (ALREADY_EXISTS, INVALID_ARGUMENT)


def test_a_second_process_as_the_same_attempt_and_writer_is_refused(shared: Node) -> None:
    attempt = attempt_number()
    with shared.writer("second", attempt, 0, 2) as first:
        first.create(1, {"a": 1})
        with (
            pytest.raises(CairnError) as error,
            shared.writer("second", attempt, 0, 2, process=os.urandom(16)) as other,
        ):
            other.create(1, {"b": 1})
        assert error.value.code == ALREADY_EXISTS and "writer" in error.value.message
    # Not even when the first one is gone: half a step of one and half of the next would add up.
    with (
        pytest.raises(CairnError),
        shared.writer("second", attempt, 0, 2, process=os.urandom(16)) as other,
    ):
        other.create(2, {"b": 1})


def test_a_step_of_one_writer_is_the_process_s_that_entered_it(shared: Node) -> None:
    attempt = attempt_number()
    with (
        shared.writer("lone", attempt) as first,
        shared.writer("lone", attempt, process=os.urandom(16)) as other,
    ):
        first.create(1, {"a": 1})
        message = refuses(ALREADY_EXISTS, other.create, 1, {"b": 1})
        assert "step: 1" in message and f"pid {os.getpid()}" in message
        other.save(2, {"b": b"its own"})


def test_the_same_process_may_connect_again_as_itself(shared: Node) -> None:
    attempt, process = attempt_number(), os.urandom(16)
    with shared.writer("again", attempt, process=process) as first:
        first.save(1, {"a": b"x"})
    with shared.writer("again", attempt, process=process) as second:
        second.save(2, {"a": b"y"})
        assert second.latest().step == 2


def test_a_superseded_attempt_is_refused_and_told_by_whom(shared: Node) -> None:
    older, newer = attempt_number(), attempt_number()
    with shared.writer("fenced", older, 0, 2) as zombie:
        zombie.create(1, {"a": 1})
        with shared.writer("fenced", newer, 0, 2) as fresh:
            fresh.create(1, {"a": 1})
            for call in (lambda: zombie.create(2, {"a": 1}), lambda: zombie.commit(1, [])):
                with pytest.raises(CairnError) as error:
                    call()
                assert error.value.code == FAILED_PRECONDITION
                assert error.value.superseded_by == newer
                assert f"superseded by {newer}" in error.value.message
        refuses(
            FAILED_PRECONDITION, lambda: shared.writer("fenced", older, 1, 2).create(1, {"b": 1})
        )


def test_a_reader_cannot_write(shared: Node, writer: Raw) -> None:
    writer.save(1, {"a": b"x"})
    with shared.session(writer.job) as reader:
        with pytest.raises(CairnError) as error:
            reader.create(2, {"a": 1}, attempt=writer.attempt + 100, writer=0, world_size=1)
        assert error.value.code in (INVALID_ARGUMENT, FAILED_PRECONDITION, PERMISSION_DENIED)


def test_what_another_process_is_writing_cannot_be_sealed_committed_or_dropped(
    shared: Node,
) -> None:
    attempt = attempt_number()
    with (
        shared.writer("meddle", attempt, 0, 2) as first,
        shared.writer("meddle", attempt, 1, 2) as second,
    ):
        seals = first.write(1, {"a": b"mine"})
        refuses(ALREADY_EXISTS, second.seal, 1, seals, writer=0)
        refuses(ALREADY_EXISTS, second.commit, 1, seals, writer=0)
        # Nothing of this session's is there to drop; the other's stays.
        second.change("abort", ttypes.AbortRequest(1, attempt, 0, 0))
        first.commit(1, seals)


# --- leases ---


def test_a_guessed_lease_gives_no_bytes_and_takes_none_away(shared: Node, writer: Raw) -> None:
    """R12, from within one uid: a lease belongs to its session."""
    writer.save(1, {"a": b"secret"})
    held = writer.open(1, "a", READ)
    with shared.session(writer.job, takes_fds=False) as other:
        for lease in (held.lease, held.lease + 1, 0, -1, 1 << 62):
            with pytest.raises(CairnError) as error:
                other.do("readChunk", lease, 0, 6)
            assert error.value.code in (NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED)
            with pytest.raises(CairnError):
                other.change("writeChunk", lease, 0, b"evil")
        try:
            other.change("release", [held.lease])
        except CairnError:
            pass
    assert writer.do("readChunk", held.lease, 0, 6) == b"secret"


@pytest.mark.parametrize("place", [(-1, 4), (0, -1), (0, 7), (7, 1), (1 << 62, 4), (0, 64 * MIB)])
def test_a_chunk_outside_the_object_is_refused(writer: Raw, place: tuple[int, int]) -> None:
    writer.save(1, {"a": b"secret"})
    held = writer.open(1, "a", READ)
    with pytest.raises(CairnError) as error:
        writer.do("readChunk", held.lease, *place)
    assert error.value.code in (INVALID_ARGUMENT, 11), error.value  # OUT_OF_RANGE


def test_an_open_mode_that_does_not_exist_is_refused(writer: Raw) -> None:
    writer.save(1, {"a": b"x"})
    for mode in (0, 4, -1):
        refuses(INVALID_ARGUMENT, writer.open, 1, "a", mode)


# --- frames, protocols, sockets ---


def i64(field: int, value: int) -> bytes:
    return struct.pack(">BHq", 10, field, value)


def i32(field: int, value: int) -> bytes:
    return struct.pack(">BHi", 8, field, value)


def raw_call(method: str, sequence: int) -> bytes:
    """The head of a call in Thrift's strict binary protocol."""
    name = method.encode()
    return struct.pack(">II", 0x80010001, len(name)) + name + struct.pack(">I", sequence)


def framed(message: bytes, announced: int | None = None) -> bytes:
    return struct.pack(">I", len(message) if announced is None else announced) + message


def plain(node: Node) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(node.socket)
    return connection


def memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


GARBAGE = {
    "zeroes": b"\0" * 4096,
    "ones": b"\xff" * 4096,
    "text": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    "random": bytes((i * 2654435761 >> 7) & 0xFF for i in range(8192)),
    "without a frame": raw_call("ping", 1) + b"\x00",
    "half a header": b"\0\0",
    "unknown method": framed(raw_call("selfDestruct", 1) + b"\x00" + b"\0" * 256),
    "empty method": framed(raw_call("", 1) + b"\x00"),
    "reply as a request": framed(
        struct.pack(">II", 0x80010002, 4) + b"ping" + struct.pack(">I", 1) + b"\x00"
    ),
    "type that does not exist": framed(raw_call("ping", 1) + b"\x7f\x00\x01" + b"\0" * 64),
    "cut off": framed(raw_call("hello", 1) + b"\x0c\x00\x01"),
    "shorter than it says": framed(raw_call("ping", 1) + b"\x00", announced=4096),
    "nested without end": framed(raw_call("hello", 1) + b"\x0c\x00\x63" * 4096),
}


@pytest.mark.parametrize("frame", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_garbage_frame_costs_its_sender_the_connection_and_nobody_else(
    shared: Node, writer: Raw, frame: bytes
) -> None:
    before = shared.daemon_pid()
    with plain(shared) as connection:
        try:
            connection.sendall(frame)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
    writer.save(1, {"a": b"unharmed"})
    assert shared.daemon_pid() == before


ANNOUNCED = {
    "method name": struct.pack(">II", 0x80010001, 0x7FFFFFFF),
    "old-style method name": struct.pack(">I", 0x7FFFFFFE),
    "string": raw_call("hello", 1)
    + b"\x0c\x00\x01"
    + b"\x0b\x00\x02"
    + struct.pack(">I", 0x7FFFFFFF),
    "negative string": raw_call("hello", 1)
    + b"\x0c\x00\x01"
    + b"\x0b\x00\x02"
    + struct.pack(">i", -1),
    "list": raw_call("release", 1)
    + i64(1, 1)
    + b"\x0f\x00\x02\x0a"
    + struct.pack(">I", 0x7FFFFFFF),
    "list of structs": raw_call("commit", 1)
    + i64(1, 1)
    + b"\x0c\x00\x02"
    + b"\x0f\x00\x06\x0c"
    + struct.pack(">I", 0x0FFFFFFF),
    "map": raw_call("commit", 1)
    + i64(1, 1)
    + b"\x0c\x00\x02"
    + b"\x0d\x00\x07\x0b\x0b"
    + struct.pack(">I", 0x7FFFFFFF),
}
# 40 bytes cost 104 MiB: a list of 2^20 structs, of which no byte is there.
OVERSIZE = {name: framed(message) for name, message in ANNOUNCED.items()} | {
    "list of a million structs": framed(
        raw_call("create", 1)
        + i64(1, 1)
        + b"\x0c\x00\x02"
        + b"\x0f\x00\x06\x0c"
        + struct.pack(">I", 1 << 20)
    ),
    "frame of 2 GiB": framed(b"", announced=0x7FFFFFFF),
    "frame of 64 MiB before hello": framed(b"", announced=64 << 20),
}


@pytest.mark.parametrize("frame", OVERSIZE.values(), ids=OVERSIZE.keys())
def test_an_oversize_frame_is_refused_before_its_memory_is_taken(
    shared: Node, writer: Raw, frame: bytes
) -> None:
    pid = shared.daemon_pid()
    before = memory_kib(pid)
    with plain(shared) as connection:
        try:
            connection.sendall(frame)
            connection.sendall(b"x" * 100_000)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
    writer.save(1, {"a": b"unharmed"})
    assert shared.daemon_pid() == pid
    assert memory_kib(pid) - before < 64 * KIB


def test_a_newer_protocol_is_refused_and_both_versions_are_named(shared: Node) -> None:
    with pytest.raises(CairnError) as error:
        shared.session("new", protocol=2)
    assert error.value.code in (UNIMPLEMENTED, INVALID_ARGUMENT, FAILED_PRECONDITION)
    assert (
        "protocol" in error.value.message
        and "2" in error.value.message
        and "1" in error.value.message
    )
    for protocol in (0, -1):
        with pytest.raises(CairnError) as error:
            shared.session("old", protocol=protocol)
        assert "protocol" in error.value.message


def test_calls_before_hello_are_refused(shared: Node) -> None:
    session = Raw.__new__(Raw)
    session.path, session.timeout_s, session.job = shared.socket, 20, ""
    session._connect()
    with pytest.raises(CairnError):
        session.do(
            "create", 1, ttypes.CreateRequest(1, 5, 0, 0, 1, [ttypes.ObjectSpec("a", 1)], 1000, [])
        )
    with pytest.raises(CairnError):
        session.do("rejoin", 1, b"0" * 16)
    session.transport.close()


def test_a_wrong_secret_joins_no_session(shared: Node, writer: Raw) -> None:
    for secret in (b"", b"0" * 16, writer.hello.secret[:15], writer.hello.secret + b"x"):
        fresh = Raw.__new__(Raw)
        fresh.path, fresh.timeout_s = shared.socket, 20
        fresh._connect()
        with pytest.raises(CairnError) as error:
            fresh.do("rejoin", writer.hello.session, secret)
        fresh.transport.close()
        assert error.value.code in (PERMISSION_DENIED, NOT_FOUND, INVALID_ARGUMENT)


BAD_ATTACH = {
    "empty body": b"x",
    "wrong magic": header(1, magic=0x12345678) + b"\0" * 24,
    "newer version": header(1, version=2) + b"\0" * 24,
    "unknown type": header(99) + b"\0" * 24,
    "short": header(1) + b"\0" * 8,
    "long": header(1) + b"\0" * 400,
    "longer than any message": header(1) + b"\0" * 4000,
    "no such session": header(1) + b"\xff" * 24,
}


@pytest.mark.parametrize("message", BAD_ATTACH.values(), ids=BAD_ATTACH.keys())
def test_a_bad_attach_closes_that_fd_channel_and_no_other(
    shared: Node, writer: Raw, message: bytes
) -> None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(20)
    channel.connect(writer.hello.fd_socket)
    own = os.pidfd_open(os.getpid())
    try:
        send_fds(channel, message, [own])
        answer = channel.recv(512)
        assert answer == b"" or struct.unpack("<IHHi", answer[:12])[3] != 0
    except ConnectionError:
        pass
    finally:
        os.close(own)
        channel.close()
    writer.save(1, {"a": b"unharmed"})


def test_attach_with_what_is_no_pidfd_is_refused(shared: Node, writer: Raw) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    with shared.session("pidfds", attach=False) as session, pytest.raises(CairnError) as error:
        session.attach(pidfd=fd)
    os.close(fd)
    assert error.value.code == INVALID_ARGUMENT


def test_a_client_that_says_nothing_holds_up_no_one(shared: Node, writer: Raw) -> None:
    silent = [plain(shared) for _ in range(50)]
    writer.save(1, {"a": b"unharmed"})
    for connection in silent:
        connection.close()


def test_a_socket_path_in_use_is_refused_and_named_and_the_first_daemon_lives(shared: Node) -> None:
    other = Node(shared.folder)
    other.log = shared.folder / "second.log"
    other.start(wait=False)
    assert other.process is not None
    assert exit_status(other.process) != 0
    other.process = None
    assert shared.socket in other.tail()
    shared.session().vanish()


def test_a_dead_daemons_socket_files_are_replaced(tmp_path: Path) -> None:
    with node() as instance:
        instance.kill_all()
        assert Path(instance.socket).exists()
        instance.start()
        instance.session().vanish()


# --- a foreign uid, a full disk ---


@pytest.mark.root
def test_a_foreign_uids_job_is_refused(shared: Node, writer: Raw) -> None:
    writer.save(1, {"a": b"secret"})
    as_other = f"""
import sys, os
sys.path.insert(0, {str(Path(__file__).parent)!r})
os.setgid(65534); os.setuid(65534)
from cairn_raw import *
job = {writer.job!r}
session = Raw({shared.socket!r})
for call in (lambda: session.open(1, "a", job=job), lambda: session.latest(job),
             lambda: session.checkpoint(1, job=job), lambda: session.stat(1, "a", job=job),
             lambda: session.do("ls", job, "", 10), lambda: session.wait(1, CACHED, 100, job=job),
             lambda: session.change("persist", session.ref(1, job=job)),
             lambda: session.change("remove", session.ref(1, job=job), False, True),
             lambda: session.change("pin", session.ref(1, job=job), True),
             lambda: session.change("setPolicy", job, ttypes.JobPolicy())):
    refuses(PERMISSION_DENIED, call)
def write():
    with Raw({shared.socket!r}, job, {writer.attempt + 10_000}, 0, 1) as thief:
        thief.create(2, {{"a": 1}})
refuses(PERMISSION_DENIED, write)
assert job not in session.do("ls", "", "", 1000).jobs
print("all refused")
"""
    result = subprocess.run(
        ["/usr/bin/python3", "-c", as_other], capture_output=True, text=True, timeout=patient(60)
    )
    assert "all refused" in result.stdout, result.stderr
    assert writer.load(1, "a") == b"secret"


def test_a_full_disk_leaves_the_cache_whole_says_so_and_goes_on_by_itself(tmp_path: Path) -> None:
    """R5 in little: a tmpfs of 8 MiB in the daemon's own mount namespace."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode != 0:
        pytest.skip("this kernel lets no ordinary user make namespaces")
    script = 'mkdir -p "$0" && mount -t tmpfs -o size=8m none "$0" && exec "$@"'
    folder = tmp_path / "disk"
    folder.mkdir()
    wrapper = ("unshare", "-Urm", "sh", "-c", script, str(folder))
    with node(storage=False, wrapper=wrapper, options=(f"--storage.root={folder}",)) as instance:
        inside = Path(f"/proc/{instance.keeper_pid}/root{folder}")
        (inside / "filler").write_bytes(b"\0" * (7 * MIB))
        data = pattern("fulldisk", 4 * MIB)
        with instance.writer("disk", attempt_number()) as writer:
            writer.save(1, {"big": data})
            writer.change("persist", writer.ref(1))
            job = until(
                "status names the full disk",
                lambda: [j for j in writer.status().jobs if j.job == "disk" and j.persist_problem],
            )[0]
            assert "space" in job.persist_problem.lower(), job.persist_problem
            assert job.latest_persisted_step == -1 and job.unprotected_checkpoints == 1
            assert writer.load(1, "big") == data
            writer.save(2, {"big": data})
            assert not writer.checkpoint(1).facts.persisted
            (inside / "filler").unlink()
            writer.wait(1, PERSISTED, 70_000)
            assert (inside / "disk/1/big").read_bytes() == data


def test_rdma_that_this_machine_does_not_have_is_an_error(tmp_path: Path) -> None:
    if any(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this machine has RDMA devices")
    ring = ("--ring.cluster=c", "--ring.rank=0", "--ring.nodes=0=127.0.0.1:7499,1=127.0.0.2:7499")
    command = [binary("cairnd"), f"--socket={tmp_path / 's'}", "--catalog.path=", *ring]
    done = subprocess.run(
        [*command, "--transport=rdma"], capture_output=True, text=True, timeout=patient(30)
    )
    assert done.returncode == 1
    assert "transport: this machine has no RDMA device" in done.stderr
