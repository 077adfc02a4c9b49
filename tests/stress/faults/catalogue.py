"""The catalogue of faults: all faults of this folder.

Here: what a run reads, as far as it depends on the process (the suite has the rest, reader by reader); a resume; a
sharded run.
"""

import shutil
import signal

from faults import runs
from faults.kills import kill_faults, quick_kill_faults
from faults.processes import MULTI
from faults.runner import Fault
from faults.scene import Scene, given, in_namespace, require_mounts
from faults.tar import tar_faults

from utils.errors import MAY_PASS

_FSDP = "PARALLEL.STRATEGY=fsdp"
_LONGER = "TRAIN.NUM_EPOCHS=3"


def _input_faults() -> list[Fault]:
    large = given(options=("DATA.IMAGE_SIZE=400000",))
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "none"}
    unreachable = r"^http://127.0.0.1:9/org/vit/resolve/main/config.json: cannot be downloaded"
    return [
        Fault("command line: not enough memory", large, r"memory .*-batch_size 64", (MAY_PASS,)),
        Fault("weights: an unreachable Hub", given("-model=hf-hub:org/vit"), unreachable, (MAY_PASS,), environment=hub),
    ]


def _resume_faults() -> list[Fault]:
    def on_full_disk(scene: Scene) -> list[str]:
        require_mounts()
        saved = scene.run_copy()
        shutil.move(scene.output, scene.folder / "saved")
        scene.output.mkdir()
        return scene.digits(_LONGER, flags=(f"-resume={saved}",))

    full = "mount -t tmpfs -o size=16m tmpfs output && cp -r saved/* output && (cat /dev/zero > output/a || true) 2>&-"
    line = r"not one fits; .*resume a copy"
    return [Fault("resume: a full disk", on_full_disk, line, (MAY_PASS,), shell=in_namespace(full))]


def _sharded_faults() -> list[Fault]:
    def on_small_disk(scene: Scene) -> list[str]:
        scene.output.mkdir()
        return two(scene)

    two = runs.two_ranks(runs.training, _FSDP)
    on_sigterm = runs.send(signal.SIGTERM)
    disk = in_namespace("mount -t tmpfs -o size=256k tmpfs output")
    return [
        Fault("sharded run: SIGTERM", two, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("sharded run: a full disk", on_small_disk, "No space left", (MAY_PASS,), MULTI, shell=disk),
    ]


_SUBJECTS = (
    _input_faults, tar_faults, _resume_faults, _sharded_faults,
    runs.output_faults, runs.signal_faults, runs.rank_faults, runs.worker_faults,
    quick_kill_faults, kill_faults,
)  # fmt: skip


def all_faults() -> list[Fault]:
    return [fault for subject in _SUBJECTS for fault in subject()]
