"""The runs that a driver still has to see to their end, whoever does them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from buttress.running.attempt import Outcome, failed, forget_failure
from buttress.study.work import Work

PAUSE = 2.0  # seconds until a run that another process has is looked at again
TRIES = 3  # processes that one run may take with it


@dataclass(frozen=True)
class Failure:
    """A run that did not end, and why."""

    work: Work
    message: str


class Bag:
    """Runs to be tried, in order; one that is held or waits comes back after a pause."""

    def __init__(self, works: Sequence[Work], *, retry: bool = False) -> None:
        self.works = list({work.key: work for work in works}.values())
        self.waiting = list(range(len(self.works)))
        self.places = {work.folder: index for index, work in enumerate(self.works)}
        self.open = set(self.waiting)
        self.failures: dict[int, str] = {}
        self.lost: dict[int, int] = {}  # run -> processes that died with it
        self.not_before: dict[int, float] = {}
        self.told: set[int] = set()
        if retry:
            for work in self.works:
                forget_failure(work)

    def take(self) -> int | None:
        """The next run to be tried now, if there is one."""
        now = time.monotonic()
        for position, index in enumerate(self.waiting):
            if self.not_before.get(index, 0.0) <= now and not self._waits(index):
                return self.waiting.pop(position)
        return None

    def _waits(self, index: int) -> bool:
        """Whether the run it begins with is still to come."""
        source = self.works[index].source
        return source is not None and self.places.get(source, -1) in self.open

    def settle(self, index: int, outcome: Outcome) -> bool:
        """Notes how a try ended; whether that was the end of the run."""
        if outcome.word in ("held", "waiting"):
            self.waiting.append(index)
            self.not_before[index] = time.monotonic() + PAUSE
            return False
        self.open.discard(index)
        if outcome.word == "failed":
            self.failures[index] = outcome.message
        return True

    def lose(self, index: int, reason: str) -> bool:
        """A process died with a run: another tries, unless too many have died of it."""
        self.lost[index] = self.lost.get(index, 0) + 1
        if self.lost[index] >= TRIES:
            again = f"{reason}, {TRIES} times; it may need more memory than there is"
            return self.settle(index, failed(self.works[index], again))
        self.waiting.insert(0, index)
        return False

    def is_news(self, index: int) -> bool:
        """Whether it is the first time that a run is found held, which is worth a line."""
        is_new = index not in self.told
        self.told.add(index)
        return is_new

    def failed(self) -> list[Failure]:
        return [Failure(self.works[i], self.failures[i]) for i in sorted(self.failures)]


def shard(works: Sequence[Work], number: int, count: int) -> list[Work]:
    """Part ``number`` of ``count``; a run and the one it begins with are in the same part."""
    known = {work.folder: work for work in works}

    def root(work: Work) -> str:
        while work.source is not None and work.source in known:
            work = known[work.source]
        return work.key

    roots = list(dict.fromkeys(root(work) for work in works))
    mine = set(roots[number - 1 :: count])
    return [work for work in works if root(work) in mine]
