"""Which tensors stay as they are until an optimizer's step, and whether they did."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cairn.errors import FailedPrecondition, InvalidArgument

_PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None)})

Tensors = Iterable[tuple[Any, int | None]]  # of this rank, and the addresses of their storages


def local(tensor: Any) -> Any:
    """Of a DTensor this rank's part, whose memory and version are what a step changes."""
    return getattr(tensor, "_local_tensor", tensor)


def address(tensor: Any) -> int | None:
    """Of its storage; None where it has none."""
    try:
        mine = local(tensor)
        storage = mine.untyped_storage() if hasattr(mine, "untyped_storage") else mine.storage()
        return int(storage.data_ptr()) or None
    except (RuntimeError, NotImplementedError):
        return None


def tensors_in(obj: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Those in dictionaries, lists and tuples, however nested, each with where it is."""
    if isinstance(obj, sys.modules["torch"].Tensor):
        yield path, obj
    elif isinstance(obj, Mapping):
        for key, value in obj.items():
            yield from tensors_in(value, (*path, key))
    elif isinstance(obj, (list, tuple)):
        for i, value in enumerate(obj):
            yield from tensors_in(value, (*path, i))


def is_transparent(obj: Any, within: frozenset[int] = frozenset()) -> bool:
    """Whether `tensors_in` finds all tensors in it: it has only containers, tensors and plain values."""
    torch = sys.modules["torch"]
    if type(obj) in _PLAIN or isinstance(obj, (torch.Tensor, torch.dtype, torch.device)):
        return True
    if id(obj) in within:
        return False  # it contains itself
    within |= {id(obj)}
    if isinstance(obj, Mapping):
        return all(is_transparent(value, within) for value in obj.values())
    return isinstance(obj, (list, tuple)) and all(is_transparent(value, within) for value in obj)


def optimizers_and_tensors(overlap: Any) -> list[Any]:
    """What a caller names, as a list."""
    if overlap is None:
        return []
    torch = sys.modules.get("torch")
    if torch is None:
        raise InvalidArgument("overlap: neither an optimizer nor tensors of torch")
    one = isinstance(overlap, (torch.optim.Optimizer, torch.Tensor))
    try:
        given = [overlap] if one else list(overlap)
    except TypeError:
        given = [overlap]
    for item in given:
        if not isinstance(item, (torch.optim.Optimizer, torch.Tensor)):
            raise InvalidArgument(
                f"overlap: {type(item).__name__} is neither an optimizer nor a tensor"
            )
    return given


class _Watched(NamedTuple):
    tensor: Any
    version: int
    address: int  # of its storage


class Watch:
    """What is copied later, and what its versions were.

    Attributes:
      addresses: of the storages that only the steps of what was given change.
    """

    def __init__(self, given: list[Any]) -> None:
        """`given` as of optimizers_and_tensors."""
        tensors = []
        torch = sys.modules.get("torch")
        for item in given:
            if torch is not None and isinstance(item, torch.Tensor):
                tensors.append(item)
                continue
            for group in item.param_groups:
                tensors += group["params"]
            for of_parameter in item.state.values():
                tensors += [tensor for _, tensor in tensors_in(of_parameter)]
        self._given = [(local(tensor), address(tensor)) for tensor in tensors]
        self._watched: list[_Watched] = []
        self.addresses = {where for _, where in self._given}

    def add(self, tensors: Tensors) -> set[int]:
        """Watches those of them that only a step changes; the addresses of these. What tells no version, as
        it was made in inference mode, is none of them."""
        stays = set()
        for tensor, where in tensors:
            if where is None or where not in self.addresses:
                continue
            try:
                self._watched.append(_Watched(tensor, tensor._version, where))
            except RuntimeError:
                continue
            stays.add(where)
        return stays

    def complete(self) -> None:
        """After the last `add`: a state made of `.data` shares the memory, and not the version."""
        watched = {one.address for one in self._watched}
        self.add((tensor, where) for tensor, where in self._given if where in watched)
        self._given = []

    def check(self, objects: Mapping[str, Any], *, places: bool = False) -> None:
        """Raises FailedPrecondition where one has changed, or with `places` lies elsewhere now, with its name
        in `objects`."""
        moved = set()
        for one in self._watched:
            where = address(one.tensor) if places else one.address
            if one.tensor._version != one.version or where != one.address:
                moved |= {one.address, where}
        if not moved:
            return
        names = [
            f"{name}: {'.'.join(map(str, path))}" if path else name
            for name, obj in objects.items()
            for path, tensor in tensors_in(obj)
            if address(tensor) in moved
        ]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise FailedPrecondition(
            f"changed while it was copied: {', '.join(names[:3])}{more}; call fence() before what changes it"
        )
