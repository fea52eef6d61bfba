"""Pieces of an object into memory that is there, and what is peeked of the archives in it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

import cairn
import pytest
from cairn import _native
from node import MIB, Node

BYTES = bytes(i * 7 % 251 for i in range(1000))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(budget=128 * MIB, storage=False).start()
    yield node
    node.remove()


@pytest.fixture
def c(node: Node, request: pytest.FixtureRequest) -> Iterator[cairn.Connection]:
    job = "j" + str(abs(hash(request.node.name)) % 10**12)
    with cairn.connect(job=job, rank=0, world_size=1, socket=node.socket) as connection:
        yield connection


def opened(c: cairn.Connection, name: str) -> _native.OpenObject:
    return c._session().open(c.job, -1, name, "read", 20.0)


def saved(c: cairn.Connection, content: bytes = BYTES) -> _native.OpenObject:
    with c.step(1) as s:
        s.save(content, "o")
    return opened(c, "o")


def test_pieces_go_where_they_are_wanted(c: cairn.Connection) -> None:
    whole, columns = _native.Region(len(BYTES)), _native.Region(40)
    assert saved(c).read_pieces(
        [
            (0, 1, (len(BYTES),), (1,), whole, (1,)),
            (3, 2, (10, 2), (100, 50), columns, (2, 20)),  # the second column behind the first
        ]
    )
    assert bytes(memoryview(whole)) == BYTES
    rows = [BYTES[3 + i * 100 :] for i in range(10)]
    first, second = b"".join(r[:2] for r in rows), b"".join(r[50:52] for r in rows)
    assert bytes(memoryview(columns)) == first + second


def test_ten_thousand_pieces_and_none(c: cairn.Connection) -> None:
    o = saved(c)
    region = _native.Region(10_000)
    pieces = [(i * 37 % 1000, 1, (), (), region.slice(i, 1), ()) for i in range(10_000)]
    assert o.read_pieces(pieces)
    assert bytes(memoryview(region)) == bytes(BYTES[i * 37 % 1000] for i in range(10_000))
    assert o.read_pieces([])


@pytest.mark.parametrize(
    ("piece", "raises", "says"),
    [
        ((990, 11, (), (), 0, ()), ValueError, "piece 0: into: no address"),
        ((990, 11, (), (), 4096, ()), ValueError, "piece 0: item_bytes"),
        ((0, 1, (2,), (1000,), 4096, (1,)), ValueError, "piece 0: item_bytes"),
        ((0, 1, (2,), (1001,), 4096, (1,)), ValueError, "piece 0: from_strides"),
        ((0, 1, (2,), (), 4096, (1,)), ValueError, "piece 0: from_strides: 0 for 1"),
        ((-1, 1, (), (), 4096, ()), (OverflowError, TypeError), ""),
        ((0, 1, (2**63,), (1,), 4096, (1,)), OverflowError, ""),
        ((0, 1, [1], (1,), 4096, (1,)), TypeError, "no tuple"),
        ((0, 1, (1,), (1,), 4096), TypeError, "wanted is"),
        ((0, 1, ("a",), (1,), 4096, (1,)), TypeError, ""),
        ((0, 1, (1,), (1,), b"x", (1,)), RuntimeError, ""),
        (None, TypeError, "wanted is"),
    ],
)
def test_what_is_no_piece_is_refused(
    c: cairn.Connection, piece: object, raises: type[Exception], says: str
) -> None:
    with pytest.raises(raises, match=says):
        saved(c).read_pieces([piece])


def archive(element: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("a/data.pkl", b"p" * 300)
        zipped.writestr("a/data/0", element * 70_000)
        zipped.writestr("a/version", b"3")
    return file.getvalue()


def test_what_is_peeked_counts_where_the_object_has_the_same(c: cairn.Connection) -> None:
    one, other = archive(b"d"), archive(b"e")
    with c.step(1) as s:
        s.save(b"before" + one, "one")
        s.save(b"before" + other, "other")
    place = (6, len(one))
    ends = opened(c, "one").peek_archives([place, (0, 100), (0, 0)])
    assert len(ends) == 3
    found = ends.at(0)
    assert found is not None and ends.at(1) is None and ends.at(2) is None
    records, head = found
    assert [name for name, _, _ in records] == ["a/data.pkl", "a/data/0", "a/version"]
    for name, offset, length in records[:2]:
        assert one[offset : offset + length] == (
            b"p" * 300 if name == "a/data.pkl" else b"d" * 70_000
        )
    assert head == one[: records[1][1]]  # and none of the long one's bytes
    with pytest.raises(IndexError):
        ends.at(3)

    region = _native.Region(5)
    piece = (6 + records[1][1], 5, (), (), region, ())
    assert opened(c, "one").read_pieces([piece], ends)
    assert bytes(memoryview(region)) == b"ddddd"
    # Their checksums differ, and nothing else of what was peeked.
    assert not opened(c, "other").read_pieces([piece], ends)
    beyond = opened(c, "one").peek_archives([(6, len(one) + 1)])
    assert beyond.at(0) is None


def test_in_chunks_nothing_is_peeked(node: Node, c: cairn.Connection) -> None:
    content = archive(b"d")
    saved(c, content)
    with cairn.connect(job=c.job, rank=-1, socket=node.socket, takes_fds=False) as far:
        ends = opened(far, "o").peek_archives([(0, len(content))])
        assert len(ends) == 1 and ends.at(0) is None
        region = _native.Region(len(content))
        assert opened(far, "o").read_pieces([(0, len(content), (), (), region, ())], ends)
        assert bytes(memoryview(region)) == content


# --- blocks that somebody else has read ---------------------------------------------------------------


def test_blocks_that_were_read_elsewhere_are_put_where_they_are_wanted(c: cairn.Connection) -> None:
    block = _native.BLOCK_BYTES
    content = BYTES * (5 * block // 2 // len(BYTES))  # two and a half
    o = saved(c, content)
    last = len(content) - 2 * block
    across, end = _native.Region(20), _native.Region(7)
    pieces = o.pieces_of_blocks(
        [
            (block - 10, 20, (), (), across, ()),
            (len(content) - 7, 7, (), (), end, ()),
        ]
    )
    assert pieces.runs() == [(0, 3)]
    blocks = _native.Region(len(content))
    assert o.read_pieces([(0, len(content), (), (), blocks, ())])
    pieces.put(2, blocks.slice(2 * block, last))
    pieces.put(0, blocks.slice(0, 2 * block))
    assert bytes(memoryview(across)) == content[block - 10 : block + 10]
    assert bytes(memoryview(end)) == content[-7:]
    assert pieces.peeked_holds()

    memoryview(blocks)[block + 100_000] ^= 1  # also where nothing is wanted
    with pytest.raises(cairn.Corrupt, match="object o: block 1 of 3 does not match its checksum"):
        pieces.put(1, blocks.slice(block, block))
    pieces.put(0, blocks.slice(0, block))
    for first, length in ((0, block - 1), (2, block), (3, 0), (1, len(content))):
        with pytest.raises(ValueError, match="not whole blocks"):
            pieces.put(first, _native.Region(length))


def test_blocks_without_anything_wanted_are_not_looked_at(c: cairn.Connection) -> None:
    block = _native.BLOCK_BYTES
    o = saved(c, BYTES * (3 * block // len(BYTES)))
    region = _native.Region(1)
    pieces = o.pieces_of_blocks([(2 * block + 5, 1, (), (), region, ())])
    assert pieces.runs() == [(2, 1)]
    pieces.put(0, _native.Region(2 * block))  # zeros
    assert o.pieces_of_blocks([]).runs() == []


def test_what_was_peeked_must_be_in_the_blocks(c: cairn.Connection) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("a/data.pkl", b"x" * 50)
    content = archive.getvalue()
    o = saved(c, content)
    peeked = o.peek_archives([(0, len(content))])
    pieces = o.pieces_of_blocks([], peeked)
    assert not pieces.peeked_holds()  # nothing was put yet
    blocks = _native.Region(len(content))
    assert o.read_pieces([(0, len(content), (), (), blocks, ())])
    pieces.put(0, blocks)
    assert pieces.peeked_holds()
