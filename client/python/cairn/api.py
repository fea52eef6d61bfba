"""connect, save and load: what a program calls without holding a connection."""

from __future__ import annotations

import dataclasses
import os
import pickle
import warnings
from typing import Any

from cairn import _native, arguments, distributed, info, paths, torch_format
from cairn.connection import READER, Connection, Options
from cairn.errors import CairnWarning, InvalidArgument, Unavailable

# What connect() returned last. "STEP/NAME" is of its job, and save and load use it.
_current: Connection | None = None
# Connections that save and load made for themselves, by process, job and what the environment said.
# That of job "" reads any job.
_implicit: dict[tuple[Any, ...], Connection] = {}
_said_stock: set[str] = set()


def _environment_int(variable: str, least: int) -> int | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        raise InvalidArgument(f"{variable}: {text!r} is not a number") from None
    if value < least:
        raise InvalidArgument(f"{variable}: {value} is below {least}")
    return value


# The longest run that a daemon takes, in bytes (kMaxRunBytes in common/session_identity.h).
_MAX_RUN_BYTES = 256
# What torchrun calls every run that was given no id.
_NO_RUN = "none"


def _launcher() -> tuple[str, int]:
    """The run of the launcher that started this process, and how often it had started that run before;
    ("", -1) where it does not tell both."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if run in ("", _NO_RUN) or len(os.fsencode(run)) > _MAX_RUN_BYTES:
        return "", -1
    if not (restart.isascii() and restart.isdigit() and len(restart) < 10):
        return "", -1
    return run, int(restart)


# One function: most of it says what each argument means and where its default comes from.
def connect(
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    attempt: int | None = None,
    socket: str | None = None,
    *,
    local_writers: int | None = None,
    timeout: float = _native.DEFAULT_TIMEOUT_S,
    copy_threads: int = _native.DEFAULT_COPY_THREADS,
    takes_fds: bool = True,
    policy: info.JobPolicy | None = None,
    fence: bool = False,
) -> Connection:
    """Connects to the daemon of this node.

    In an initialized torch.distributed group and without an attempt this is a collective: the ranks'
    nodes choose the attempt, a number above all that any of them knows. A process alone chooses its own,
    once, when it first saves.

    The first save of a new attempt waits for the end of the processes that save in an older one, at most
    as long as `timeout` and at most 45 s, and is then refused, naming them: so two copies of a job started
    by mistake do not end the one that trains. `fence` says that the older one is to go. A start of the same
    run by torchrun, with a greater TORCHELASTIC_RESTART_COUNT of one TORCHELASTIC_RUN_ID, is no copy.

    Args:
      job: [A-Za-z0-9][A-Za-z0-9._-]{0,127}; else CAIRN_JOB.
      rank: this writer, 0 … world_size-1, or -1 to only read; else RANK, else the group's, else 0.
      world_size: writers of each step; else WORLD_SIZE, else the group's, else 1.
      attempt: this life of the job, the same number on every rank, greater than any before; else
          CAIRN_ATTEMPT.
      socket: the daemon's; else CAIRN_SOCKET, else that of a daemon of this user's,
          $XDG_RUNTIME_DIR/cairn/cairn.sock, when it exists, else /run/cairn/cairn.sock.
      local_writers: writers of this job on this node, which are admitted together; else
          LOCAL_WORLD_SIZE, else 1.
      timeout: seconds that any call may take that names no other limit.
      copy_threads: threads that copy while a call lasts, this one included.
      takes_fds: False moves bytes in chunks through the socket, for a container that cannot map them.
      policy: what is done with this job's checkpoints; None leaves what the job or the daemon has.
      fence: a newer attempt does not wait for the processes that save in an older one; from its first save
          on they may save nothing more (`cairn.Superseded`).

    Raises:
      ValueError: no job, an argument of another type, a rank outside the world, several writers without
          an attempt, or ranks of one group with different jobs (on all of them). The message names the
          argument.
      cairn.Unavailable: no daemon answers by the deadline.
    """
    global _current
    if job is None:
        job = os.environ.get("CAIRN_JOB") or None
    if job is None:
        raise InvalidArgument("job: give connect(job=…) or set CAIRN_JOB")
    _native.validate_job(arguments.text("job", job))
    if socket is not None:
        socket = arguments.file_path("socket", socket)
    timeout = arguments.seconds("timeout", timeout)
    copy_threads = arguments.integer_of_32_bits("copy_threads", copy_threads)
    arguments.boolean("takes_fds", takes_fds)
    arguments.boolean("fence", fence)
    if policy is not None and not isinstance(policy, info.JobPolicy):
        raise InvalidArgument(
            f"policy: {policy!r} is of type {type(policy).__name__}, wanted is a cairn.JobPolicy"
        )
    group = distributed.group_size()
    if rank is not None:
        rank = arguments.integer_of_32_bits("rank", rank)
    if world_size is not None:
        world_size = arguments.integer_of_32_bits("world_size", world_size)
    if rank is None:
        rank = _environment_int("RANK", 0)
        rank = (distributed.group_rank() if group else 0) if rank is None else rank
    if rank == READER:
        world_size = 0
    elif world_size is None:
        world_size = _environment_int("WORLD_SIZE", 1)
        world_size = (group or 1) if world_size is None else world_size
    if rank != READER and not 0 <= rank < world_size:
        raise InvalidArgument(
            f"rank: {rank} is not in 0 … {world_size - 1} (world_size is {world_size}; rank -1 only reads)"
        )
    if copy_threads < 1:
        raise InvalidArgument(f"copy_threads: {copy_threads} is below 1")
    if attempt is None:
        attempt = _environment_int("CAIRN_ATTEMPT", 1)
    else:
        attempt = arguments.integer_of_64_bits("attempt", attempt)
        if attempt < 1:
            raise InvalidArgument(f"attempt: {attempt} is below 1")
    if local_writers is not None:
        local_writers = arguments.integer_of_32_bits("local_writers", local_writers)
    else:
        local_writers = min(_environment_int("LOCAL_WORLD_SIZE", 1) or 1, max(1, world_size))
    run, restart = _launcher()
    connection = Connection(
        Options(
            job=job,
            rank=rank,
            world_size=world_size,
            attempt=0 if rank == READER else attempt or 0,
            socket=socket or os.environ.get("CAIRN_SOCKET", ""),
            local_writers=local_writers,
            timeout=timeout,
            copy_threads=copy_threads,
            takes_fds=takes_fds,
            policy=None if policy is None else dataclasses.asdict(policy),
            fence=fence,
            run=run,
            restart=restart,
        )
    )
    if rank != READER and world_size > 1 and attempt is None:
        if group != world_size:
            raise InvalidArgument(
                f"attempt: {world_size} writers need the same attempt. Give connect(attempt=…), set "
                "CAIRN_ATTEMPT to a number that grows with every start of the job, or call "
                "torch.distributed.init_process_group first, so that one is chosen for all"
                + (f" (the group here has {group} ranks)" if group else "")
            )
        connection._options.attempt = distributed.greatest(
            lambda: connection._session().propose_attempt(), job=job
        )
        connection._session().set_attempt(connection._options.attempt)
    connection._session()
    _current = connection
    return connection


def current() -> Connection | None:
    """What `connect` returned last in this process, unless it has been closed."""
    return None if _current is None or _current.closed else _current


def _current_job() -> str:
    connection = current()
    return "" if connection is None else connection.job


_WITHOUT_DAEMON = (
    "Python asks a daemon only; without one, `CAIRN_STORAGE=ROOT cairn ls` and `cairn get` read the files "
    "in storage, and torch.load opens each of them"
)


def _implicit_connection(job: str, writes: bool) -> Connection:
    """A connection for a path used without connect(): made once per process, job and environment."""
    run, restart = _launcher() if writes else ("", -1)
    attempt = (_environment_int("CAIRN_ATTEMPT", 1) or 0) if writes else 0
    socket = os.environ.get("CAIRN_SOCKET", "")
    key = (os.getpid(), job if writes else "", socket, attempt, run, restart)
    if key not in _implicit:
        connection = Connection(
            Options(
                job=job,
                rank=0 if writes else READER,
                world_size=1 if writes else 0,
                attempt=attempt,
                socket=socket,
                run=run,
                restart=restart,
            )
        )
        try:
            connection._session()
        except Unavailable as error:
            if writes:
                raise
            raise Unavailable(f"{error}. {_WITHOUT_DAEMON}") from None
        _implicit[key] = connection
    return _implicit[key]


def _say_stock(function: str, path: Any) -> None:
    """Warns, once, of a file's path that may have been meant for Cairn."""
    if function not in _said_stock and paths.looks_like_cairn(path):
        _said_stock.add(function)
        warnings.warn(
            f"cairn.{function}: {path!r} is not a Cairn path ({paths.SCHEME}JOB/STEP/NAME, or STEP/NAME "
            f"once connected), so torch.{function} treats it as a file (write ./… where that is meant); "
            "said once",
            CairnWarning,
            stacklevel=3,
        )


def save(
    obj: Any,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = torch_format.DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """torch.save for Cairn paths: saves and commits `obj` at "cairn://JOB/STEP/NAME" (or "STEP/NAME" once
    connected), as writer 0 of 1 whatever RANK says. Arguments are torch.save's. numpy arrays become .npy
    files, bytes stay as they are; all else is exactly what torch.save writes. Any other path is a file's,
    and stock torch.save writes it.

    One call saves one whole step: several names go together into `step()`.

    Raises:
      ValueError: a path that is nearly Cairn's.
      cairn.FailedPrecondition: the step holds other names, or several writers saved it.
      cairn.Full, cairn.Unavailable, cairn.Timeout, cairn.Superseded, …: it was not saved.
    """
    path = paths.recognize(f, _current_job())
    torch_arguments: dict[str, Any] = {
        "pickle_module": pickle_module,
        "pickle_protocol": pickle_protocol,
        "_use_new_zipfile_serialization": _use_new_zipfile_serialization,
    }
    if path is None:
        import torch

        _say_stock("save", f)
        if _disable_byteorder_record:
            torch_arguments["_disable_byteorder_record"] = True
        torch.save(obj, f, **torch_arguments)
        return
    if path.step == _native.NO_STEP:
        raise InvalidArgument(f"path: {f!r} saves to `latest`; name the step")
    torch_arguments["_disable_byteorder_record"] = _disable_byteorder_record
    connection = current()
    if connection is None or connection.job != path.job or connection.rank == READER:
        connection = _implicit_connection(path.job, writes=True)
    connection.save_alone(obj, path, torch_arguments)


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    attempt: int = 0,
    **pickle_load_args: Any,
) -> Any:
    """torch.load for Cairn paths: what was saved at "cairn://JOB/STEP/NAME" (STEP may be `latest`), or
    "STEP/NAME" once connected. Arguments are torch.load's, and so is the default of `weights_only`. Any
    other path is a file's, and stock torch.load reads it. With `attempt` it is what that attempt saved at the
    step, also if the job has gone on from before it since.

    Tensors are private and writable, and every byte of them was checked. With mmap=True they are mapped
    copy-on-write from the cache instead, unchecked, and hold it until the last of them dies; what only
    storage has is copied and checked all the same, for a mapped file can be cut short under its reader.
    Arrays and bytes come back as such (bytes mapped: a memoryview).

    Raises:
      cairn.NotFound, cairn.Corrupt, cairn.Unavailable, …; pickle.UnpicklingError as torch.load.
    """
    path = paths.recognize(f, _current_job())
    if path is None:
        import torch

        if attempt:
            raise InvalidArgument(f"attempt: {f!r} is a file's path, which has none")
        _say_stock("load", f)
        torch_arguments: dict[str, Any] = {
            "map_location": map_location,
            "pickle_module": pickle_module,
        }
        if weights_only is not None:
            torch_arguments["weights_only"] = weights_only
        if mmap is not None:
            torch_arguments["mmap"] = mmap
        return torch.load(f, **torch_arguments, **pickle_load_args)
    connection = current() or _implicit_connection(path.job, writes=False)
    return connection._load(
        path, map_location, pickle_module, weights_only, mmap, pickle_load_args, attempt
    )


# --- questions, with or without connect() ------------------------------------------------------------


def _asking() -> Connection:
    """The connection that a question goes to: what connect() returned last, else one that only reads, of
    this process, to the daemon at CAIRN_SOCKET."""
    return current() or _implicit_connection("", writes=False)


def latest(job: str | None = None) -> info.Latest:
    """The highest complete step on the line of `job`; None: the connection's job, else CAIRN_JOB. Needs no
    connect(): without one the daemon at CAIRN_SOCKET is asked, as `cairn.load` does. Without a daemon it
    is an error, and never an answer from the files alone; `CAIRN_STORAGE=ROOT cairn ls JOB` has that.

    Each process that calls it hears its own answer; ranks that go on from a checkpoint want
    `Connection.resume_latest`.

    Raises:
      cairn.NotFound: nothing is complete.
      cairn.Unavailable: no daemon answers, or it cannot tell truly now.
    """
    if job is None:
        job = _current_job() or os.environ.get("CAIRN_JOB") or None
    if job is None:
        raise InvalidArgument("job: give latest(JOB), connect(job=…) first, or set CAIRN_JOB")
    _native.validate_job(arguments.text("job", job))
    return _asking().latest(job)


def exists(path: str, *, attempt: int = 0) -> bool:
    """Whether `cairn.load(path)` would find something now: "cairn://JOB/STEP/NAME", STEP a number or
    `latest`, or once connected "STEP/NAME". "cairn://JOB/STEP" asks for the complete checkpoint. With
    `attempt` it is what that attempt saved, also if it is abandoned. Reads no object's bytes. Asks where
    `latest` asks.

    Raises:
      ValueError: a path that is not Cairn's.
      cairn.Unavailable: no daemon answers, or it cannot tell truly now.
    """
    paths.parse(path, _current_job(), needs_name=False)  # a mistake is said without a daemon too
    return _asking().exists(path, attempt=attempt)


def ls(path: str = "") -> info.Listing:
    """What there is: "" lists jobs, "JOB" its checkpoints, "JOB/STEP" that checkpoint's objects (STEP a
    number or `latest`), of each at once. "cairn://" may stand before it. Asks where `latest` asks.

    Raises:
      cairn.NotFound: no such job or step.
      cairn.Unavailable: no daemon answers, or it cannot tell truly now.
    """
    arguments.text("path", path)
    return _asking().ls(path)


def status(job: str | None = None) -> dict[str, Any]:
    """The node's status, or with `job` that job's entry in it; see `Connection.status`. Asks where `latest`
    asks.

    Raises:
      cairn.NotFound: neither memory nor storage has anything of `job`.
      cairn.Unavailable: no daemon answers, or memory has nothing of `job` and storage cannot be read now.
    """
    return _asking().status(job)
