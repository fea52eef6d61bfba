"""hack/check_docs.py compares the table of options with what the daemon's --help tells."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import check_docs

HELP = """Options:
  -h,--help                   Print this help message and exit
  --pool.threads TEXT         threads that fault memory in [2] (CAIRND_POOL_THREADS)
  --drain.timeout_seconds TEXT
                              from SIGTERM to exit, at most [60] (CAIRND_DRAIN_TIMEOUT_SECONDS)
  --test.failpoints TEXT      for tests, POINT[@LIFE][:N] [] (CAIRND_TEST_FAILPOINTS)
"""
PAGE = """# Running

## Options

Words.

| option | default | meaning |
|---|---|---|
| `pool.threads` | `3` | threads, as somebody put it |
| `pool.gone` | | once |

More words.

## Stopping
"""


def test_every_option_of_the_help_is_read_with_its_default() -> None:
    options = check_docs.parse_help(HELP)
    assert [(option.name, option.default) for option in options] == [
        ("pool.threads", "2"),
        ("drain.timeout_seconds", "60"),
        ("test.failpoints", ""),
    ]
    assert options[2].meaning == "for tests, POINT[@LIFE][:N]"


def test_a_missing_a_stale_and_a_changed_option_are_each_named() -> None:
    problems = check_docs.compare(check_docs.parse_help(HELP), check_docs.parse_table(PAGE))
    assert problems == [
        'docs/operations.md: pool.threads has the default "2", not "3"',
        "docs/operations.md: lacks the option drain.timeout_seconds",
        "docs/operations.md: lacks the option test.failpoints",
        "docs/operations.md: no option pool.gone exists",
    ]


def test_writing_mends_the_table_and_keeps_the_meanings() -> None:
    real = check_docs.parse_help(HELP)
    page = check_docs.with_options(PAGE, real)
    assert check_docs.compare(real, check_docs.parse_table(page)) == []
    assert "| `pool.threads` | `2` | threads, as somebody put it |" in page
    assert page.startswith("# Running") and page.endswith("More words.\n\n## Stopping\n")
    assert check_docs.with_options(page, real) == page


def test_a_filter_that_matches_no_test_is_named() -> None:
    tests = {"Mover.APartArrives", "Recovery.PinStays"}
    page = "| a bug | x | engine `Mover.AP*`, `*Stays*`, `PinSt*`; `t --gtest_filter=From/Recovery.*` |"
    assert check_docs.stale_filters(page, tests) == []
    stale = "engine `Mover.Gone*`; `*AlsoGone*`; `t --gtest_filter=Nothing.*`; `cairn.Removed`, `-k gone`"
    assert [problem.split()[-1] for problem in check_docs.stale_filters(stale, tests)] == [
        "Mover.Gone*",
        "*AlsoGone*",
        "Nothing.*",
    ]
