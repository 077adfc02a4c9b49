"""AMP.PRESET: the values of another system's mixed precision."""

from configs.reading.option_layers import OptionLayers, flatten
from configs.reading.yaml_io import format_value
from configs.schema.amp import PRESETS


def apply_preset(layers: OptionLayers) -> list[str]:
    """Adds the values of AMP.PRESET. A key wins if the layer of PRESET, or a higher one, gives it.

    Returns:
        a line for the log with the added values, or nothing.
    """
    name, level = str(dict(flatten(layers.values)).get("AMP.PRESET")), layers.level("AMP.PRESET")
    values = {key: value for key, value in PRESETS.get(name, {}).items() if layers.level(f"AMP.{key}") < level}
    if not values:  # or an unknown name, which the check of the options reports
        return []
    layers.add({"AMP": values}, f"AMP.PRESET {name}")
    return [f"AMP.PRESET {name}: {', '.join(f'{key} {format_value(value)}' for key, value in values.items())}"]
