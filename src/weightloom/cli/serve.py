"""``weightloom serve``: the local page."""

from __future__ import annotations

import argparse
import logging
import socket
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli import lab_options
from weightloom.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    import uvicorn

__all__ = ["register"]

DESCRIPTION = """\
Serve a page on this machine: complete a drawn digit, look at kernels, ask which model to take, see
networks that were built by hand, compare two saved networks, browse results."""

EPILOG = """\
who can see it:
  this machine alone, unless --host names another address: then everybody who can reach that
  address can use the page (there is no password), so do that in networks you trust. Nothing is
  loaded from elsewhere and nothing is sent anywhere.

what it writes:
  the network that completes digits is trained once (under a minute, while the page is in use) and
  kept in the folder for caches of your system, or in $XDG_CACHE_HOME/weightloom

Ctrl-C ends it.

examples:
  weightloom serve                                    and open it in the browser
  weightloom serve --port 0 --no-browser              on a free port, and only say where
  weightloom serve --store lab/results.sqlite         with results that are kept elsewhere
"""

PORT = 8421


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="the local page: draw, kernels, sizes, constructions, comparison, results",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="address to listen at (default: 127.0.0.1, this machine alone)",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=_port,
        default=PORT,
        help="port to listen at; 0: any that is free (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        type=Path,
        help="where the trained network is kept (default: your system's folder for caches)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    lab_options.add_store(parser)
    parser.set_defaults(run=_run)


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a port is a number from 0 to 65535")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from weightloom.web import Settings, create_app
    from weightloom.web.settings import LOOPBACK, cache_folder

    host = arguments.host or "127.0.0.1"
    settings = Settings(
        host=host,
        any_host=host not in LOOPBACK,
        store=arguments.store,
        cache_dir=arguments.cache_dir or cache_folder(),
    )
    app = create_app(settings)
    bound = _bind(host, arguments.port)
    logging.basicConfig(format="weightloom: %(message)s", level=logging.WARNING)
    address = _address(host, bound.getsockname()[1])
    print(f"The page is at {address} (Ctrl-C ends it)", flush=True)
    if settings.any_host:
        print(f"Everybody who can reach {host} can use it; there is no password.", flush=True)
    server = _server(app)
    if not arguments.no_browser:
        threading.Thread(target=_open, args=(server, address), daemon=True).start()
    server.run(sockets=[bound])
    return 0


def _server(app: object) -> uvicorn.Server:
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "the page needs uvicorn; install it with: pip install 'weightloom[web]'"
        ) from error
    return uvicorn.Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_level="warning",
            server_header=False,
            access_log=False,
            timeout_graceful_shutdown=3,  # a page that polls would keep it up otherwise
        )
    )


def _bind(host: str, port: int) -> socket.socket:
    """A socket before anything else starts: a port that is taken is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()  # who reads the address may ask at once, and waits until the page answers
    except OSError as error:
        made.close()
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}; name another with "
            f"--port N (--port 0 takes any that is free) or --host ADDRESS"
        ) from error
    return made


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _open(server: uvicorn.Server, address: str) -> None:
    """Open the page when it answers; where there is no browser, the printed address has to do."""
    while not server.started:
        if server.should_exit:
            return
        threading.Event().wait(0.05)
    webbrowser.open(address)
