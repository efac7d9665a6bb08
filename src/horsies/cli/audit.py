"""`horsies audit`: what operators have done."""

import click

from horsies.app import Horsies
from horsies.cli.options import database_command, parse_id
from horsies.cli.output import Column, show_json, show_table, wide_option


@database_command(
    click.command,
    click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Number of actions."),
    click.option("--after", metavar="ID", help="Continue after this action, the last one of the previous page."),
    wide_option,
    argument=True,
)
def audit(target: Horsies, *, limit: int, after: str | None, as_json: bool) -> None:
    """List what operators have done, newest first: who, what, when, and how many things it changed.

    Actions of the command line, of the dashboard and of `app.ops` are recorded. A count of `-` is an action that was cut off, or still runs.

    \b
    horsies audit shop:app --limit 100
    """
    entries = target.ops.list_audit(limit=limit + 1, after=None if after is None else parse_id(after))
    page = entries[:limit]
    next_after = page[-1].id if len(entries) > limit else None
    if as_json:
        show_json({"actions": page, "next_after": next_after})
        return
    columns = ["AT", Column("ACTOR", shrink=10), "ACTION", "COUNT", Column("TARGET", shrink=12)]
    rows = [(entry.at, entry.actor, entry.action, entry.count, entry.target) for entry in page]
    show_table(columns, rows, empty="no action is recorded")
    if next_after:
        click.echo(f"there are more: add --after {next_after}", err=True)
