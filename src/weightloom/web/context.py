"""What every tab is handed: settings, workers, uploaded files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weightloom.web.settings import Settings
from weightloom.web.uploads import Uploads
from weightloom.web.worker import Worker

__all__ = ["Context"]

TRAINING_SECONDS = 900.0


class Context:
    """``run`` answers requests, one at a time; ``background`` is for work that takes minutes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.worker = Worker("page", seconds=settings.seconds, queue=settings.queue)
        self.background = Worker("training", seconds=TRAINING_SECONDS, queue=2)
        self.uploads = Uploads(settings.uploads)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function(*arguments)`` returns in the worker process; see `Worker.run`."""
        return await self.worker.run(function, *arguments)

    def start(self) -> None:
        self.worker.start()

    def close(self) -> None:
        self.worker.close()
        self.background.close()
        self.uploads.close()
