"""What a model holds of one feature, to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.model.parts.feature import Feature
from headstart.table import Kind, MetadataSchema, Names


@dataclass(frozen=True, repr=False)
class KnownFeature:
    """A feature as ``model.feature(name)`` shows it.

    Attributes
    ----------
    name : str
        Its name.
    kind : Kind
        Which values it takes.
    shots : int
        How many observations its head rests on.
    in_backbone : bool
        Whether the backbone reads it.
    fixed : bool
        Whether its head is the backbone's own, made from observations that are not kept with it.
    """

    _feature: Feature
    _names: Names
    _schema: MetadataSchema | None

    @property
    def name(self) -> str:
        """Its name."""
        return self._feature.name

    @property
    def kind(self) -> Kind:
        """Which values it takes."""
        return self._feature.kind

    @property
    def shots(self) -> int:
        """How many observations its head rests on."""
        return self._feature.shots

    @property
    def in_backbone(self) -> bool:
        """Whether the backbone reads it."""
        return self._feature.in_backbone

    @property
    def fixed(self) -> bool:
        """Whether its head is the backbone's own, made from observations that are not kept with it."""
        return self._feature.fixed

    @property
    def finds_scale(self) -> bool:
        """Whether its center and scale are found from its observations."""
        return self._feature.finds_scale

    @property
    def rows(self) -> NDArray[np.int64]:
        """The positions of the rows in its context."""
        return self._feature.rows

    @property
    def values(self) -> NDArray[np.float64]:
        """The values of its context, in the data's own units."""
        return self._feature.values

    @property
    def observations(self) -> dict[str, float]:
        """Its context by the names of rows, in the data's own units; empty for a fixed head."""
        names = (self._names[row] for row in self._feature.rows.tolist())
        return dict(zip(names, self._feature.values.tolist(), strict=True))

    @property
    def metadata(self) -> dict[str, object]:
        """Its metadata by column, as it was given; missing values are left out.

        A model saved before this was kept has the encoded numbers only. Decoded from them, a number is as
        exact as single precision, and what cannot be decoded (text, custom, categories that the model did
        not know) is left out.
        """
        return self._feature.readable(self._schema)

    @property
    def encoded(self) -> NDArray[np.float32]:
        """Its metadata as the numbers that the model keeps."""
        return self._feature.metadata

    def __repr__(self) -> str:
        metadata = ", ".join(f"{name}: {value}" for name, value in self.metadata.items())
        return f"{self.name!r} ({self.kind}), {self.shots} observations" + (metadata and f"; {metadata}")
