"""The native pipeline where it was built, its Python twin elsewhere.

`TOPOUT_FEED_PIPELINE=python` asks for the twin, to compare or to leave a suspected fault out.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from topout.feed.augment import ImageTransform
from topout.feed.pack_set import PackSet
from topout.feed.pipeline import ImagePipeline, Pipeline

_NATIVE = "topout.feed.native_pipeline"


def image_pipeline(packs: PackSet, image: str, transform: ImageTransform, **options: Any) -> Pipeline:
    """`options` are those of ImagePipeline."""
    if os.environ.get("TOPOUT_FEED_PIPELINE") != "python" and find_spec(_NATIVE) is not None:
        made: Pipeline | None = import_module(_NATIVE).native_image_pipeline(packs, image, transform, **options)
        if made is not None:
            return made
    return ImagePipeline(packs, image, transform, **options)
