"""Training loop of gradient descent with validation, early stopping and checkpoints."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.config import Config
from headstart.distributed import main_process_decides, process_group, sum_gradients
from headstart.errors import NumericalError
from headstart.files import pack_tensors, read_tensors, write_bytes
from headstart.linalg.array_ops import LinAlgError
from headstart.progress import Reporter

Losses = Callable[[torch.Generator], Iterator[Tensor]]
"""A function that yields the losses of the batches of an epoch."""


class LoopConfig(Config):
    """Settings of a training loop."""

    epochs: int = Field(ge=0)
    steps: int | None = Field(None, ge=1)  # gradient steps in all; if given, they determine the epochs
    batch_size: int = Field(ge=1)  # at most; see min_steps
    min_steps: int = Field(1, ge=1)  # batches of an epoch, at least; batches become smaller if necessary
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(0.0, ge=0)  # of Adam, added to the gradient
    decoupled_weight_decay: float = Field(0.0, ge=0)  # of AdamW, for the weights of layers only
    max_grad_norm: float | None = Field(None, gt=0)  # gradient clipping
    schedule: Literal["constant", "cosine"] = "constant"
    # Number of validations without improvement before training stops; None: train all epochs.
    patience: int | None = Field(None, ge=1)
    validate_every: int = Field(1, ge=1)
    checkpoint_seconds: float = 20.0

    def resolve_epochs(self, count: int) -> Self:
        """Return the settings with the epochs that ``steps`` gradient steps take over ``count`` items.

        >>> LoopConfig(epochs=0, steps=350, batch_size=1000, learning_rate=1e-3).resolve_epochs(2389).epochs
        117
        """
        if self.steps is None:
            return self
        per_epoch = max(1, math.ceil(count / self.batch_for(count)))
        return self.revised(epochs=math.ceil(self.steps / per_epoch), steps=None)

    def batches(self, order: Tensor) -> Iterator[Tensor]:
        """Split the items of an epoch into batches."""
        yield from torch.split(order, self.batch_for(len(order)))

    def batch_for(self, count: int) -> int:
        """Return the batch size for an epoch over ``count`` items."""
        return max(1, min(self.batch_size, count // self.min_steps))


class Loop:
    """Train a module with Adam and keep the state with the best validation score.

    The checkpoint contains parameters, Adam's moments, the random generator and the best state so far, so a
    resumed run ends with the same numbers as an uninterrupted one.

    Parameters
    ----------
    module : nn.Module
        The module, whose parameters that require gradients are trained.
    config : LoopConfig
        The settings.
    seed : int
        Seed of batches and dropout.
    title : str
        The title of the progress bar and of error messages.
    reporter : Reporter
        Shows the progress.
    checkpoint : Path, optional
        The file of the checkpoint. If it exists, training continues from it.
    """

    def __init__(
        self,
        module: nn.Module,
        config: LoopConfig,
        *,
        seed: int,
        title: str,
        reporter: Reporter,
        checkpoint: Path | None = None,
    ) -> None:
        self.module, self.config = module, config
        self.title, self.reporter, self.checkpoint = title, reporter, checkpoint
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = _build_optimizer(module, config)
        self.epoch = 0
        self.best_score = math.inf
        self.best_epoch = 0
        self.best: dict[str, Tensor] = {}

    def run(self, losses: Losses, validate: Callable[[], float] | None = None) -> None:
        """Train until the last epoch or until validation stops improving; load the best state.

        Parameters
        ----------
        losses : callable
            Yields the losses of the batches of an epoch, given a random generator.
        validate : callable, optional
            Returns a score, lower is better. Without it the last state counts.
        """
        if self.checkpoint is not None and main_process_decides(self.checkpoint.exists()):
            self._restore(self.checkpoint)
        if validate is not None and self.epoch == 0 and self.config.epochs > 0:
            self._keep_if_best(self._score(validate))  # the initial state can be the best
        saved_at = time.monotonic()
        with (
            self.reporter.bar(self.title, self.config.epochs, self.epoch) as bar,
            interrupts() as interrupted,
        ):
            while not self._is_finished():
                loss = self._train_epoch(losses)
                self.epoch += 1
                if validate is not None and self._is_time_to_validate():
                    self._keep_if_best(self._score(validate))
                bar.step(self._progress_text(loss))
                if interrupted.is_set() or time.monotonic() - saved_at > self.config.checkpoint_seconds:
                    self._save()
                    saved_at = time.monotonic()
                if interrupted.is_set():
                    raise KeyboardInterrupt
            if self.best:
                bar.finish(self._outcome_text())
        self._save()
        if self.best:
            self.module.load_state_dict(self.best)
        self.module.eval()

    def _is_finished(self) -> bool:
        """Return whether training has reached its last epoch or stops early."""
        config = self.config
        if self.epoch >= config.epochs:
            return True
        validations = (self.epoch - self.best_epoch) // config.validate_every
        return config.patience is not None and bool(self.best) and validations >= config.patience

    def _is_time_to_validate(self) -> bool:
        """Return whether to validate after this epoch."""
        return self.epoch % self.config.validate_every == 0 or self.epoch == self.config.epochs

    def _train_epoch(self, losses: Losses) -> float:
        """Take the steps of one epoch; return the mean loss."""
        self.module.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * self._schedule()
        total, count = torch.zeros(()), 0
        try:
            with torch.random.fork_rng(devices=[]):  # dropout uses the global generator
                torch.manual_seed(self.seed + self.epoch)
                for loss in losses(self.generator):
                    self.optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    sum_gradients(self.module)
                    if self.config.max_grad_norm is not None:
                        nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
                    self.optimizer.step()
                    total, count = total + loss.detach(), count + 1
        except LinAlgError as error:
            raise self._not_finite(self.epoch + 1) from error
        mean = process_group().sum_number(float(total)) / max(count, 1)
        if not math.isfinite(mean):
            raise self._not_finite(self.epoch + 1)
        return mean

    def _schedule(self) -> float:
        """Return the factor of the learning rate in the current epoch."""
        if self.config.schedule == "constant":
            return 1.0
        return 0.02 + 0.49 * (1 + math.cos(math.pi * self.epoch / self.config.epochs))

    def _not_finite(self, epoch: int) -> NumericalError:
        """Return the error of a loss that is not finite."""
        return NumericalError(
            f"{self.title}: the loss is no longer finite at epoch {epoch}; try a lower "
            f"learning_rate than {self.config.learning_rate:g}"
        )

    def _score(self, validate: Callable[[], float]) -> float:
        """Validate the current state; raise an error if the score is not a number."""
        self.module.eval()
        try:
            with torch.no_grad():
                score = validate()
        except LinAlgError as error:
            raise self._not_finite(self.epoch) from error
        if math.isnan(score):
            raise self._not_finite(self.epoch)
        return score

    def _keep_if_best(self, score: float) -> None:
        """Copy the current state if its ``score`` is the best so far."""
        if score < self.best_score:
            self.best_score, self.best_epoch = score, self.epoch
            self.best = {name: value.clone() for name, value in self.module.state_dict().items()}

    def _progress_text(self, loss: float) -> str:
        """Return the text beside the progress bar."""
        best = f"  validation {self.best_score:.4f}" if self.best else ""
        return f"loss {loss:.4f}{best}"

    def _outcome_text(self) -> str:
        """Return the final text beside the progress bar."""
        if self.best_epoch == 0:
            return f"training did not improve on the start, which was kept: validation {self.best_score:.4f}"
        return f"best at epoch {self.best_epoch}: validation {self.best_score:.4f}"

    def _save(self) -> None:
        """Write the checkpoint."""
        if self.checkpoint is None or not process_group().is_main:
            return
        tensors = {"generator": self.generator.get_state()}
        tensors |= {f"module/{name}": value for name, value in self.module.state_dict().items()}
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        tensors |= {f"adam/{name}": value for name, value in _optimizer_tensors(self.optimizer).items()}
        facts = {"epoch": self.epoch, "best_score": self.best_score, "best_epoch": self.best_epoch}
        write_bytes(self.checkpoint, pack_tensors(tensors, facts))

    def _restore(self, checkpoint: Path) -> None:
        """Read a checkpoint."""
        tensors, facts = read_tensors(checkpoint)
        groups: dict[str, dict[str, Tensor]] = {"module": {}, "best": {}, "adam": {}}
        for name, value in tensors.items():
            group, _, key = name.partition("/")
            groups.setdefault(group, {})[key] = value
        self.module.load_state_dict(groups["module"])
        self.best = groups["best"]
        _restore_optimizer(self.optimizer, groups["adam"])
        self.generator.set_state(tensors["generator"])
        self.epoch, self.best_epoch = facts["epoch"], facts["best_epoch"]
        self.best_score = facts["best_score"]


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Let a first Ctrl-C set an event, so that the current epoch is completed; a second one raises."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # only the main thread can handle signals
        return

    def handle(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def _build_optimizer(module: nn.Module, config: LoopConfig) -> torch.optim.Optimizer:
    """Build Adam, or AdamW with a decoupled weight decay.

    AdamW decays the weights of layers only: covariances of priors and noise should not shrink to zero.
    """
    parameters = {name: part for name, part in module.named_parameters() if part.requires_grad}
    if config.decoupled_weight_decay == 0:
        return torch.optim.Adam(
            list(parameters.values()),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
    layers = [parameter for name, parameter in parameters.items() if name.endswith(".weight")]
    others = [parameter for name, parameter in parameters.items() if not name.endswith(".weight")]
    return torch.optim.AdamW(
        [
            {"params": layers, "weight_decay": config.decoupled_weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        fused=True,
    )


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's moments and step counts, by parameter number and name."""
    return {
        f"{number}/{name}": value
        for number, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors returned by ``_optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
