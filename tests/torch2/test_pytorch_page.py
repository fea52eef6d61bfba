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
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    names: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 7, "dcp": dcp}
    try:
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(block, names)
        assert names["found"].step == 7
        assert names["c"].latest().step == 12
        names["c"].close()
    finally:
        node.remove()
