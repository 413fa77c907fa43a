"""Draw where uneven splits begin to win, as front accelerators get faster than rear ones: ``docs/uneven-splits.svg``.

Two groups of accelerators, the rear ones slower by a ratio; stages alternate between them. The gain is that of the step
time of the uneven split over the even one whose stages all hold a rear accelerator, as with the ranks in order. Lines:
stages of equal layers alone (closed form), and the whole model with its ends and its exchanges (exact schedule).
"""

from pathlib import Path
from typing import Final

import numpy as np

from costmodels.power.heat import heat_problem, stretched
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import pricings_of
from planner.question import Question, request_of

RATIOS: Final = np.linspace(1.0, 1.14, 57)
OUT: Final = Path(__file__).parents[1] / "docs" / "uneven-splits.svg"
CASES: Final = (
    ("Llama3-70B, 21/19", "llama3-70b", 8192, "20x4", "21,19,21,19", (20, 21, 19), "#1f77b4"),
    ("GPT3-175B, 13/11", "gpt3-175b", 2048, "12x8", "13,11,13,11,13,11,13,11", (12, 13, 11), "#d62728"),
)
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 380, 60, 20, 620, 330
LOW, HIGH = -9.0, 5.0
FONT: Final = 'font-size="12" font-family="sans-serif"'


def closed_form(layers: tuple[int, int, int], ratios: np.ndarray) -> np.ndarray:
    """Gain of the bottleneck alone [%]: ``even r / max(heavy, light r) - 1``."""
    even, heavy, light = layers
    return np.asarray(100.0 * (even * ratios / np.maximum(heavy, light * ratios) - 1.0))


def whole_model(model: str, seq: int, splits: tuple[str, str], ratios: np.ndarray) -> np.ndarray:
    """Gain of the step time [%] with the ends of the model and its exchanges."""
    request = request_of(Question(model=model, cluster="h200-thermal-study", global_batch=128, seq=seq))
    times = []
    for split in splits:
        layout = layout_of(request, ExplicitLayout(tp=4, layers_per_stage=split))
        step = heat_problem(pricings_of(request), layout).step
        pace = np.repeat(ratios[:, None], layout.pp, axis=1)
        if split == splits[1]:
            pace[:, ::2] = 1.0  # the heavy stages on front accelerators
        times.append(step.times_of(stretched(step.work, pace)).total_s)
    return np.asarray(100.0 * (times[0] / times[1] - 1.0))


def crossing(ratios: np.ndarray, gains: np.ndarray) -> float:
    """First ratio from which the split wins; nan where it never does."""
    wins = np.flatnonzero(gains > 0.0)
    return float(ratios[wins[0]]) if len(wins) else float("nan")


def x_of(ratio: float) -> float:
    """Place of a ratio in the picture."""
    return LEFT + (ratio - RATIOS[0]) / (RATIOS[-1] - RATIOS[0]) * (RIGHT - LEFT)


def y_of(gain: float) -> float:
    """Place of a gain in the picture."""
    return TOP + (HIGH - gain) / (HIGH - LOW) * (BOTTOM - TOP)


def line(gains: np.ndarray, colour: str, dash: str) -> str:
    """One curve."""
    within = np.clip(gains, LOW, HIGH).tolist()
    points = " ".join(f"{x_of(ratio):.1f},{y_of(gain):.1f}" for ratio, gain in zip(RATIOS, within, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """A label."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def main() -> None:
    """Write the picture and print where the signs change."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for gain in range(int(LOW) + 1, int(HIGH) + 1, 2):
        y = y_of(gain)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y + 4, f"{gain:+d} %", "end"))
    parts.append(f'<line x1="{LEFT}" y1="{y_of(0):.1f}" x2="{RIGHT}" y2="{y_of(0):.1f}" stroke="#444"/>')
    ticks = np.arange(1.0, 1.141, 0.02)
    parts += [text(x_of(ratio), BOTTOM + 16, f"{ratio:.2f}", "middle") for ratio in ticks]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 36, "speed of front over rear accelerators", "middle"))
    for number, (name, model, seq, even, uneven, layers, colour) in enumerate(CASES):
        simple, whole = closed_form(layers, RATIOS), whole_model(model, seq, (even, uneven), RATIOS)
        parts += [line(simple, colour, "6 4"), line(whole, colour, "none")]
        parts.append(f'<text x="{LEFT + 12}" y="{TOP + 16 + 16 * number}" fill="{colour}">{name}</text>')
        first, last = crossing(RATIOS, simple), crossing(RATIOS, whole)
        print(f"{name}: wins from {first:.4f} by layers alone, {last:.4f} as a whole")
    parts.append(text(LEFT + 12, TOP + 52, "dashed: layers alone; solid: with the model's ends and exchanges"))
    OUT.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
