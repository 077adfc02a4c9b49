"""Faults in probes (MODEL.TUNE) and in -embed."""

from faults.runner import Fault, Provoke
from faults.scene import Scene, image_bytes


def feature_faults() -> list[Fault]:
    def probe(*options: str, flags: tuple[str, ...] = ()) -> Provoke:
        return lambda scene: scene.digits("MODEL.TUNE=probe", *options, flags=flags)

    def of_timm(name: str, *options: str) -> Provoke:
        flags = [f"-model={name}", "-dataset=digits", "-image_size=32", "-opts", "MODEL.TUNE=probe", *options]
        return lambda scene: [f"-output={scene.output}", *flags]

    def embed(name: str, content: bytes, *flags: str) -> Provoke:
        def provoke(scene: Scene) -> list[str]:
            path = scene.write(name, content)
            return [f"-embed={path}", f"-resume={scene.trained}", f"-output={scene.output}", *flags]

        return provoke

    def of_other_weights(scene: Scene) -> list[str]:
        scene.write("output/embeddings.npy.part.json", '{"digest": "of other weights", "done": 0}')
        return embed("a.jpg", image_bytes())(scene)

    table: dict[str, tuple[Provoke, str]] = {
        "two heads": (
            of_timm("deit_tiny_distilled_patch16_224"),
            r"MODEL.TUNE probe: the head of deit_tiny_distilled_patch16_224 is not one linear layer",
        ),
        "no class token": (probe("MODEL.FEATURES=token", "MODEL.GLOBAL_POOL=avg"), r"this model has no class token"),
        "no tokens": (of_timm("test_resnet", "MODEL.FEATURES=avg"), r"MODEL.FEATURES avg: needs a ViT"),
        "sharded": (probe("PARALLEL.STRATEGY=fsdp"), r"PARALLEL.STRATEGY fsdp: MODEL.TUNE probe needs whole models"),
        "a profile": (probe(flags=("-profile",)), r"cannot be combined with MODEL.TUNE probe"),
        "no readable image": (embed("a.jpg", b"hello"), r"none of the 1 images can be read; .*embeddings.csv has the"),
        "two commands": (embed("a.jpg", image_bytes(), "-predict"), r"-embed and -predict are two commands"),
        "a flag of -predict": (embed("a.jpg", image_bytes(), "-top_k=3"), r"-top_k is a flag of -predict"),
        "features of other weights": (of_other_weights, r"embeddings.npy.part: has features of other weights"),
    }
    return [Fault(f"features: {name}", provoke, line) for name, (provoke, line) in table.items()]
