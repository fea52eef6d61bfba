"""One answer for all ranks of a torch.distributed group."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cairn import errors

T = TypeVar("T")


def group_size() -> int:
    """Ranks of the initialized default group; 0 when there is none. Never imports torch."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0
    return cast(int, dist.get_world_size())


def group_rank() -> int:
    """This process's rank in the default group, which must be initialized."""
    return cast(int, sys.modules["torch.distributed"].get_rank())


# Groups of all ranks of the default group, by what they are for, and the default group that each was made in.
_own_groups: dict[str, tuple[Any, Any]] = {}


def own_group(what_for: str) -> Any:
    """A gloo group of all ranks, which nobody else uses: what different threads of Cairn's and a training
    loop say in theirs does not get mixed up. It waits for a rank as long as the default group does. The
    first call for each is a collective."""
    dist = sys.modules["torch.distributed"]
    known = _own_groups.get(what_for)
    if known is None or known[0] is not dist.group.WORLD:
        group = dist.new_group(backend="gloo", **_timeout_of(dist.group.WORLD))
        known = _own_groups[what_for] = dist.group.WORLD, group
    return known[1]


def _timeout_of(group: Any) -> dict[str, Any]:
    """As init_process_group was told; nothing where this torch does not say."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
        return {"timeout": min(backend.options._timeout for backend in backends)}
    except (AttributeError, RuntimeError, ValueError):
        return {}


# Of groups those beside them, and the default group that they were made in.
_beside: dict[Any, Any] = {}
_beside_of: Any = None


def group_beside(group: Any) -> Any:
    """A gloo group of the same ranks, so that what one thread says in it does not get mixed up with what
    another says in `group`. It waits for a rank as long as `group` does. The first call is a collective of
    `group`."""
    global _beside_of
    dist = sys.modules["torch.distributed"]
    if _beside_of is not dist.group.WORLD:
        _beside.clear()
        _beside_of = dist.group.WORLD
    if group not in _beside:
        _beside[group] = dist.new_group(
            dist.get_process_group_ranks(group),
            backend="gloo",
            use_local_synchronization=True,
            **_timeout_of(group or dist.group.WORLD),
        )
    return _beside[group]


def has_cpu_backend(group: Any) -> bool:
    """Whether a group's collectives take tensors of the host's memory; a group of NCCL's alone does not."""
    if group is None:
        group = sys.modules["torch.distributed"].group.WORLD
    types = getattr(group, "_device_types", None)  # stock DCP looks there
    return types is None or sys.modules["torch"].device("cpu") in types


def talk(collective: Callable[[], Any]) -> None:
    """Calls it; in Cairn's words where a rank does not answer."""
    try:
        collective()
    except RuntimeError as error:
        raise errors.Unavailable(f"a rank of the group does not answer: {error}") from error


def any_of(mine: bool, size: int) -> bool:
    """Whether it holds on any rank of the default group, if that has `size` ranks; a collective. Otherwise
    `mine`.

    Raises:
      Unavailable: a rank does not answer.
    """
    if size <= 1 or group_size() != size:
        return mine
    torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
    flag = torch.tensor([int(mine)], device="cpu")
    talk(lambda: dist.all_reduce(flag, dist.ReduceOp.MAX, group=own_group("busy")))
    return bool(flag.item())


def _must_be_same(same: dict[str, Any], group: Any = None) -> None:
    """Raises on every rank, or on none: each of them sees what all have."""
    dist = sys.modules["torch.distributed"]
    all_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(all_ranks, same, group=group)
    for field, of_rank_0 in all_ranks[0].items():
        for rank, other in enumerate(all_ranks):
            if other.get(field) != of_rank_0:
                raise errors.InvalidArgument(
                    f"{field}: the ranks of a group act on one answer, and this differs between them: "
                    f"rank 0 has {of_rank_0!r}, rank {rank} has {other.get(field)!r}"
                )


def _asked(ask: Callable[[], Any]) -> tuple[list[Any], Exception | None]:
    """For other ranks the error, if it is one, and the answer; for this one, the error as it was raised."""
    try:
        return [None, ask()], None
    except Exception as error:
        return [errors.to_plain(error), None], error


def greatest(ask: Callable[[], int], **same: Any) -> int:
    """The greatest of what `ask()` returns on the ranks, on every rank. A collective; without a group it is
    just `ask()`.

    Args:
      same: as `agree`'s.

    Raises:
      ValueError: one of `same` differs between ranks; on every rank.
      cairn.Error: `ask` failed on a rank: the error of the lowest one, on every rank.
    """
    if group_size() <= 1:
        return ask()
    if same:
        _must_be_same(same)
    dist = sys.modules["torch.distributed"]
    mine, failure = _asked(ask)
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    for rank, (plain, _) in enumerate(of_ranks):
        if plain is None:
            continue
        if failure is not None and rank == dist.get_rank():
            raise failure
        code, kind, message = plain
        raise errors.from_plain(code, kind, f"rank {rank}: {message}")
    return max(answer for _, answer in of_ranks)


def agree(ask: Callable[[], T], *, group: Any = None, **same: Any) -> T:
    """What `ask()` returns on rank 0, on every rank; its error on every rank too. A collective: every rank
    of `group`, by default of the default group, calls it. Without a group it is just `ask()`.

        latest = cairn.distributed.agree(c.latest, job=c.job)

    Ranks that each ask for the latest step may hear different answers while a step completes; then they
    would load different weights.

    Args:
      same: what the question is about. Where it differs between ranks the answer of rank 0 would not be
          the others' answer, and nothing is asked.

    Raises:
      ValueError: one of `same` differs between ranks; on every rank.
    """
    if group_size() <= 1:
        return ask()
    if same:
        _must_be_same(same, group)
    dist = sys.modules["torch.distributed"]
    box: list[Any] = [None, None]
    failure: Exception | None = None
    if dist.get_rank(group) == 0:
        box, failure = _asked(ask)
    source = 0 if group is None else dist.get_global_rank(group, 0)
    dist.broadcast_object_list(box, src=source, group=group)
    if failure is not None:
        raise failure
    if box[0] is not None:
        code, kind, message = box[0]
        raise errors.from_plain(code, kind, f"rank 0: {message}")
    return cast(T, box[1])
