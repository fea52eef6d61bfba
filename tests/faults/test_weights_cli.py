"""`cairn weights` against a daemon: what two writers saved in parts, listed, checked, put together."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cairn import _native
from cairn_command import Cairn, on_terminal
from cairn_daemon import MIB, Node
from cairn_raw import attempt_number, pattern
from patience import patient

BYTES = {"U8": 1, "BF16": 2, "F32": 4}

Entries = dict[str, tuple[str, list[int], bytes]]  # dtype, shape, bytes


@pytest.fixture
def cairn(daemon: Node) -> Cairn:
    return Cairn(daemon)


def safetensors(entries: Entries, metadata: dict[str, str] | None = None) -> bytes:
    """A file of these tensors, as the format's own library would write it."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in entries.items():
        assert len(data) == BYTES[dtype] * math.prod(shape), name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in entries.values())


def read(file: Path) -> tuple[dict[str, str], Entries]:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    at = 8 + length
    entries: Entries = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == sum(len(e[2]) for e in entries.values()), name
        entries[name] = (entry["dtype"], entry["shape"], data[at + begin : at + end])
    return metadata, entries


def parts(**of: tuple[list[int], list[int]]) -> dict[str, str]:
    """The metadata of an object that holds, of each tensor of shape `[0]`, the part that begins at `[1]`."""
    said = {name.replace("__", "."): {"shape": s, "start": at} for name, (s, at) in of.items()}
    return {"format": "pt", "cairn.parts": json.dumps(said)}


def save(node: Node, job: str, *writers: dict[str, bytes], kind: str = "safetensors") -> None:
    """Step 1, each writer's objects from a session of its own."""
    attempt = attempt_number()
    sessions = [
        _native.Session(
            socket=node.socket,
            job=job,
            attempt=attempt,
            writer=rank,
            world_size=len(writers),
            local_writers=1,
            takes_fds=True,
            copy_threads=1,
            timeout=patient(20.0),
            client="test",
            policy=None,
        )
        for rank in range(len(writers))
    ]
    for session, objects in zip(sessions, writers, strict=True):
        step = session.begin_step(1, None, 20.0)
        for name, data in objects.items():
            step.write(name, kind, [(data, len(data))])
        step.commit({})
    for session in sessions:
        session.close()


def columns(data: bytes, width: int, begin: int, end: int) -> bytes:
    return b"".join(data[row + begin : row + end] for row in range(0, len(data), width))


ROWS, WIDTH = 1100, 10000  # bytes; 10.5 MiB: several blocks, none of which ends with a row
EMBED = pattern("embed", 2 * 300 * 8)
Q = pattern("q", ROWS * WIDTH)
NORM = pattern("norm", 4 * 7)
WHOLE: Entries = {
    "model.embed_tokens.weight": ("BF16", [300, 8], EMBED),
    "model.layers.0.q.weight": ("BF16", [ROWS, WIDTH // 2], Q),
    "model.norm.weight": ("F32", [7], NORM),
}


def halves() -> list[dict[str, bytes]]:
    """WHOLE: the first tensor cut by rows, the second by columns, the last saved by writer 1 alone."""
    embed, q = "model.embed_tokens.weight", "model.layers.0.q.weight"
    q_shape = [ROWS, WIDTH // 2]
    first = safetensors(
        {
            embed: ("BF16", [100, 8], EMBED[:1600]),
            q: ("BF16", [ROWS, 2000], columns(Q, WIDTH, 0, 4000)),
        },
        parts(
            model__embed_tokens__weight=([300, 8], [0, 0]),
            model__layers__0__q__weight=(q_shape, [0, 0]),
        ),
    )
    second = safetensors(
        {
            embed: ("BF16", [200, 8], EMBED[1600:]),
            q: ("BF16", [ROWS, 3000], columns(Q, WIDTH, 4000, WIDTH)),
            "model.norm.weight": ("F32", [7], NORM),
        },
        parts(
            model__embed_tokens__weight=([300, 8], [100, 0]),
            model__layers__0__q__weight=(q_shape, [0, 2000]),
        ),
    )
    return [{"rank0.safetensors": first}, {"rank1.safetensors": second}]


def lines(cairn: Cairn, *arguments: object, code: int = 0) -> list[str]:
    return cairn.run("weights", *arguments, code=code).stdout.decode().splitlines()


def test_ls_shows_each_tensor_once_in_layer_order(cairn: Cairn) -> None:
    save(cairn.node, "two", *halves())
    head, *rows, last = lines(cairn, "ls", "two")
    assert head.split() == ["NAME", "DTYPE", "SHAPE", "SIZE"]
    assert [row.split()[0] for row in rows] == list(WHOLE)
    assert "BF16   [1100, 5000]  10.5 MiB" in rows[1], rows[1]
    assert last == "3 tensors, 10.5 MiB in 2 objects"
    assert lines(cairn, "ls", "two/latest") == lines(cairn, "ls", "two/1") == [head, *rows, last]

    wide = lines(cairn, "ls", "two/1", "*.norm.*", "model.layers.0.q.weight", "-o", "wide")
    assert wide[0].split()[4:] == ["BYTES", "PARTS", "IN"]
    assert wide[1].endswith("11,000,000      2  rank0.safetensors, rank1.safetensors")
    assert wide[2].endswith("28      1  rank1.safetensors")
    assert wide[3] == "2 tensors, 10.5 MiB in 2 objects"

    listed = cairn.json("weights", "ls", "two", "*embed*")
    assert (listed["job"], listed["step"], listed["revision"]) == ("two", 1, 0)
    assert listed["objects"] == ["rank0.safetensors", "rank1.safetensors"]
    (tensor,) = listed["tensors"]
    assert (tensor["dtype"], tensor["shape"], tensor["bytes"]) == ("BF16", [300, 8], 4800)
    assert [(p["object"], p["start"], p["shape"]) for p in tensor["parts"]] == [
        ("rank0.safetensors", [0, 0], [100, 8]),
        ("rank1.safetensors", [100, 0], [200, 8]),
    ]


def test_get_puts_the_parts_together(cairn: Cairn, tmp_path: Path) -> None:
    save(cairn.node, "two", *halves())
    out = tmp_path / "model.safetensors"
    said = cairn.run("weights", "get", "two", out).stdout.decode()
    assert said == f"{out}: 3 tensors, 10.5 MiB of two/1, verified, from memory\n"
    metadata, entries = read(out)
    assert metadata == {"format": "pt"}, "what all objects say; their parts are whole now"
    assert list(entries) == list(WHOLE)
    assert entries == WHOLE

    out.chmod(0o640)
    shown = cairn.json("weights", "get", "two/1", out, "*embed*", "*norm*")
    assert shown["names"] == ["model.embed_tokens.weight", "model.norm.weight"]
    assert shown["bytes"] == out.stat().st_size
    assert (shown["file"], shown["source"]) == (str(out), "memory")
    assert set(read(out)[1]) == {"model.embed_tokens.weight", "model.norm.weight"}
    assert out.stat().st_mode & 0o777 == 0o640, "it takes the old one's place"
    assert list(tmp_path.iterdir()) == [out]

    code, text = on_terminal(cairn, "weights", "get", "two", out)
    assert code == 0 and "3 tensors  10.5 MiB of 10.5 MiB  100 %" in text, text


def test_get_puts_last_what_would_leave_others_unaligned(cairn: Cairn, tmp_path: Path) -> None:
    entries: Entries = {
        "embed": ("U8", [3], b"abc"),
        "h.0.w": ("F32", [2], b"01234567"),
        "norm": ("U8", [0], b""),
        "scale": ("F32", [], b"wxyz"),
    }
    (tmp_path / "in").write_bytes(safetensors(entries))
    cairn.run("put", tmp_path / "in", "odd/1/a", "--kind", "safetensors")
    cairn.run("weights", "get", "odd", tmp_path / "out")
    metadata, got = read(tmp_path / "out")
    assert metadata == {} and got == entries
    assert list(got) == ["h.0.w", "norm", "scale", "embed"]
    assert lines(cairn, "ls", "odd")[-1] == "4 tensors, 15 B in 1 object"


def test_check_of_good_weights_is_one_line(cairn: Cairn) -> None:
    save(cairn.node, "two", *halves())
    (said,) = lines(cairn, "check", "two")
    assert said.startswith("two/1: 3 tensors, 10.5 MiB in 2 objects, checked in "), said
    assert said.endswith(" s: all good")
    shown = cairn.json("weights", "check", "two/1")
    assert (shown["objects"], shown["tensors"], shown["wrong"]) == (2, 3, [])
    code, text = on_terminal(cairn, "weights", "check", "two")
    assert code == 0 and "2 objects  10.5 MiB of 10.5 MiB  100 %" in text, text


def flip(file: Path, *offsets: int) -> None:
    with open(file, "r+b") as stored:
        for offset in offsets:
            stored.seek(offset)
            byte = stored.read(1)
            stored.seek(offset)
            stored.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def from_storage(cairn: Cairn) -> Iterator[Cairn]:
    """Two writers' step 1 of job "two", which only storage has: no daemon runs."""
    save(cairn.node, "two", *halves())
    cairn.run("persist", "two/1")
    cairn.run("wait", "two/1", "--level", "persisted")
    cairn.node.kill_all()
    yield Cairn(cairn.node, CAIRN_STORAGE=str(cairn.node.storage))


def test_storage_alone_will_do(from_storage: Cairn, tmp_path: Path) -> None:
    said = from_storage.run("weights", "get", "two", tmp_path / "out").stdout
    assert said.endswith(b"verified, from storage\n")
    assert read(tmp_path / "out")[1] == WHOLE
    assert lines(from_storage, "ls", "two")[-1] == "3 tensors, 10.5 MiB in 2 objects"
    assert lines(from_storage, "check", "two")[0].endswith("all good")


def test_check_names_every_bad_block_and_what_lies_in_it(
    from_storage: Cairn, tmp_path: Path
) -> None:
    step = from_storage.node.storage / "two/1"
    flip(step / "rank0.safetensors", 4 * MIB + 5)
    flip(step / "rank1.safetensors", 4 * MIB, (step / "rank1.safetensors").stat().st_size - 1)
    result = from_storage.run("weights", "check", "two", code=4)
    bad = "does not match its checksum, in which lie bytes of"
    q, norm = '"model.layers.0.q.weight"', '"model.norm.weight"'
    assert result.stdout.decode().splitlines() == [
        f'object "rank0.safetensors": block 1 of 2 {bad} {q}',
        f'object "rank1.safetensors": block 1 of 2 {bad} {q}, {norm}',
    ]
    assert b"cairn: weights: two/1 is bad\n" in result.stderr
    from_storage.run("weights", "get", "two", tmp_path / "out", code=4)
    assert list(tmp_path.iterdir()) == []
    from_storage.run("weights", "get", "two", tmp_path / "out", "*embed*")
    flip(step / "rank0.safetensors", 20)
    wrong = from_storage.run("weights", "check", "two", "-o", "json", code=4).stdout
    assert json.loads(wrong)["wrong"] == [
        'object "rank0.safetensors": block 0 of 2 does not match its checksum',
        'object "rank0.safetensors": block 1 of 2 does not match its checksum',
        f'object "rank1.safetensors": block 1 of 2 {bad} {q}, {norm}',
        'whether every tensor is whole is not known without "rank0.safetensors"',
    ]
    (step / "rank1.safetensors").write_bytes(b"short")
    text = "\n".join(lines(from_storage, "check", "two/1", code=4))
    assert 'object "rank1.safetensors": ' in text, text
    none = from_storage.run("weights", "check", "two", code=4).stderr.decode()
    assert "two/1: file rank1.safetensors of writer 1 has 5 bytes" in none, none


def test_check_finds_holes_overlaps_and_headers_that_lie(cairn: Cairn, tmp_path: Path) -> None:
    of = [4]
    save(
        cairn.node,
        "holes",
        {"a": safetensors({"x": ("U8", [2], b"ab"), "y": ("U8", [3], b"cde")},
                          parts(x=(of, [0]), y=(of, [0])))},
        {"b": safetensors({"x": ("U8", [1], b"d"), "y": ("U8", [3], b"def")},
                          parts(x=(of, [3]), y=(of, [1])))},
    )  # fmt: skip
    assert lines(cairn, "check", "holes", code=4) == [
        '"x" lacks [2:3]',
        '"y": two parts hold [1:3]',
    ]
    for pattern_of in ([], ["x"]):
        refusal = cairn.run("weights", "get", "holes", tmp_path / "out", *pattern_of, code=2)
        assert b'cairn: "x" lacks [2:3]' in refusal.stderr
    assert list(tmp_path.iterdir()) == []
    assert lines(cairn, "ls", "holes")[-1] == "2 tensors, 8 B in 2 objects"

    whole = {"x": ("U8", [2], b"ab")}
    save(
        cairn.node,
        "lies",
        {"a": safetensors(whole), "b": safetensors({"x": ("BF16", [1], b"ab")})},
        {"c": b"no header at all", "d": safetensors({"w": ("U8", [1], b"x")}, parts(z=([1], [0])))},
    )
    wrong = lines(cairn, "check", "lies", code=4)
    assert len(wrong) == 4, wrong
    assert wrong[0].startswith('object "c": safetensors: the header\'s length: ')
    assert wrong[1] == 'object "b": "x": dtype: "BF16", but "U8" in object "a"'
    assert wrong[2] == 'object "d": cairn.parts: "z" is not a tensor of the object'
    assert wrong[3] == 'whether every tensor is whole is not known without "c", "b", "d"'
    assert b"lies/1 " in cairn.run("weights", "ls", "lies", code=2).stderr


def test_what_is_refused(cairn: Cairn, tmp_path: Path) -> None:
    save(cairn.node, "two", *halves())
    save(cairn.node, "raw", {"a": b"x"}, kind="raw")
    out = tmp_path / "out"
    for command in (["ls", "two", "*.bias"], ["get", "two", out, "*.bias"]):
        refusal = cairn.run("weights", *command, code=2).stderr
        assert b'select "*.bias" matches none of the 3 tensors: "model.embed_tok' in refusal
    for command in (["ls", "raw"], ["check", "raw/1"], ["get", "raw", out]):
        refusal = cairn.run("weights", *command, code=2).stderr
        assert b"none of its objects is of kind safetensors (it has 1 raw)" in refusal
    for name in ("ls", "check", "get"):
        file = [out] if name == "get" else []
        cairn.run("weights", name, "nosuchjob", *file, code=3)
        cairn.run("weights", name, "two/7", *file, code=3)
        cairn.run("weights", name, "../1", *file, code=2)
        refusal = cairn.run("weights", name, "two/1/rank0.safetensors", *file, code=2).stderr
        assert b"names an object; JOB/STEP" in refusal
    assert b"name a file" in cairn.run("weights", "get", "two", "-", code=2).stderr
    assert b"is not a file" in cairn.run("weights", "get", "two", tmp_path, code=2).stderr
    cairn.run("weights", "get", "two", "", code=2)
    cairn.run("weights", "get", "two", code=2)
    cairn.run("weights", "get", "two", tmp_path / "none/out", code=3)
    cairn.run("weights", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_complete_has_no_weights(cairn: Cairn) -> None:
    objects = safetensors({"x": ("U8", [2], b"ab")})
    with cairn.node.writer("half", attempt_number(), world_size=2) as writer:
        writer.save(1, {"a": objects})
        assert b"half/1 is incomplete" in cairn.run("weights", "ls", "half/1", code=3).stderr
        cairn.run("weights", "check", "half", code=3)
