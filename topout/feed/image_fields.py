"""Which fields of a pack are images: one answer for the loader and for the data set."""

from collections.abc import Sequence

from topout.feed.augment import ImageTransform
from topout.packs.fields import Field
from topout.schema.errors import TopoutError


def decoded_fields(fields: Sequence[Field], wanted: str | None = None) -> tuple[str, ...]:
    """Those that the pack says are images, or the one that is `wanted`.

    A pack of mixed formats, or of one that has no kind of its own, holds bytes called `image`. Other bytes may be
    anything, so they are images only where somebody says so.
    """
    if wanted is not None:
        return (_checked(fields, wanted),)
    images = tuple(field.name for field in fields if field.is_image)
    return images or tuple(field.name for field in fields if field.kind == "bytes" and field.name == "image")


def image_field(fields: Sequence[Field], transform: ImageTransform | None, wanted: str | None) -> str | None:
    """The field that `transform` is for; None without a transform."""
    images = decoded_fields(fields, wanted)
    if transform is None:
        return None
    # a transform says that there are images, so the only bytes must be them
    images = images or _possible(fields)
    if len(images) != 1:
        raise TopoutError(
            "It is not clear which field the transform is for.",
            why=f"The pack has {', '.join(field.name + ' (' + field.kind + ')' for field in fields)}.",
            do="say image='name of the field', or leave the transform out",
        )
    return images[0]


def _checked(fields: Sequence[Field], wanted: str) -> str:
    possible = _possible(fields)
    if wanted not in possible:
        raise TopoutError(
            f"{wanted!r} is no field of images.", why=f"Such are: {', '.join(possible) or 'none'}.", do="name one"
        )
    return wanted


def _possible(fields: Sequence[Field]) -> tuple[str, ...]:
    return tuple(field.name for field in fields if field.is_image or field.kind == "bytes")
