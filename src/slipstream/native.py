"""Native games under their public name: `from slipstream import native`; see docs/guides/your-own-game.md."""

from slipstream.envs.native import *  # noqa: F403
from slipstream.envs.native import __all__ as __all__
