"""``weightloom serve``: the local page."""

from __future__ import annotations

import argparse
import logging
import socket
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli.arguments import add_store
from weightloom.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    import uvicorn

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Serve a local page: complete a drawn digit, plot kernels, ask how large a network must be, see
networks that were built by hand, compare two saved networks. With weightloom-papers also: browse
stored results."""

EPILOG = """\
who can see it:
  only this machine, unless --host names another address. Then everybody who can reach that
  address can use the page (there is no password), so do that only in networks you trust. Nothing
  is loaded from or sent to other hosts.

what it writes:
  the network that completes digits is trained once (under a minute, while the page is in use) and
  kept in your system's cache folder, or in $XDG_CACHE_HOME/weightloom

Ctrl-C ends it.

examples:
  weightloom serve                                    start, and open the browser
  weightloom serve --port 0 --no-browser              on a free port; print the address only
  weightloom serve --store lab/results.sqlite         results from another file (weightloom-papers)
"""

PORT = 8421


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, only this machine)",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=_port,
        default=PORT,
        help="port to listen on; 0: any free one (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        type=Path,
        help="folder for the trained network (default: your system's cache folder)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    add_store(parser)


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a port is a number from 0 to 65535")
    return value


def run(arguments: argparse.Namespace) -> int:
    from weightloom.web import PageSettings, create_app
    from weightloom.web.context import LOOPBACK, cache_folder

    host = arguments.host or "127.0.0.1"
    settings = PageSettings(
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
            timeout_graceful_shutdown=3,  # otherwise a page that polls would keep it running
        )
    )


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything else starts, so that a taken port is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # requests that come before the page is ready wait
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with "
            f"--port N (--port 0 takes any free one) or --host ADDRESS"
        ) from error
    return listener


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _open(server: uvicorn.Server, address: str) -> None:
    """Open the page in a browser, if there is one, as soon as it answers."""
    while not server.started:
        if server.should_exit:
            return
        threading.Event().wait(0.05)
    webbrowser.open(address)
