"""``weightloom serve`` as a process: it says where it is, answers, and ends on Ctrl-C."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from weightloom import web
from weightloom.cli import main, serve


def test_it_says_where_it_is_answers_and_ends(tmp_path):
    command = [sys.executable, "-m", "weightloom", "serve", "--port", "0", "--no-browser"]
    options = ["--store", str(tmp_path / "results.sqlite"), "--cache-dir", str(tmp_path)]
    process = subprocess.Popen(
        command + options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        messages = process.stdout.readline()
        address = re.fullmatch(
            r"The page is at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", messages
        )
        assert address, messages
        with urllib.request.urlopen(address[1], timeout=120) as page:
            assert b"weightloom" in page.read()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "Traceback" not in rest
    finally:
        process.kill()


def test_a_port_that_is_taken(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port), "--no-browser"]) == 2
    messages = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1, port {port}" in messages
    assert "--port 0 takes any free one" in messages


@pytest.mark.parametrize("port", ["-1", "70000", "http"])
def test_ports_that_are_none(port, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", port])
    assert ended.value.code == 2
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err


def test_an_address_that_is_not_ours(capsys):
    assert main(["serve", "--host", "192.0.2.1", "--port", "0", "--no-browser"]) == 2
    assert "cannot listen on 192.0.2.1" in capsys.readouterr().err


def test_addresses_are_written_as_browsers_want_them():
    assert serve._address("::1", 80) == "http://[::1]:80/"
    assert serve._address("127.0.0.1", 8421) == "http://127.0.0.1:8421/"


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(missing, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "weightloom.web.app", raising=False)
    monkeypatch.delattr(web, "app", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["serve", "--port", "0", "--no-browser"]) == 2
    assert "pip install 'weightloom[web]'" in capsys.readouterr().err
