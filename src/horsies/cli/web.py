"""`horsies web`."""

import click

from horsies.cli.options import app_command, logging_options, report_errors
from horsies.locate import load_app
from horsies.logs import configure_logging


@click.command()
@app_command
@click.option("--port", type=click.IntRange(0, 65535), default=8321, show_default=True, help="The port to serve.")
@logging_options
@report_errors
def web(app: str, *, port: int, loglevel: str, log_format: str) -> None:
    """Serve the dashboard of an app, on this machine only.

    \b
    horsies web shop:app
    """
    import uvicorn  # noqa: PLC0415 - an extra

    from horsies.web import dashboard  # noqa: PLC0415 - an extra

    configure_logging(loglevel, log_format)
    uvicorn.run(dashboard(load_app(app)), host="127.0.0.1", port=port, log_config=None)
