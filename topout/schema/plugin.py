"""Plug-ins are single files: the file's name is the plug-in's name, and listing them imports none.

Packages from outside register the same names as entry points in the group `topout.<package>`, for example
`topout.recommend.rules`.
"""

import importlib
import importlib.util
import pkgutil
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from topout.schema.errors import TopoutError


def plugin_names(package: str) -> list[str]:
    """Names of the plug-ins in a package such as `topout.recommend.rules`, inside and outside ones together."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    inside = {module.name for module in pkgutil.iter_modules(places) if not module.name.startswith("_")}
    return sorted(inside | {point.name for point in outside_plugins(package)})


def load_plugin(package: str, name: str) -> ModuleType:
    """Imports the one plug-in asked for; an unknown name is an error that lists the nearest."""
    for point in outside_plugins(package):
        if point.name == name:
            module = point.load()
            if not isinstance(module, ModuleType):
                raise TopoutError(
                    f"Plug-in {name} of {package} is not a module.",
                    why=f"its entry point gives a {type(module).__name__}",
                    do="point the entry point at the module itself",
                )
            return module
    if name not in plugin_names(package):
        near = get_close_matches(name, plugin_names(package), n=3)
        raise TopoutError(
            f"There is no {name} in {package}.",
            why="no file and no entry point of that name",
            do=f"choose one of {', '.join(near or plugin_names(package))}",
        )
    return importlib.import_module(f"{package}.{name}")


@cache
def outside_plugins(package: str) -> tuple[EntryPoint, ...]:
    """Looked up once: every look reads the metadata of all that is installed."""
    return tuple(entry_points(group=package))
