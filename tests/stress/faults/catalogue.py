"""The catalogue of faults: all faults of this folder.

Here: what a run reads, as far as it depends on the process (the suite has the rest, reader by reader); checkpoints and
resuming; ranks of a sharded run that die.
"""

import os
import shutil
import signal
from dataclasses import replace

from faults import runs
from faults.processes import MULTI
from faults.runner import Fault, finished
from faults.scene import Scene, given, in_namespace, require_mounts
from faults.tar import tar_faults

from utils.errors import MAY_PASS

_FSDP = "PARALLEL.STRATEGY=fsdp"
_LONGER = "TRAIN.NUM_EPOCHS=3"


def _input_faults() -> list[Fault]:
    def pipe_as_list(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / "train_list.txt").unlink()
        os.mkfifo(scene.data / "train_list.txt")
        return flags

    no_gpu = r"CUDA_VISIBLE_DEVICES 77: torch .* can use no GPU: .*-device cpu"
    large = given(options=("DATA.IMAGE_SIZE=400000",))
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "none"}
    unreachable = r"^http://127.0.0.1:9/org/vit/resolve/main/config.json: cannot be downloaded"
    return [
        Fault("command line: not enough memory", large, r"memory .*-batch_size 64"),
        Fault("a GPU that is named but missing", given(), no_gpu, environment={"CUDA_VISIBLE_DEVICES": "77"}),
        Fault("data: a pipe as list", pipe_as_list, r"train_list.txt"),
        Fault("weights: an unreachable Hub", given("-model=hf-hub:org/vit"), unreachable, environment=hub),
    ]


def _resume_faults() -> list[Fault]:
    def damaged(scene: Scene) -> list[str]:
        last = scene.run_copy() / "last.pth"
        data = bytearray(last.read_bytes())
        data[len(data) // 2] ^= 1
        last.write_bytes(data)
        return scene.digits(_LONGER, flags=("-resume=auto",))

    def on_full_disk(scene: Scene) -> list[str]:
        require_mounts()
        saved = scene.run_copy()
        shutil.move(scene.output, scene.folder / "saved")
        scene.output.mkdir()
        return scene.digits(_LONGER, flags=(f"-resume={saved}",))

    full = "mount -t tmpfs -o size=16m tmpfs output && cp -r saved/* output && (cat /dev/zero > output/a || true) 2>&-"
    return [
        Fault("resume: a full disk", on_full_disk, r"not one fits; .*resume a copy", shell=in_namespace(full)),
        finished("resume: auto, the last is damaged", damaged, prints="Resume: skipped"),
    ]


def _sharded_faults() -> list[Fault]:
    def on_small_disk(scene: Scene) -> list[str]:
        scene.output.mkdir()
        return two(scene)

    two, in_evaluation = runs.two_ranks(runs.training, _FSDP), runs.two_ranks(runs.evaluating, _FSDP)
    on_sigterm = runs.send(signal.SIGTERM)
    disk = in_namespace("mount -t tmpfs -o size=256k tmpfs output")
    faults = [
        *runs.rank_deaths(_FSDP, may_cut_save=True),
        Fault("SIGTERM", two, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("SIGTERM in evaluation", in_evaluation, None, (143,), MULTI, on_sigterm, "interrupted"),
        Fault("a disk that fills up while saving", on_small_disk, "No space left", (1,), MULTI, shell=disk),
    ]
    return [replace(fault, name=f"sharded run: {fault.name}") for fault in faults]


_SUBJECTS = (
    _input_faults, tar_faults, _resume_faults, _sharded_faults,
    runs.output_faults, runs.signal_faults, runs.rank_faults, runs.worker_faults,
)  # fmt: skip
# The exit status says that a retry may cure them. Of the others, those with an error line are refused.
_MAY_PASS = (
    "a GPU that is named but missing", "command line: not enough memory",
    "tar: no writable place for the index", "tar server: goes away", "tar server: shards are replaced during the run",
    "weights: an unreachable Hub", "resume: a full disk",
    "output: a file", "output: no folder for files", "output: read-only", "output: a full disk",
    "output: a disk that fills up while saving", "output: a limit on the file size", "output: the folder is moved",
    "the folder of the shell is deleted", "worker killed", "worker stopped",
    "evaluation worker killed", "evaluation worker stopped",
)  # fmt: skip


def all_faults() -> list[Fault]:
    faults = {fault.name: fault for subject in _SUBJECTS for fault in subject()}
    return list((faults | {name: replace(faults[name], status=(MAY_PASS,)) for name in _MAY_PASS}).values())
