"""Experiments on MNIST, or on scikit-learn's digits where it is missing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from weightloom.data import ImageSet, has_images
from weightloom.experiments.infinite_width.protocol import image_set
from weightloom.lab import Experiment, Outcome, Run, Workspace

__all__ = ["OnDigits"]


class OnDigits(Experiment):
    """One measurement for each run, on one set of images for all."""

    @abstractmethod
    def measured(self, run: Run, data: ImageSet) -> Outcome:
        """What came of ``run`` on ``data``."""

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether digits stand for MNIST."""
        return not has_images("mnist", data_dir)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        data = image_set(workspace.data_dir)
        for run in runs:
            yield run, self.measured(run, data)
