"""Lists the product files that one training enters, and counts files and functions.

    python tests/stress/trace_files.py

The run: vit_digits for one epoch, in one process without loading workers, on the CPU. A file counts in a phase if one
of its functions is called there: before the first step, in the steps (`train_steps` and its callbacks), or after them.
Bodies of modules and classes, functions called during an import, and other threads do not count.
"""

import inspect
import sys
import tempfile
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

PHASES = BEFORE, STEPS, AFTER = "before the first step", "in the steps", "after them"
_PRODUCT = ("configs/", "datasets/", "engine/", "models/", "utils/", "main_")


class Tracer:
    """Observes the product functions that this thread calls: (file, function), by phase."""

    def __init__(self) -> None:
        self.called: dict[str, set[tuple[str, str]]] = {phase: set() for phase in PHASES}
        self._phase, self._imports = BEFORE, 0

    def observe(self, frame: FrameType, event: str, _: object) -> None:
        code, is_call = frame.f_code, event == "call"
        if event not in ("call", "return"):
            return
        if code.co_name == "<module>":
            self._imports += 1 if is_call else -1
        file = code.co_filename.removeprefix(f"{ROOT}/")
        if self._imports or not (file.startswith(_PRODUCT) and code.co_flags & inspect.CO_OPTIMIZED):
            return
        if (file, code.co_name) == ("engine/training/step.py", "train_steps"):
            self._phase = STEPS if is_call else AFTER
        if is_call:
            self.called[self._phase].add((file, code.co_qualname))


def main() -> None:
    import main_single_gpu

    tracer, recipe = Tracer(), f"-cfg={ROOT}/configs/vit_digits.yaml"
    with tempfile.TemporaryDirectory() as output:
        sys.setprofile(tracer.observe)
        status = main_single_gpu.main([recipe, "-device=cpu", "-epochs=1", "-num_workers=0", f"-output={output}"])
        sys.setprofile(None)
    if status or not tracer.called[STEPS]:
        raise SystemExit("the run failed, or did not call train_steps")
    everything = set().union(*tracer.called.values())
    for file in sorted({file for file, _ in everything}):
        phases = [phase for phase in PHASES if any(file == one for one, _ in tracer.called[phase])]
        print(f"{file}: {', '.join(phases)}")
    print("| phase | files | functions |\n|---|---|---|")
    for phase, called in (*tracer.called.items(), ("all", everything)):
        print(f"| {phase} | {len({file for file, _ in called})} | {len(called)} |")


if __name__ == "__main__":
    main()
