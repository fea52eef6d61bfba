"""tests/driver/inputs.py: a program changes with its sources, in batches too and in a folder with a blank."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver import inputs


def digest(root: Path) -> str:
    for cached in (inputs.includes, inputs.digest_of, inputs.always):
        cached.cache_clear()
    return inputs.of_program(root / "build" / "asan", "keys_test")


def test_a_program_changes_with_its_sources_and_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "with a blank"
    monkeypatch.setattr(inputs, "ROOT", root)
    build = root / "build" / "asan"
    build.mkdir(parents=True)
    (root / "common").mkdir()
    header, source = root / "common" / "keys.h", root / "common" / "keys.cc"
    test = root / "common" / "keys_test.cc"
    header.write_text("int x;\n")
    source.write_text('#include "common/keys.h"\n')
    test.write_text("int main() {}\n")
    (build / "cairn_common_batch_0.cc").write_text('#include "common/keys.cc"\n')
    (build / "cairn_common_batch_0.cc.o").write_bytes(b"\x7fELF\xff")
    escaped = str(test).replace(" ", "$ ")
    (build / "build.ninja").write_text(
        "rule link\n  command = true\n"
        "build cairn_common_batch_0.cc.o: link cairn_common_batch_0.cc\n"
        f"build keys_test: link cairn_common_batch_0.cc.o {escaped}\n"
    )
    seen = {digest(root)}
    for path in (header, source, test):
        path.write_text(path.read_text() + "// changed\n")
        seen.add(digest(root))
    assert len(seen) == 4
