"""The table of a comparison.

Owns its text. Refuses to round in anybody's favour: figures are rounded to whole steps a second and ratios to a tenth.
Invariant: every figure stands beside the smallest and the largest that were seen.
"""

from __future__ import annotations

from typing import Any

HEADS = (
    "side",
    "setting",
    "rounds",
    "1 x {steps}, steps/s",
    "ours/peer",
    "{flows} x {each}, steps/s",
    "ours/peer",
    "syncs/step",
)


def printed(said: dict[str, Any]) -> str:
    """The table, then what each side's durability is, which form was timed, and what is not there."""
    text = grid(said) if said["rows"] else ["Nothing was compared."]
    if said["durability"]:
        text.append(f"agentplane {said['version']}: {said['durability']}.")
    for row in said["rows"]:
        text.append(f"{row['side']} {row['version']}, {row['setting']}: {row['durability']}.")
        forms = f"  timed: {row['one']['form']} for one, {row['many']['form']} side by side"
        slower = row["left_out_after_first_round"]
        text.append(forms + (f"; slower in the first round: {', '.join(slower)}" if slower else ""))
    text += [f"{side} is left out: {why}." for side, why in said["left_out"].items()]
    text += [f"{side} failed: {why}." for side, why in said["failed"].items()]
    return "\n".join(text)


def grid(said: dict[str, Any]) -> list[str]:
    """Two lines a pair: ours, and the peer's with the ratios."""
    lines = [tuple(head.format(**said["sizes"]) for head in HEADS)]
    for row in said["rows"]:
        one, many, rounds = row["one"], row["many"], str(row["rounds"])
        syncs = counts(said["syncs_per_step"])
        lines.append(("agentplane", "default", rounds, rate(one["ours"]), "", rate(many["ours"]), "", syncs))
        ratios, syncs = (times(one["ratio"]), times(many["ratio"])), counts(row["syncs_per_step"])
        named = (row["side"], row["setting"], rounds)
        lines.append((*named, rate(one["peer"]), ratios[0], rate(many["peer"]), ratios[1], syncs))
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    under = "Medians (smallest..largest); a ratio is of two processes run one after the other. Syncs: alone / together."
    return [*drawn, "", under]


def rate(numbers: dict[str, float]) -> str:
    return f"{numbers['median']:.0f} ({numbers['min']:.0f}..{numbers['max']:.0f})"


def times(numbers: dict[str, float]) -> str:
    return f"{numbers['median']:.1f} ({numbers['min']:.1f}..{numbers['max']:.1f})"


def counts(syncs: dict[str, float | None]) -> str:
    """Syncs a step of both parts, or a dash where nobody counted."""
    return " / ".join("-" if syncs.get(part) is None else f"{syncs[part]:.2f}" for part in ("one", "many"))
