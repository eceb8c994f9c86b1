"""Seeds fixed for every test; Hypothesis without deadlines, because machines are shared."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("weightloom", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("weightloom")
torch.set_num_threads(1)  # two workers on two cores: more threads only wait for each other


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
