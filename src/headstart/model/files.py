"""The verbs that write a model to a folder and read it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from headstart.errors import InputError
from headstart.model.base import LOG, FittedModel
from headstart.model.changing.notes import Notes
from headstart.model.inputs.given import require_mapping
from headstart.model.parts.fitted import Fitted
from headstart.model.saving import folder, opening
from headstart.table.encoders import EncoderLike


class Files(FittedModel):
    """Saving, loading and changing in place. A folder always holds a whole model."""

    def save(self, path: str | Path) -> None:
        """Write the model to a folder.

        Parameters
        ----------
        path : str or Path
            A new folder, or that of an older model, which is replaced in one step.
        """
        self._fitted  # noqa: B018 (an error before anything is made)
        folder.save(lambda: self._fitted, Path(path), owner=self)
        if self._notes is not None:
            self._notes.forget()  # the folder that is being changed may be this one
        LOG.info("saved %s", path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        encoders: Mapping[str, EncoderLike] | None = None,
        *,
        verify: bool = True,
    ) -> Self:
        """Read a saved model.

        Parameters
        ----------
        path : str or Path
            The folder of the model.
        encoders : dict, default=None
            What encodes metadata columns of new features, as in ``set_encoders``.
        verify : bool, default=True
            Whether to read all of a large model once, to see that no byte of it is damaged. Without it a
            large model is opened at once, and only what is asked for is read from the disk.

        Returns
        -------
        Headstart
            A model that predicts exactly what the saved one did.

        Raises
        ------
        ModelFileError
            If the folder is missing, damaged, of a newer format, or needs a package that is not there.
        """
        model = cls._holding(opening.load(Path(path), verify=verify))
        model.set_encoders(encoders or {})
        LOG.info("loaded %s: %d rows, %d features", path, len(model.rows), len(model._fitted.catalogue))
        return model

    def set_encoders(self, encoders: Mapping[str, EncoderLike]) -> None:
        """Give the model what encodes the metadata of new features and is not saved with it.

        Parameters
        ----------
        encoders : dict
            For a column of the type custom, its function, as in ``Table.read``. For a text column, the
            folder of its sentence encoder, if it is not where it was when the model was fitted.

        Raises
        ------
        InputError
            If a column does not exist or takes no encoder; the model is unchanged then.
        """
        given = require_mapping(encoders, "encoders", "{'poster': function}")
        with self._writing:
            fitted = self._fitted
            if given and fitted.schema is None:
                raise InputError("the model was fitted without metadata and takes no encoders")
            if fitted.schema is not None:
                fitted.schema.check_encoders(given)
            after = replace(fitted, encoders={**fitted.encoders, **given})
            if self._notes is not None:
                self._notes.follow(fitted, after)
            self.fitted_ = after

    @classmethod
    @contextmanager
    def updating(cls, path: str | Path, encoders: Mapping[str, EncoderLike] | None = None) -> Iterator[Self]:
        """Change a saved model in place: ``with Headstart.updating(path) as model: model.add_feature(…)``.

        What changed is written when the block ends without an error: to the journal of the folder, or as a
        whole model where the journal would become too long or the model was fitted anew. If several
        processes do so, one waits for the other, and no change is lost. Inside the block the model itself
        may be saved too; any other change of the same folder by this thread raises ``BusyError``, because it
        would be lost.
        ``encoders`` is as in ``set_encoders``.
        """
        with folder.updating(Path(path)) as (before, lock):
            model = cls._holding(before.fitted)
            lock.owner = model
            model._notes = notes = Notes(before.fitted)
            try:
                model.set_encoders(encoders or {})
                yield model
            finally:
                model._notes = None  # what changes it later changes the folder no more
            with model._writing:
                calls = notes.calls(model._fitted)
                if calls is None or not folder.noted(before, calls):
                    if not before.verified:
                        opening.load(Path(path))  # damage must not get checksums that are right
                    model.save(path)
                else:
                    LOG.info("wrote %d changes to the journal of %s", len(calls), path)

    @classmethod
    def _holding(cls, fitted: Fitted) -> Self:
        settings = fitted.settings
        model = cls(
            settings.backbone,
            settings.adapter,
            settings.pretraining,
            settings.metatraining,
            settings.meta_share,
            settings.random_state,
            half_life=settings.half_life,
        )
        model.fitted_ = fitted
        return model
