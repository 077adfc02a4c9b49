"""Lists the files that a reader must know to follow a training run from its command to its end, and counts them.

    python tests/stress/trace_files.py

The run: vit_digits for one epoch, in one process without loading workers, on the CPU. A product file counts in a phase
if one of its functions is called there: before the first step, in the steps (`train_steps` and its callbacks), or after
them. Bodies of modules, classes and comprehensions, functions called during an import, and other threads do not count.

Depth: the largest number of product functions on the stack. Upward call: a function calls a function of a layer above
its own, directly or through torch or another package; `tests/test_layers.py` has the order of the layers. A generator
that continues counts as called.
"""

import inspect
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

PHASES = BEFORE, STEPS, AFTER = "before the first step", "in the steps", "after them"
_STEPS = ("engine/training/step.py", "train_steps")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # functions before Python 3.12
_PRODUCT = ("configs/", "datasets/", "engine/", "models/", "utils/", "main_")
Call = tuple[str, str, str]  # phase, file of the caller, file of the called function


class Tracer:
    """Observes the product functions that this thread calls while the tracer is the context."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = f"{root}/"
        self.files: dict[str, set[str]] = {phase: set() for phase in PHASES}
        self.depth = dict.fromkeys(PHASES, 0)
        self.calls: Counter[Call] = Counter()
        self._phase, self._stack, self._imports = BEFORE, list[str](), 0
        self._file_of: dict[CodeType, str | None] = {}

    def __enter__(self) -> "Tracer":
        sys.setprofile(self._observe)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _observe(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        code, is_call = frame.f_code, event == "call"
        if code.co_name == "<module>":
            self._imports += 1 if is_call else -1
        if self._imports or not (file := self._product_file(code)):
            return
        if (file, code.co_name) == _STEPS:
            self._phase = STEPS if is_call else AFTER
        if is_call:
            self.files[self._phase].add(file)
            if self._stack:
                self.calls[self._phase, self._stack[-1], file] += 1
            self._stack.append(file)
            self.depth[self._phase] = max(self.depth[self._phase], len(self._stack))
        else:
            self._stack.pop()

    def _product_file(self, code: CodeType) -> str | None:
        """The file of a function, relative to the root; None for other code."""
        if code not in self._file_of:
            file = code.co_filename.removeprefix(self._root)
            is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in _COMPREHENSIONS
            self._file_of[code] = file if is_function and file.startswith(_PRODUCT) else None
        return self._file_of[code]


def upward_calls(calls: Mapping[Call, int]) -> Counter[Call]:
    """The calls into a layer above the caller's."""
    from test_layers import ENGINE_LAYERS, LAYERS, PROJECT_MODULES  # after the trace: it imports the product

    height_in_engine = {name: -number for number, names in enumerate(ENGINE_LAYERS) for name in names}

    def height(file: str) -> tuple[int, int]:
        """Orders files by layer: by the number of layers that theirs may import, all for the entry scripts."""
        top, _, rest = file.partition("/")
        package = rest.partition("/")[0].removesuffix(".py")
        return len(LAYERS.get(top, PROJECT_MODULES)), height_in_engine.get(package, 0) if top == "engine" else 0

    return Counter({call: count for call, count in calls.items() if height(call[2]) > height(call[1])})


def trace_run() -> Tracer:
    """Trains for one epoch in this process."""
    import main_single_gpu

    with tempfile.TemporaryDirectory() as output, Tracer() as tracer:
        recipe = f"-cfg={ROOT}/configs/vit_digits.yaml"
        if main_single_gpu.main([recipe, "-device=cpu", "-epochs=1", "-num_workers=0", f"-output={output}"]):
            raise SystemExit("the run failed")
    if not tracer.files[STEPS]:
        raise SystemExit(f"{' '.join(_STEPS)}: the run did not call it; has it moved?")
    return tracer


def main() -> None:
    tracer = trace_run()
    upward = upward_calls(tracer.calls)
    for file in sorted(set().union(*tracer.files.values())):
        print(f"{file}: {', '.join(phase for phase in PHASES if file in tracer.files[phase])}")
    for (phase, caller, called), count in sorted(upward.items()):
        print(f"{phase}: {caller} calls upward: {called}, {count} times")
    print("| phase | files | depth | upward calls | pairs of files with upward calls |\n|---|---|---|---|---|")
    for phases in ([BEFORE], [STEPS], [AFTER], [BEFORE, STEPS], PHASES):
        files = len(set().union(*(tracer.files[phase] for phase in phases)))
        depth = max(tracer.depth[phase] for phase in phases)
        counts = {call: count for call, count in upward.items() if call[0] in phases}
        pairs = len({call[1:] for call in counts})
        print(f"| {', '.join(phases)} | {files} | {depth} | {sum(counts.values())} | {pairs} |")


if __name__ == "__main__":
    main()
