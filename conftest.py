"""Seeds fixed for every test; Hypothesis without deadlines, because machines are shared."""

import os
import signal

# Products in bfloat16 kill the process (SIGILL) on some CPUs without this; before torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.web.fixtures"]

settings.register_profile("weightloom", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("weightloom")
torch.set_num_threads(1)  # two workers on two cores: more threads only wait for each other

# A shell that starts this in the background (make test &) has Ctrl-C ignored, by all that follows.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
