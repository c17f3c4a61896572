"""All that decides a fit besides the table."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, SerializeAsAny

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import adapter_config
from headstart.errors import InputError, argument, worded
from headstart.training.choosing import AUTO
from headstart.training.recipe import Recipe


def _adapter(choice: object) -> object:
    return AUTO if isinstance(choice, str) and choice == AUTO else adapter_config(choice)


class Settings(Recipe):
    """The recipe of training and the adapter. In a saved model every value is the one that really ran."""

    adapter: Annotated[SerializeAsAny[AdapterConfig] | Literal["auto"], BeforeValidator(_adapter)] = AUTO

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.adapter == AUTO and self.meta_share is not None:
            raise InputError(
                f"{worded('meta_share', '--meta-share')} goes with an adapter of your choice, "
                f"as {argument('adapter', 'chn')}; not with 'auto'"
            )

    @property
    def chosen_adapter(self) -> AdapterConfig:
        """The adapter of a fitted model; only before fit it may be left to the judge."""
        if isinstance(self.adapter, str):
            raise TypeError("the adapter is not chosen yet")
        return self.adapter
