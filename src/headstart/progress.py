"""Progress bars and messages of long computations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported at its first use: few uses of a model print anything
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Bar:
    """One progress bar. A bar without a ``Progress`` shows nothing."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task = progress, task

    def step(self, note: str = "", advance: int = 1) -> None:
        """Advance the bar and show a short note, such as the current loss."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=advance, note=note)

    def finish(self, note: str) -> None:
        """Mark the bar as complete before its total is reached, for example after early stopping."""
        if self._progress is not None and self._task is not None:
            done = self._progress.tasks[self._task].completed
            self._progress.update(self._task, total=done, note=note)


class Reporter:
    """Reports the progress of long computations. ``Reporter(quiet=True)`` prints nothing."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self._console = console

    @cached_property
    def console(self) -> Console:
        """The console to print on, by default standard error."""
        from rich.console import Console

        return self._console or Console(stderr=True)

    def say(self, message: str) -> None:
        """Print one message."""
        if not self.quiet:
            from rich.text import Text

            self.console.print(Text(message))

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """Show a bar during a ``with`` block. The block calls ``step`` on the bar it receives."""
        if self.quiet:
            yield Bar(None, None)
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns = (
            TextColumn("{task.description:<22}", table_column=Column(no_wrap=True, min_width=22)),
            BarColumn(bar_width=16),
            TextColumn("{task.completed}/{task.total}", table_column=Column(no_wrap=True, min_width=7)),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        )
        with Progress(*columns, console=self.console) as progress:
            yield Bar(progress, progress.add_task(title, total=total, completed=done, note=""))
