"""Faults in command lines and recipes."""

import os

from faults.processes import MULTI
from faults.runner import Fault, Provoke
from faults.scene import Scene


def command_line_faults() -> list[Fault]:
    def given(*flags: str, options: tuple[str, ...] = ()) -> Provoke:
        return lambda scene: scene.digits(*options, flags=flags)

    def option(*options: str) -> Provoke:
        return given(options=options)

    def timm(*options: str) -> Provoke:
        keys = "MODEL.PATCH_SIZE=", "MODEL.EMBED_DIM=", "MODEL.DEPTH=", "MODEL.NUM_HEADS="  # of the scene's ViT
        return lambda scene: [w for w in scene.digits("MODEL.TYPE=timm", *options) if not w.startswith(keys)]

    def tuned(name: str, tune: str) -> Provoke:
        return timm(f"MODEL.NAME={name}", f"MODEL.TUNE={tune}", "DATA.IMAGE_SIZE=224")

    def argument(name: str) -> Provoke:
        return timm("MODEL.NAME=test_vit", f"MODEL.KWARGS={{{name}: 4}}")

    adapters = "MODEL.TUNE=lora", "MODEL.LORA.RANK=8"
    without_layers = timm("MODEL.NAME=poolformerv2_s12", "DATA.IMAGE_SIZE=64", "TRAIN.LAYER_DECAY=0.7")
    steps, little = "DATA.GLOBAL_BATCH_SIZE=64", ("-batch_size=auto", "-memory_gb=0.01")
    table: dict[str, tuple[Provoke, str]] = {
        "misspelt flag": (given("-batchsize=4"), r"unknown flag -batchsize; did you mean -batch_size\?"),
        "pre-training of MAE": (given("-mae_pretrain"), r"-mae_pretrain: MAE's pre-training is not available"),
        "an empty variable": (given("-pretrained="), r"-pretrained is empty; give a value, or remove the flag"),
        "abbreviated flag": (given("-e"), r"unknown flag -e"),
        "text for a number": (given("-batch_size=x"), r"-batch_size.*: .x. is neither a number nor auto"),
        "batch size 0": (given("-batch_size=0"), r"-batch_size: DATA.BATCH_SIZE is 0: .* greater than or equal to 1"),
        "auto without a global batch": (given("-batch_size=auto"), r"BATCH_SIZE auto .*DATA.GLOBAL_BATCH_SIZE"),
        "auto on a CPU": (given("-batch_size=auto", options=(steps,)), r"-batch_size=auto: a CPU .*-memory_gb"),
        "memory for no image": (given(*little, options=(steps,)), r"-batch_size=auto: not one image .*-memory_gb"),
        "no value": (lambda scene: ["-cfg"], r"-cfg: expected one argument"),
        "-ngpus=0": (given("-ngpus=0"), r"-ngpus 0: must be at least 1"),
        "-ngpus=2 for the single-device script": (given("-ngpus=2"), r"-ngpus 2: this script uses one process"),
        "option without a value": (option("SEED"), r"-opts SEED: expected KEY=VALUE"),
        "misspelt key": (option("TRAIN.BASE_LRR=1"), r"unknown key TRAIN.BASE_LRR; did you mean TRAIN.BASE_LR\?"),
        "number of 9000 digits": (option("SEED=" + "9" * 9000), r"'9+\.\.\.9+' cannot be read as a value"),
        "long unknown flag": (given("-" + "x" * 50_000), r"unknown flag -x{70,90}"),
        "unknown half type": (given("-amp_dtype=int8"), r"-amp_dtype: AMP.DTYPE is 'int8'"),
        "evaluation without weights": (given("-eval"), r"EVAL.ENABLED needs weights"),
        "misspelt data set": (given("-dataset=digit"), r"unknown data set digit; did you mean digits\?"),
        "a folder beside the digits": (given("-data_path=data"), r"digits \(-dataset\) does not use .*\(-data_path\)"),
        "image size that has no whole patches": (option("DATA.IMAGE_SIZE=9"), r"IMAGE_SIZE 9"),
        "misspelt optimizer": (option("TRAIN.OPTIMIZER.NAME=AdamX"), r"unknown optimizer AdamX; did you mean"),
        "two betas of three": (option("TRAIN.OPTIMIZER={NAME: adan, BETAS: [0.9, 0.99]}"), r"BETAS: adan has 3 values"),
        "a fold out of range": (option("DATA.FOLDS=5", "DATA.FOLD=5"), r"FOLD is 5: with FOLDS 5 it must be 0 to 4"),
        "a fold without folds": (option("DATA.FOLD=0"), r"DATA.FOLD 0 needs FOLDS"),
        "folds and a fraction": (option("DATA={FOLDS: 5, FOLD: 0, VAL_FRACTION: 0.2}"), r"remove one"),
        "second derivatives": (option("TRAIN.OPTIMIZER.NAME=adahessian"), r"adahessian needs second derivatives"),
        "misspelt argument": (option("TRAIN.OPTIMIZER.KWARGS={amsgrat: true}"), r"KWARGS: .*; did you mean amsgrad"),
        "unknown timm model": (timm("MODEL.NAME=resnet180"), r"timm has no model resnet180; did you mean"),
        "misspelt argument of a model": (argument("reg_token"), r"MODEL.KWARGS: reg_token .*mean reg_tokens"),
        "argument of a loader": (argument("pretrained"), r"MODEL.KWARGS: pretrained is no further argument"),
        "argument that has a key": (argument("img_size"), r"MODEL.KWARGS: img_size .*its key is DATA.IMAGE_SIZE"),
        "a model folder without config.json": (given("-model=local-dir:none"), r"none/config.json: is missing"),
        "size that timm refuses": (timm("MODEL.NAME=convnext_atto", "DATA.IMAGE_SIZE=16"), r"IMAGE_SIZE 16"),
        "weights of timm for a ViT": (option("MODEL.PRETRAINED=timm"), r"PRETRAINED timm needs .*TYPE timm"),
        "a threshold without bce": (option("LOSS.TARGET_THRESHOLD=0.2"), r"LOSS.TARGET_THRESHOLD .*bce"),
        "an unknown loss": (option("LOSS.NAME=focal"), r"LOSS.NAME is 'focal': .*known: cross_entropy, bce"),
        "too few class weights": (option("LOSS.CLASS_WEIGHTS=[1.0, 2.0]"), r"LOSS.CLASS_WEIGHTS: .*2 .*10 classes"),
        "a class weight of 0": (option("LOSS.CLASS_WEIGHTS=[0.0, 1.0]"), r"LOSS.CLASS_WEIGHTS is .0.0, 1.0"),
        "an op of two meanings": (option("AMP={ENABLED: true, CUSTOM_BLACK_LIST: [mul]}"), r"mul is a matrix product"),
        "two scalings": (option("TRAIN.LINEAR_SCALED_LR=512", "TRAIN.SQRT_SCALED_LR=512"), r"SQRT_SCALED_LR"),
        "decay epochs of a cosine": (option("TRAIN.LR_SCHEDULER.DECAY_EPOCHS=3"), r"DECAY_EPOCHS .*cosine"),
        "a prefix of wsd": (option("TRAIN.LR_SCHEDULER={NAME: wsd, WARMUP_PREFIX: true}"), r"WARMUP_PREFIX .*wsd"),
        "a long decay": (option("TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 2}"), r"DECAY_EPOCHS 2 .*NUM_EPOCHS 2"),
        "layer decay of a model without layers": (without_layers, r"TRAIN.LAYER_DECAY: this model"),
        "raw weights without an average": (option("EVAL_RAW=true"), r"EVAL_RAW needs an average of the weights"),
        "mAP of one label": (option("EVAL.BEST_METRIC=mean_ap"), r"BEST_METRIC mean_ap does not apply .*one label"),
        "an unknown metric": (option("EVAL.BEST_METRIC=f1"), r"EVAL.BEST_METRIC is 'f1': input should be 'top1'"),
        "a threshold in percent": (given("-predict", "-threshold=70"), r"-threshold 70: is a probability"),
        "patience, no evaluation": (option("TRAIN.PATIENCE=1", "VALIDATE_FREQ=2"), r"PATIENCE 1 .*FREQ 2"),
        "AdamWDL without layer decay": (option("TRAIN.OPTIMIZER.NAME=AdamWDL"), r"AdamWDL needs LAYER_DECAY"),
        "no epochs left": (given("-last_epoch=2"), r"LAST_EPOCH 2 of NUM_EPOCHS 2: no epoch is left"),
        "more blocks than there are": (option("MODEL.TUNE=last:99"), r"MODEL.TUNE last:99: .* has \d+ blocks"),
        "last blocks of no known order": (tuned("pit_ti_224", "last:1"), r"last:1: pit_ti_224 has no group_matcher"),
        "adapters without linear layers": (tuned("resnet18", "lora"), r"TUNE lora: resnet18 has no linear layers"),
        "a rank above the width": (option(adapters[0], "MODEL.LORA.RANK=9999"), r"LORA.RANK 9999: .* only \d+ wide"),
        "adapters for no layer": (option(*adapters, "MODEL.LORA.TARGETS=[qvk]"), r"TARGETS: qvk .* did you mean"),
        "nothing to tune": (option("MODEL.TUNE=last:0"), r"MODEL.TUNE.* last:N"),
        "not enough memory": (option("DATA.IMAGE_SIZE=400000"), r"memory .*-batch_size 64"),
    }
    single = r"a launcher started several processes, this script uses one"
    no_gpu = r"CUDA_VISIBLE_DEVICES 77: torch .* can use no GPU: .*-device cpu"
    ranks = {"RANK": "abc", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return [
        *(Fault(f"command line: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault("a GPU that is named but missing", given(), no_gpu, environment={"CUDA_VISIBLE_DEVICES": "77"}),
        Fault("-device=cuda without a GPU", given("-device=cuda"), r"-device cuda.*excludes all GPUs"),
        Fault(
            "launcher: several processes of the single-device script", given(), single, environment={"WORLD_SIZE": "2"}
        ),
        Fault("launcher: WORLD_SIZE is not a number", given(), r"WORLD_SIZE.*two", environment={"WORLD_SIZE": "two"}),
        Fault("launcher: RANK is not a number", given(), r"RANK.*abc", script=MULTI, environment=ranks),
    ]


def recipe_faults() -> list[Fault]:
    def recipe(content: str | bytes) -> Provoke:
        return lambda scene: [f"-cfg={scene.write('recipe.yaml', content)}"]

    def base_cycle(scene: Scene) -> list[str]:
        scene.write("b.yaml", "BASE: [recipe.yaml]")
        return recipe("BASE: [b.yaml]")(scene)

    def pipe(scene: Scene) -> list[str]:
        os.mkfifo(scene.folder / "pipe.yaml")
        return [f"-cfg={scene.folder / 'pipe.yaml'}"]

    def base_outside(scene: Scene) -> list[str]:
        recipe = scene.write("deep/recipe.yaml", "BASE: [../../secret.yaml]")
        return [f"-cfg={recipe}"]

    def doubled_bases(scene: Scene) -> list[str]:
        for number in range(40):
            scene.write(f"{number}.yaml", f"BASE: [{number + 1}.yaml, {number + 1}.yaml]")
        return [f"-cfg={scene.folder / '0.yaml'}"]

    swins_key = recipe("MODEL:\n  TYPE: PVTv2\n  WINDOW_SIZE: 7")
    table: dict[str, tuple[Provoke, str]] = {
        "missing": (lambda scene: ["-cfg=none.yaml"], r"none.yaml: cannot be read: No such file"),
        "a folder": (lambda scene: [f"-cfg={scene.folder}"], r"not a regular file"),
        "a pipe": (pipe, r"pipe.yaml: cannot be read: not a regular file"),
        "an endless device": (lambda scene: ["-cfg=/dev/zero"], r"/dev/zero: cannot be read: not a regular file"),
        "bytes": (recipe(bytes(range(256))), r"recipe.yaml: is not a text file in UTF-8"),
        "two megabytes": (recipe("#" * 2_000_000), r"recipe.yaml: is larger than 65536 bytes"),
        "a key twice": (recipe("SEED: 1\nSEED: 2"), r"recipe.yaml:2: SEED is given twice, first in line 1"),
        "a tag with code": (recipe("SAVE: !!python/object/apply:os.system [ls]"), r":1: the tag .* is not allowed"),
        "an alias": (recipe("SEED: &a 1\nSAVE_FREQ: *a"), r":2: aliases are not allowed"),
        "an unknown key": (recipe("TRAIN:\n  NUM_EPOCH: 3"), r":2: unknown key TRAIN.NUM_EPOCH; did you mean"),
        "two mistakes": (recipe("SEED: -1\nTRAIN: {EPOCHS: 3}"), r"2 options are wrong:"),
        "a wrong type": (recipe("DATA:\n  IMAGE_SIZE: big"), r":2: DATA.IMAGE_SIZE is 'big'"),
        "not a number": (recipe("TRAIN: {BASE_LR: .nan}"), r":1: TRAIN.BASE_LR is '.nan'"),
        "invalid YAML": (recipe("DATA:\n  A: [1"), r"recipe.yaml:\d+: "),
        "nested 5000 deep": (recipe("SEED: " + "[" * 5000), r"nested too deeply"),
        "a feature not available yet": (recipe("MODEL: {TYPE: mae, MAE_PRETRAIN: true}"), r":1: MODEL.MAE_PRETRAIN"),
        "an unknown policy": (recipe("TRAIN: {AUGMENT_POLICY: rnd-m9}"), r":1: TRAIN.AUGMENT_POLICY .*'rnd'"),
        "an unknown policy part": (recipe("TRAIN: {AUGMENT_POLICY: rand-m9-inc}"), r":1: TRAIN.AUGMENT_POLICY .*'inc'"),
        "an escape code in a key": (recipe('"\\e[2J": 1'), r":1: '.x1b\[2J' is not a valid key"),
        "a zero byte in a path": (recipe('SAVE: "a\\0"'), r":1: SAVE is .*: a path cannot contain a zero byte"),
        "a key of another family": (swins_key, r":3: unknown key MODEL.WINDOW_SIZE .*pvtv2; .*swin"),
        "a short list": (
            recipe("MODEL:\n  TYPE: pvtv2\n  NUM_HEADS: [1, 2, 5]"),
            r":3: MODEL.NUM_HEADS is .1, 2, 5.: list .*4",
        ),
        "stages of other heads": (
            recipe("MODEL:\n  TYPE: swin\n  NUM_HEADS: [3, 6, 12]"),
            r":3: MODEL.NUM_HEADS has 3 values, STAGE_DEPTHS 4; give one per stage",
        ),
        "a family that timm lacks": (recipe("MODEL: {TYPE: CSwin}"), r":1: MODEL.TYPE CSwin: timm has no"),
        "no whole patches": (recipe("DATA: {IMAGE_SIZE: 30}\nMODEL: {TYPE: swin}"), r":1: DATA.IMAGE_SIZE 30 .*32"),
        "a missing base": (recipe("SEED: 1\nBASE: [none.yaml]"), r"recipe.yaml:2: BASE: .*none.yaml: cannot be"),
        "a cycle of bases": (base_cycle, r"b.yaml:1: BASE is cyclic: recipe.yaml -> b.yaml -> recipe.yaml"),
        "a base outside": (base_outside, r"recipe.yaml:1: BASE '../../secret.yaml' is outside"),
        "40 levels of doubled bases": (doubled_bases, r"BASE leads to more than 32 files"),
    }
    return [Fault(f"recipe: {name}", provoke, line) for name, (provoke, line) in table.items()]
