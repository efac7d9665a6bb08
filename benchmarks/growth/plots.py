"""`python -m benchmarks.growth.plots growth.json growth.png`: the ratios beside their bars. Runs in an environment of its own, with matplotlib."""

# pyright: basic, reportMissingImports=false
# matplotlib is not among our dependencies, and the types of its figures are loose.

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

AUTO, DEFAULT, EMPTY, WANTED = "#d9731a", "#e6a15c", "#8da0b3", "#444444"


def main() -> int:
    entries = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["entries"]
    blocks = [entry for entry in entries if entry["grown_blocks"]]
    heights = [0.8 + 0.4 * len(entries), *(3.0 for _ in blocks)]
    figure, axes = plt.subplots(
        len(heights), figsize=(9, sum(heights)), gridspec_kw={"height_ratios": heights}, squeeze=False
    )
    _draw_ratios(axes[0][0], entries[::-1])  # the first one on top
    for (below,), entry in zip(axes[1:], blocks, strict=True):
        _draw_blocks(below, entry)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)
    return 0


def _draw_ratios(axes, entries) -> None:
    labels = [f"{entry['label']}, {entry['settings']}" for entry in entries]
    colours = [AUTO if entry["settings"] == "auto" else DEFAULT for entry in entries]
    drawn = axes.barh(labels, [entry["ratio"] for entry in entries], color=colours)
    axes.bar_label(drawn, fmt="%.2f", padding=6, fontsize=8)
    for place, entry in enumerate(entries):
        axes.plot([entry["bar"]] * 2, [place - 0.45, place + 0.45], color=WANTED, linewidth=2)
    axes.margins(x=0.12)
    axes.set_title(
        "rate beside the same run on an empty database; the dark line is what is wanted", fontsize=10, loc="right"
    )
    axes.spines[["top", "right"]].set_visible(False)


def _draw_blocks(axes, entry) -> None:
    places = range(1, len(entry["grown_blocks"]) + 1)
    axes.plot(places, entry["empty_blocks"], marker="o", color=EMPTY, label="without one")
    axes.plot(places, entry["grown_blocks"], marker="o", color=AUTO, label="held")
    axes.set_ylim(bottom=0)
    axes.set_xticks(list(places))
    axes.set_title(f"{entry['label']}: tasks/s in each tenth", fontsize=10, loc="right")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
