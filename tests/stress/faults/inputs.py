"""Faults in what a run reads that depend on the process, or that no unit test of a reader has."""

import os

from faults.runner import Fault, finished
from faults.scene import Provoke, Scene, Skipped, given

from tests.datasets.shards.tar_files import jpeg


def input_faults() -> list[Fault]:
    return [*_command_line_faults(), *_data_faults(), *_weights_faults()]


def _command_line_faults() -> list[Fault]:
    no_gpu = r"CUDA_VISIBLE_DEVICES 77: torch .* can use no GPU: .*-device cpu"
    two = {"WORLD_SIZE": "2"}
    large = given(options=("DATA.IMAGE_SIZE=400000",))
    number = given(options=("SEED=" + "9" * 9000,))
    return [
        Fault("command line: number of 9000 digits", number, r"'9+\.\.\.9+' cannot be read as a value"),
        Fault("command line: not enough memory", large, r"memory .*-batch_size 64"),
        Fault("a GPU that is named but missing", given(), no_gpu, environment={"CUDA_VISIBLE_DEVICES": "77"}),
        Fault(
            "launcher: several processes of the single-device script", given(), r"this script uses one", environment=two
        ),
    ]


def _data_faults() -> list[Fault]:
    def with_file(name: str, content: bytes, *options: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            flags = scene.images(*options)
            scene.write(f"data/{name}", content)
            return flags

        return provoke

    def without_list(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / "train_list.txt").unlink()
        return flags

    def pipe_as_list(scene: Scene) -> list[str]:
        flags = without_list(scene)
        os.mkfifo(scene.data / "train_list.txt")
        return flags

    def variants(scene: Scene) -> list[str]:
        flags = scene.images(dataset="folder")
        for split, name in (("train", "color"), ("val", "gray")):
            (scene.data / split).rename(scene.data / name)
        return flags

    def unreadable(scene: Scene) -> list[str]:
        if os.geteuid() == 0:
            raise Skipped("root can read all files")
        flags = scene.images()
        (scene.data / "train/cat/3.jpg").chmod(0)
        return flags

    image = "train/cat/3.jpg"
    cut_short = with_file(image, jpeg(0)[:400], "DATA.NUM_WORKERS=1")
    restarted = with_file(image, jpeg(0)[:400] + jpeg(0))
    skipping = with_file(image, b"hello", "DATA.ON_BAD_IMAGE=skip")
    skipped = "1 of 24 training images could not be read and were skipped"
    return [
        Fault("data: no list", without_list, r"train_list.txt: cannot be read \(No such file"),
        Fault(
            "data: variants of the class folders", variants, r"same folders, 'cat', 'dog', .* -data_path=.*/color or"
        ),
        Fault("data: a pipe as list", pipe_as_list, r"train_list.txt"),
        Fault("image: cut short, read by a worker", cut_short, r"3\.jpg: cannot be decoded"),
        Fault("image: a download that began again", restarted, r"3\.jpg: cannot be decoded"),
        Fault("image: without read permission", unreadable, r"3\.jpg: cannot be read \(Permission denied"),
        finished("image: text, with ON_BAD_IMAGE=skip", skipping, prints=skipped),
    ]


def _weights_faults() -> list[Fault]:
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "none"}
    line = r"^http://127.0.0.1:9/org/vit/resolve/main/config.json: cannot be downloaded .*-model=local-dir:FOLDER"
    distilled = given("-teacher_model_path=none.pth", options=("TRAIN.DISTILLATION_TYPE=soft",))
    return [
        Fault("weights: missing", given("-pretrained=none"), r"none: no such file, also with .pdparams"),
        Fault("weights: an unreachable Hub", given("-model=hf-hub:org/vit"), line, environment=hub),
        Fault("teacher: missing", distilled, r"TRAIN.TEACHER_WEIGHTS"),
        Fault("checkpoint: missing", given("-resume=none.pth"), r"none.pth: no such file"),
    ]
