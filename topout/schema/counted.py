"""A number with its noun: `counted(1, "rank")` is "1 rank", `counted(1200, "rank")` "1,200 ranks"."""


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
