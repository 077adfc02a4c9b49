"""AMP.PRESET: the values of another system's mixed precision."""

from configs.reading.option_layers import OptionLayers
from configs.reading.yaml_io import format_value
from configs.schema.amp import PRESETS


def apply_preset(layers: OptionLayers) -> list[str]:
    """Adds the values of AMP.PRESET. A key wins if the layer of PRESET, or a higher one, gives it.

    Returns:
        a line for the log with the added values, or nothing.
    """
    amp = layers.values.get("AMP")
    name = amp.get("PRESET") if isinstance(amp, dict) else None
    if not isinstance(name, str) or name not in PRESETS:  # the check of the options reports it
        return []
    level = layers.level("AMP.PRESET")
    values = {key: value for key, value in PRESETS[name].items() if layers.level(f"AMP.{key}") < level}
    if not values:
        return []
    layers.add({"AMP": values}, f"AMP.PRESET {name}")
    return [f"AMP.PRESET {name}: {', '.join(f'{key} {format_value(value)}' for key, value in values.items())}"]
