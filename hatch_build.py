"""What pip does beside copying files: compiles the native library, if there is a C compiler.

Never fails an installation: without the library, topout's Python twins do the work.
"""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibrary(BuildHookInterface):
    """Found by hatchling through pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        path = Path(self.root) / "topout" / "native" / "build.py"
        spec = importlib.util.spec_from_file_location("topout_native_build", path)
        assert spec is not None and spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        build.main()
        if version == "standard" and list((path.parent / "lib").glob("*.so")):
            build_data["artifacts"].append("topout/native/lib/*.so")
            build_data["pure_python"] = False
            # called through ctypes, so one wheel serves every Python
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
