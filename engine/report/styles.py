"""Colours of the confusion matrix: ten levels, with a text colour that can be read on each."""

from engine.report.tables import NUM_LEVELS

WHITE, BLACK = (255, 255, 255), (0, 0, 0)
# Of the light page and the dark one: background, colour of right and of wrong predictions; as in style.css.
THEMES = {
    "light": ((255, 255, 255), (11, 87, 208), (196, 56, 32)),
    "dark": ((18, 22, 27), (110, 160, 245), (255, 125, 100)),
}
Colour = tuple[int, int, int]


def matrix_rules() -> str:
    """The rules .r1 to .r9 (right) and .w1 to .w9 (wrong), for the light page and the dark one."""
    light, dark = (_theme_rules(*colours) for colours in THEMES.values())
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _theme_rules(background: Colour, right: Colour, wrong: Colour) -> str:
    rules = []
    for name, colour in (("r", right), ("w", wrong)):
        for level in range(1, NUM_LEVELS + 1):
            mixed = mix(background, colour, level / NUM_LEVELS)
            text = max(WHITE, BLACK, key=lambda candidate: contrast(candidate, mixed))
            rules.append(f".matrix td.{name}{level} {{ background: {_hex(mixed)}; color: {_hex(text)}; }}")
    return "\n".join(rules)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2, 1 to 21."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    parts = (value / 255 for value in colour)
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)
