"""The interface of adapters, and functions that find and build an adapter by its name."""

# ruff: noqa: ARG002 - the methods of missing capabilities raise without reading their arguments

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from headstart.config import Config
from headstart.core.devices import compute_on
from headstart.core.types import FeatureBatch, Heads, Knowledge, OneHead, OneState, RowStates
from headstart.errors import InputError, UnknownNameError, UnsupportedError, did_you_mean
from headstart.linalg.array_ops import Array
from headstart.registry import Registry

Reduce = Callable[[Tensor], Tensor]
"""A function that adds a tensor up over all processes."""

_ROWS_AT_ONCE = 2**17


class AdapterConfig(Config):
    """Settings of an adapter; a subclass declares ``name`` with the adapter's name as its only value."""

    name: str

    @property
    def linear_heads(self) -> bool:
        """Whether heads are linear, which models and fine-tuning need; benchmarks take heads of any class."""
        return True

    @property
    def inner(self) -> AdapterConfig | None:
        """The settings of the adapter inside this one, from which it starts; None if there is none."""
        return None

    def resolved(self, knowledge: Knowledge) -> Self:
        """Return the settings with every value that depends on the data filled in."""
        return self


class OneContext(NamedTuple):
    """One feature in numpy: its n observations and the states of their rows, its kind and metadata."""

    kind: int
    metadata: Array  # (metadata width,)
    known: int  # the position in the backbone; negative for a new feature
    values: Array  # (n,), on the models' scale
    code: Array | None  # (n, code); None if the adapter does not read it
    activation: Array  # (n, width)
    noise: Array | None  # (n,)
    variance: Array | None  # (n, width)
    weights: Array | None = None  # (n,): weights of the observations; None: all 1
    exposure: float = math.nan  # of a click feature; NaN: estimated from its observations

    @property
    def shots(self) -> Any:
        """The number of observations, or the sum of their weights."""
        return np.float64(len(self.values)) if self.weights is None else self.weights.sum()

    @property
    def feature(self) -> OneFeature:
        """The feature without its observations."""
        return OneFeature(
            np.asarray(self.kind), self.metadata, np.asarray(self.known), np.asarray(self.exposure)
        )


class OneFeature(NamedTuple):
    """One feature without its observations in numpy; or a stack of features, with a leading axis."""

    kind: Array  # ()
    metadata: Array  # (metadata width,)
    known: Array  # (): the position in the backbone; negative for a new feature
    exposure: Array  # (): of a click feature; NaN: estimated from its observations

    @staticmethod
    def stack(features: Sequence[OneFeature]) -> OneFeature:
        """Stack features along a new first axis."""
        if len(features) == 1:
            return OneFeature(*(part[None] for part in features[0]))
        return OneFeature(*map(np.stack, zip(*features, strict=True)))


class ContextStack(NamedTuple):
    """Contexts of some features in numpy, one after the other, and the states of their rows."""

    features: OneFeature  # a stack
    ends: list[int]  # (features + 1,): where the observations of each feature start, and the last ones end
    values: Array  # (n,), on the models' scale
    code: Array | None  # (n, code); None if the adapter does not read it
    activation: Array  # (n, width)
    noise: Array | None  # (n,)
    variance: Array | None  # (n, width)
    weights: Array | None = None  # (n,): weights of the observations; None: all 1

    @staticmethod
    def of(context: OneContext) -> ContextStack:
        """Return a stack of one context."""
        parts = (context.values, context.code, context.activation, context.noise, context.variance)
        return ContextStack(
            OneFeature.stack([context.feature]), [0, len(context.values)], *parts, context.weights
        )

    @property
    def parts(self) -> list[slice]:
        """The observations of each feature."""
        return [slice(start, end) for start, end in pairwise(self.ends)]

    def per_observation(self, numbers: Array) -> Array:
        """Repeat the ``numbers`` (features, …) of each feature for its observations: (n, …)."""
        return np.repeat(numbers, np.diff(self.ends), axis=0)

    @property
    def shots(self) -> Array:
        """The number of observations of each feature, or the sum of their weights: (features,)."""
        if self.weights is None:
            return np.diff(self.ends).astype(np.float64)
        return np.array([self.weights[part].sum() for part in self.parts])


class HeadSums(NamedTuple):
    """Sums over the context of one feature in numpy, from which its head is computed; or a stack of them.

    They are additive: the sums of a context are the sums of its parts, added.
    """

    counts: Any  # (): the number of observations, or the sum of their weights
    total: Array  # (packed,): Σ w·[d; 1][d; 1]ᵀ, with precisions w
    linear: Array  # (size,): Σ w·x·[d; 1]
    squares: Any  # (): Σ w·x²
    encoded: Array  # (any,): sums that the prior mean depends on

    def add(self, other: HeadSums, sign: int = 1) -> HeadSums:
        """Add ``other``, or subtract it if ``sign`` is −1."""
        return HeadSums(*(one + sign * more for one, more in zip(self, other, strict=True)))

    def split(self) -> list[HeadSums]:
        """Split a stack into the sums of each feature."""
        parts: list[Any] = list(self)
        return [HeadSums(*(part[place] for part in parts)) for place in range(len(self.total))]

    @staticmethod
    def stack(sums: Sequence[HeadSums]) -> HeadSums:
        """Stack sums along a new first axis."""
        return HeadSums(*map(np.stack, zip(*sums, strict=True)))


class Adapter(nn.Module, ABC):
    """Map the contexts of new features to their heads.

    The constructor only allocates: it reads the sizes of the ``knowledge``, not its numbers. ``prepare`` then
    initialises parameters and buffers; those of a saved adapter come from its file instead. Only parameters
    and buffers are saved; the knowledge is saved with the model. ``adapt`` must not depend on the order of a
    context, must work without shots, and must return the same heads for a batch as for one feature at a
    time: ``headstart.testing.check_adapter`` checks this.

    All other methods belong to optional capabilities. A subclass declares a capability by a class attribute
    and implements its methods; without the capability these methods raise ``UnsupportedError``.

    ===================== ==============================================================================
    declared by           methods
    ===================== ==============================================================================
    ``makes_known_heads`` no further method: heads of known features, too, come from their observations
    ``adapts_one``        ``adapt_one``, ``refine_one``: one feature or row, in numpy
    ``needs_context``     ``sum_contexts``, ``adapt_sums``: features in numpy, given additive sums
    ``sharded``           ``adapt_sharded``: the rows are distributed over several processes
    ``explainable``       ``metadata_effects``, ``metadata_gains``: the influence of each metadata column
    ``supports_weights``  no further method: ``adapt`` reads the weights of observations
    ``supports_clicks``   no further method: ``adapt`` reads cells without a click as weak zeros
    ``blend_partner``     ``set_blend_shares``: heads are a mixture with those of another adapter
    ``mixes_known_heads`` ``set_known_head_shares``: new heads can resemble those of known features
    ===================== ==============================================================================
    """

    config_type: ClassVar[type[AdapterConfig]]
    number_setting: ClassVar[str | None] = None  # the setting for the number in a name like knn-10
    variants: ClassVar[tuple[str, ...]] = ()  # the names to list, by default the plain name
    refines: ClassVar[bool] = False  # whether ``refine`` changes the states
    gives_uncertainty: ClassVar[bool] = False  # whether heads have a covariance and a noise
    makes_known_heads: ClassVar[bool] = False  # whether heads of known features come from ``adapt``, too
    reads_context_rows_only: ClassVar[bool] = False  # whether ``adapt`` needs no states of other rows
    sharded: ClassVar[bool] = False  # whether several processes can compute heads together
    explainable: ClassVar[bool] = False  # whether the influence of metadata can be computed
    supports_weights: ClassVar[bool] = False  # whether ``adapt`` reads weights of observations
    supports_clicks: ClassVar[bool] = False  # whether ``adapt`` reads cells without a click as weak zeros
    mixes_known_heads: ClassVar[bool] = False  # whether new heads can resemble known ones
    # Whether metadata can have texts and images (``Knowledge.structures``): by networks, or as it reads none.
    accepts_structures: ClassVar[bool] = False
    reads_code: ClassVar[bool] = True  # whether heads depend on the codes of rows

    def __init__(self, config: AdapterConfig, knowledge: Knowledge) -> None:
        super().__init__()
        self.config = config
        self.knowledge = knowledge

    @classmethod
    def settings_for_name(cls, name: str) -> dict[str, Any] | None:
        """Return the settings that ``name`` selects, or None if it is not one of this adapter's names."""
        plain_name = str(cls.config_type.model_fields["name"].default)
        if cls.number_setting is None:
            return {"name": plain_name} if name == plain_name else None
        stem, _, number = name.rpartition("-")
        if stem != plain_name or not number.isdecimal():
            return None
        return {"name": plain_name, cls.number_setting: int(number)}

    def prepare(self) -> None:
        """Initialise parameters and buffers from the knowledge, once, before any training."""

    def finish(self) -> None:
        """Set buffers that depend on trained parameters, once, after training."""

    def with_knowledge(self, knowledge: Knowledge) -> Self:
        """Return a copy of the adapter, and of the adapters in it, that reads other ``knowledge``.

        The copies share their parameters and buffers with the originals.
        """
        adapter = copy(self)
        adapter.knowledge = knowledge
        adapter._modules = {
            name: module.with_knowledge(knowledge) if isinstance(module, Adapter) else module
            for name, module in self._modules.items()
        }
        for name in [*vars(adapter)]:
            if isinstance(getattr(type(self), name, None), cached_property):
                del adapter.__dict__[name]
        return adapter

    @property
    def learns(self) -> bool:
        """Whether any parameter can be meta-trained."""
        return any(parameter.requires_grad for parameter in self.parameters())

    @property
    def meta_settings(self) -> Mapping[str, object]:
        """Settings of meta-training that override the user's, such as MAML's meta-batch."""
        return {}

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Settings of meta-training for this method that the user's settings override."""
        return {}

    @classmethod
    def training_config(cls, config: Any) -> AdapterConfig:
        """Return the settings of the adapter whose meta-training this one reuses; by default its own."""
        settings: AdapterConfig = config
        return settings

    def copy_training(self, trained: Adapter) -> None:
        """Copy the parameters of ``trained``, an adapter with the settings ``training_config``."""
        self.load_state_dict(trained.state_dict())

    def refine(self, states: RowStates) -> RowStates:
        """Refine ``states`` for ``adapt`` and for predictions from its heads; by default change nothing."""
        return states

    @torch.no_grad()
    def refine_in_blocks(self, states: RowStates) -> RowStates:
        """Refine any number of rows in blocks, to bound the memory of hidden layers."""
        if not self.refines or len(states) <= _ROWS_AT_ONCE:
            return self.refine(states)
        first = self.refine(states.take(slice(0, _ROWS_AT_ONCE)))
        refined = first.room_for(len(states))
        refined.put(0, first)
        for start in range(_ROWS_AT_ONCE, len(states), _ROWS_AT_ONCE):
            refined.put(start, self.refine(states.take(slice(start, start + _ROWS_AT_ONCE))))
        return refined

    @abstractmethod
    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute the head of each feature of ``batch``, differentiable in the adapter's parameters.

        ``states`` are the refined states of the rows that the contexts index.
        """

    # -- capability: one feature or one row, without the overhead of tensors ----------------------

    @property
    def adapts_one(self) -> bool:
        """Whether ``adapt_one`` and ``refine_one`` can be called."""
        return False

    def adapt_one(self, context: OneContext, start: Array | None = None) -> OneHead:
        """Compute the head of one feature as ``adapt`` does.

        ``start`` (size,) is a head close to the result, such as the one before the latest observation, from
        which iterations converge sooner.
        """
        self._cannot("adapt a single feature")

    def needs_context(self, kind: int) -> bool:
        """Return whether features of this ``kind`` need ``adapt_one``: no sums determine their heads."""
        return True

    def sum_contexts(self, contexts: ContextStack) -> HeadSums:
        """Compute the sums over the contexts of some features: a stack."""
        self._cannot("sum the contexts of features")

    def adapt_sums(self, features: OneFeature, sums: HeadSums) -> OneHead:
        """Compute the heads of a stack of ``features`` as ``adapt`` does, given sums over their contexts."""
        self._cannot("adapt features given sums")

    def refine_one(self, state: OneState) -> OneState:
        """Refine the state of one row as ``refine`` does."""
        self._cannot("refine a single row")

    # -- capability: several processes ------------------------------------------------------------

    def adapt_sharded(self, batch: FeatureBatch, states: RowStates, reduce: Reduce) -> Heads:
        """Compute the heads of ``adapt`` if each process has the observations of some rows only.

        ``reduce`` sums a tensor over all processes. All processes call this method and get the same heads.
        """
        self._cannot("adapt in several processes")

    # -- capability: explaining -------------------------------------------------------------------

    def metadata_effects(self, batch: FeatureBatch, reference: FeatureBatch) -> Tensor:
        """Return the change of a zero-shot head due to each number of its metadata: (numbers, size).

        The change is from the metadata of ``reference`` to those of ``batch``, of one feature each.
        """
        self._cannot("be explained")

    @property
    def metadata_gains(self) -> Tensor:
        """The fraction of the error of predicted heads that each metadata column explains: (columns,)."""
        self._cannot("be explained")

    # -- capability: compact covariances ----------------------------------------------------------

    def prior_covariances(self, shots: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return matrices (n, size, size) whose combinations are the covariances of heads, up to a low rank.

        Also returns the coefficients (features, n) of heads of ``shots`` (features,); None: no such matrices.
        """
        return None

    # -- capability: blending ---------------------------------------------------------------------

    @property
    def blend_partner(self) -> Adapter | None:
        """The adapter whose heads are mixed with those of this one; None without a mixture."""
        return None

    def set_blend_shares(self, shares: Tensor | float) -> None:
        """Set the weight of this adapter's own heads in the mixture, at ``VALIDATION_SHOTS``."""
        self._cannot("be blended with another one")

    # -- capability: shrinking --------------------------------------------------------------------

    def shrink_mean_head(self) -> None:
        """Shrink the mean head of the prior towards the direction of row means (``head_prior``)."""
        self._cannot("shrink its mean head")

    # -- capability: heads like known ones ---------------------------------------------------------

    def set_known_head_shares(self, shares: Tensor | float) -> None:
        """Set the shares of new heads that resemble known ones, at ``VALIDATION_SHOTS`` (``known_heads``)."""
        self._cannot("mix known heads")

    def _cannot(self, action: str) -> NoReturn:
        raise UnsupportedError(f"the adapter {self.config.name!r} cannot {action}")


ADAPTERS: Registry[Adapter] = Registry("adapter", "headstart.adapters")

register_adapter = ADAPTERS.register


def adapter_names() -> list[str]:
    """Return the names of all adapters; names with another number, such as knn-3, are valid too."""
    return [name for key, part in ADAPTERS.parts().items() for name in part.variants or (key,)]


def adapter_config(
    choice: object,
    seed: int | None = None,
    settings: Mapping[str, dict[str, Any]] | None = None,
) -> AdapterConfig:
    """Return the settings of an adapter, given its name, settings or their saved form.

    ``seed`` is for adapters that draw random numbers. ``settings`` maps the plain name of an adapter
    ("chn", "knn", "maml", …) to settings that differ from its defaults.

    >>> adapter_config("knn-10").neighbours
    10
    >>> adapter_config("random-train-5", seed=3).base
    RandomConfig(name='random', seed=3)
    >>> adapter_config("chn-train-5", settings={"chn": {"encoding": 8}}).base.encoding
    8
    >>> adapter_config("knn-0")
    Traceback (most recent call last):
    headstart.errors.InputError: NearestHeadsConfig: setting 'neighbours': Input should be ...
    >>> adapter_config("chnn")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown method 'chnn'; did you mean 'chn'?
    """
    if isinstance(choice, AdapterConfig):
        ADAPTERS.part_of(choice)
        return choice
    if not isinstance(choice, (str, Mapping)):
        raise InputError(f"an adapter is chosen by its name or its settings; got {choice!r}")
    chosen = _find_variant(choice) if isinstance(choice, str) else dict(choice)
    if "name" not in chosen:
        raise InputError(f"an adapter is chosen by its name or its settings; got {choice!r}")
    if isinstance(choice, str):
        chosen |= (settings or {}).get(chosen["name"], {})
    kind = ADAPTERS[chosen["name"]].config_type
    if "base" in chosen:
        chosen["base"] = adapter_config(chosen["base"], seed, settings)
    if "seed" in kind.model_fields and seed is not None:
        chosen.setdefault("seed", seed)
    return kind(**chosen)


def _find_variant(name: str) -> dict[str, Any]:
    """Return the settings that ``name`` selects."""
    for part in ADAPTERS.parts().values():
        settings = part.settings_for_name(name)
        if settings is not None:
            return settings
    names = adapter_names()
    hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
    raise UnknownNameError(f"unknown method {name!r}{hint}")


def require_linear_heads(config: AdapterConfig, action: str) -> None:
    """Raise an error if heads of an adapter are not linear; ``action`` names what needs linear heads."""
    if not config.linear_heads:
        raise UnsupportedError(
            f"the heads of this adapter {config.name!r} are networks; {action} linear heads only. Compare"
            " them with others in a benchmark"
        )


def new_adapter(config: AdapterConfig, knowledge: Knowledge) -> Adapter:
    """Allocate an adapter without initialising its parameters, to load them from a file."""
    return ADAPTERS.part_of(config)(config, knowledge)


def build_adapter(config: AdapterConfig, knowledge: Knowledge) -> Adapter:
    """Build an adapter with initialised parameters, ready for meta-training."""
    # Initial weights are drawn on the CPU, so that they do not depend on the device.
    adapter = new_adapter(config.resolved(knowledge), knowledge).to(knowledge.device)
    with compute_on(knowledge.device):
        adapter.prepare()
    return adapter


AnyAdapter = Annotated[SerializeAsAny[AdapterConfig], BeforeValidator(adapter_config)]
"""The type of a setting that holds the settings of any adapter."""
