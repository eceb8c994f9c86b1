"""What a result was made with."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
from datetime import datetime, timedelta, timezone

import pytest
import torch

import weightloom
from weightloom_papers.lab.provenance import _source_tree, now, provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def tree(tmp_path):
    """A repository with a package in it, all committed."""
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (tmp_path / "README").write_text("hello\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    _source_tree.cache_clear()
    yield package
    _source_tree.cache_clear()


def test_versions_and_machine():
    made_with = provenance(3)
    assert made_with["weightloom"] == weightloom.__version__
    assert made_with["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert made_with["python"] == platform.python_version()
    assert made_with["threads"] == 3
    assert made_with["cpu"]
    text = json.dumps(made_with)
    assert socket.gethostname() not in text.replace(made_with["cpu"], "")


@needs_git
def test_a_clean_tree(tree):
    assert _source_tree(tree) == (git(tree, "rev-parse", "HEAD"), False)


@needs_git
@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_a_changed_tree(tree, name):
    (tree / name).write_text("x = 2\n")
    assert _source_tree(tree) == (git(tree, "rev-parse", "HEAD"), True)


@needs_git
def test_changes_elsewhere_do_not_matter(tree):
    (tree.parent.parent / "README").write_text("changed\n")
    assert _source_tree(tree)[1] is False


@needs_git
def test_a_package_that_merely_lies_inside_a_repository(tree):
    """Installed into a .venv there: the commit of that repository says nothing about it."""
    (tree.parent.parent / ".gitignore").write_text(".venv\n")
    installed = tree.parent.parent / ".venv" / "package"
    shutil.copytree(tree, installed)
    assert _source_tree(installed) == (None, None)


def test_no_repository_or_no_git(tmp_path, monkeypatch):
    _source_tree.cache_clear()
    assert _source_tree(tmp_path) == (None, None)
    _source_tree.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _source_tree(tmp_path) == (None, None)
    _source_tree.cache_clear()


def test_the_time_is_utc_and_can_be_read():
    then = datetime.fromisoformat(now())
    assert then.utcoffset() == timedelta(0)
    assert abs(datetime.now(timezone.utc) - then) < timedelta(minutes=1)
