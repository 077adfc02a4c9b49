"""The tables of benchmark_parallel.py, also in those of benchmark_gpu.py."""

from collections.abc import Callable
from typing import Any

from scripts.benchmarks.gpu_parts import Part

PARALLEL, RECORDER_ON, RECORDER_OFF = "parallel", "parallel-recorder", "parallel-no-recorder"  # parts
HEADER = ("variant", "step (ms)", "images/s", "memory (GB)", "predicted images/s", "predicted memory (GB)")
_RATIOS = {"fsdp": "1.10 or less", "ddp_bf16": "1.02 or less", "ddp_exchange": "1.01 or less"}  # step times, to ddp


def variant_rows(result: dict[str, Any]) -> list[list[str]]:
    """A row per variant; predictions with their error, empty without one."""
    rows = []
    for key, one in result["variants"].items():
        if "failed" in one:
            rows.append([key, f"failed: {one['failed']}", "", "", "", ""])
            continue
        cells = [f"{1e3 * one['step_seconds']:.1f}", f"{one['images_per_second']:.1f}"]
        cells.append(f"{one['peak_memory_bytes'] / 1e9:.2f}")
        speed_error, memory_error = _speed_error(one), _memory_error(one)
        has_speed, has_memory = speed_error is not None, memory_error is not None
        cells.append(f"{one['predicted_images_per_second']:.1f} ({speed_error:+.1%})" if has_speed else "")
        cells.append(f"{one['predicted_bytes'] / 1e9:.2f} ({memory_error:+.1%})" if has_memory else "")
        rows.append([key, *cells])
    return rows


def parallel_target_rows(parts: list[Part]) -> list[list[str]]:
    """Each target with the measured value, empty if it was not measured; ratios at the largest batch size."""
    results = {part.name: part.result["variants"] for part in parts if part.name.startswith(PARALLEL) and part.result}
    variants = results.get(PARALLEL, {})
    rows = [[f"step time, `{name} / ddp`", target, _ratio(variants, name)] for name, target in _RATIOS.items()]
    on, off = (_seconds(results.get(name, {}), "ddp") for name in (RECORDER_ON, RECORDER_OFF))
    rows.append(["step time, flight recorder on / off", "1.01 or less", f"{on / off:.3f}" if on and off else ""])
    rows.append(["predicted memory, largest error", "10% or less", _largest(variants, _memory_error)])
    rows.append(["predicted images/s, largest error", "10% or less", _largest(variants, _speed_error)])
    return rows


def _speed_error(one: dict[str, Any]) -> float | None:
    predicted = one.get("predicted_images_per_second")
    return predicted and predicted / one["images_per_second"] - 1


def _memory_error(one: dict[str, Any]) -> float | None:
    predicted = one.get("predicted_bytes")
    return predicted and predicted / one["peak_memory_bytes"] - 1


def _seconds(variants: dict[str, Any], name: str) -> float | None:
    """Of a step at the largest batch size, the last one."""
    found = [one for key, one in variants.items() if key.rpartition("-")[0] == name and "failed" not in one]
    return found[-1]["step_seconds"] if found else None


def _ratio(variants: dict[str, Any], name: str) -> str:
    one, ddp = _seconds(variants, name), _seconds(variants, "ddp")
    return f"{one / ddp:.3f}" if one and ddp else ""


def _largest(variants: dict[str, Any], error: Callable[[dict[str, Any]], float | None]) -> str:
    errors = [value for one in variants.values() if "failed" not in one and (value := error(one)) is not None]
    return f"{max(errors, key=abs):+.1%}" if errors else ""
