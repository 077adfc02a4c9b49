"""Faults in what a run reads that depend on the process; the suite has the others, reader by reader."""

import os

from faults.runner import Fault
from faults.scene import Scene, given


def input_faults() -> list[Fault]:
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
