"""Faults in predictions."""

from faults.runner import Fault, Provoke
from faults.scene import Scene, image_bytes


def prediction_faults() -> list[Fault]:
    def of(name: str, content: bytes | None, *flags: str) -> Provoke:
        """Predicts the file or folder `name` with the finished run of the scene; None: an empty folder."""

        def provoke(scene: Scene) -> list[str]:
            path = scene.folder / name
            if content is None:
                path.mkdir(parents=True)
            elif content:
                scene.write(name, content)
            return [f"-predict={path}", f"-resume={scene.trained}", f"-output={scene.output}", *flags]

        return provoke

    image = image_bytes()
    table: dict[str, tuple[Provoke, str]] = {
        "no such path": (of("nowhere", b""), r"nowhere: no such file or folder"),
        "a folder without images": (of("photos", None), r"photos: contains no images"),
        "an empty list": (of("list.txt", b"\n"), r"list.txt: lists no images"),
        "an archive": (of("photos.zip", image), r"photos.zip: is an archive; unpack it"),
        "a list in UTF-16": (of("list.txt", "a.jpg\n".encode("utf-16-le")), r"list.txt:1: .* is not a path"),
        "no readable image": (of("a.jpg", b"hello"), r"none of the 1 images can be read; .*predictions.csv has the"),
        "a list without readable images": (of("list.txt", b"a.jpg\nb.jpg 1\n"), r"none of the 2 images can be read"),
        "a split and a path": (of("a.jpg", image, "-split=val"), r"remove the path, or -split"),
        "maps of an evaluation": (
            lambda scene: ["-eval", "-explain", f"-resume={scene.trained}"],
            r"-explain is a flag",
        ),
        "unknown split": (lambda scene: ["-predict", "-split=all", f"-resume={scene.trained}"], r"-split all: digit"),
    }
    return [Fault(f"predict: {name}", provoke, line) for name, (provoke, line) in table.items()]
