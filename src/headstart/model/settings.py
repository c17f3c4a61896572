"""All that decides a fit besides the table."""

from __future__ import annotations

from pydantic import Field

from headstart.adapters.registry import AnyAdapter
from headstart.training.recipe import Recipe


class Settings(Recipe):
    """The recipe of training and the adapter. In a saved model every value is the one that really ran."""

    adapter: AnyAdapter = Field("chn-bayes", validate_default=True)
