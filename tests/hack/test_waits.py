"""hack/check_waits.py names sleeps and bounds on elapsed time, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import check_waits


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("std::this_thread::sleep_for(std::chrono::milliseconds(5));", ["sleep"]),
        ("absl::SleepFor(absl::Seconds(1));", ["sleep"]),
        ("if (!ready) usleep(50);", ["sleep"]),
        ("// sleep_for(five)", []),
        ('Tell("sleep(5)");', []),
        ("EXPECT_LT(RealClock()->Now() - begun, kNanosPerSecond);", ["bound"]),
        (
            "EXPECT_LE(std::chrono::steady_clock::now() - begun,\n std::chrono::seconds(5));",
            ["bound"],
        ),
        ("ASSERT_LT(took, 5 * options_.call_timeout);", ["bound"]),
        ("EXPECT_LT(testing::Seconds([&] { reader->Close(); }), 8.0);", ["bound"]),
        ("EXPECT_LT(absl::Now() - start, testing::Patient(absl::Seconds(10)));", []),
        ("EXPECT_LT(Seconds([&] { Close(); }), 6 * testing::PatienceFactor());", []),
        ("EXPECT_GE(took, options_.call_timeout);", []),
        ("ASSERT_EQ(::kill(worker.pid(), SIGSTOP), 0);", ["stop"]),
        ("::kill(worker.pid(), SIGCONT);", []),
        ("EXPECT_LT(taken, 2000);", []),
    ],
)
def test_a_cpp_test_that_hopes_for_time_is_named(line: str, kinds: list[str]) -> None:
    text = f"TEST(A, B) {{\n  {line}\n}}\n"
    assert list(check_waits.cpp_hits(text)) == [(2, kind) for kind in kinds]


def test_a_cpp_helper_that_polls_may_sleep() -> None:
    body = "(F holds) {\n  while (!holds()) usleep(9);\n}\n"
    assert list(check_waits.cpp_hits(f"template <typename F>\nbool Await{body}")) == []
    assert list(check_waits.cpp_hits(f"template <typename F>\nbool Held{body}")) == [(3, "sleep")]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("time.sleep(0.3)", [(2, "sleep")]),
        ("'time.sleep(600)'", []),
        ("assert time.monotonic() - begin < 5, 'soon'", [(2, "bound")]),
        ("assert 0 <= time.time() - shown < 120", [(2, "bound")]),
        ("took = time.perf_counter() - begin\n    assert took <= 5", [(3, "bound")]),
        ("took = time.monotonic() - begin\n    assert took > 5", []),
        ("assert time.monotonic() - begin < patient(5)", []),
        ("assert len(name) < 5", []),
        ("os.kill(process.pid, signal.SIGSTOP)", [(2, "stop")]),
        ("process.send_signal(signal.SIGSTOP)", [(2, "stop")]),
        ("NOT_STRAY = {signal.SIGSTOP}", []),
    ],
)
def test_a_python_test_that_hopes_for_time_is_named(
    lines: str, found: list[tuple[int, str]]
) -> None:
    assert list(check_waits.python_hits(f"def test_a():\n    {lines}\n")) == found


def test_a_python_helper_that_polls_may_sleep() -> None:
    text = "def {}(what):\n    while not what():\n        time.sleep(0.02)\n"
    for name in ("until", "await_met", "wait_until_nothing_is_written"):
        assert list(check_waits.python_hits(text.format(name))) == []
    assert list(check_waits.python_hits(text.format("slowly"))) == [(3, "sleep")]


def test_a_finding_is_told_by_its_text_and_measurements_are_left_out(tmp_path: Path) -> None:
    for folder in ("python", "bench"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_a.py").write_text("def test_a():\n    time.sleep(1)\n")
    assert check_waits.gather(tmp_path) == {"tests/python/test_a.py:sleep:time.sleep(1)": 1}
