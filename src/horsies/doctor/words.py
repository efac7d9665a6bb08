"""Numbers in the words of findings, and how many are named."""

from collections.abc import Sequence

from horsies.db.op import Row

NAMED = 3  # to people
LISTED = 10  # to programs


def tasks(rows: Sequence[Row], limit: int) -> str:
    """`2 tasks: 0192… (resize), …` of rows that begin with an id and a name."""
    count = f"{limit} or more" if len(rows) == limit else f"{len(rows)}"
    named = ", ".join(f"{row[0]} ({row[1]})" for row in rows[:NAMED])
    return f"{count} task{'' if len(rows) == 1 else 's'}: {named}{', …' if len(rows) > NAMED else ''}"
