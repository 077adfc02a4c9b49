"""Faults in checkpoints and in resuming."""

from faults.runner import Fault, finished
from faults.scene import Scene, flipped, in_namespace, require_mounts, with_last

_FULL = in_namespace(
    "mount -t tmpfs -o size=16m tmpfs output && cp -r saved/* output && (cat /dev/zero > output/fill || true) 2>&-"
)


def checkpoint_faults() -> list[Fault]:
    of_another_model = with_last("resume", lambda path: None, "MODEL.EMBED_DIM=32")
    return [
        Fault(
            "checkpoint: missing", lambda scene: scene.digits(flags=("-resume=none.pth",)), r"none.pth: no such file"
        ),
        Fault("checkpoint: with a bit flipped", with_last("resume", flipped), r"last.pth: is damaged"),
        Fault("checkpoint: of another model", of_another_model, r"checkpoint is of another model"),
    ]


def resume_faults() -> list[Fault]:
    return [
        Fault("resume: a full disk", _full_disk, r"output/\S+: No space left", shell=_FULL),
        finished("resume: a folder, the last is damaged", _damaged_in_folder, prints="Resume: skipped"),
        finished("resume: auto, the last is damaged", _damaged_and_found),
    ]


def _damaged_in_folder(scene: Scene) -> list[str]:
    return scene.digits("TRAIN.NUM_EPOCHS=3", flags=(f"-resume={flipped(scene.run_copy() / 'last.pth').parent}",))


def _damaged_and_found(scene: Scene) -> list[str]:
    flipped(scene.run_copy() / "last.pth")
    return scene.digits("TRAIN.NUM_EPOCHS=3", flags=("-resume=auto",))


def _full_disk(scene: Scene) -> list[str]:
    require_mounts()
    saved = scene.run_copy()
    scene.output.rename(scene.folder / "saved")
    scene.output.mkdir()
    return scene.digits("TRAIN.NUM_EPOCHS=3", flags=(f"-resume={saved}",))
