"""Run the training loop: epochs, validation, the best state, checkpoints."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from headstart.config import Config
from headstart.distributed import process_group
from headstart.errors import NumericalError
from headstart.files import pack_tensors, read_tensors, write_bytes
from headstart.linalg.array_ops import LinAlgError
from headstart.progress import Reporter

_BETAS, _EPSILON = (0.9, 0.999), 1e-8

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Adam:
    """Steps of Adam by torch's own fused kernel, with weight decay in the gradient or beside it.

    The classes of ``torch.optim`` would do the same, but they import torch's compiler, which nobody uses
    here and which takes more than a second.

    Parameters
    ----------
    module : nn.Module
        Its parameters that have gradients are changed.
    learning_rate : float
        May be set anew between steps.
    weight_decay : float
        Of all parameters, in the gradient.
    decoupled_weight_decay : float
        Of layers' weights, beside the gradient; then there is none in it. A prior's covariance or a noise has
        no reason to go to zero.
    """

    def __init__(
        self,
        module: nn.Module,
        learning_rate: float,
        *,
        weight_decay: float = 0.0,
        decoupled_weight_decay: float = 0.0,
    ) -> None:
        named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        self.learning_rate = learning_rate
        self._decoupled = decoupled_weight_decay > 0
        if self._decoupled:
            layers = [each for name, each in named if name.endswith(".weight")]
            others = [each for name, each in named if not name.endswith(".weight")]
            self._groups = [(layers, decoupled_weight_decay), (others, 0.0)]
        else:
            self._groups = [([each for _, each in named], weight_decay)]
        self._parameters = [each for group, _ in self._groups for each in group]
        self._moments: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {}

    def forget_gradients(self) -> None:
        """Make all parameters have no gradient, before the next one is computed."""
        for each in self._parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        for group, decay in self._groups:
            moved: list[Tensor] = [each for each in group if each.grad is not None]
            if not moved:
                continue
            moments = [self._moments_of(each) for each in moved]
            averages, squares, steps = (list(part) for part in zip(*moments, strict=True))
            (adamw if self._decoupled else adam)(
                moved,
                [each.grad for each in moved if each.grad is not None],
                averages,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=self.learning_rate,
                weight_decay=decay,
                eps=_EPSILON,
                maximize=False,
            )

    def _moments_of(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if parameter not in self._moments:
            average, square = (torch.zeros_like(parameter, requires_grad=False) for _ in range(2))
            step = torch.zeros((), dtype=torch.float32, device=parameter.device)
            self._moments[parameter] = (average, square, step)
        return self._moments[parameter]

    def state(self) -> dict[str, Tensor]:
        """All that decides further steps, by the number of the parameter and the name of the moment."""
        return {
            f"{number}/{name}": value
            for number, each in enumerate(self._parameters)
            if each in self._moments
            for name, value in zip(_MOMENTS, self._moments[each], strict=True)
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` gave."""
        for number, each in enumerate(self._parameters):
            if f"{number}/step" in state:
                average, square, step = (state[f"{number}/{name}"].to(each.device) for name in _MOMENTS)
                self._moments[each] = (average, square, step)


Losses = Callable[[torch.Generator], Iterator[Tensor]]


class LoopConfig(Config):
    """How long and how fast to train."""

    epochs: int = Field(ge=0)
    batch_size: int = Field(ge=1)  # at most; see min_steps
    min_steps: int = Field(1, ge=1)  # batches shrink so that an epoch has at least so many
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(0.0, ge=0)  # Adam's, in the gradient
    decoupled_weight_decay: float = Field(0.0, ge=0)  # of layers' weights, beside the gradient
    max_grad_norm: float | None = Field(None, gt=0)  # longer gradients are shortened to this norm
    schedule: Literal["constant", "cosine"] = "constant"
    patience: int | None = Field(
        None, ge=1
    )  # validations without improvement before stopping; None: run to the end
    validate_every: int = Field(1, ge=1)
    checkpoint_seconds: float = 20.0

    def batches(self, order: Tensor) -> Iterator[Tensor]:
        """Cut what an epoch goes over into batches."""
        yield from torch.split(order, self.batch_for(len(order)))

    def batch_for(self, count: int) -> int:
        """How large batches are when an epoch goes over so many."""
        return max(1, min(self.batch_size, count // self.min_steps))


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Turn a first Ctrl-C into an event, so that the epoch under way is kept; a second breaks off."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread may handle signals
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class Loop:
    """Trains a module with Adam and keeps the state that validated best.

    Everything that decides the next step (parameters, Adam's moments, the random generator, the best
    state so far) is in the checkpoint, so a resumed run ends with the same numbers as an unbroken one.
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
        self.optimizer = Adam(
            module,
            config.learning_rate,
            weight_decay=config.weight_decay,
            decoupled_weight_decay=config.decoupled_weight_decay,
        )
        self.epoch = 0
        self.best_score = math.inf
        self.best_epoch = 0
        self.best: dict[str, Tensor] = {}

    def run(self, losses: Losses, validate: Callable[[], float] | None = None) -> None:
        """Train. ``losses`` yields the batches' losses of an epoch; ``validate`` scores, lower is better."""
        if self.checkpoint is not None and process_group().sum_number(
            process_group().is_main and self.checkpoint.exists()
        ):
            self._restore(self.checkpoint)
        if validate is not None and self.epoch == 0 and self.config.epochs > 0:
            self._keep_if_best(self._validate(validate))  # where it starts may be better than all it learns
        saved = time.monotonic()
        with self.reporter.bar(self.title, self.config.epochs, self.epoch) as bar, interrupts() as asked:
            while not self._finished():
                loss = self._train_epoch(losses)
                self.epoch += 1
                if validate is not None and self._is_time_to_validate():
                    self._keep_if_best(self._validate(validate))
                bar.step(self._note(loss))
                if asked.is_set() or time.monotonic() - saved > self.config.checkpoint_seconds:
                    self._save()
                    saved = time.monotonic()
                if asked.is_set():
                    raise KeyboardInterrupt
            if self.best:
                bar.finish(self._outcome())
        self._save()
        if self.best:
            self.module.load_state_dict(self.best)
        self.module.eval()

    def _finished(self) -> bool:
        config = self.config
        if self.epoch >= config.epochs:
            return True
        waited = (self.epoch - self.best_epoch) // config.validate_every
        return config.patience is not None and bool(self.best) and waited >= config.patience

    def _is_time_to_validate(self) -> bool:
        return self.epoch % self.config.validate_every == 0 or self.epoch == self.config.epochs

    def _train_epoch(self, losses: Losses) -> float:
        self.module.train()
        if self.config.schedule == "cosine":
            progress = self.epoch / self.config.epochs
            falling = 0.02 + 0.49 * (1 + math.cos(math.pi * progress))
            self.optimizer.learning_rate = self.config.learning_rate * falling
        total, count = torch.zeros(()), 0
        try:
            with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator only
                torch.manual_seed(self.seed + self.epoch)
                for loss in losses(self.generator):
                    self.optimizer.forget_gradients()
                    loss.backward()  # type: ignore[no-untyped-call]
                    _add_up_gradients(self.module)
                    if self.config.max_grad_norm is not None:
                        nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
                    self.optimizer.step()
                    total, count = total + loss.detach(), count + 1
        except LinAlgError as error:
            raise self._broken(self.epoch + 1) from error
        mean = process_group().sum_number(float(total)) / max(count, 1)
        if not math.isfinite(mean):
            raise self._broken(self.epoch + 1)
        return mean

    def _broken(self, epoch: int) -> NumericalError:
        return NumericalError(
            f"{self.title}: the loss is no longer finite at epoch {epoch}; try a lower "
            f"learning_rate than {self.config.learning_rate:g}"
        )

    def _validate(self, validate: Callable[[], float]) -> float:
        self.module.eval()
        try:
            with torch.no_grad():
                score = validate()
        except LinAlgError as error:
            raise self._broken(self.epoch) from error
        if math.isnan(score):
            raise self._broken(self.epoch)
        return score

    def _keep_if_best(self, score: float) -> None:
        if score < self.best_score:
            self.best_score, self.best_epoch = score, self.epoch
            self.best = {name: value.clone() for name, value in self.module.state_dict().items()}

    def _note(self, loss: float) -> str:
        best = f"  validation {self.best_score:.4f}" if self.best else ""
        return f"loss {loss:.4f}{best}"

    def _outcome(self) -> str:
        if self.best_epoch == 0:
            return f"training did not improve on the start, which was kept: validation {self.best_score:.4f}"
        return f"best at epoch {self.best_epoch}: validation {self.best_score:.4f}"

    def _save(self) -> None:
        if self.checkpoint is None or not process_group().is_main:
            return
        tensors = {"generator": self.generator.get_state()}
        tensors |= {f"module/{name}": value for name, value in self.module.state_dict().items()}
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        tensors |= {f"adam/{name}": value for name, value in self.optimizer.state().items()}
        facts = {"epoch": self.epoch, "best_score": self.best_score, "best_epoch": self.best_epoch}
        write_bytes(self.checkpoint, pack_tensors(tensors, facts))

    def _restore(self, checkpoint: Path) -> None:
        tensors, facts = read_tensors(checkpoint)
        part: dict[str, dict[str, Tensor]] = {"module": {}, "best": {}, "adam": {}}
        for name, value in tensors.items():
            head, _, rest = name.partition("/")
            part.setdefault(head, {})[rest] = value
        self.module.load_state_dict(part["module"])
        self.best = part["best"]
        self.optimizer.restore(part["adam"])
        self.generator.set_state(tensors["generator"])
        self.epoch, self.best_epoch = facts["epoch"], facts["best_epoch"]
        self.best_score = facts["best_score"]


def _add_up_gradients(module: nn.Module) -> None:
    """Give every parameter the sum of its gradients in all processes; those that none has stay without."""
    if process_group().is_single:
        return
    parameters = [each for each in module.parameters() if each.requires_grad]
    has = torch.tensor([each.grad is not None for each in parameters], dtype=torch.float32)
    own = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    total = process_group().all_reduce_sum(torch.cat([has, *(each.reshape(-1) for each in own)]))
    flags, *sums = torch.split(total, [len(parameters), *(each.numel() for each in parameters)])
    for each, flag, summed in zip(parameters, flags.tolist(), sums, strict=True):
        each.grad = summed.view_as(each) if flag else None
