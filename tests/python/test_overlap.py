"""Saves that go on while the training does: what `save_async` copies when, and how its failures are told.

One file: each case stops, breaks or hurries the same small training, in the words at the top.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import cairn
import pytest
import torch
from in_call import in_call, interrupted_in
from node import MIB, Node
from patience import patient, until
from stopped import go_on, stopped


@pytest.fixture
def c(node: Node, job: str) -> Iterator[cairn.Connection]:
    with cairn.connect(job) as connection:
        assert connection.attempt  # chosen while the daemon answers
        yield connection


class Training:
    """A model with parameters and a buffer, and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.forward_and_backward()
        self.optimizer.step()

    def forward_and_backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(16, 64)).square().mean().backward()

    def state(self) -> dict[str, Any]:
        return {"model.pt": self.model.state_dict(), "optim.pt": self.optimizer.state_dict()}


def copied(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):
        return obj.clone()
    if isinstance(obj, dict):
        return {key: copied(value) for key, value in obj.items()}
    return [copied(value) for value in obj] if isinstance(obj, list) else obj


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def assert_saved(c: cairn.Connection, step: int, expected: dict[str, Any]) -> None:
    for name, obj in expected.items():
        assert same(c.load(f"{step}/{name}", weights_only=False), obj), name


def test_a_save_that_returns_when_it_is_copied(c: cairn.Connection) -> None:
    training = Training()
    expected = copied(training.state())
    saving = c.save_async(1, training.state())
    assert saving.staged
    training.forward_and_backward()
    training.optimizer.step()
    assert saving.wait(patient(30)) and saving.ok and saving.complete and saving.error is None
    assert saving.bytes_copied >= saving.bytes > 0
    assert_saved(c, 1, expected)
    assert "complete" in repr(saving)


def test_a_save_that_goes_on_until_the_optimizers_step(node: Node, c: cairn.Connection) -> None:
    """What the forward changes is as it was when the save began; what the step changes waits for it."""
    training = Training()
    c.save_async(0, training.state(), overlap=training.optimizer).wait(patient(30))
    expected = copied(training.state())
    ended: list[bool] = []
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, training.state(), overlap=training.optimizer)
        assert not saving.staged and not saving.done
        training.forward_and_backward()  # changes the BatchNorm's buffers
        assert not same(expected["model.pt"], training.model.state_dict())

        def step() -> None:
            if not hasattr(training.optimizer, "register_step_pre_hook"):  # before torch 2
                c.fence()
            training.optimizer.step()
            ended.append(saving.staged)

        stepping = threading.Thread(target=step)
        stepping.start()
        until(
            "the step waits for the copy",
            lambda: ended or in_call(stepping.ident or 0, "_wait_staged"),
        )
        assert not ended
    stepping.join(patient(30))
    assert ended == [True]
    assert saving.wait(patient(30)) and saving.ok
    assert_saved(c, 1, expected)
    assert c.latest().step == 1


def test_fence_waits_for_the_copy(node: Node, c: cairn.Connection) -> None:
    weights = torch.arange(1000.0)
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, {"w.pt": weights}, overlap=[weights])
        assert not c.fence(timeout=0.1)
    assert c.fence() and saving.staged
    weights += 1
    assert saving.wait(patient(30)) and saving.ok
    assert torch.equal(c.load("1/w.pt"), torch.arange(1000.0))


def test_a_tensor_that_changed_without_a_fence_is_named_and_nothing_is_saved(
    node: Node, c: cairn.Connection
) -> None:
    state = {"layer": {"weight": torch.zeros(1000), "bias": torch.zeros(10)}}
    tensors = list(state["layer"].values())
    c.save_async(1, {"m.pt": state}, overlap=tensors).wait(patient(30))
    with stopped(node.daemon_pid()):
        saving = c.save_async(2, {"m.pt": state}, overlap=tensors)
        state["layer"]["weight"] += 1
    assert saving.wait(patient(30))
    with pytest.raises(cairn.FailedPrecondition, match="m.pt: layer.weight; call fence"):
        c.fence()
    assert c.latest().step == 1  # promise 1: nothing torn ever counts
    with pytest.raises(cairn.NotFound):
        c.load("2/m.pt")
    assert c.save_async(3, {"m.pt": state}, overlap=tensors).wait(patient(30))  # told once
    assert torch.equal(c.load("3/m.pt")["layer"]["weight"], torch.ones(1000))


def test_an_optimizer_that_steps_past_its_hook_is_found_out(
    node: Node, c: cairn.Connection
) -> None:
    training = Training()
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, training.state(), overlap=training.optimizer)
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.mul_(2)
    assert saving.wait(patient(30)) and not saving.ok
    with pytest.raises(cairn.FailedPrecondition, match="0.weight, m.*3 more"):
        c.fence()


def test_a_state_of_data_is_watched_through_its_parameters(node: Node, c: cairn.Connection) -> None:
    training = Training()
    state = {name: p.data for name, p in training.model.named_parameters()}
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, {"m.pt": state}, overlap=training.optimizer)
        with torch.no_grad():
            training.model[0].bias.mul_(2)
    assert saving.wait(patient(30)) and not saving.ok
    with pytest.raises(cairn.FailedPrecondition, match="m.pt: 0.bias; call fence"):
        c.fence()


def test_what_is_not_the_optimizers_is_copied_at_once(node: Node, c: cairn.Connection) -> None:
    weights, average = torch.zeros(100_000), torch.zeros(100_000)
    array, raw = bytearray(b"abc"), memoryview(bytearray(b"xyz"))
    with stopped(node.daemon_pid()):
        saving = c.save_async(
            1,
            {"s.pt": {"w": weights, "ema": average}, "raw": array, "view": raw},
            overlap=[weights],
        )
        average += 1
        array[0] = raw[0] = 0
    assert saving.wait(patient(30)) and saving.ok, saving.error
    assert not c.load("1/s.pt")["ema"].any()
    assert bytes(c.load("1/raw")) == b"abc" and bytes(c.load("1/view")) == b"xyz"


def test_a_tensor_without_a_version_is_copied_at_once(node: Node, c: cairn.Connection) -> None:
    with torch.inference_mode():
        tensor = torch.zeros(100)
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, {"t.pt": [tensor]}, overlap=[tensor])
        with torch.inference_mode():
            tensor += 1
    assert saving.wait(patient(30)) and saving.ok, saving.error
    assert not c.load("1/t.pt")[0].any()


def test_a_failure_reaches_the_loop_at_its_next_call(job: str) -> None:
    """Without `strict` as a warning, like `step`'s, and the training goes on."""
    node = Node(budget=64 * MIB).start()
    try:
        with cairn.connect(job, socket=node.socket, timeout=patient(5)) as c:
            big = torch.zeros(100 * MIB, dtype=torch.uint8)
            with pytest.warns(cairn.CairnWarning, match="step 1 .* was not saved"):
                saving = c.save_async(1, {"big.pt": big}, overlap=[big])
                assert saving.wait(patient(30)) and isinstance(saving.error, cairn.Full)
                assert c.fence()
            assert c.failures == {"Full": 1}
            assert c.save_async(2, {"small.pt": 1}).wait(patient(30))
            assert c.latest().step == 2
            with pytest.raises(cairn.Full):
                c.save_async(3, {"big.pt": big}, overlap=[big], strict=True).wait(patient(30))
                c.fence()
            with pytest.raises(cairn.Full):
                c.save_async(4, {"big.pt": big}, strict=True)
    finally:
        node.remove()


def test_skip_leaves_out_a_step_while_the_one_before_goes_on(
    node: Node, c: cairn.Connection
) -> None:
    weights = torch.zeros(1000)
    with stopped(node.daemon_pid()):
        first = c.save_async(1, {"w.pt": weights}, overlap=[weights])
        second = c.save_async(2, {"w.pt": weights}, overlap=[weights], busy="skip")
        assert second.skipped and second.done and not second.ok and "skipped" in repr(second)
    assert first.wait(patient(30)) and first.ok
    assert not c.save_async(3, {"w.pt": weights}, overlap=[weights], busy="skip").skipped
    assert c.fence()
    c.close()


def test_skip_leaves_out_a_step_for_which_there_is_no_memory(job: str) -> None:
    node = Node(budget=64 * MIB).start()
    try:
        with cairn.connect(job, socket=node.socket, timeout=patient(300)) as c:
            weights = torch.ones(24 * MIB, dtype=torch.uint8)
            for step in (1, 2):
                assert c.save_async(step, {"w.pt": weights}, busy="skip").wait(patient(30))
                c.pin(step)  # it may not go
            begin = time.monotonic()
            skipped = c.save_async(3, {"w.pt": weights}, overlap=[weights], busy="skip")
            assert skipped.skipped and skipped.done and skipped.error is None
            assert time.monotonic() - begin < patient(30), "it waits no longer than a moment"
            assert c.failures == {} and c.latest().step == 2
            small = c.save_async(4, {"w.pt": weights[:1000].clone()}, busy="skip")
            assert small.wait(patient(30)) and small.ok
            c.pin(1, False)
            again = c.save_async(5, {"w.pt": weights}, busy="skip")
            assert again.wait(patient(30)) and again.ok and c.latest().step == 5
    finally:
        node.remove()


def test_a_save_that_cannot_begin_is_told_and_not_called_skipped(job: str) -> None:
    node = Node().start()
    with cairn.connect(job, socket=node.socket, timeout=patient(5)) as c:
        assert c.save_async(1, {"a": b"bytes"}, busy="skip").wait(patient(30))
        node.remove()
        with pytest.warns(cairn.CairnWarning, match="step 2 .*Unavailable"):
            saving = c.save_async(2, {"a": b"bytes"}, busy="skip")
        assert saving.done and not saving.skipped and not saving.ok
        assert isinstance(saving.error, cairn.Unavailable)


def test_a_daemon_that_dies_during_the_copy_fails_that_save_at_most(job: str) -> None:
    node = Node().start()
    try:
        with cairn.connect(job, socket=node.socket) as c, warnings.catch_warnings():
            warnings.simplefilter("ignore", cairn.CairnWarning)
            weights = torch.zeros(40 * MIB, dtype=torch.uint8)
            c.save_async(1, {"w.pt": weights}).wait(patient(30))
            for step in (2, 3):
                saving = c.save_async(step, {"w.pt": weights}, overlap=[weights])
                node.kill_daemon()
                assert saving.wait(patient(60))
                c.fence()
                assert c.latest().step == step if saving.ok else c.latest().step < step
            last = c.save_async(9, {"w.pt": weights})
            assert last.wait(patient(60)) and last.ok and c.latest().step == 9
    finally:
        node.remove()


def test_close_finishes_what_goes_on(node: Node, job: str) -> None:
    weights = torch.arange(10 * MIB, dtype=torch.uint8)
    with cairn.connect(job) as c:
        saving = c.save_async(1, {"w.pt": weights}, overlap=[weights])
    assert saving.done and saving.ok
    with cairn.connect(job) as again:
        assert torch.equal(again.load("1/w.pt"), weights)


def test_a_forked_child_waits_for_nothing(node: Node, c: cairn.Connection) -> None:
    weights = torch.zeros(1000)
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, {"w.pt": weights}, overlap=[weights])
        child = os.fork()
        if child == 0:
            saving.wait()
            c.fence()
            os._exit(0)
        try:
            until("the child ended", lambda: os.waitpid(child, os.WNOHANG) != (0, 0))
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
    assert saving.wait(patient(30)) and saving.ok


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"overlap": 3}, "overlap"),
        ({"overlap": ["w"]}, "overlap: str"),
        ({"busy": "hope"}, "busy: 'hope'"),
        ({"objects": {"a/../b": 1}}, "name"),
        ({"step": -1}, "step: -1"),
        ({"writers": 3}, "writers: 3"),
        ({"objects": {0: 1}}, "name: 0 is of type int, wanted is a str"),
        ({"objects": [("w.pt", 1)]}, "objects: is of type list, wanted is a mapping"),
        ({"objects": "w.pt"}, "objects: is of type str, wanted is a mapping"),
        ({"step": {"w.pt": torch.ones(3)}}, "step: .* is not an integer"),
        ({"timeout": "5"}, "timeout: '5' is of type str"),
        ({"writers": "1"}, "writers: '1' is of type str"),
    ],
)
def test_bad_input_names_the_field(
    c: cairn.Connection, arguments: dict[str, Any], says: str
) -> None:
    given = {"step": 1, "objects": {"w.pt": 1}, **arguments}
    with pytest.raises((ValueError, TypeError), match=says):
        c.save_async(**given)
    again = c.save_async(1, {"w.pt": 1})
    assert again.wait(patient(30)) and again.ok


def test_objects_that_cannot_be_pickled_fail_at_once(c: cairn.Connection) -> None:
    with pytest.raises(Exception, match="pickle"):
        c.save_async(1, {"f.pt": lambda: None})
    assert c.save_async(1, {"w.pt": 1}).wait(patient(30))
    assert c.load("1/w.pt") == 1


def test_an_overlap_of_nothing_copies_all_at_once(node: Node, c: cairn.Connection) -> None:
    buffer = torch.zeros(1000)
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, {"b.pt": buffer}, overlap=[])
        buffer += 1
    assert saving.wait(patient(30)) and saving.ok
    assert not c.load("1/b.pt").any()


class Box:
    """Something that is neither a container nor a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_what_hides_in_other_objects_is_copied_at_once(node: Node, c: cairn.Connection) -> None:
    """It may share memory with a parameter, and not its version."""
    parameter = torch.zeros(1000)
    hidden = parameter.data
    with stopped(node.daemon_pid()):
        saving = c.save_async(
            1, {"s.pt": {"p": parameter, "box": Box(hidden)}}, overlap=[parameter]
        )
        hidden += 1
    assert saving.wait(patient(30)) and saving.ok
    assert not c.load("1/s.pt", weights_only=False)["box"].tensor.any()


def test_who_is_interrupted_before_all_is_copied_has_saved_nothing(
    node: Node, c: cairn.Connection
) -> None:
    weights = torch.zeros(1000)
    c.save_async(1, {"w.pt": weights}).wait(patient(30))
    assert c.fence()  # so that the next one waits for itself alone
    with stopped(node.daemon_pid()):
        with interrupted_in("_wait_staged"):
            c.save_async(2, {"w.pt": weights})
        weights += 1
    assert c.fence()
    assert c.save_async(3, {"w.pt": weights}).wait(patient(30))
    assert c.latest().step == 3
    with pytest.raises(cairn.NotFound):
        c.load("2/w.pt")


def test_who_is_interrupted_where_a_save_begins_can_save_again(node: Node, job: str) -> None:
    with cairn.connect(job, timeout=patient(5)) as c:  # its attempt is chosen by the first save
        with stopped(node.daemon_pid()), interrupted_in("_enter"):
            c.save_async(1, {"w.pt": 1}, overlap=torch.ones(1))
        assert c.fence(timeout=patient(5))
        assert c.save_async(2, {"w.pt": 1}).wait(patient(30))
        assert c.latest().step == 2


def test_a_save_within_a_save_is_refused(node: Node, c: cairn.Connection) -> None:
    refused: list[BaseException] = []

    def handler(*_: Any) -> None:
        try:
            c.save_async(3, {"w.pt": 1})
        except cairn.FailedPrecondition as error:
            refused.append(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        weights = torch.zeros(1000)
        with stopped(node.daemon_pid()):
            c.save_async(1, {"w.pt": weights}, overlap=[weights])

            def interrupt() -> None:
                until("the second save begins", lambda: c._savings._begins)
                os.kill(os.getpid(), signal.SIGUSR1)
                until("the third is refused", lambda: refused)
                go_on(node.daemon_pid())

            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            assert c.save_async(2, {"w.pt": weights}).wait(patient(30))  # waits for the one before
            interrupting.join()
        assert len(refused) == 1 and "within save_async" in str(refused[0])
        assert c.latest().step == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_daemon_that_does_not_answer_is_waited_for_once(
    node: Node, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.zeros(1000)
    asked: list[cairn.Step] = []
    monkeypatch.setattr(cairn.Step, "discard", asked.append)
    with cairn.connect(job, timeout=patient(5)) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", cairn.CairnWarning)
        c.save_async(1, {"w.pt": weights}).wait(patient(30))
        with stopped(node.daemon_pid()):
            saving = c.save_async(2, {"w.pt": weights}, overlap=[weights])
            assert c.fence(timeout=patient(30))
            assert saving.wait(patient(30))
            assert not asked, "it was waited for twice"
        assert isinstance(saving.error, (cairn.Timeout, cairn.Unavailable))
        next_one = c.save_async(3, {"w.pt": weights})
        assert next_one.wait(patient(30)) and next_one.ok


def test_nothing_of_a_save_stays_alive(node: Node, c: cairn.Connection) -> None:
    def save(step: int, **arguments: Any) -> weakref.ref[torch.Tensor]:
        weights = torch.zeros(1000)
        saving = c.save_async(step, {"w.pt": weights}, overlap=[weights], **arguments)
        saving.wait(patient(30))
        return weakref.ref(weights)

    def save_that_fails() -> weakref.ref[torch.Tensor]:
        weights = torch.zeros(1000)
        saving = c.save_async(1, {"w.pt": weights}, overlap=[weights], writers=1)
        saving.wait(patient(30))
        weights = torch.zeros(1000)
        with stopped(node.daemon_pid()):
            saving = c.save_async(5, {"w.pt": weights}, overlap=[weights])
            weights += 1
        saving.wait(patient(30))
        with pytest.raises(cairn.FailedPrecondition):
            c.fence()
        return weakref.ref(weights)

    of_good, of_bad = save(4), save_that_fails()
    gc.collect()
    assert of_good() is None and of_bad() is None


def test_notes_that_are_no_strings_are_refused_at_once(c: cairn.Connection) -> None:
    with pytest.raises(ValueError, match="notes: 1 is of type int"):
        c.save_async(1, {"w.pt": 1}, notes={"a": 1})  # type: ignore[dict-item]


def test_the_next_save_begins_before_it_tells_of_the_one_before(
    node: Node, c: cairn.Connection
) -> None:
    weights = torch.zeros(1000)
    with stopped(node.daemon_pid()):
        saving = c.save_async(1, {"w.pt": weights}, overlap=[weights])
        weights += 1
    assert saving.wait(patient(30))
    with pytest.raises(cairn.FailedPrecondition, match="changed while"):
        c.save_async(2, {"w.pt": weights})
    assert c.fence()
    c.close()
    with cairn.connect(c.job) as again:
        assert again.latest().step == 2
