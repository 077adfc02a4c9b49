"""The tables of benchmark_parallel.py, also in those of benchmark_gpu.py."""

from typing import Any

HEADER = ("variant", "step (ms)", "images/s", "memory (GB)", "predicted images/s", "predicted memory (GB)")


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


def _speed_error(one: dict[str, Any]) -> float | None:
    predicted = one.get("predicted_images_per_second")
    return predicted and predicted / one["images_per_second"] - 1


def _memory_error(one: dict[str, Any]) -> float | None:
    predicted = one.get("predicted_bytes")
    return predicted and predicted / one["peak_memory_bytes"] - 1
