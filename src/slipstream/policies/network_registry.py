"""Your own networks by name: `MODULE:CLASS` in a module of `--import`, or a class that was passed in Python.

Settings and checkpoints hold the name only. The class comes from the user in every process: workers import the modules
of `--import` and receive the classes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from slipstream.errors import ConfigError, did_you_mean
from slipstream.system import user_modules

BUILT_IN = {"vpt": ("slipstream.policies.vpt_network", "VptNetwork")}
"""Networks of this package: module and class by name."""
PYTHON = "python"
"""The module part of the name of a class that cannot be imported, such as one of a notebook."""
_given: dict[str, type] = {}


def network_name(network: Any) -> str:
    """The name of a class that is passed in Python: `MODULE:CLASS` if it can be imported, else `python:CLASS`.

    A name stays as it is.
    """
    if isinstance(network, str):
        return network
    if not isinstance(network, type):
        raise ConfigError(
            f"`network` is the class of a torch module, or its name, not a {type(network).__name__}.",
            'write network=MyNetwork, or network="MODULE:CLASS" with modules=["MODULE"]',
        )
    importable = network.__module__ != "__main__" and network.__qualname__ == network.__name__
    return f"{network.__module__ if importable else PYTHON}:{network.__name__}"


def register_networks(networks: Mapping[str, type]) -> None:
    """Add classes for this process; a class of the same name is replaced."""
    _given.update(networks)


def find_network(name: str) -> type:
    """The class that `policy.network` names; raises, with the flag to add, if the user has not given it."""
    if name in BUILT_IN:
        own, kind = BUILT_IN[name]
        found_class: type = getattr(importlib.import_module(own), kind)
        return found_class
    if name in _given:
        return _given[name]
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.isidentifier():
        raise ConfigError(f"`policy.network` = {name} is not a network.", "write MODULE:CLASS, and add --import MODULE")
    if module == PYTHON:
        raise ConfigError(
            f"`policy.network` = {name} is a Python class that this process does not have.",
            f"pass it again: network={attribute}; or put it into a module: --import MODULE --set "
            f"policy.network=MODULE:{attribute}",
        )
    found = user_modules.allowed(module)
    if found is None:
        raise ConfigError(
            f"`policy.network` = {name} needs the module `{module}`, which is not imported without your permission.",
            f"add --import {module} (in Python: modules=[{module!r}])",
        )
    network = getattr(found, attribute, None)
    if not isinstance(network, type):
        what = "has no class" if network is None else f"holds a {type(network).__name__}, not a class,"
        near = did_you_mean(attribute, [key for key, value in vars(found).items() if isinstance(value, type)])
        raise ConfigError(
            f"`policy.network` = {name}: the module {what} `{attribute}`.{near}", f"define it in {found.__file__}"
        )
    return network
