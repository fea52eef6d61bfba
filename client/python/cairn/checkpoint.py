"""One checkpoint that was found, and what it holds."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from cairn import info, paths
from cairn.errors import (
    Corrupt,
    Error,
    FailedPrecondition,
    MissingObject,
    NotFound,
    Unavailable,
)

if TYPE_CHECKING:
    from cairn import _native

_MOST_NAMES_SAID = 8


class Reads(Protocol):
    """What a checkpoint wants of the `Connection` that found it."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def _session(self) -> _native.Session: ...
    def _open(
        self, path: paths.CairnPath, mode: str, attempt: int = 0, revision: int = -1
    ) -> _native.OpenObject: ...
    def _load(
        self,
        path: paths.CairnPath,
        map_location: Any,
        pickle_module: Any,
        weights_only: bool | None,
        mmap: bool | None,
        pickle_load_args: dict[str, Any],
        attempt: int = 0,
        revision: int = -1,
    ) -> Any: ...


@dataclasses.dataclass(frozen=True, repr=False)
class Checkpoint:
    """A complete checkpoint, as `Connection.resume_latest` found it. It stays this one: what the job saves
    later, under the same step or another, does not change what is loaded here. It holds nothing: when the
    checkpoint is replaced or removed, `load` and `names` say so.

    Attributes:
      job, step, attempt, revision: which one it is.
      world_size: how many writers saved it.
      digest: of its manifests; equal content of equal writers has an equal one.
      source: where its bytes were when it was found, "memory", "peer" or "storage".
    """

    job: str
    step: int
    attempt: int
    revision: int
    world_size: int
    digest: str
    source: str
    _connection: Reads = dataclasses.field(compare=False)

    @classmethod
    def of(cls, connection: Reads, latest: info.Latest) -> Checkpoint:
        return cls(
            job=latest.job,
            step=latest.step,
            attempt=latest.attempt,
            revision=latest.revision,
            world_size=latest.world_size,
            digest=latest.digest,
            source=latest.source,
            _connection=connection,
        )

    def _plain(self) -> tuple[Any, ...]:
        """What another rank makes the same one of, with a connection of its own."""
        fields = dataclasses.fields(self)
        return tuple(getattr(self, field.name) for field in fields if field.name != "_connection")

    def __repr__(self) -> str:
        writers = "1 writer" if self.world_size == 1 else f"{self.world_size} writers"
        return (
            f"<cairn.Checkpoint job={self.job!r} step={self.step} attempt={self.attempt} "
            f"revision={self.revision} of {writers}, in {self.source} when found>"
        )

    def __str__(self) -> str:
        return f"{self.job}/{self.step} (attempt {self.attempt}, revision {self.revision})"

    def load(
        self,
        name: str,
        map_location: Any = None,
        pickle_module: Any = None,
        *,
        weights_only: bool | None = None,
        mmap: bool | None = None,
        **pickle_load_args: Any,
    ) -> Any:
        """What this checkpoint holds under `name`. Arguments and what comes back are those of `cairn.load`:
        private, writable, checked tensors, or with mmap=True tensors that are mapped copy-on-write.

        Raises:
          cairn.MissingObject: the checkpoint is there and has no such name; says which ones it has.
          cairn.FailedPrecondition: the checkpoint itself is no more: replaced, removed, or given up for room;
              or storage has lost what it holds.
          cairn.Corrupt: the checkpoint has the object, and no good copy of its bytes is left.
              None of these is a `cairn.NotFound`, which programs take for "begin from nothing".
          ValueError: a name that none can be.
          cairn.Unavailable, …; pickle.UnpicklingError as torch.load.
        """
        paths.check_name(name)
        try:
            return self._connection._load(
                paths.CairnPath(self.job, self.step, name),
                map_location,
                pickle_module,
                weights_only,
                mmap,
                pickle_load_args,
                self.attempt,
                self.revision,
            )
        except NotFound as error:
            missing = self._why_not_found(name, error)
        raise missing

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[_native.OpenObject]:
        """An object, to read from. Raises as `load` does, also what reading raises."""
        try:
            handle = self._connection._open(
                paths.CairnPath(self.job, self.step, name), "read", self.attempt, self.revision
            )
        except NotFound as error:
            missing = self._why_not_found(name, error)
        else:
            try:
                yield handle
                return
            except NotFound as error:
                # Of something that was open: no reason to begin from nothing.
                missing = Unavailable(f"{name} was lost while it was read: {error}")
            finally:
                handle.close()
        raise missing

    def names(self) -> list[str]:
        """The names of all objects in this checkpoint, of all its writers, in order.

        Raises:
          cairn.FailedPrecondition: it is no more, or storage has lost what it holds.
        """
        try:
            listing = self._connection._session().list(
                f"{self.job}/{self.step}@{self.attempt}.{self.revision}"
            )
        except NotFound as error:
            raise FailedPrecondition(
                f"checkpoint {self} is no more ({error}); resume_latest() finds what there is now"
            ) from None
        return [entry["name"] for entry in listing["objects"]]

    def _why_not_found(self, name: str, error: NotFound) -> Error:
        """Of a load: the checkpoint is gone, only this name is not in it, or it is and its bytes are gone."""
        try:
            names = self.names()
        except FailedPrecondition as gone:
            return gone
        if name in names:
            return Corrupt(
                f"checkpoint {self} has {name!r}, and its bytes cannot be found: {error}"
            )
        return MissingObject(
            f"checkpoint {self} has no object {name!r}; {self._nearest(name, names)}"
            f"{self._another_world()}"
        )

    def _nearest(self, name: str, names: list[str]) -> str:
        if not names:
            return "it holds nothing"
        near = difflib.get_close_matches(name, names, _MOST_NAMES_SAID, cutoff=0.5)
        if len(names) <= _MOST_NAMES_SAID:
            near += [other for other in names if other not in near]
        if not near:
            near = names[:_MOST_NAMES_SAID]
        left = len(names) - len(near)
        more = f" and {left} more (names() has all)" if left else ""
        return f"it has {', '.join(map(repr, near))}{more}"

    def _another_world(self) -> str:
        """Ranks that each have a name of their own find none where the world has grown."""
        c = self._connection
        if c.world_size <= self.world_size:
            return ""
        writers = "1 writer" if self.world_size == 1 else f"{self.world_size} writers"
        return (
            f". It was saved by {writers}, and this is rank {c.rank} of {c.world_size}: the world has "
            "grown, and a rank without an object of its own loads another's, or begins with what it has"
        )
