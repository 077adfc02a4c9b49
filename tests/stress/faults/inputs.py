"""Faults in what a run reads: one or two of each reader, and those that depend on the process.

The unit tests of the readers have the other ones.
"""

import os
import pickle

from faults.processes import MULTI
from faults.runner import Fault, Provoke, finished
from faults.scene import RunsCode, Scene, Skipped, flipped, image_bytes, torch_bytes, with_last


def input_faults() -> list[Fault]:
    return [*_command_line_faults(), *_data_faults(), *_weights_faults()]


def _given(*flags: str, options: tuple[str, ...] = ()) -> Provoke:
    return lambda scene: scene.digits(*options, flags=flags)


def _command_line_faults() -> list[Fault]:
    def recipe(content: str) -> Provoke:
        return lambda scene: [f"-cfg={scene.write('recipe.yaml', content)}"]

    def pipe(scene: Scene) -> list[str]:
        os.mkfifo(scene.folder / "pipe.yaml")
        return [f"-cfg={scene.folder / 'pipe.yaml'}"]

    def predict(scene: Scene) -> list[str]:
        image = scene.write("a.jpg", b"hello")
        return [f"-predict={image}", f"-resume={scene.trained}", f"-output={scene.output}"]

    ranks = {"RANK": "abc", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    no_gpu = r"CUDA_VISIBLE_DEVICES 77: torch .* can use no GPU: .*-device cpu"
    large = _given(options=("DATA.IMAGE_SIZE=400000",))
    number = _given(options=("SEED=" + "9" * 9000,))
    return [
        Fault("command line: misspelt flag", _given("-batchsize=4"), r"unknown flag -batchsize; .* -batch_size\?"),
        Fault("command line: number of 9000 digits", number, r"'9+\.\.\.9+' cannot be read as a value"),
        Fault("command line: not enough memory", large, r"memory .*-batch_size 64"),
        Fault("recipe: a tag with code", recipe("SAVE: !!python/object/apply:os.system [ls]"), r":1: the tag"),
        Fault("recipe: a pipe", pipe, r"pipe.yaml: cannot be read: not a regular file"),
        Fault("predict: no readable image", predict, r"none of the 1 images can be read; .*predictions.csv"),
        Fault("a GPU that is named but missing", _given(), no_gpu, environment={"CUDA_VISIBLE_DEVICES": "77"}),
        Fault("-device=cuda without a GPU", _given("-device=cuda"), r"-device cuda.*excludes all GPUs"),
        Fault(
            "launcher: several processes of the single-device script",
            _given(),
            r"this script uses one",
            environment={"WORLD_SIZE": "2"},
        ),
        Fault("launcher: RANK is not a number", _given(), r"RANK.*abc", script=MULTI, environment=ranks),
    ]


def _with_file(name: str, content: str | bytes, *options: str) -> Provoke:
    """The data set with one file replaced."""

    def provoke(scene: Scene) -> list[str]:
        flags = scene.images(*options)
        scene.write(f"data/{name}", content)
        return flags

    return provoke


def _data_faults() -> list[Fault]:
    def without_list(scene: Scene) -> list[str]:
        flags = scene.images()
        (scene.data / "train_list.txt").unlink()
        return flags

    def pipe_as_list(scene: Scene) -> list[str]:
        flags = without_list(scene)
        os.mkfifo(scene.data / "train_list.txt")
        return flags

    def cifar_with_code(scene: Scene) -> list[str]:
        scene.write("cifar/batches.meta", pickle.dumps(RunsCode()))
        return scene.images(dataset="cifar10", flags=(f"-data_path={scene.folder / 'cifar'}",))

    def unreadable(scene: Scene) -> list[str]:
        if os.geteuid() == 0:
            raise Skipped("root can read all files")
        flags = scene.images()
        (scene.data / "train/cat/3.jpg").chmod(0)
        return flags

    image, cut = "train/cat/3.jpg", image_bytes()[:400]
    skipping = _with_file(image, b"hello", "DATA.ON_BAD_IMAGE=skip")
    skipped = "1 of 24 training images could not be read and were skipped"
    return [
        Fault("data: no list", without_list, r"train_list.txt: cannot be read \(No such file"),
        Fault("data: a pipe as list", pipe_as_list, r"train_list.txt"),
        Fault("data: a pickle with code for CIFAR", cifar_with_code, r"batches.meta: .*posix.system"),
        Fault("image: cut short", _with_file(image, cut), r"3\.jpg: cannot be decoded"),
        Fault(
            "image: cut short, read by a worker", _with_file(image, cut, "DATA.NUM_WORKERS=1"), r"3\.jpg: cannot be dec"
        ),
        Fault("image: without read permission", unreadable, r"3\.jpg: cannot be read \(Permission denied"),
        finished("image: text, with ON_BAD_IMAGE=skip", skipping, prints=skipped),
    ]


def _weights_faults() -> list[Fault]:
    def with_code(scene: Scene) -> list[str]:
        path = scene.write("vit.pth", torch_bytes({"a": RunsCode()}))
        return scene.digits(flags=(f"-pretrained={path}",))

    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "none"}
    line = r"^http://127.0.0.1:9/org/vit/resolve/main/config.json: cannot be downloaded .*-model=local-dir:FOLDER"
    distilled = _given("-teacher_model_path=none.pth", options=("TRAIN.DISTILLATION_TYPE=soft",))
    return [
        Fault("weights: missing", _given("-pretrained=none"), r"none: no such file, also with .pdparams"),
        Fault("weights: with a bit flipped", with_last("pretrained", flipped), r"last.pth: is damaged .*checksum"),
        Fault("weights: pth with code", with_code, r"vit.pth: .*posix.system"),
        Fault("weights: an unreachable Hub", _given("-model=hf-hub:org/vit"), line, environment=hub),
        Fault("teacher: missing", distilled, r"TRAIN.TEACHER_WEIGHTS"),
    ]
