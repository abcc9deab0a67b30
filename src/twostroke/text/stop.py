"""Stop strings, matched on raw text across token borders while it streams.

Rule: the text is read character by character; it ends at the first place where any stop string is
complete, and is cut where that stop string begins. Where several are complete at one place the
longest counts, so that no part of one stays in the text. A tail that may become a stop string is
held back.
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
        """Take the next text; return the text to show, and the stop string that it completed.

        After a stop string no text is shown.
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
        """Return the text held back, because the answer ends without a stop string."""
        held, self._held, self._node = self._held, "", 0
        return held


class _Automaton:
    """All stop strings as one automaton.

    A node is the longest prefix of a stop string that ends the text so far; node 0 is empty.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.is_empty = not stops
        self.depth = [0]  # characters of the prefix
        self.complete: list[str | None] = [None]  # the longest stop string that ends here
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the longest other prefix that ends the text
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
