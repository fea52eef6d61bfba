"""cairn.kept_saves: `.metadata` and its index of a save that was made again from the one before are those
that a save made anew writes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
import torch.distributed as dist
from cairn import caching_planner, kept_saves, read_index
from cairn.shared_metadata import SharedMetadata
from node import Node
from torch.distributed.checkpoint.metadata import Metadata


@pytest.fixture
def c(node: Node, tmp_path: Any) -> Iterator[cairn.Connection]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/m", rank=0, world_size=1)
    caching_planner.forget()
    with cairn.connect(job="again", rank=0, world_size=1, socket=node.socket) as c:
        yield c
    caching_planner.forget()
    dist.destroy_process_group()


def state(note: Any = 0) -> dict[str, Any]:
    return {
        "net": {"w": torch.rand(50, 7), "b": torch.rand(7), "t": torch.rand(9, 4).t()},
        "note": note,
    }


def check(c: cairn.Connection, step: int, saved: Metadata) -> None:
    """What the step holds says what was returned, and its index is that of its .metadata."""
    found = c.checkpoint(step)
    content = bytes(found.load(".metadata"))
    written = pickle.loads(content)
    assert type(written) is Metadata and written == saved and saved == written
    assert saved.storage_meta is not None
    assert saved.storage_meta.checkpoint_id == f"cairn://again/{step}"
    index = read_index.Index(found.load(".metadata.index"), "index")
    assert index.belongs_to(content) and index.metadata() == written


def test_each_save_names_itself_and_says_where_all_lies(
    c: cairn.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []
    encode = kept_saves._encode
    monkeypatch.setattr(kept_saves, "_encode", lambda m: encoded.append(1) or encode(m))
    made = {}
    # A longer number, then an object of another length, are written anew; all else is not.
    for step, note in [
        (8, 0),
        (9, 0),
        (10, 0),
        (11, 0),
        (12, "a" * 500),
        (13, "b" * 500),
        (13, "c" * 500),
    ]:
        before = len(encoded)
        saved = cairn.dcp.save(state(note), c, step)
        check(c, step, saved)
        made.setdefault(step, len(encoded) - before)
        into = state()
        cairn.dcp.load(into, c, step)
        assert into["note"] == note
    assert made == {8: 1, 9: 0, 10: 1, 11: 0, 12: 1, 13: 0}


def test_what_goes_to_the_ranks_is_whole_and_other_pickles_are_plain(c: cairn.Connection) -> None:
    for step in (1, 2):
        saved = cairn.dcp.save(state(), c, step)
    assert isinstance(saved, SharedMetadata)  # as the ranks of a group get it
    plain = pickle.loads(pickle.dumps(saved))
    assert type(plain) is Metadata and plain == saved and saved == plain
    content = pickle.dumps(plain)
    index = read_index.encode(plain, content)
    assert index is not None
    saved.next_as_index(index)
    sent = pickle.dumps(saved)
    assert len(sent) < len(content)
    for _ in range(2):
        got = pickle.loads(sent)
        assert got == plain and plain == got
        assert type(pickle.loads(pickle.dumps(got))) is Metadata
    assert type(pickle.loads(pickle.dumps(saved))) is Metadata


def test_a_tensor_that_moved_or_changed_its_layout_is_saved_as_it_is_now(
    c: cairn.Connection,
) -> None:
    saved = state()
    for step in range(1, 5):
        saved["net"]["w"] = torch.rand(50, 7) if step % 2 else torch.rand(7, 50).t()
        cairn.dcp.save(saved, c, step)
        into = state()
        cairn.dcp.load(into, c, step)
        for name, tensor in saved["net"].items():
            assert into["net"][name].equal(tensor), (step, name)
