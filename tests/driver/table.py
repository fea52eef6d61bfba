"""The table that a run leaves: what each stage and each program took, what failed, what was not reached.

It is build/test-results/run.json, and a copy in the user's cache folder, so that later estimates are
measurements:

    commit, when, tier, minutes, processors, counts of cases
    busy_s     processor seconds of the whole machine
    whole      a full tier of all stages
    stages     stage, began_s, wall_s, processor_s
    programs   stage, program, wall_s, processor_s
    failed     case names
    excused, quarantined   case names (flaky.py)
    left       what the run's time did not reach
    lacking    kind → how many things have not passed as they are (ledger.py)
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from driver import cache
from driver.flaky import Excuses
from driver.ledger import Ledger, head
from driver.report import RESULTS, Report
from driver.schedule import Schedule

KEPT = 40  # runs, in the cache folder


def write_table(
    schedule: Schedule, report: Report, ledger: Ledger, excuses: Excuses, tier: str, whole: bool
) -> Path:
    times = sorted(schedule.times, key=lambda one: one.began_s)
    values = {
        "commit": head(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tier": tier,
        "whole": whole,
        "minutes": round(schedule.seconds() / 60, 1),
        "processors": os.cpu_count(),
        "busy_s": round(schedule.busy_s()),
        "counts": {what: len(report.of(what)) for what in ("passed", "failed", "skipped")},
        "stages": [
            {
                "stage": one.stage,
                "began_s": round(one.began_s),
                "wall_s": round(one.wall_s),
                "processor_s": round(one.processor_s),
            }
            for one in times
        ],
        "programs": [
            {"stage": one.stage, **vars(program)} for one in times for program in one.programs
        ],
        "failed": [case.name for case in report.of("failed")],
        "excused": excuses.cases,
        "quarantined": excuses.quarantined,
        "left": schedule.left,
        "lacking": {kind: len(names) for kind, names in ledger.lacking().items()},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "run.json"
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
    keep_copy(path, f"{values['when'].replace(':', '')}-{values['commit'][:12]}.json")
    return path


def keep_copy(path: Path, name: str) -> None:
    runs = cache.folder() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    (runs / name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    for old in sorted(runs.glob("*.json"))[:-KEPT]:
        old.unlink(missing_ok=True)
