"""When a child has served long enough."""

from dataclasses import dataclass

AGED = 0.8
"""Of its tasks it has been given so many when its replacement is wanted."""


@dataclass(slots=True)
class Age:
    """Of one child. `budget` is how many tasks it may be given in its life; None: any number."""

    budget: int | None
    given: int = 0
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

    @property
    def is_aged(self) -> bool:
        """Its replacement is wanted, or will be soon. (Of a budget of two, after the first.)"""
        if self.is_retired or self.is_too_big:
            return True
        return self.budget is not None and self.given >= min(self.budget - 1, self.budget * AGED)
