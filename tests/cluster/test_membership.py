"""A ring whose members stand in the catalog: who has a rank, who loses it, and what becomes of the bytes."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cairn_raw import UNAVAILABLE, CairnError
from mariadb import MariaDb
from members import binary
from patience import patient
from ring import MIB, PATIENCE_S, Member, Ring, attempt_number, ring, until

JOB = "run"
TAKEOVER_S = 5
pytestmark = pytest.mark.full


@contextlib.contextmanager
def catalog_ring(
    size: int = 3, spares: int = 1, *, options: tuple[str, ...] = (), **others: Any
) -> Iterator[tuple[Ring, MariaDb]]:
    with tempfile.TemporaryDirectory(prefix="cairn-db-", dir="/tmp") as folder:
        database = MariaDb(Path(folder) / "db")
        try:
            with ring(
                size + spares,
                options=(
                    *database.options(),
                    f"--ring.takeover_after_seconds={TAKEOVER_S}",
                    *options,
                ),
                spares=spares,
                meet=False,
                **others,
            ) as r:
                await_met(r, range(size))
                yield r, database
        finally:
            database.kill()


def state_of(member: Member) -> str:
    return str(member.json("status")["state"])


def catalog_of(member: Member) -> str:
    return str(member.json("status")["catalog"])


def up(member: Member) -> set[int]:
    try:
        return {rank for rank, state in member.states().items() if state in ("up", "self")}
    except AssertionError:
        return set()


def await_met(r: Ring, hosts: Any, ranks: set[int] | None = None) -> None:
    """Until each of these hosts thinks that all these ranks (their own numbers) are up."""
    wanted = ranks if ranks is not None else set(hosts)
    for host in hosts:
        until(f"host {host} sees {wanted}", lambda host=host: wanted <= up(r[host]), PATIENCE_S)


def rows(database: MariaDb) -> dict[int, tuple[int, str, str]]:
    """Rank → incarnation, instance and address."""
    told = database.ask(
        "SELECT member_rank, incarnation, COALESCE(HEX(instance), ''), address FROM members"
    )
    return {int(rank): (int(life), instance, address) for rank, life, instance, address in told}


def await_beats(database: MariaDb, more: int) -> None:
    """Until each that has a rank has said so this many times more."""

    def beats() -> dict[str, int]:
        told = database.ask("SELECT member_rank, beat FROM members WHERE instance IS NOT NULL")
        return {rank: int(beat) for rank, beat in told}

    before = beats()
    until(
        "the members go on beating",
        lambda: all(beats().get(rank, 0) >= beat + more for rank, beat in before.items()),
    )


def keep_copy(database: MariaDb) -> None:
    """A copy of what the database says of the ring, to be restored later."""
    for table in ("ring", "members"):
        database.ask(
            f"DROP TABLE IF EXISTS old_{table}; CREATE TABLE old_{table} SELECT * FROM {table}"
        )


def restore_copy(database: MariaDb) -> None:
    database.ask(
        "BEGIN; DELETE FROM ring; DELETE FROM members; INSERT INTO ring SELECT * FROM old_ring;"
        "INSERT INTO members SELECT * FROM old_members; COMMIT"
    )


def save_everywhere(r: Ring, step: int, attempt: int, hosts: tuple[int, ...] = (0, 1, 2)) -> None:
    for writer, host in enumerate(hosts):
        session = r[host].writer(JOB, attempt, writer, len(hosts))
        r[host].save(session, step)
        session.vanish()


def test_a_spare_takes_a_lost_rank_and_gets_its_bytes() -> None:
    """Promise 1, without a person: the rank is taken, and its parts come back to two copies."""
    with catalog_ring() as (r, database):
        assert rows(database)[1][2] == f"{r[1].address}:7400"
        assert state_of(r[3]).startswith("unranked: this node has no rank: ")
        attempt = attempt_number()
        save_everywhere(r, 7, attempt)
        r[0].wait_replicated(JOB, 7)
        began = time.monotonic()
        r[1].kill()
        until("the spare has rank 1", lambda: r[3].seat() == 1, 60)
        taken = time.monotonic() - began
        # The spare has seen the last beat up to a second before its owner went.
        assert taken >= TAKEOVER_S - 2
        assert rows(database)[1] == (2, rows(database)[1][1], f"{r[3].address}:7400")
        await_met(r, (0, 2, 3), {0, 1, 2})
        r[0].wait_replicated(JOB, 7, 60)
        protected = time.monotonic() - began
        print(f"rank taken after {taken:.1f} s, protected again after {protected:.1f} s")
        assert r[3].loads(JOB, 7, 3)
        # Training goes on there.
        save_everywhere(r, 8, attempt_number(), (0, 3, 2))
        r[3].wait_replicated(JOB, 8)
        assert r[3].latest(JOB) is not None


def test_who_lives_keeps_its_rank_whatever_becomes_of_the_database() -> None:
    with catalog_ring() as (r, database):
        attempt = attempt_number()
        writer = r[0].writer(JOB, attempt)
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        before = rows(database)
        database.kill()
        deadline = time.monotonic() + 3 * TAKEOVER_S
        step = 2
        while time.monotonic() < deadline:
            assert r[0].save(writer, step) < patient(30)
            step += 1
            time.sleep(0.5)
        r[0].wait_replicated(JOB, step - 1)
        # A daemon that dies meanwhile comes back with its rank.
        r[1].kill_daemon()
        until("it serves again", lambda: r[1].seat() == 1)
        await_met(r, range(3))
        assert "the members' catalog: " in state_of(r[0])
        database.start()
        await_beats(database, 3)
        assert rows(database) == before
        assert r[3].seat() == -1
        until("all is well", lambda: state_of(r[0]) == "serving")


def test_a_node_that_was_stopped_wakes_up_without_its_rank() -> None:
    with catalog_ring() as (r, database):
        attempt = attempt_number()
        save_everywhere(r, 3, attempt)
        r[0].wait_replicated(JOB, 3)
        writer = r[2].writer("alone", attempt)
        r[2].save(writer, 1)
        r[2].wait_replicated("alone", 1)
        r[2].pause()
        until("the spare has rank 2", lambda: r[3].seat() == 2, 60)
        r[2].go_on()
        until("it knows", lambda: state_of(r[2]).startswith("superseded: "), 20)
        until("it records nothing", lambda: "another life has this" in catalog_of(r[2]), 20)
        with pytest.raises(CairnError) as refused:
            r[2].save(r[2].writer(JOB, attempt_number()), 9, timeout_ms=2000)
        assert refused.value.code == UNAVAILABLE
        # What it holds can be loaded still, and it writes nothing as rank 2.
        assert r[2].loads("alone", 1, attempt=attempt)
        assert rows(database)[2][2] == f"{r[3].address}:7400"
        await_met(r, (0, 1, 3), {0, 1, 2})


def test_without_the_database_a_node_starts_unranked_and_joins_later() -> None:
    with catalog_ring() as (r, database):
        save_everywhere(r, 1, attempt_number())
        r[0].wait_replicated(JOB, 1)
        database.kill()
        r[3].replace()
        assert state_of(r[3]).startswith("unranked: the members' catalog: ")
        # It knows that others may have what it has not.
        result = r[3]._run_cairn(f"latest {JOB} --timeout 2", 30)
        assert result.returncode in (6, 7), result.stderr
        database.start()
        until("it is a spare", lambda: "it is a spare" in state_of(r[3]), 30)
        # Node 0 may not have found the database again yet.
        until("the ring has four ranks", lambda: [r[0].cairn("ring resize 4")])
        until("it has rank 3", lambda: r[3].seat() == 3, 60)
        await_met(r, range(4))
        assert (r[3].latest(JOB) or (0, 0))[0] == 1


def test_two_spares_want_one_rank() -> None:
    with catalog_ring(size=2, spares=2) as (r, database):
        r[1].kill()
        until("one of them has it", lambda: 1 in (r[2].seat(), r[3].seat()), 60)
        await_beats(database, 1)
        assert sorted((r[2].seat(), r[3].seat())) == [-1, 1]
        assert rows(database)[1][0] == 2


def test_a_database_that_was_restored_from_an_older_copy() -> None:
    """The living keep their ranks, and who comes later goes above what the members have met."""
    with catalog_ring() as (r, database):
        keep_copy(database)
        r[1].kill()
        until("the spare has rank 1", lambda: r[3].seat() == 1, 60)
        await_met(r, (0, 2, 3), {0, 1, 2})
        restore_copy(database)
        until(
            "the spare is in the database again",
            lambda: rows(database)[1][2] == f"{r[3].address}:7400",
            20,
        )
        assert rows(database)[1][0] == 2
        await_beats(database, 3)
        assert r[3].seat() == 1
        # Now the spare goes, and only the members know that there was a life 2.
        restore_copy(database)
        r[3].kill()
        r[1].replace()
        until("it has its rank again", lambda: r[1].seat() == 1, 60)
        await_met(r, (0, 1, 2), {0, 1, 2})
        until("the number is above", lambda: rows(database)[1][0] >= 3, 20)


def test_resize_with_a_member_away() -> None:
    with catalog_ring(size=2, spares=1) as (r, database):
        save_everywhere(r, 1, attempt_number(), (0, 1))
        r[0].wait_replicated(JOB, 1)
        r[1].pause()
        r[0].cairn("ring resize 3")
        until("the spare has rank 2", lambda: r[2].seat() == 2, 40)
        r[1].go_on()
        # It was away for less long than a takeover takes, and nobody else is there to take its rank.
        until("it has its rank, in the larger ring", lambda: r[1].seat() == 1, 30)
        await_met(r, (0, 1, 2), {0, 1, 2})
        told = r[2].json("ring")
        assert (told["epoch"], told["size"]) == (2, 3)
        assert [seat["rank"] for seat in told["seats"]] == [0, 1, 2]
        refused = r[0].cairn("ring resize 2", code=1)
        assert "rank 2 would go" in refused
        assert "size: 0" in r[0].cairn("ring resize 0", code=2)


def test_drain_secures_the_last_copy_and_gives_the_rank_back() -> None:
    with catalog_ring(storage=True) as (r, database):
        attempt = attempt_number()
        writer = r[1].writer(JOB, attempt)
        r[1].save(writer, 4)
        # Nobody is to have copies of it, and no policy writes it: it is on this node alone.
        r[1].cairn(f"policy {JOB} --replicas 0 --mode on-demand")
        r[1].save(writer, 5)
        writer.vanish()
        said = r[1].cairn("drain --timeout 60", limit_s=90)
        assert said.strip().endswith("drained: the rank is given back; the daemon may be stopped")
        until("the spare has rank 1", lambda: r[3].seat() == 1, 30)
        assert "it has given its rank back" in state_of(r[1])
        r[1].kill()
        assert r[0].loads(JOB, 5, 1, attempt=attempt)


def test_what_a_member_had_that_left_the_ring_is_copied_again() -> None:
    """Promise 1, without storage: drain, resize and stop, as fast as the page lets one."""
    with catalog_ring(spares=0) as (r, database):
        writer = r[2].writer(JOB, attempt_number())
        r[2].save(writer, 7)
        r[2].wait_replicated(JOB, 7)
        writer.vanish()
        r[2].cairn("drain --timeout 60", limit_s=90)
        r[0].cairn("ring resize 2")
        r[2].kill()
        await_met(r, (0, 1), {0, 1})
        until("there are two copies", lambda: r[1].json(f"stat {JOB}/7")["facts"]["resident"])
        r[0].kill()
        assert r[1].loads(JOB, 7)


def test_the_highest_rank_can_go_when_its_machine_is_gone() -> None:
    """Promise 1: the ring becomes smaller without it, and what it had is copied again."""
    with catalog_ring(spares=0) as (r, database):
        writer = r[2].writer(JOB, attempt_number())
        r[2].save(writer, 7)
        r[2].wait_replicated(JOB, 7)
        writer.vanish()
        r[2].kill()
        assert "rank 2 would go" in r[0].cairn("ring resize 2", code=1), "it may come back"
        until("it counts as dead", lambda: r[0].exit_code("ring resize 2") == 0, 30)
        await_met(r, (0, 1), {0, 1})
        until("there are two copies", lambda: r[1].json(f"stat {JOB}/7")["facts"]["resident"])
        r[0].kill()
        assert r[1].loads(JOB, 7)


def test_a_drain_goes_on_when_the_daemon_dies() -> None:
    with catalog_ring(size=2, spares=0) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 4)
        r[0].cairn(f"policy {JOB} --replicas 0 --mode on-demand")
        r[0].save(writer, 5)
        r[0].cairn("drain --no-wait")
        until("it drains", lambda: f"{JOB}/5" in state_of(r[0]))
        r[0].kill_daemon()
        until("it still drains", lambda: f"{JOB}/5" in state_of(r[0]), PATIENCE_S)
        assert r[0].seat() == 0
        # Its new daemon has the rank only when the catalog has said so.
        until("it decides", lambda: r[0].cairn(f"policy {JOB} --replicas 1") is not None)
        until("it is done", lambda: "it has given its rank back" in state_of(r[0]), PATIENCE_S)
        r[0].kill_daemon()
        until("it stays out", lambda: "it has given its rank back" in state_of(r[0]), PATIENCE_S)


def test_drain_can_be_taken_back_and_is_not_everybodys() -> None:
    with catalog_ring(size=2, spares=0) as (r, database):
        r[0].cairn("drain --no-wait")
        until("it drains", lambda: state_of(r[0]).startswith("draining"))
        with pytest.raises(CairnError) as refused:
            r[0].save(r[0].writer(JOB, attempt_number()), 1, timeout_ms=2000)
        assert "draining" in str(refused.value)
        r[0].cairn("drain --undo")
        until("it has a rank", lambda: r[0].seat() == 0, 30)
        until("it serves", lambda: state_of(r[0]) == "serving", 30)
        await_met(r, range(2))
        r[0].save(r[0].writer(JOB, attempt_number()), 1)


def test_what_a_list_has_no_catalog_for() -> None:
    with ring(2) as r:
        assert "do not stand in the catalog" in r[0].cairn("ring", code=1)
        r[0].cairn("drain --no-wait")
        until("it drains", lambda: state_of(r[0]).startswith("draining"))
        r[0].cairn("drain --undo")
        assert state_of(r[0]) == "serving"


def test_options_that_do_not_fit_are_refused() -> None:
    def refusal(*options: str) -> str:
        command = [str(binary("cairnd")), "--check-config", *options]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 2, result
        return result.stderr

    base = ("--ring.members=catalog", "--ring.cluster=c", "--catalog.path=")
    mysql = (
        "--catalog.mysql.socket=/nowhere",
        "--catalog.mysql.database=d",
        "--catalog.mysql.user=u",
    )
    assert "ring.members: catalog needs catalog.mysql" in refusal(*base)
    assert "ring.address: missing" in refusal(*base, *mysql)
    assert "ring.address" in refusal(*base, *mysql, "--ring.address=nonsense")
    assert "ring.nodes: is given" in refusal(
        *base, *mysql, "--ring.address=127.0.0.1:7400", "--ring.nodes=0=127.0.0.1:7400"
    )
    assert "ring.rank: auto needs" in refusal("--ring.rank=auto")
    assert "ring.size" in refusal("--ring.size=3")
    assert "ring.placement" in refusal("--ring.placement=groups:1:1")
    wide = (*base, *mysql, "--ring.address=127.0.0.1:7400")
    assert "ring.replicas: 2 is not below the 2 members of a group" in refusal(
        *wide, "--ring.placement=groups:2:1", "--ring.replicas=2"
    )


def test_bytes_of_a_large_step_survive_two_takeovers() -> None:
    """One node after the other is lost; each time a spare is there, and nothing acknowledged is gone."""
    with catalog_ring(size=3, spares=2, budget=96 * MIB) as (r, _):
        attempt = attempt_number()
        save_everywhere(r, 1, attempt)
        r[0].wait_replicated(JOB, 1)
        for lost, rank in ((1, 1), (2, 2)):
            r[lost].kill()
            until(
                f"rank {rank} is taken",
                lambda rank=rank: any(spare.seat() == rank for spare in r.members[3:]),
                60,
            )
            r[0].wait_replicated(JOB, 1, 90)
        assert r[0].loads(JOB, 1, 3)
