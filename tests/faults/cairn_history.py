"""What was acknowledged to the trainers of one job, on any node, and what must be true then."""

from __future__ import annotations

import dataclasses

Name = tuple[int, int]  # a checkpoint: step, attempt


@dataclasses.dataclass
class Life:
    """An attempt that has begun. `origin`: what its trainer went on from."""

    number: int
    origin: Name | None
    steps: list[int] = dataclasses.field(default_factory=list)


class History:
    """What was acknowledged, and what follows from it by docs/line.md."""

    def __init__(self, keep_last: int, abandoned_go_at_once: bool) -> None:
        self.keep_last, self.abandoned_go_at_once = keep_last, abandoned_go_at_once
        self.lives: dict[int, Life] = {}
        self.tags: dict[Name, str] = {}
        self.persisted: set[Name] = set()
        self.decisions: dict[int, Name] = {}
        self.kinds: dict[int, str] = {}
        self.may_go: set[Name] = set()
        self.told: list[str] = []

    def say(self, what: str) -> None:
        self.told.append(what)

    def saved(self, number: int, step: int, tag: str, origin: Name | None) -> None:
        life = self.lives.setdefault(number, Life(number, origin))
        life.steps.append(step)
        self.tags[step, number] = tag
        self._forget(number)

    def decided(self, number: int, kind: str, target: Name) -> None:
        self.decisions[number], self.kinds[number] = target, kind

    def latest(self, unknown: int = 0) -> Name:
        """Line rules 7 and 8: the greatest number, of equal ones the attempt's. `unknown`: an attempt that
        was on another node, and that this one may not have heard of."""
        heads: dict[int, Name] = dict(self.decisions)
        heads |= {life.number: (max(life.steps), life.number) for life in self.lives.values()}
        heads.pop(unknown, None)
        return heads[max(heads)]

    def line(self, name: Name | None) -> list[Name]:
        """Newest first: that checkpoint and what it comes from (line rule 5)."""
        found: list[Name] = []
        while name is not None:
            life = self.lives[name[1]]
            below = sorted((step for step in life.steps if step <= name[0]), reverse=True)
            found += [(step, life.number) for step in below]
            name = life.origin
        return found

    def _forget(self, number: int) -> None:
        """Notes which files may go, as one sees it who knows attempt `number` as the head."""
        if not self.keep_last:
            return
        steps = self.lives[number].steps
        line = self.line((max(steps), number))
        self.may_go.update(line[self.keep_last :])
        if self.abandoned_go_at_once and len(steps) >= self.keep_last:  # line rule 21
            self.may_go.update(name for name in self.tags if name not in line)
