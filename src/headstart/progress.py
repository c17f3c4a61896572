"""Progress of long work, shown on the terminal or kept quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task = progress, task

    def step(self, note: str = "", advance: int = 1) -> None:
        """Move on, with a short note such as the current loss."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=advance, note=note)


class Reporter:
    """Where long work says how far it is. ``Reporter(quiet=True)`` says nothing."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(stderr=True)

    def say(self, message: str) -> None:
        """Print one line for the user."""
        if not self.quiet:
            self.console.print(message, highlight=False)

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """Show a bar while the block runs; the block calls ``step`` on what it gets."""
        if self.quiet:
            yield Bar(None, None)
            return
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console) as progress:
            yield Bar(progress, progress.add_task(title, total=total, completed=done, note=""))
