"""All tasks, by name, and their data: loaded once in each process."""

from __future__ import annotations

from functools import cache

from start_suite import classes, fields, images
from start_suite.base import Problem, Task

__all__ = ["TASKS", "load"]

TASKS: dict[str, Task] = {
    task.name: task for task in (*images.TASKS, *fields.TASKS, *classes.TASKS)
}


@cache
def load(name: str) -> Problem:
    return TASKS[name].load()
