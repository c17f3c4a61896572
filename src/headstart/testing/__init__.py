"""The contract that every adapter and backbone keeps, as checks that anyone can run on their own."""

from headstart.testing.adapters import check_adapter
from headstart.testing.backbones import check_backbone
from headstart.testing.contract import ContractError

__all__ = ["ContractError", "check_adapter", "check_backbone"]
