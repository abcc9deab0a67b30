"""A progress bar for downloads, on stderr; where stderr is no terminal, one line per file."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from twostroke.cli.text_output import printable, size_text


class DownloadBar:
    """Call it with (label, bytes done, bytes in all or None); shows nothing before the first
    call.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    @property
    def has_fetched(self) -> bool:
        """Whether anything was reported."""
        return bool(self._tasks)

    def __call__(self, label: str, done_bytes: int, total_bytes: int | None) -> None:
        if label not in self._tasks:
            if not self._tasks:
                self._bar.start()
            self._tasks[label] = self._bar.add_task(printable(label), total=total_bytes)
            if not self._console.is_terminal:
                size = "" if total_bytes is None else f" ({size_text(total_bytes)})"
                self._console.print(f"fetching {printable(label)}{size}", markup=False)
        self._bar.update(self._tasks[label], completed=done_bytes, total=total_bytes)

    def __enter__(self) -> DownloadBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
