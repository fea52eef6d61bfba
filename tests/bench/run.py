#!/usr/bin/env python3
"""make bench: runs the bench programs, merges their rows into build/bench.json, prints one table.

A bench program takes the names of rows (none: all it has) and writes one JSON object per row to stdout, with
the keys of KEYS; build/bench.json is the list of them. `ratio` is the median over the pairs of ours ÷
reference, or of a speed-up or a throughput ratio where more is better, as `direction` says; `samples` are
the pairs. Where `ratio` is null the bar is on `value` itself, and the reference only stands beside it.
`invalid` says why a row proves nothing, for example a reference that is absurdly slow on this machine. Other
lines are passed through.

A bar is missed when what it is on is worse than 1.05 × bar twice: a row that misses is run once more.

--tiny runs each row once, as small as it can be (bench_row.sized, tests/bench/tiny.h), and ignores the bars.
A row fails when its program fails, or when it has no figure. The outcomes go to the file that --json names.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
TORCH2_PYTHON = BUILD / "venv" / "torch2" / "bin" / "python"
LEEWAY = 1.05
KEYS = (
    "name",
    "value",
    "unit",
    "reference",
    "reference_value",
    "ratio",
    "direction",
    "bar",
    "ok",
    "pages",
    "samples",
    "commit",
    "invalid",
    "note",
)
# In the order of docs/benchmarks.md; anything else that a program prints comes after.
ORDER = [
    "save_warm",
    "save_standing",
    "save_new_client",
    "save_early",
    "prefault",
    "load_read",
    "load_map",
    "load_map/next",
    "persist",
    "restart",
    "torch_save",
    "torch_load",
    "torch_load_mmap",
    "rpc_rate",
    "stream_host",
    "stream_ring",
    "stream_many",
    "stream_slices/dim0",
    "stream_slices/dim1",
    "stream_storage",
    "pipeline/read",
    "pipeline/copy",
    "pipeline/caller",
    "first_layer",
    "stall",
    "restart_large",
    "tcp_read",
    "rdma_read",
    "replicated",
    "save_replicating",
    "save_replicating/limited",
    "recover",
    "multi_source",
    "multi_source/slow",
    "catalog_commit",
    "catalog_commit/batch",
    "catalog_scale",
    "catalog_scale/latest",
    "sessions",
    "neighbour/save",
    "neighbour/load",
    *(
        f"apply/{held}/{figure}"
        for held in ("1000", "100000", "1000000", "writers_4096")
        for figure in ("p50", "worst")
    ),
    "apply/growth",
    "apply/growth_of_kind",
    "apply/snapshot",
    "apply/describe",
    "home",
    "dcp_async_stall/default",
    "dcp_async_stall/kept",
    "async_return",
    "dcp_durable",
    "dcp_load/memory",
    "dcp_load/reshard",
    "dcp_small",
    "plan/megatron",
    "plan/python",
    "plan_cached/stock",
    "plan_cached/stock_cached",
    "dcp_read_plan/one_of_48",
    "dcp_read_plan/all_chunks",
    "overlap",
]
OF_DCP = ("dcp_async_stall", "dcp_durable", "dcp_load", "dcp_small")
OF_DCP_PLANS = ("plan_cached", "dcp_read_plan")
OF_RINGS = ("replicated", "save_replicating", "recover", "multi_source")
OF_USERS = ("sessions", "neighbour")
OF_SAVES = ("async_return", "overlap")
OF_STREAMS = ("stream_host", "stream_ring", "stream_many", "stream_slices", "pipeline")


def programs() -> list[tuple[list[str], list[str]]]:
    """(command, rows it has). One function: the list of all programs."""
    python = str(TORCH2_PYTHON if TORCH2_PYTHON.exists() else "/usr/bin/python3")
    return [
        (
            [str(find_program("cairn_bench")), "--folder", str(BUILD)],
            [
                name
                for name in ORDER
                if not name.startswith(
                    (
                        "torch",
                        "apply",
                        "home",
                        "plan/",
                        "rdma",
                        "catalog",
                        *OF_DCP,
                        *OF_DCP_PLANS,
                        *OF_USERS,
                        *OF_RINGS,
                        *OF_SAVES,
                        *OF_STREAMS,
                    )
                )
            ],
        ),
        (
            [str(find_program("cairn_apply_bench"))],
            [name for name in ORDER if name.startswith(("apply", "home"))],
        ),
        (
            [python, str(ROOT / "tests" / "bench" / "torch_bench.py")],
            [name for name in ORDER if name.startswith("torch")],
        ),
        (
            [python, str(ROOT / "tests" / "bench" / "overlap_bench.py")],
            [name for name in ORDER if name.startswith(OF_SAVES)],
        ),
        (
            [python, str(ROOT / "tests" / "bench" / "dcp_bench.py")],
            [name for name in ORDER if name.startswith(OF_DCP)],
        ),
        (
            [python, str(ROOT / "tests" / "bench" / "plan_bench.py")],
            [name for name in ORDER if name.startswith("plan/")],
        ),
        (
            [python, str(ROOT / "tests" / "bench" / "dcp_plan_bench.py")],
            [name for name in ORDER if name.startswith(OF_DCP_PLANS)],
        ),
        (
            ["/usr/bin/python3", str(ROOT / "tests" / "bench" / "users_bench.py")],
            [name for name in ORDER if name.startswith(OF_USERS)],
        ),
        (
            ["/usr/bin/python3", str(ROOT / "tests" / "bench" / "stream_bench.py")],
            [name for name in ORDER if name.startswith(OF_STREAMS)],
        ),
        (
            ["/usr/bin/python3", str(ROOT / "tests" / "bench" / "rdma_bench.py")],
            [name for name in ORDER if name.startswith("rdma")],
        ),
        (
            ["/usr/bin/python3", str(ROOT / "tests" / "bench" / "catalog_bench.py")],
            [name for name in ORDER if name.startswith("catalog")],
        ),
        (
            ["/usr/bin/python3", str(ROOT / "tests" / "bench" / "ring_bench.py")],
            [name for name in ORDER if name.startswith(OF_RINGS)],
        ),
    ]


def find_program(name: str) -> Path:
    found = [p for p in (BUILD / "main").rglob(name) if p.is_file() and os.access(p, os.X_OK)]
    if not found:
        raise SystemExit(f"{name} is not built; make bench builds it")
    return found[0]


def run_rows(command: list[str], rows: list[str], *, tiny: bool = False) -> dict[str, dict]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(BUILD / "main" / "python")]),
        "CAIRN_BUILD": str(BUILD / "main"),
        "CAIRN_BIN": str(BUILD / "bin"),
        "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
    }
    env.pop("CAIRN_BENCH_TINY", None)
    if tiny:
        env["CAIRN_BENCH_TINY"] = "1"
    process = subprocess.Popen(
        [*command, *rows], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    found = {}
    for line in process.stdout:
        try:
            row = json.loads(line)
            found[row["name"]] = row
            print(f"  {row['name']}: {figure(row)}", flush=True)
        except (ValueError, KeyError, TypeError):
            print("  " + line.rstrip(), flush=True)
    code = process.wait()
    for name in rows:
        if name not in found:
            found[name] = {"name": name, "failed": f"no row; the program ended with {code}"}
    return found


def figure(row: dict) -> str:
    return f"{row['value']:.4g} {row['unit']}" if row["ratio"] is None else f"{row['ratio']:.3f}"


def missed(row: dict) -> bool:
    if "failed" in row or row.get("invalid"):
        return False
    measured = row["value"] if row["ratio"] is None else row["ratio"]
    if row["direction"] == "higher":
        return measured < row["bar"] / LEEWAY
    return measured > row["bar"] * LEEWAY


def verdict(row: dict) -> str:
    if "failed" in row:
        return f"FAILED: {row['failed']}"
    if row.get("invalid"):
        return f"invalid: {row['invalid']}"
    if row.get("missed"):
        return "MISSED" + (f": {row['note']}" if row.get("note") else "")
    return row.get("note", "")


def table(rows: list[dict]) -> str:
    lines = [["name", "ours", "reference", "ratio", "bar", "pairs", "", ""]]
    for row in rows:
        if "failed" in row:
            lines.append([row["name"], *[""] * 6, verdict(row)])
            continue
        sign = "≥" if row["direction"] == "higher" else "≤"
        lines.append(
            [
                row["name"],
                f"{row['value']:.4g} {row['unit']}",
                f"{row['reference_value']:.4g} ({row['reference']})"
                if row["ratio"] is None
                else f"{row['reference_value']:.4g} {row['unit']} ({row['reference']})",
                "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                f"{sign} {row['bar']:g}{' ' + row['unit'] if row['ratio'] is None else ''}",
                str(len(row["samples"])),
                "ok" if row["ok"] else "",
                verdict(row),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def machine() -> str:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) >> 20
    return f"{os.cpu_count()} × {cpu}, {memory} GiB, Linux {platform.release()}"


# --- a tiny round ------------------------------------------------------------------------------------------


def outcome(row: dict) -> tuple[str, str]:
    """("passed", "failed" or "skipped", why)."""
    if "failed" in row:
        return "failed", row["failed"]
    if not row["samples"]:
        return ("skipped", row["invalid"]) if row.get("invalid") else ("failed", "no samples")
    if not math.isfinite(row["value"]):
        return "failed", f"the figure is {row['value']}"
    return "passed", ""


def tiny_round(wanted: list[str]) -> list[dict[str, Any]]:
    """The programs beside each other, as their figures do not matter; what takes long begins first."""
    found: dict[str, dict] = {}

    def run(program: tuple[list[str], list[str]]) -> None:
        command, has = program
        rows = [name for name in wanted if name in has]
        begin = time.monotonic()
        if rows:
            found.update(run_rows(command, rows, tiny=True))
            script = next((word for word in command if word.endswith(".py")), command[0])
            print(f"  ({Path(script).name}: {time.monotonic() - begin:.1f} s)", flush=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(run, reversed(programs())))
    outcomes = [dict(zip(("outcome", "reason"), outcome(found[n]), strict=True)) for n in wanted]
    return [{"name": name, **how} for name, how in zip(wanted, outcomes, strict=True)]


# --- all of it ---------------------------------------------------------------------------------------------


def chosen(words: list[str]) -> list[str]:
    wanted, unknown = [], []
    for word in words or ORDER:  # "apply/1000" also stands for its rows
        rows = [word] if word in ORDER else [row for row in ORDER if row.startswith(word + "/")]
        wanted += rows
        unknown += [] if rows else [word]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(ORDER)}")
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--tiny", action="store_true", help="each row once, tiny, without its bar")
    parser.add_argument("--json", type=Path, help="where the outcomes of a tiny round go")
    arguments = parser.parse_args()
    wanted = chosen(arguments.rows)
    if arguments.tiny:
        outcomes = tiny_round(wanted)
        for row in outcomes:
            if row["reason"]:
                print(f"{row['name']} {row['outcome']}: {row['reason']}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False))
        return 1 if any(row["outcome"] == "failed" for row in outcomes) else 0
    return measure(wanted)


def measure(wanted: list[str]) -> int:
    found: dict[str, dict] = {}
    for command, has in programs():
        rows = [name for name in wanted if name in has]
        if not rows:
            continue
        first = run_rows(command, rows)
        again = [name for name in rows if missed(first[name])]
        if again:
            print(f"  once more: {', '.join(again)}", flush=True)
            second = run_rows(command, again)
            for name in again:
                second[name]["missed"] = missed(second[name])
                first[name] = second[name]
        found.update(first)
    rows = [found[name] for name in ORDER if name in found]
    document = [
        {"name": row["name"], "ok": False, "invalid": row["failed"]}
        if "failed" in row
        else {key: row.get(key, "") for key in KEYS}
        for row in rows
    ]
    (BUILD / "bench.json").write_text(json.dumps(document, indent=1, ensure_ascii=False))
    print(f"\n{machine()}, {time.strftime('%Y-%m-%d')}\n")
    print(table(rows))
    bad = [row for row in rows if row.get("missed") or "failed" in row]
    print(
        f"\n{len(rows) - len(bad)} of {len(rows)} rows meet their bar or are invalid; build/bench.json"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
