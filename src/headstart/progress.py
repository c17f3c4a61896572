"""Progress of long work, shown on the terminal or kept quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task = progress, task

    def step(self, note: str = "", advance: int = 1) -> None:
        """Move on, with a short note such as the current loss."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=advance, note=note)

    def finish(self, note: str) -> None:
        """Say that what was done so far is all there was to do."""
        if self._progress is not None and self._task is not None:
            done = self._progress.tasks[self._task].completed
            self._progress.update(self._task, total=done, note=note)


class Reporter:
    """Where long work says how far it is. ``Reporter(quiet=True)`` says nothing."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(stderr=True)

    def say(self, message: str) -> None:
        """Print one line for the user."""
        if not self.quiet:
            self.console.print(Text(message))

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """Show a bar while the block runs; the block calls ``step`` on what it gets."""
        if self.quiet:
            yield Bar(None, None)
            return
        columns = (
            TextColumn("{task.description:<22}", table_column=Column(no_wrap=True, min_width=22)),
            BarColumn(bar_width=16),
            TextColumn("{task.completed}/{task.total}", table_column=Column(no_wrap=True, min_width=7)),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        )
        with Progress(*columns, console=self.console) as progress:
            yield Bar(progress, progress.add_task(title, total=total, completed=done, note=""))
