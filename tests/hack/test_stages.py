"""Which programs a stage runs, with what in their environment."""

from driver import stages
from driver.programs import Program

SIMULATOR = Program("ring_sim_test", ["ring_sim_test"], set(), 1800, ["A=b"], "/", alone=False)


def variables(program: Program) -> dict[str, str]:
    return dict(one.split("=", 1) for one in program.environment)


def test_the_windows_have_each_seed_once() -> None:
    seeds: list[int] = []
    for name, window in stages.seed_windows(SIMULATOR).items():
        values = variables(window)
        assert (window.name, values["A"], values["GTEST_FILTER"]) == (name, "b", stages.EVERY_SEED)
        first = int(values["CAIRN_SIM_FIRST"])
        seeds += range(first, first + int(values["CAIRN_SIM_SEEDS"]))
    assert sorted(seeds) == list(range(1, 10_001))


def test_what_failed_once_has_all_tests_but_that_of_every_seed() -> None:
    program = stages.failed_once(SIMULATOR)
    assert variables(program) == {"A": "b", "GTEST_FILTER": f"-{stages.EVERY_SEED}"}
    assert SIMULATOR.environment == ["A=b"]
