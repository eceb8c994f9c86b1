"""The worker process: answers, errors, time limits, a full queue, and being killed."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.web import jobs
from weightloom.errors import WeightloomError
from weightloom.web.worker import BusyError, TooSlowError, Worker, WorkerDiedError, WorkerError


@pytest.fixture(scope="module")
def worker():
    worker = Worker("test", seconds=60, queue=3)
    yield worker
    worker.close()


def awaited(coroutine):
    """Run it in a thread of its own: where browser tests came before, Playwright's event loop is
    still running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def run(worker, *arguments, **options):
    return awaited(worker.run(*arguments, **options))


def test_work_happens_in_one_other_process(worker):
    assert run(worker, jobs.add, 2, 3) == 5
    first, second = run(worker, jobs.pid), run(worker, jobs.pid)
    assert first == second == worker.pid != os.getpid()


def test_errors_come_back_as_what_they_are(worker, caplog):
    with pytest.raises(WeightloomError, match="take a smaller one"):
        run(worker, jobs.refuse)
    with pytest.raises(WeightloomError, match="not enough memory"):
        run(worker, jobs.out_of_memory)
    with pytest.raises(WorkerError):
        run(worker, jobs.fail)
    assert "a bug" in caplog.text
    with pytest.raises(WorkerError):
        run(worker, jobs.unpicklable)
    assert run(worker, jobs.add, 1, 1) == 2


def test_reports_arrive_before_the_result(worker):
    seen = []
    assert run(worker, jobs.count, 3, report=seen.append) == 3
    assert seen == [0, 1, 2]


def test_killed_while_working_it_says_so_and_the_next_request_works(worker):
    def kill(_):
        os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(WorkerDiedError, match="a new one answers the next request"):
        run(worker, jobs.say_and_sleep, 60, report=kill)
    assert run(worker, jobs.add, 4, 5) == 9


def test_a_worker_killed_while_idle_is_replaced(worker):
    before = run(worker, jobs.pid)
    os.kill(before, signal.SIGKILL)
    worker._process.join()
    assert run(worker, jobs.pid) != before


def test_what_takes_too_long_is_stopped(worker):
    before = run(worker, jobs.pid)
    worker.seconds = 0.2
    try:
        with pytest.raises(TooSlowError, match=r"longer than 0\.2 seconds"):
            run(worker, jobs.sleep, 60)
    finally:
        worker.seconds = 60
    assert run(worker, jobs.pid) != before


def test_the_queue_is_bounded(worker):
    async def many():
        tasks = [asyncio.create_task(worker.run(jobs.sleep, 0.05)) for _ in range(8)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = awaited(many())
    assert sum(isinstance(result, BusyError) for result in results) == 4  # one works, three wait
    assert sum(result is None for result in results) == 4
    assert run(worker, jobs.add, 1, 1) == 2


def test_nothing_starts_after_the_end():
    closed = Worker("closed", seconds=1, queue=1)
    closed.close()
    assert closed.pid is None
    with pytest.raises(RuntimeError):
        run(closed, jobs.add, 1, 1)
