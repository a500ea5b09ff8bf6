"""Steps that suddenly take much longer: on Windows a full card's driver goes on in RAM instead of failing. No torch."""

from __future__ import annotations

from statistics import median

SLOWER = 3.0  # times the median of the steps before
IN_A_ROW = 2  # a single slow step may have other reasons


class Pace:
    """The seconds of a run's steps."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._slow = 0

    def jumps(self, seconds: float) -> float | None:
        """Take note of a step; returns the usual seconds, once, where the last ones took several times as many."""
        usual = median(self._seconds) if len(self._seconds) >= IN_A_ROW else None
        if usual is None or seconds <= SLOWER * usual:
            self._seconds.append(seconds)
            self._slow = 0
            return None
        self._slow += 1
        return usual if self._slow == IN_A_ROW else None
