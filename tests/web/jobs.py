"""Work for the worker's tests; it must be importable in another process."""

import os
import time

from weightloom.errors import ConfigError


def add(a, b):
    return a + b


def pid():
    return os.getpid()


def sleep(seconds):
    time.sleep(seconds)


def say_and_sleep(seconds, report):
    report("started")
    time.sleep(seconds)


def refuse():
    raise ConfigError("that number is too large; take a smaller one")


def fail():
    raise RuntimeError("a bug")


def out_of_memory():
    raise MemoryError


def unpicklable():
    return lambda: None


def count(to, report):
    for number in range(to):
        report(number)
    return to
