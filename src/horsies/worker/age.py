"""When a child has served long enough."""

from dataclasses import dataclass

AGED = 0.8
"""Of its tasks it has been given so many when its replacement is wanted."""
AHEAD = 2.0
"""And earlier if it will need one sooner than so many times what a start takes: while there is nobody to take its place it would stand idle."""
PACED = 0.1
"""Its pace is known when it has been given so many: one task tells nothing of the next."""


@dataclass(slots=True)
class Age:
    """Of one child. `budget` is how many tasks it may be given in its life; None: any number. `start_s` is how long it took to start."""

    budget: int | None
    given: int = 0
    start_s: float = 0.0
    is_too_big: bool = False
    is_reprieved: bool = False
    """It goes on although it should not, because nobody can take its place."""
    is_retired: bool = False
    """For good."""

    @property
    def left(self) -> int | None:
        if self.budget is None or self.is_reprieved:
            return None
        return max(0, self.budget - self.given)

    @property
    def is_retiring(self) -> bool:
        """It takes no new work, and is to be replaced."""
        return self.is_retired or (not self.is_reprieved and (self.is_too_big or self.left == 0))

    def is_aged(self, served_s: float) -> bool:
        """Its replacement is wanted, or will be soon. (Of a budget of two, after the first.) It has been there for `served_s`."""
        if self.is_retired or self.is_too_big:
            return True
        if self.budget is None:
            return False
        if self.given >= min(self.budget - 1, self.budget * AGED):
            return True
        if self.given < self.budget * PACED:
            return False
        return served_s * (self.budget - self.given) < AHEAD * self.start_s * self.given
