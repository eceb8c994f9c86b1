"""Training the members of one execution, with its checkpoint where the lab will find it again."""

from __future__ import annotations

from collections.abc import Sequence

from weightloom.lab.experiment import Workspace
from weightloom.training import Member, Report, Settings, train

__all__ = ["train_members"]


def train_members(
    members: Sequence[Member], settings: Settings, workspace: Workspace, label: str
) -> list[Report]:
    """`training.train` inside an execution; ``label`` stands before the progress bar.

    Raises KeyboardInterrupt after Ctrl-C: half of a training is no outcome.
    """
    checkpoint = None if workspace.folder is None else workspace.folder / "training"
    progress: bool | str = label if workspace.progress else False
    reports = train(members, settings, checkpoint=checkpoint, progress=progress)
    if any(report.status == "interrupted" for report in reports):
        raise KeyboardInterrupt
    return reports
