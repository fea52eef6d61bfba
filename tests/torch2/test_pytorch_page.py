"""docs/pytorch.md: its Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from node import MIB, Node

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_the_page_shows_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(budget=256 * MIB).start()
    monkeypatch.setenv("CAIRN_SOCKET", node.socket)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    names: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "samples": torch.randn(2, 4),
        "loss": torch.sum,
        "first": 0,
        "steps": 7,
        "dcp": dcp,
    }
    try:
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(block, names)
            names["step"] = 7  # one after those of the first block
        assert names["saving"].ok and names["found"].step == 7
        assert names["c"].latest().step == 13
        names["c"].close()
    finally:
        node.remove()
