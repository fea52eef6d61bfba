"""Which paths are Cairn's, and what near misses say."""

from __future__ import annotations

import io
import os
from pathlib import Path, PurePosixPath

import cairn
import pytest
from cairn import _native, paths


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("cairn://run7/12/model.pt", ("run7", 12, "model.pt")),
        ("cairn://run7/latest/a/b/c", ("run7", _native.NO_STEP, "a/b/c")),
        ("cairn://r/0/x", ("r", 0, "x")),
        ("cairn://r/9223372036854775807/x", ("r", 2**63 - 1, "x")),
        ("cairn://R.u_n-7/3/模型.pt", ("R.u_n-7", 3, "模型.pt")),
    ],
)
def test_whole_paths_need_no_connection(path: str, expected: tuple[str, int, str]) -> None:
    assert paths.recognize(path, "") == expected
    assert paths.recognize(path, "other") == expected


def test_step_and_name_are_a_cairn_path_once_connected() -> None:
    assert paths.recognize("12/model.pt", "run7") == ("run7", 12, "model.pt")
    assert paths.recognize("12/model.pt", "") is None


@pytest.mark.parametrize(
    "path",
    [
        "./12/model.pt",
        "/12/model.pt",
        "model.pt",
        "latest/model.pt",
        "12",
        "-1/x",
        "1e3/x",
        "１２/x",
        "",
    ],
)
def test_other_strings_are_files_even_when_connected(path: str) -> None:
    assert paths.recognize(path, "run7") is None


def test_pathlikes_and_file_objects_are_files() -> None:
    assert paths.recognize(Path("12/model.pt"), "run7") is None
    assert paths.recognize(io.BytesIO(), "run7") is None
    assert paths.recognize(b"12/model.pt", "run7") is None


class OwnPathLike:
    def __fspath__(self) -> str:
        return "cairn://run7/12/x"


@pytest.mark.parametrize(
    "path", [Path("cairn://run7/12/x"), PurePosixPath("cairn:/a"), OwnPathLike()]
)
def test_a_pathlike_that_begins_cairn_is_a_value_error(path: os.PathLike[str]) -> None:
    with pytest.raises(ValueError, match="pass the string cairn://"):
        cairn.load(path)
    with pytest.raises(ValueError, match="pass the string cairn://"):
        cairn.save({}, path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("cairn:/run7/12/x", "one slash"),
        ("cairn://", "job"),
        ("cairn:///12/x", "job"),
        ("cairn://-bad/12/x", "job"),
        ("cairn://" + "a" * 129 + "/12/x", "job"),
        ("cairn://run7", "step"),
        ("cairn://run7/", "step"),
        ("cairn://run7/x/y", "step"),
        ("cairn://run7/-1/y", "step"),
        ("cairn://run7/9223372036854775808/y", "step"),
        ("cairn://run7/12", "names a step but no object"),
        ("cairn://run7/12/..", "name"),
        ("cairn://run7/12/a/../b", "name"),
        ("cairn://run7/12//abs", "name"),
        ("cairn://run7/12/a\0b", "name"),
        ("cairn://run7/12/" + "n" * 513, "name"),
        ("cairn://run7/12/" + "c" * 201, "name"),
        ("cairn://run7/12/.cairn", "name"),
    ],
)
def test_near_misses_are_value_errors_that_name_the_part(path: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        cairn.load(path)
    assert isinstance(error.value, cairn.Error) and error.value.code == 3
    with pytest.raises(ValueError, match=says):
        cairn.save({}, path)


def test_a_name_that_is_no_utf8_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        cairn.load("cairn://run7/12/\udc80")


def test_latest_is_nothing_to_save_to() -> None:
    with pytest.raises(ValueError, match="latest"):
        cairn.save({}, "cairn://run7/latest/x")


def test_what_is_nearly_a_cairn_path_goes_to_stock_torch_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("run7/12").mkdir(parents=True)
    Path("12").mkdir()
    with pytest.warns(cairn.CairnWarning) as warned:
        for i in range(3):
            cairn.save({"i": i}, f"12/{i}.pt")
            cairn.save({"i": i}, Path(f"run7/12/{i}.pt"))
            cairn.load(f"run7/12/{i}.pt")
    assert sorted(str(w.message).split(":")[0] for w in warned) == ["cairn.load", "cairn.save"]
    assert torch.load("12/1.pt") == {"i": 1}


def test_what_is_plainly_a_file_goes_to_stock_torch_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("12").mkdir()
    for path in ("model.pt", tmp_path / "1.pt", f"{tmp_path}/2.pt", "./12/3.pt"):
        cairn.save({"path": str(path)}, path)
        assert cairn.load(path, weights_only=True) == {"path": str(path)} == torch.load(path)
    buffer = io.BytesIO()
    cairn.save([1], buffer)
    buffer.seek(0)
    assert cairn.load(buffer, weights_only=True) == [1]
    assert [w for w in recwarn if issubclass(w.category, cairn.CairnWarning)] == []


@pytest.mark.parametrize(
    "path", ["12/model.pt", "run7/12/model.pt", "run7/latest/a/b", "latest/x", Path("run7/12/x")]
)
def test_nearly_a_cairn_path(path: object) -> None:
    assert paths.looks_like_cairn(path)


@pytest.mark.parametrize(
    "path",
    [
        "model.pt",
        "/12/x",
        "./12/x",
        "12",
        "12/",
        "a/b/12/x",
        "out/model.pt",
        b"12/x",
        3,
        io.BytesIO(),
    ],
)
def test_plainly_a_file(path: object) -> None:
    assert not paths.looks_like_cairn(path)
