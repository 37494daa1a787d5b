"""Programs that use parameters, examples and losses in all sorts of ways: right, or refused.

Each is entered by `@right` or `@refused` in one of the modules below.
"""

from . import (
    account_broadcasts,
    account_examples,
    account_lookups,
    account_losses,
    account_orders,
    account_reductions,
    account_scalers,
    account_uses,
    account_views,
    account_weights,
)
from .account_base import REFUSED, RIGHT, Situation
from .account_orders import SINGLE

SECTIONS = (
    account_uses,
    account_views,
    account_weights,
    account_lookups,
    account_broadcasts,
    account_examples,
    account_losses,
    account_reductions,
    account_scalers,
    account_orders,
)

__all__ = ["REFUSED", "RIGHT", "SECTIONS", "SINGLE", "Situation"]
