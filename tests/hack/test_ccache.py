"""How sources are compiled through ccache."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from driver.process import ROOT

CREATE = "g++ -fpch-preprocess -x c++-header -include {0}/all.h -o all.h.gch -c all.cc"
USE = "g++ -fpch-preprocess -include {0}/all.h -o main main.cc"


@pytest.mark.skipif(not shutil.which("ccache"), reason="it needs ccache")
def test_each_edit_of_a_precompiled_header_is_compiled(tmp_path: Path) -> None:
    own = {"CCACHE_DIR": str(tmp_path / "cache"), "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
    env = {**os.environ, **own}

    def value_of(header: str) -> int:
        """Compiles a program with the precompiled header `header`: its exit status."""
        (tmp_path / "value.h").write_text(header)
        for command in (CREATE, USE):
            words = [str(ROOT / "hack" / "ccache"), *command.format(tmp_path).split()]
            subprocess.run(words, env=env, cwd=tmp_path, check=True)
        return subprocess.run([tmp_path / "main"], check=False).returncode

    (tmp_path / "all.h").write_text('#include "value.h"\n')
    (tmp_path / "all.cc").write_text("")
    (tmp_path / "main.cc").write_text('#include "value.h"\nint main() { return Value(); }\n')
    compiled = tmp_path / "all.h.gch"
    header = "#pragma once\ninline int Value() {{ return {}; }}  // {}\n"
    assert value_of(header.format(1, "first")) == 1
    first = compiled.read_bytes()
    for edit in (2, 3):  # both from the first one
        compiled.write_bytes(first)
        assert value_of(header.format(edit, "first")) == edit
    assert value_of(header.format(3, "a comment alone")) == 3
