"""Which bytes of a space are free: a list of holes, and the end of the last bytes that are allocated.

    ████····██████··█████   holes [4, 8) and [14, 16), end 21
    allocate(2) -> 4        the first hole that is large enough
    allocate(5) -> 21       or else behind the end, which moves
    free(16, 5)             merges with the hole before it, and the end moves back to 14

Source: first fit with merging (Knuth, The Art of Computer Programming 1, 2.5). O(holes) a call. There are few holes: a
backward frees in the reverse order of its forward.
"""

from __future__ import annotations

from bisect import bisect_left


class FreeList:
    """Allocates and frees spans of one space. It is not safe for threads.

    Attributes:
        end_bytes: the end of the last span.
        used_bytes: what is allocated.
    """

    def __init__(self) -> None:
        self.end_bytes = self.used_bytes = 0
        self._holes: list[tuple[int, int]] = []  # begin and end of each, in order; between two there are spans

    def allocate(self, size_bytes: int) -> int:
        """Allocate so many bytes, and return their place."""
        self.used_bytes += size_bytes
        for number, (begin, end) in enumerate(self._holes):
            if end - begin >= size_bytes:
                rest = (begin + size_bytes, end)
                self._holes[number : number + 1] = [rest] if rest[0] < end else []
                return begin
        place = self.end_bytes
        self.end_bytes += size_bytes
        return place

    def free(self, place: int, size_bytes: int) -> None:
        """Free the span at a place."""
        if not size_bytes:
            return
        self.used_bytes -= size_bytes
        begin, end = place, place + size_bytes
        number = after = bisect_left(self._holes, (begin, end))
        if number and self._holes[number - 1][1] == begin:
            number -= 1
            begin = self._holes[number][0]
        if after < len(self._holes) and self._holes[after][0] == end:
            end = self._holes[after][1]
            after += 1
        if end == self.end_bytes:
            self.end_bytes = begin
            self._holes[number:after] = []
        else:
            self._holes[number:after] = [(begin, end)]
