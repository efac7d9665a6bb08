"""How long something takes, as a person reads it."""

SHORT_S = 10


def duration(seconds: float) -> str:
    """The two largest units: `3m 12s`, `2d 4h`, `0.3s`."""
    if seconds < SHORT_S:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
