"""`horsies web`."""

import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from horsies.app import Horsies
from horsies.cli.options import all_of, logging_options, open_target, report_errors, target_command
from horsies.logs import configure_logging
from horsies.model.errors import BrokerError, ConfigError, SchemaError

if TYPE_CHECKING:
    from horsies.web.security import Credential, ProxyHeader

DEFAULT_PORT: Final = 8321
PASSWORDS: Final = "HORSIES_WEB_PASSWORDS"
MIN_PASSWORD: Final = 8  # characters
GRACEFUL_S: Final = 5  # for the requests that run when the server is asked to stop
EXTRAS: Final = ("starlette", "uvicorn", "jinja2")

log = logging.getLogger("horsies.web")


class _WebCommands(click.Group):
    """What is not one of the commands is the APP to serve."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["serve", *args])


@click.group(cls=_WebCommands)
def web() -> None:
    """Serve the dashboard."""


_ROLES: Final = click.Choice(["operator", "read-only"])
_access_options = all_of(
    click.option(
        "--password-file", type=click.Path(path_type=Path, dir_okay=False), envvar="HORSIES_WEB_PASSWORD_FILE", show_envvar=True,
        help=f"Users that log in, and tokens of scripts: lines that `horsies web hash-password` and `horsies web make-token` print.  [default: ${PASSWORDS}]",
    ),
    click.option("--trust-header", metavar="NAME", help="A header in which a proxy names the user that it authenticated, such as X-Forwarded-User."),
    click.option("--trusted-proxy", "proxies", metavar="ADDRESS", multiple=True, help="The address or network of a proxy whose headers are believed. Repeatable."),
    click.option("--operator", "operators", metavar="NAME", multiple=True, help="With --trust-header: a user that may act. Repeatable."),
    click.option(
        "--default-role", type=_ROLES, default="read-only", show_default=True,
        help="With --trust-header: the role of all other users.",
    ),
    click.option("--allowed-host", "allowed_hosts", metavar="NAME", multiple=True, help="A name that the Host header may have. Repeatable.  [default: any; without authentication those of this machine]"),
)  # fmt: skip
_server_options = all_of(
    click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve. Other than loopback needs authentication."),
    click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="The port; 0 takes a free one."),
    click.option("--any-port", is_flag=True, hidden=True, help="If the port is taken, take a free one."),
    click.option("--root-path", default="", metavar="/PREFIX", help="The prefix below which a proxy serves it."),
    click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Serve https, with this certificate."),
    click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="The key of the certificate."),
)  # fmt: skip


@web.command()
@target_command
@_server_options
@_access_options
@click.option(
    "--payloads", type=click.Choice(["show", "mask", "hide"]), default="show", show_default=True,
    help="Show arguments, results and data of errors, only their shape, or nothing of them.",
)  # fmt: skip
@click.option(
    "--trace-url", metavar="URL", help="Where traces are shown, such as https://jaeger.example/trace/{trace_id}."
)
@logging_options
@report_errors
def serve(
    *,
    app: str | None,
    database_url: str | None,
    schema: str | None,
    payloads: Any,
    trace_url: str | None,
    loglevel: str,
    log_format: str,
    **options: Any,
) -> None:
    """Serve the dashboard of an app, or of a database, until stopped.

    Without authentication it serves only this machine, and refuses to serve another address. Users log in if there is a --password-file, or a
    proxy authenticates them (--trust-header and --trusted-proxy). `horsies web hash-password` makes a line of the file, `horsies web make-token`
    one for a script.

    \b
    horsies web serve shop.tasks:app
    horsies web shop.tasks:app
    horsies web hash-password --name alice --role operator >> passwords
    horsies web shop.tasks:app --host 0.0.0.0 --password-file passwords

    SIGTERM or Ctrl-C stops it. Exit codes: 0 stopped as requested, 1 could not start, 2 wrong usage.
    """
    _require_extra()
    from horsies.web import dashboard  # noqa: PLC0415 - an extra

    configure_logging(loglevel, log_format)
    credentials = _credentials(options["password_file"])
    header = _proxy_header(options)
    if credentials and header:
        raise click.UsageError("give --password-file or --trust-header: one of them decides who may use the dashboard")
    _check_address(options["host"], has_authentication=bool(credentials or header))
    _check_server_options(options)
    target = open_target(app, database_url, schema)
    _check_database(target)
    try:
        application = dashboard(
            target,
            authorize=header,
            credentials=credentials,
            payloads=payloads,
            trace_url=trace_url,
            proxies=options["proxies"],
            allowed_hosts=options["allowed_hosts"],
        )
    except ValueError as error:  # an address, or the secret
        raise click.UsageError(str(error)) from error
    has_tls = options["tls_cert"] is not None
    if not has_tls and credentials and not options["proxies"] and not _is_loopback(options["host"]):
        log.warning("web: passwords travel without encryption; give --tls-cert, or serve it behind a proxy with https")
    _serve(application, options, has_authentication=bool(credentials or header))


@web.command()
@click.option("--name", default="admin", show_default=True, help="The name of the user.")
@click.option("--role", type=_ROLES, default="operator", show_default=True, help="What the user may do.")
def hash_password(name: str, role: str) -> None:
    """Ask for a password, and print the line of a password file. Without a terminal the password is read from stdin.

    \b
    horsies web hash-password --name alice --role operator >> passwords
    """
    _require_extra()
    from horsies.web.security import MAX_PASSWORD  # noqa: PLC0415 - an extra
    from horsies.web.security import hash_password as hashed  # noqa: PLC0415 - an extra

    _check_name(name)
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise click.UsageError(
            f"a password has {MIN_PASSWORD} to {MAX_PASSWORD} characters, and this one {len(password)}"
        )
    click.echo(f"{name} {role} {hashed(password)}")


@web.command()
@click.option("--name", required=True, help="The name of the script, for the audit.")
@click.option("--role", type=_ROLES, default="read-only", show_default=True, help="What it may do.")
def make_token(name: str, role: str) -> None:
    """Make a token for a script. Prints the token on stderr, once, and the line of the password file, which has only its hash.

    \b
    horsies web make-token --name backup >> passwords
    """
    _require_extra()
    from horsies.web.security import new_token  # noqa: PLC0415 - an extra

    _check_name(name)
    token, hashed = new_token()
    click.echo(f"Send it as: Authorization: Bearer {token}", err=True)
    click.echo(f"{name} {role} {hashed}")


def has_extra() -> bool:
    """Whether what the dashboard needs is installed."""
    return all(find_spec(name) for name in EXTRAS)


def _require_extra() -> None:
    if not has_extra():
        raise click.ClickException('the dashboard needs the extra web: pip install "horsies[web]"')


def _check_name(name: str) -> None:
    from horsies.web.security import is_user_name  # noqa: PLC0415 - an extra

    if not is_user_name(name) or name.split() != [name] or name.startswith("#"):  # a line that starts so is a comment
        raise click.UsageError("the name of a user in a password file is one word, and does not start with #")


def _credentials(path: Path | None) -> "Sequence[Credential]":
    from horsies.web.security import read_credentials  # noqa: PLC0415 - an extra

    if path is not None:
        try:
            return read_credentials(path.read_text("utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("the password file", [str(error)]) from error
    text = os.environ.get(PASSWORDS)
    return [] if text is None else read_credentials(text, f"${PASSWORDS}")


def _proxy_header(options: dict[str, Any]) -> "ProxyHeader | None":
    from horsies.web.security import ProxyHeader  # noqa: PLC0415 - an extra

    if not options["trust_header"]:
        if options["operators"]:
            raise click.UsageError("--operator requires --trust-header")
        return None
    if not options["proxies"]:
        raise click.UsageError("--trust-header requires --trusted-proxy: anyone else could send the header, too")
    try:
        return ProxyHeader(
            options["trust_header"],
            options["proxies"],
            operators=options["operators"],
            default_role=options["default_role"],
        )
    except ValueError as error:
        raise click.UsageError(f"--trusted-proxy: {error}") from error


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _check_server_options(options: dict[str, Any]) -> None:
    if not re.fullmatch(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?", options["root_path"]):
        raise click.UsageError("--root-path is a path such as /horsies, with a slash at the start")
    if options["tls_key"] and not options["tls_cert"]:
        raise click.UsageError("--tls-key requires --tls-cert")


def _check_address(host: str, *, has_authentication: bool) -> None:
    if not has_authentication and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host} is reachable from other machines, and there is no authentication. Give --password-file (see `horsies web hash-password`), "
            f"set ${PASSWORDS}, or let a proxy authenticate users: --trust-header with --trusted-proxy. Without, serve 127.0.0.1."
        )


def _check_database(target: Horsies) -> None:
    """Refuse a database without our schema. One that cannot be reached may come back: the pages say so until then."""
    try:
        target.broker.require_schema()
    except SchemaError:
        raise
    except BrokerError as error:
        log.warning("web: the database is unavailable, starting without it: %s", error)


def _serve(application: Any, options: dict[str, Any], *, has_authentication: bool) -> None:
    import uvicorn  # noqa: PLC0415 - an extra

    from horsies.web.dashboard import MAX_HEADERS  # noqa: PLC0415 - an extra
    from horsies.web.server import MAX_CONNECTIONS, protocol_for  # noqa: PLC0415 - an extra

    config = uvicorn.Config(
        application,
        http=protocol_for(options["proxies"]),
        ws="none",
        lifespan="on",
        root_path=options["root_path"].rstrip("/"),
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # the dashboard does that, and it must know the address of the proxy
        server_header=False,
        ssl_certfile=options["tls_cert"],
        ssl_keyfile=options["tls_key"],
        h11_max_incomplete_event_size=MAX_HEADERS,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot use the certificate {options['tls_cert']} with its key: {error}") from error
    listener = _listen(options["host"], options["port"], any_port=options["any_port"])
    _check_address(listener.getsockname()[0], has_authentication=has_authentication)  # of a name
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # uvicorn raises the signal that stopped it once more at the end
    scheme = "https" if options["tls_cert"] else "http"
    # It listens already: requests that come from now on wait until the server has started.
    log.info("the dashboard is at %s", _address(scheme, listener, options["root_path"]))
    server.run(sockets=[listener])
    sys.exit(0 if server.started else 1)


def _listen(host: str, port: int, *, any_port: bool) -> socket.socket:
    for number in (port, 0) if any_port else (port,):
        try:
            found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            return socket.create_server(address[:2], family=family, backlog=1024)
        except OSError as error:
            if not any_port or number == 0:
                raise click.ClickException(f"cannot serve {host}:{port}: {error}") from error
    raise AssertionError("a free port is taken, or an error is raised")


def _address(scheme: str, listener: socket.socket, root_path: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{root_path.rstrip('/')}/"
