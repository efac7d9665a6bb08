"""`python -m benchmarks.peers.plots peers.json folder`: a picture per measure. Runs in an environment of its own, with matplotlib."""

# pyright: basic, reportMissingImports=false
# matplotlib is not among our dependencies, and the types of its figures are loose.

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

OURS, DEFAULT, BEST = "horsies", "#8da0b3", "#4c6f91"
OUR_DEFAULT, OUR_BEST = "#e6a15c", "#d9731a"
LOG_SPREAD = 20
"""Beyond this ratio of the highest to the lowest, small bars could not be read on a linear axis."""


def main() -> int:
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[2])
    for old in folder.glob("peers-*.png"):
        old.unlink()
    for measure, unit in report["units"].items():
        bars = [
            (entry["label"], entry["medians"][measure], entry["rounds"][measure], _colour(entry))
            for entry in report["entries"]
            if entry["medians"].get(measure)
        ]
        if bars:
            _plot(folder / f"peers-{measure.replace(' ', '-')}.png", measure, unit, bars)
    return 0


def _colour(entry) -> str:
    if entry["system"] == OURS:
        return OUR_BEST if entry["settings"] == "best" else OUR_DEFAULT
    return BEST if entry["settings"] == "best" else DEFAULT


def _plot(path: Path, measure: str, unit: str, bars) -> None:
    bars = bars[::-1]  # the first row on top
    labels, values, rounds, colours = zip(*bars, strict=True)
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.35 * len(bars)))
    spread = [
        [value - min(of) for value, of in zip(values, rounds, strict=True)],
        [max(of) - value for value, of in zip(values, rounds, strict=True)],
    ]
    drawn = axes.barh(labels, values, color=colours, xerr=spread, error_kw={"ecolor": "#444444", "capsize": 2})
    axes.bar_label(
        drawn, labels=[f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values], padding=6, fontsize=8
    )
    scale = "log" if max(values) > LOG_SPREAD * min(values) else "linear"
    axes.set_xscale(scale)
    axes.margins(x=0.15)
    axes.set_title(f"{measure} ({unit}, {scale} scale): median, and the lowest and highest round", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
