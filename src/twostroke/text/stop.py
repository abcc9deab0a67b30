"""Stop strings, matched on raw text across token borders while it streams.

Rule: the text is read character by character; the first place where any stop is complete ends it.
Where several stops are complete at that place the longest counts, so that nothing of a stop stays
in the text.
The text is cut where that stop begins. Only a tail that is a true prefix of some stop is held
back.
Source: Aho and Corasick 1975, doi:10.1145/360825.360855.
"""

from __future__ import annotations

from collections import deque


class StopMatcher:
    """One answer's matcher. Its time is linear in the text, whatever the stop strings."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.hit: str | None = None
        self._automaton = _Automaton(stops)
        self._node = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next text; return what may be shown and the stop that was hit, if any.

        After a hit nothing more is shown.
        """
        if self.hit is not None:
            return "", self.hit
        if self._automaton.is_empty:
            return text, None
        automaton, node = self._automaton, self._node
        whole = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            node = automaton.step(node, character)
            stop = automaton.complete[node]
            if stop is not None:
                self.hit, self._held, self._node = stop, "", 0
                return whole[: place - len(stop)], stop
        self._node = node
        shown = len(whole) - automaton.depth[node]
        self._held = whole[shown:]
        return whole[:shown], None

    def flush(self) -> str:
        """Return what is held back, because the text ends without a stop."""
        held, self._held, self._node = self._held, "", 0
        return held


class _Automaton:
    """The stops as one automaton. Node 0 is the root; a node is the longest prefix of a stop that
    the text ends with."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.is_empty = not stops
        self.depth = [0]  # characters of the prefix
        self.complete: list[str | None] = [None]  # the longest stop that ends here
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the longest other prefix that the text ends with
        for stop in stops:
            self._add(stop)
        self._link()

    def step(self, node: int, character: str) -> int:
        """Return the node after one more character."""
        while True:
            following = self._next[node].get(character)
            if following is not None:
                return following
            if node == 0:
                return 0
            node = self._shorter[node]

    def _add(self, stop: str) -> None:
        node = 0
        for character in stop:
            following = self._next[node].get(character)
            if following is None:
                following = len(self.depth)
                self._next[node][character] = following
                self._next.append({})
                self.depth.append(self.depth[node] + 1)
                self.complete.append(None)
                self._shorter.append(0)
            node = following
        if node:
            self.complete[node] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, following in self._next[node].items():
                shorter = self.step(self._shorter[node], character)
                self._shorter[following] = shorter
                if self.complete[following] is None:
                    self.complete[following] = self.complete[shorter]
                queue.append(following)
