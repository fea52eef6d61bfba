"""The demo's job: a small transformer that predicts the next byte of licence texts.

Everything is a function of (seed, step, rank), so a run that was killed and went on ends with the very bits
of one that was not. The hashed trigram table is there for its weight: it makes a step's state large enough
to be caught half-written, at little arithmetic.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

LICENCES = Path("/usr/share/common-licenses")
CONTEXT = 64
BATCH = 8
WIDTH = 128
TRIGRAMS = 1 << 17  # × WIDTH floats = 64 MiB, and twice that in Adam
SEED = 20251


def read_text() -> torch.Tensor:
    """Every licence text of this Debian, as bytes in one tensor; read in place, in a fixed order."""
    files = sorted(p for p in LICENCES.iterdir() if p.is_file() and not p.is_symlink())
    text = b"\n\n".join(p.read_bytes() for p in files)
    if len(text) < 4 * CONTEXT:
        raise SystemExit(f"{LICENCES} holds no texts to train on")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Transformer(nn.Module):
    """Bytes and hashed trigrams in, two causal layers, the next byte's logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.trigrams = nn.Embedding(TRIGRAMS, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.1, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        with torch.no_grad():
            self.trigrams.weight.mul_(0.1)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(tokens, (2, 0))
        hashed = (before[:, :-2] * 65_599 + before[:, 1:-1] * 257 + tokens) % TRIGRAMS
        x = self.bytes(tokens) + self.trigrams(hashed) + self.position
        return self.head(self.layers(x, mask=self.mask))


def batch(
    text: torch.Tensor, step: int, rank: int, world_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of this step: (inputs, targets), each (BATCH, CONTEXT)."""
    generator = torch.Generator().manual_seed(SEED + step * world_size + rank)
    starts = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    rows = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def make(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(SEED + 1 + rank)  # dropout: each rank its own
    return model, optimizer
