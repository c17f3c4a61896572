"""Adam, as training uses it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

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
