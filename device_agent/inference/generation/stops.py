"""Stop texts: where an answer ends, and how much of it must be held back because a stop text may have begun. Pure.

The text is cut before the stop text that is whole first; of several that end at the same character, before the
longest. So what comes out does not depend on the pieces in which the text comes in.

Aho and Corasick's automaton reads each character once, whatever the stop texts are ("Efficient string matching",
Communications of the ACM 18, 1975). The depth of its state is the length of the longest end of the text that begins a
stop text: what is held back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True, eq=False)
class _State:
    """A state: the text so far ends with the first `depth` characters of a stop text, and with no longer one."""

    depth: int
    next: dict[str, _State] = field(default_factory=dict)
    fallback: _State | None = None
    match: int = 0
    """Length of the longest stop text that ends here; 0: none does."""


def _automaton(stops: Iterable[str]) -> _State:
    root = _State(0)
    for stop in stops:
        state = root
        for character in stop:
            state = state.next.setdefault(character, _State(state.depth + 1))
        state.match = len(stop)
    waiting = deque(root.next.values())
    for state in waiting:
        state.fallback = root
    while waiting:
        state = waiting.popleft()
        for character, following in state.next.items():
            following.fallback = _follow(state.fallback, character, root)
            following.match = following.match or following.fallback.match
            waiting.append(following)
    return root


def _follow(state: _State | None, character: str, root: _State) -> _State:
    while state is not None:
        if character in state.next:
            return state.next[character]
        state = state.fallback
    return root


class StopFilter:
    """Lets text through up to the first stop text.

    Args:
        stops: The stop texts, none of them empty.

    Attributes:
        stopped: Whether a stop text was found; the filter takes nothing more.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stopped = False
        self._root = self._state = _automaton(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece; what is certain to be in the answer comes back."""
        if not self._root.next:
            return text
        if self.stopped:
            return ""
        state, root = self._state, self._root
        for place, character in enumerate(text):
            state = _follow(state, character, root)
            if state.match:
                self.stopped = True
                whole = self._held + text[: place + 1]
                self._held = ""
                return whole[: len(whole) - state.match]
        self._state = state
        whole = self._held + text
        certain = len(whole) - state.depth
        self._held = whole[certain:]
        return whole[:certain]

    def finish(self) -> str:
        """What is held back, as no more text comes."""
        held, self._held = self._held, ""
        self._state = self._root
        return held
