"""Ray, on a cluster of two workers on this machine."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from papers.tests.cli.toys import toys as toys
from papers.tests.lab.engine_contract import ParallelContract, assert_all_there
from papers.tests.lab.toy import Toy
from weightloom.cli import main
from weightloom.errors import MissingDependencyError
from weightloom_papers.errors import EngineError
from weightloom_papers.lab import Store, Workspace, make_engine
from weightloom_papers.lab.engines import Job
from weightloom_papers.lab.engines.cluster import _stream

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install ray"
)


@pytest.fixture(scope="module")
def cluster():
    import ray

    engine = make_engine("ray", workers=2)
    assert (engine.slots, engine.threads) == (2, 1)
    yield engine
    engine.close()
    assert not ray.is_initialized()


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
class TestRay(ParallelContract):
    @pytest.fixture
    def engine(self, cluster):
        return cluster

    def test_more_threads_than_a_machine_has(self, engine):
        with pytest.raises(EngineError, match=r"--threads 64 .* has 2 CPUs; lower --threads"):
            make_engine("ray", threads=64)

    def test_the_command(self, engine, toys):
        options = ["--scale", "laptop", "--engine", "ray", "--no-figures", "--quiet"]
        assert main(["reproduce", "toy", *options]) == 0
        with Store("weightloom-lab/results.sqlite", create=False) as store:
            assert_all_there(store, toys["toy"], "laptop")

    def test_a_second_engine_leaves_the_cluster_of_the_first(self, engine):
        import ray

        second = make_engine("ray", workers=1)
        assert second.slots == 1
        second.close()
        assert ray.is_initialized()


@needs_ray
def test_no_cluster_there(monkeypatch):
    # Not for real: another process of the tests may have a cluster, and "auto" would find it.
    import ray

    def nowhere(address, **options):
        assert address == "auto"
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nowhere)
    with pytest.raises(
        EngineError,
        match=r"cannot reach the cluster at auto \(Could not find any running.*check --address",
    ):
        make_engine("ray", address="auto")


def test_a_folder_on_a_machine_that_does_not_share_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = []

    class Looks(Toy):
        def execute(self, runs, workspace):
            assert workspace.folder.is_dir()
            folders.append(workspace.folder)
            yield from super().execute(runs, workspace)

    far = tmp_path / "not" / "here" / "0123"
    work = Job(Looks(), tuple(Toy().runs("smoke")), Workspace(folder=far))
    assert len(list(_stream(work))) == 6
    assert folders == [tmp_path / "weightloom-work" / "0123"]
    assert not folders[0].exists()
    far.parent.mkdir(parents=True)
    assert len(list(_stream(work))) == 6
    assert folders[1] == far


@needs_ray
def test_the_remote_client_is_refused():
    with pytest.raises(EngineError, match=r"ray://host:1 is Ray's remote client.*--address auto"):
        make_engine("ray", address="ray://host:1")


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'weightloom-papers\[ray\]'"):
        make_engine("ray")
