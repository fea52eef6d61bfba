"""A ring whose catalog is a database that all share (R21): what it shows, what it costs when it is away."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mariadb import MariaDb
from patience import patient
from ring import MIB, Ring, attempt_number, ring, until

JOB = "run"
pytestmark = pytest.mark.full


@contextlib.contextmanager
def with_database(nodes: int = 3, **options: Any) -> Iterator[tuple[Ring, MariaDb]]:
    with tempfile.TemporaryDirectory(prefix="cairn-db-", dir="/tmp") as folder:
        database = MariaDb(Path(folder) / "db")
        try:
            with ring(nodes, options=database.options(), **options) as r:
                until("the tables are there", lambda: "steps" in database.tables())
                yield r, database
        finally:
            database.kill()


def steps(database: MariaDb, job: str = JOB) -> dict[int, bool]:
    """Step → whether it is removed."""
    rows = database.ask(f"SELECT step, removed FROM steps WHERE job='{job}'")
    return {int(step): removed == "1" for step, removed in rows}


def owners(database: MariaDb, step: int, job: str = JOB) -> set[tuple[int, str]]:
    """Writer and owner of a step's parts."""
    rows = database.ask(f"SELECT writer, owner FROM parts WHERE job='{job}' AND step={step}")
    return {(int(writer), owner) for writer, owner in rows}


def holders(database: MariaDb, step: int, job: str = JOB) -> set[tuple[int, str]]:
    """Writer and holder of what is in memory."""
    rows = database.ask(
        f"SELECT writer, holder FROM holders WHERE job='{job}' AND step={step} AND resident=1"
    )
    return {(int(writer), holder) for writer, holder in rows}


def catalog_of(r: Ring, rank: int) -> str:
    return str(r[rank].json("status")["catalog"])


def all_is_written(r: Ring, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
    for rank in ranks:
        until(
            f"node {rank} has written all",
            lambda rank=rank: catalog_of(r, rank) == "mysql: up to date",
        )


def test_a_server_removes_no_temporary_tables_of_others(tmp_path: Path) -> None:
    """One that starts empties its TMPDIR of them."""
    folder = tmp_path / "db"
    database = MariaDb(folder)
    try:
        assert database.ask("SELECT @@tmpdir") == [[str(folder)]]
    finally:
        database.kill()


def test_it_shows_who_wrote_and_who_holds_what() -> None:
    with with_database() as (r, database):
        attempt = attempt_number()
        writers = [r[rank].writer(JOB, attempt, rank, 3) for rank in range(3)]
        for step in (1, 2):
            for rank, writer in enumerate(writers):
                r[rank].save(writer, step)
            r[0].wait_replicated(JOB, step)
        until("both steps are there", lambda: set(steps(database)) == {1, 2})
        each_its_own = {(writer, str(writer)) for writer in range(3)}
        until("each part is there with its owner", lambda: owners(database, 2) == each_its_own)
        each_twice = {(w, str(h)) for w in range(3) for h in (w, (w + 1) % 3)}
        until("each part has two holders", lambda: holders(database, 2) == each_twice)
        [[uid, attempts]] = database.ask(
            f"SELECT owner_uid, (SELECT COUNT(*) FROM attempts WHERE job='{JOB}') FROM jobs "
            f"WHERE job='{JOB}'"
        )
        assert (uid, attempts) == (str(os.geteuid()), "1")
        until("status says so", lambda: catalog_of(r, 0) == "mysql: up to date")

        r[1].cairn(f"rm {JOB}/1 --yes")
        until("it is removed", lambda: steps(database).get(1) is True)
        until("nobody holds it", lambda: not holders(database, 1))


def test_its_rows_follow_a_node_that_is_lost_and_comes_back() -> None:
    with with_database() as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        until("two hold it", lambda: holders(database, 1) == {(0, "0"), (0, "1")})
        r[1].replace()
        r[0].wait_replicated(JOB, 1)
        until("the new one holds it", lambda: holders(database, 1) == {(0, "0"), (0, "1")})
        r[0].kill()  # the owner, for good: its row is what it was, and the copy's says where it is
        r.await_same_latest(JOB, 1, (1, 2))
        assert (0, "1") in holders(database, 1)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_saving_and_recovering_go_on_without_it_and_it_catches_up(how: str) -> None:
    """Promise 4: a daemon dies meanwhile, too, and comes back while the database is still away."""
    with with_database() as (r, database):
        attempt = attempt_number()
        writer = r[0].writer(JOB, attempt)
        r[0].save(writer, 1)
        until("the step is there", lambda: set(steps(database)) == {1})
        if how == "killed":
            database.kill()
        else:
            database.pause()
        slowest = 0.0
        for step in range(2, 12):
            slowest = max(slowest, r[0].save(writer, step))
        r[0].wait_replicated(JOB, 11)
        r[1].kill_daemon()
        r[2].replace()
        r.await_met()
        r[0].save(writer, 12)
        r[0].wait_replicated(JOB, 12)
        r[0].kill()
        r.await_same_latest(JOB, 12, (1, 2))
        assert r[2].loads(JOB, 12), "promise 1"
        assert slowest < 5, "a save waited for the database"
        if how == "killed":
            database.start()
        else:
            database.go_on()
        r[0].replace()
        until("it has caught up", lambda: 12 in steps(database), 90)
        until(
            "all say so",
            lambda: all(catalog_of(r, rank) == "mysql: up to date" for rank in range(3)),
            90,
        )
        until("who holds it is known", lambda: len(holders(database, 12)) >= 2, 90)


def test_a_user_without_rights_is_told_so_and_costs_nothing() -> None:
    with with_database(2) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        until("the step is there", lambda: set(steps(database)) == {1})
        database.ask(
            "REVOKE ALL ON cairn.* FROM cairn@localhost;"
            "GRANT SELECT ON cairn.* TO cairn@localhost; KILL USER cairn"
        )
        r[0].save(writer, 2)
        until(
            "status says why",
            lambda: "denied" in catalog_of(r, 0) and "mysql: behind" in catalog_of(r, 0),
        )
        r[0].save(writer, 3)
        database.ask("GRANT ALL ON cairn.* TO cairn@localhost; KILL USER cairn")
        until("it has caught up", lambda: set(steps(database)) >= {1, 2, 3}, 60)


def test_a_database_of_a_newer_build_is_left_alone_and_costs_nothing() -> None:
    with with_database(2) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        until("the step is there", lambda: set(steps(database)) == {1})
        database.ask("INSERT INTO schema_version VALUES (99)")
        r[0].kill_daemon()
        r[0].wait_ready()
        until("status says why", lambda: "has schema version 99" in catalog_of(r, 0))
        assert "has schema version 99" in r[0].cairn(f"ls --cluster {JOB}", code=1)
        r[0].save(r[0].writer(JOB, attempt_number()), 2)
        r[0].wait_replicated(JOB, 2)
        database.ask("DELETE FROM schema_version WHERE version=99")
        until("it has caught up", lambda: 2 in steps(database), 60)


def test_two_rings_share_a_database_and_do_not_meet() -> None:
    with tempfile.TemporaryDirectory(prefix="cairn-db-", dir="/tmp") as folder:
        database = MariaDb(Path(folder) / "db")
        try:
            for cluster in ("first", "second"):
                with ring(2, options=(*database.options(), f"--ring.cluster={cluster}")) as r:
                    writer = r[0].writer(JOB, attempt_number())
                    step = 1 if cluster == "first" else 2
                    r[0].save(writer, step)
                    r[0].wait_replicated(JOB, step)
                    until("the tables are there", lambda: "steps" in database.tables())
                    rows = f"SELECT step FROM steps WHERE cluster='{cluster}'"
                    until("its row is there", lambda rows=rows: database.ask(rows) != [])
            rows = database.ask("SELECT cluster, step FROM steps ORDER BY 1")
            assert rows == [["first", "1"], ["second", "2"]]
        finally:
            database.kill()


def test_what_left_memory_for_storage_is_not_gone() -> None:
    """R35 and promise 3: rows say what can be had, wherever it is."""
    with with_database(storage=True, persist="every", budget=32 * MIB) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        for step in range(1, 13):
            r[0].save(writer, step, timeout_ms=int(patient(20_000)))
            r[0].cairn(f"wait {JOB}/{step} --level persisted --timeout 30")
        until("the last is there", lambda: 12 in steps(database))
        all_is_written(r)
        # The late news of those steps has come before this one.
        r[0].save(writer, 13, timeout_ms=int(patient(20_000)))
        until("one more is there", lambda: 13 in steps(database))
        all_is_written(r)
        assert not any(steps(database).values()), "a step that storage has counts as removed"
        for step in (1, 2, 12):
            assert r[2].loads(JOB, step)


def test_a_member_that_was_lost_brings_back_what_it_has() -> None:
    with with_database() as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        for step in (1, 2):
            r[0].save(writer, step)
            r[0].wait_replicated(JOB, step)
        until("both are there", lambda: set(steps(database)) == {1, 2})
        r[0].pause()
        for rank in (1, 2):
            until("it is lost", lambda rank=rank: r[rank].states().get(0) == "lost", 60)
        all_is_written(r, (1, 2))
        r[0].go_on()
        r.await_met()
        all_is_written(r)
        have = {step for step in (1, 2) if r[0].loads(JOB, step)}
        until(
            "what it has is shown",
            lambda: {s for s, gone in steps(database).items() if not gone} >= have,
        )
        until("and that it has it", lambda: all((0, "0") in holders(database, s) for s in have))


def test_what_everybody_let_go_leaves_no_rows() -> None:
    """R35: a job without storage has rows of what it has, whatever it saved."""
    with with_database(budget=32 * MIB) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        for step in range(1, 25):
            r[0].save(writer, step, timeout_ms=int(patient(20_000)))
            r[0].wait_replicated(JOB, step)

        def shown() -> set[int]:
            return set(steps(database))

        until("the last is there", lambda: 24 in shown())
        until("the first are not", lambda: not shown() & set(range(1, 12)), 60)
        rows = database.ask(f"SELECT COUNT(DISTINCT step) FROM parts WHERE job='{JOB}'")
        assert int(rows[0][0]) <= 14, "parts of what is gone"


def test_a_daemon_that_takes_over_memory_starts_without_its_catalog() -> None:
    with with_database(2) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        until("the step is there", lambda: set(steps(database)) == {1})
        database.password_file.chmod(0o644)
        r[0].kill_daemon()
        r[0].wait_ready()
        assert r[0].loads(JOB, 1)
        until("status says why", lambda: "others may read" in catalog_of(r, 0))
        database.password_file.chmod(0o600)
        r[0].save(r[0].writer(JOB, attempt_number()), 2)
        until("it has caught up", lambda: 2 in steps(database), 60)


def indexed(r: Ring, rank: int, job: str = JOB) -> dict[str, Any]:
    answer: dict[str, Any] = r[rank].json(f"ls --cluster {job}")
    return answer


def test_latest_in_it_follows_the_line() -> None:
    """Not the highest number: as every node answers it, and as `ls --cluster` says from any of them."""
    with with_database() as (r, database):
        first = attempt_number()
        writer = r[0].writer(JOB, first)
        for step in (1, 2, 3):
            r[0].save(writer, step)
            r[0].wait_replicated(JOB, step)

        def shown() -> set[tuple[int, int]]:
            latest = [indexed(r, rank)["jobs"][0].get("latest", {}) for rank in range(3)]
            return {(one.get("step", -1), one.get("attempt", 0)) for one in latest}

        until("all are there", lambda: set(steps(database)) == {1, 2, 3})
        until("the newest is shown", lambda: shown() == {(3, first)})
        r[1].cairn(f"use {JOB}/2 --fence")
        until("what was chosen is shown", lambda: shown() == {(2, first)})
        assert r[2].latest(JOB) == (2, first)
        rows = database.ask(
            f"SELECT kind, step, attempt, number FROM line_records WHERE job='{JOB}' ORDER BY kind"
        )
        [use, origin] = rows
        assert use[:3] == ["1", "2", str(first)]
        assert origin == ["2", "-1", "0", str(first)], "the first life came from nothing"
        second = int(use[3]) + 1
        writer = r[0].writer(JOB, second)
        r[0].save(writer, 4)
        r[0].wait_replicated(JOB, 4)
        until("the new life's step is shown", lambda: shown() == {(4, second)})
        rows = database.ask(
            f"SELECT step, attempt FROM line_records WHERE job='{JOB}' AND number={second}"
        )
        assert rows == [["2", str(first)]], "it went on from what was chosen"


def test_what_no_living_member_has_is_told_by_whom_it_was_had() -> None:
    """`latest` that moved back names the step, its holders, and when they were last there."""
    with with_database(replicas=1) as (r, database):
        attempt = attempt_number()
        writer = r[0].writer(JOB, attempt)
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        until("two hold it", lambda: len(holders(database, 1)) == 2)
        had = {holder for _, holder in holders(database, 1)}
        assert "2" not in had
        until("all have said that they are there", lambda: len(marks(database)) == 3)
        r[0].kill()
        r[1].kill()
        until("they are lost", lambda: r[2].states() == {0: "lost", 1: "lost", 2: "self"}, 60)
        answer = r[2]._run_cairn(f"latest {JOB}", 60)
        assert answer.returncode != 0, answer.stdout
        assert f"step 1 of attempt {attempt}, complete since" in answer.stderr
        for rank in (0, 1):
            assert f"rank {rank} (" in answer.stderr, answer.stderr
        [job] = indexed(r, 2)["jobs"]
        assert {holder["node"] for holder in job["latest"]["holders"]} == {"0", "1"}
        assert all(holder["seen_unix_ms"] > 0 for holder in job["latest"]["holders"])
        page = r[2].cairn("status --cluster")
        assert "as the nodes last said" in page
        nodes = {n["node"]: n for n in r[2].json("status --cluster")["catalog"]["nodes"]}
        assert set(nodes) == {"0", "1", "2"}
        assert nodes["0"]["budget_bytes"] > 0


def marks(database: MariaDb) -> dict[str, int]:
    """Node → the sequence of what it last said of itself."""
    return {name: int(seq) for name, seq in database.ask("SELECT name, sequence FROM authors")}


def test_while_it_is_away_the_cluster_page_says_so_and_the_ring_answers() -> None:
    with with_database(2) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        until("the step is there", lambda: set(steps(database)) == {1})
        assert indexed(r, 1)["jobs"][0]["latest"]["step"] == 1
        database.pause()
        try:
            begun = time.monotonic()
            assert "has not answered" in r[1].cairn(f"ls --cluster {JOB} --timeout 2", code=6)
            assert time.monotonic() - begun < patient(30)
            page = r[1].cairn("status --cluster")
            assert "not known" in page and "rank 1 of 2" in page
            assert r[1].cairn(f"latest {JOB}") == "1\n", "and that waits for nobody long"
        finally:
            database.go_on()
        until("it is told again", lambda: r[1]._run_cairn("ls --cluster", 60).returncode == 0)


def test_without_a_shared_one_nobody_guesses() -> None:
    with ring(2) as r:
        assert "shares none" in r[0].cairn("ls --cluster", code=6)


def test_a_database_that_was_restored_from_an_older_copy_is_filled_anew() -> None:
    """While the daemons run, and nothing changes."""
    with with_database(2) as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        until("the step is there", lambda: set(steps(database)) == {1})
        until("all have said how far they are", lambda: len(marks(database)) == 2)
        before = marks(database)
        tables = ("jobs", "attempts", "steps", "parts", "holders", "line_records", "authors")
        for table in tables:
            database.ask(f"CREATE TABLE old_{table} AS SELECT * FROM {table}")
        r[0].save(writer, 2)
        r[0].wait_replicated(JOB, 2)
        until("the second is there", lambda: set(steps(database)) == {1, 2})
        until(
            "both have said so",
            lambda: all(marks(database)[name] > before[name] for name in before),
            60,
        )
        for table in tables:
            database.ask(f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM old_{table}")
        assert set(steps(database)) == {1}
        until("it is filled again", lambda: set(steps(database)) == {1, 2}, 60)
        until("with who holds it", lambda: len(holders(database, 2)) == 2, 60)


def test_rows_that_were_lost_are_written_anew_once_the_daemons_are_replaced() -> None:
    """As after a restore from an older dump, or from none: docs/cluster.md says so."""
    with with_database() as (r, database):
        writer = r[0].writer(JOB, attempt_number())
        for step in (1, 2):
            r[0].save(writer, step)
            r[0].wait_replicated(JOB, step)
        until("both are there", lambda: set(steps(database)) == {1, 2})
        until("all is written", lambda: catalog_of(r, 0) == "mysql: up to date")
        tables = sorted(database.tables() - {"schema_version"})
        database.ask("".join(f"DELETE FROM {table};" for table in tables))
        assert steps(database) == {}
        for member in r:
            os.kill(member.keeper_pid, signal.SIGHUP)
        until("the steps are back", lambda: set(steps(database)) == {1, 2})
        until("and who holds them", lambda: holders(database, 2) == {(0, "0"), (0, "1")})
        until("and whose the job is", lambda: database.ask("SELECT job FROM jobs") == [[JOB]])
        r[0].save(r[0].writer(JOB, attempt_number()), 3)
        until("the next step follows", lambda: 3 in steps(database))
