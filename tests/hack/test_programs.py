"""What the driver says of a C++ program that did not end well."""

from driver.process import run_process
from driver.programs import how_it_ended
from patience import patient


def test_a_program_that_hangs_is_named_with_the_test_that_it_hung_in():
    script = "echo '[ RUN      ] Well.Ends'; echo '[ RUN      ] One.Hangs'; sleep 60"
    limit_s = patient(3)
    code, output = run_process(["sh", "-c", script], limit_s)
    assert how_it_ended(code, output) == f"(ran past {limit_s:g} s and was killed), in One.Hangs"


def test_a_program_that_dies_is_told_by_its_signal():
    code, output = run_process(["sh", "-c", "echo '[ RUN      ] One.Dies'; kill -SEGV $$"], 10)
    assert how_it_ended(code, output) == "died of SIGSEGV, in One.Dies"
    assert how_it_ended(3, "") == "exit status 3"
