"""The waiting and the running sequences, each list in the order of service."""

from __future__ import annotations

from bisect import bisect_left, insort

from twostroke.scheduler.sequence import Sequence, SequenceState


class Queues:
    """Sole writer of a sequence's state and of its membership in the lists."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []  # new or preempted: they hold no memory
        self.running: list[Sequence] = []  # they hold memory
        self._by_id: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, request_id: str) -> Sequence | None:
        """Return a sequence that has not ended."""
        return self._by_id.get(request_id)

    def all(self) -> tuple[Sequence, ...]:
        """Return all sequences that have not ended, in the order of their arrival."""
        return tuple(self._by_id.values())

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._by_id[sequence.id] = sequence
        insort(self.waiting, sequence, key=_order)

    def start(self, sequence: Sequence) -> None:
        """Move a waiting sequence to the running ones."""
        self._drop_waiting(sequence)
        insort(self.running, sequence, key=_order)
        sequence.shared_prefixes.clear()
        sequence.state = SequenceState.RUNNING

    def preempt(self, sequence: Sequence) -> None:
        """Move a running sequence back to the waiting ones."""
        self.running.remove(sequence)
        insort(self.waiting, sequence, key=_order)
        sequence.state = SequenceState.PREEMPTED

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence wherever it stands."""
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
        else:
            self._drop_waiting(sequence)
        del self._by_id[sequence.id]
        sequence.state = SequenceState.FINISHED

    def _drop_waiting(self, sequence: Sequence) -> None:
        del self.waiting[bisect_left(self.waiting, sequence.order, key=_order)]


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
