"""The demo's job: a small transformer that predicts the next byte of licence texts.

Everything is a function of (seed, step, rank), so a run that was killed and went on ends with the very bits
of one that was not. The hashed trigram table is there for its weight: it makes a step's state large enough
to be caught half-written, at little arithmetic. Embeddings are named so that Cairn streams them first.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

LICENCES = Path("/usr/share/common-licenses")
CONTEXT = 64
BATCH = 8
SEED = 20251


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a transformer is."""

    width: int
    layers: int
    trigrams: int


LARGE_TABLE = Size(128, 2, 1 << 17)  # a table of 64 MiB, and twice that in Adam
SIX_LAYERS = Size(256, 6, 1 << 12)  # 24 MB, most of it in its layers


def read_text() -> torch.Tensor:
    """Every licence text of this Debian, as bytes in one tensor; read in place, in a fixed order."""
    files = sorted(p for p in LICENCES.iterdir() if p.is_file() and not p.is_symlink())
    text = b"\n\n".join(p.read_bytes() for p in files)
    if len(text) < 4 * CONTEXT:
        raise SystemExit(f"{LICENCES} holds no texts to train on")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Transformer(nn.Module):
    """Bytes and hashed trigrams in, causal layers, the next byte's logits out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.embed_bytes = nn.Embedding(256, width)
        self.embed_trigrams = nn.Embedding(size.trigrams, width)
        self.embed_position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.1, batch_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, num_layers=size.layers, enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 256)
        with torch.no_grad():
            self.embed_trigrams.weight.mul_(0.1)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(tokens, (2, 0))
        trigrams = before[:, :-2] * 65_599 + before[:, 1:-1] * 257 + tokens
        hashed = trigrams % self.embed_trigrams.num_embeddings
        x = self.embed_bytes(tokens) + self.embed_trigrams(hashed) + self.embed_position
        return self.head(self.layers(x, mask=self.mask))


def batch(
    text: torch.Tensor, step: int, rank: int, world_size: int, samples: int = BATCH
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of this step: (inputs, targets), each (samples, CONTEXT)."""
    generator = torch.Generator().manual_seed(SEED + step * world_size + rank)
    starts = torch.randint(0, len(text) - CONTEXT - 1, (samples,), generator=generator)
    rows = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def make(rank: int, size: Size = LARGE_TABLE) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = Transformer(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(SEED + 1 + rank)  # dropout: each rank its own
    return model, optimizer
