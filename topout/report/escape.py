"""Text that a run brought along, made safe to stand in a page: names of scripts, spans, hosts and commands are data.

Nothing else in the report may build HTML from such text; whoever adds a part of the page passes it through here.
"""

import html
import json
import re
from typing import Any

_BACKTICKED = re.compile(r"`([^`]+)`")


def text(value: object) -> str:
    """For element content and quoted attributes alike. Lone surrogates (undecodable paths) become question marks."""
    return html.escape(str(value).encode("utf-8", "replace").decode(), quote=True)


def prose(value: str) -> str:
    """A sentence in which `backticks` mark code."""
    return _BACKTICKED.sub(r"<code>\1</code>", text(value))


def json_block(data: Any) -> str:
    """JSON for a script element: without `<` no name can end the element, whatever it holds."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
