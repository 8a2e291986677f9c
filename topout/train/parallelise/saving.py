"""`torch.save` under --ddp: one rank writes a file, and whoever reads it next finds it whole.

Not for what scripts write by other means: every rank does.
"""

import functools
import os
import stat
from typing import Any

from topout.train.fusion.agreement import gather_numbers


def save_once(torch: Any, session: Any) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        write = functools.partial(original, obj, f, *args, **kwargs)
        is_path = isinstance(f, str | os.PathLike)
        if not session.is_on or not (is_path or _is_file(f)):
            return write()
        if not session.has_begun:
            return _save_whole(functools.partial(original, obj), f, *args, **kwargs) if is_path else write()
        session.refuse_untrained()
        place = session.place()
        is_own = not is_path and not _is_one(f, place)
        if place.is_first or is_own:
            write()
        # who reads it next must find it whole
        session.mean(0.0)
        return None

    torch.save = save
    torch.serialization.save = save


def _is_file(f: Any) -> bool:
    """An open one, which the script has made on every rank."""
    try:
        return stat.S_ISREG(os.fstat(f.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        return False


def _is_one(f: Any, place: Any) -> bool:
    """Whether all ranks have opened the same; each has emptied it by now."""
    rows = gather_numbers([os.fstat(f.fileno()).st_ino & (2**62 - 1)], place.group)
    return all(row == rows[0] for row in rows)


def _save_whole(save: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """The same on all ranks, which may not have met yet: whoever reads it finds one of them whole."""
    # links stay, and so does what is no file (/dev/null, a pipe)
    target = os.path.realpath(f)
    if os.path.exists(target) and not os.path.isfile(target):  # noqa: PTH110, PTH113
        save(f, *args, **kwargs)
        return
    own = f"{target}.{os.environ.get('RANK')}.{os.getpid()}"
    try:
        save(own, *args, **kwargs)
        os.replace(own, target)  # noqa: PTH105
    except BaseException:
        from contextlib import suppress

        with suppress(OSError):
            os.unlink(own)  # noqa: PTH108
        raise
