"""The documented commands on a small ImageNet-style folder of JPEGs."""

import io
import re
import shlex
from contextlib import redirect_stdout

import numpy as np
from conftest import cli, of_module, only_run, read_result, refused, run_script
from PIL import Image
from pytest import mark

import main_single_gpu
from tests.datasets.photo import PHOTO
from utils.tables import read_csv_rows

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
RECIPE = """
DATA: {IMAGE_SIZE: 32, CROP_PCT: 0.875}
MODEL: {TYPE: vit, NAME: vit_test, NUM_CLASSES: 10, PATCH_SIZE: 16, EMBED_DIM: 32, DEPTH: 2, NUM_HEADS: 2}
TRAIN: {NUM_EPOCHS: 2, WARMUP_EPOCHS: 1, BASE_LR: 3e-3, GRAD_CLIP: 1.0}
SAVE_FREQ: 1
"""


@of_module
def imagenet(tmp_path_factory):
    """A folder with 24 training and 7 validation JPEGs, and a recipe."""
    root = tmp_path_factory.mktemp("imagenet")
    for split, count in (("train", 24), ("val", 7)):
        (root / "data" / split).mkdir(parents=True)
        names = {f"{split}/{number}.JPEG": number % 4 for number in range(count)}
        for number, (name, label) in enumerate(names.items()):  # a class is an order of the channels, or upside down
            image = PHOTO if label < 3 else PHOTO.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
            pixels = np.roll(image.crop((number, 0, number + 200, 150)).resize((80, 60)), label % 3, axis=2)
            Image.fromarray(pixels).save(root / "data" / name, quality=90)
        lists = "".join(f"{name} {label}\n" for name, label in names.items())
        (root / "data" / f"{split}_list.txt").write_text(lists)
    (root / "vit.yaml").write_text(RECIPE)
    return root


def flags(imagenet, output, *more):
    data = f"-dataset=imagenet2012 -data_path={imagenet / 'data'} -batch_size=8 -num_workers=0"
    return [*cli(f"-cfg={imagenet / 'vit.yaml'} {data} -output={output}"), *more]


@of_module
def trained(imagenet):
    """The run folder and the printed output of the documented single-GPU command."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main_single_gpu.main(flags(imagenet, imagenet / "single", "-amp")) == 0
    return only_run(imagenet / "single"), printed.getvalue()


CONTENTS = """
last.pth previous.pth best.pth epoch-002.pth log.txt config.yaml run.json status.json metrics.jsonl metrics.csv
report.html evaluation details images.csv.gz .lock
"""


def test_run_folder_contents(trained):
    folder, _ = trained
    names = {path.name for path in folder.iterdir()} - {"epoch-001.pth"}  # the best may be in its place
    assert names == {*cli(CONTENTS)}
    assert any((folder / "details").glob("events.out.tfevents*"))
    assert re.fullmatch(r"vit-\d{8}-\d\d-\d\d", folder.name)
    assert (folder / "details/train_batch.png").read_bytes().startswith(b"\x89PNG")
    rows = read_csv_rows(folder / "metrics.csv")
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert read_result(folder)["top1"] == max(float(row["val_top1"]) for row in rows)


def test_log_lines_keep_the_format_of_paddlevit(trained):
    folder, printed = trained
    log = (folder / "log.txt").read_text()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line) for line in log.splitlines() if "Epoch[" in line)
    step = r"Epoch\[002/002\], Step\[0002/0003\], Lr: 0\.\d{6}, Loss: \d\.\d{4} \(\d\.\d{4}\), Avg Acc: [\d.]+%, "
    step += r"[\d.]+ img/s, [\d.]+G(, wait \d+%)?(, left [\d.]+s)?\n"
    epoch = r"----- Epoch\[001/002\], epoch time: [\d.]+s, [\d.]+ img/s, TFLOP/s: [\d.e-]+, time left: [\d.]+s\n"
    validation = r"----- Epoch\[002/002\], Validation Loss: [\d.]+, Validation Acc@1: [\d.]+%, "
    validation += r"Validation Acc@5: [\d.]+%, time: [\d.]+ s\n"
    for pattern in (step, validation, epoch, "bfloat16 autocast"):
        assert re.search(pattern, log), pattern
    for pattern in (step, validation, epoch):
        assert re.search(rf"^{pattern.removeprefix('----- ')}", printed, re.MULTILINE), pattern


def test_printed_evaluation_command_gives_the_same_top1(trained, imagenet, capsys):
    folder, _ = trained
    log = (folder / "log.txt").read_text()
    _, script, *command = shlex.split(re.search(r"Evaluate it: (.*)", log).group(1))
    assert script.endswith("main_single_gpu.py")
    assert main_single_gpu.main([*command, f"-output={imagenet / 'printed'}"]) == 0
    assert "bfloat16 autocast" in capsys.readouterr().out  # the saved options carry -amp
    assert read_result(only_run(imagenet / "printed", "eval"))["top1"] == read_result(folder)["top1"]


@mark.slow
def test_two_ranks_train_and_resume_under_another_launcher(imagenet, tmp_path):
    argv = flags(imagenet, tmp_path, "-batch_size=4")
    more = ("-num_workers=2", "-opts", "TRAIN.MAX_STEPS=4")  # the run stops while its workers load batches
    run_script("main_multi_gpu.py", *argv, "-ngpus=2", *more)
    folder = only_run(tmp_path)
    assert {"log_0.txt", "log_1.txt"} <= {path.name for path in folder.iterdir()}
    assert not read_result(folder)["finished"]
    run_script("main_multi_gpu.py", *argv, f"-resume={folder}", launcher=TORCHRUN)
    assert read_result(folder)["finished"]


@of_module
def two_ranks(imagenet, ranks):
    """A run of two ranks and its evaluation, in the folder `resnet` of `imagenet`."""
    recipe = imagenet / "resnet.yaml"
    recipe.write_text(
        "MODEL: {TYPE: timm, NAME: test_resnet, NUM_CLASSES: 10}\nTRAIN: {NUM_EPOCHS: 1, WARMUP_EPOCHS: 0}"
    )
    resnet = flags(imagenet, imagenet / "resnet", f"-cfg={recipe}", "-image_size=32", "-batch_size=4")
    ranks(2).run(resnet, [*resnet, "-eval", "-resume=auto"])
    return imagenet


@mark.slow
def test_ranks_share_batch_norm_statistics_for_evaluation(two_ranks):
    """The running statistics of the ranks differ until they are synchronized."""
    trained_one, evaluated = (only_run(two_ranks / "resnet", kind) for kind in ("train", "eval"))
    assert read_result(evaluated)["top1"] == read_result(trained_one)["top1"]


def test_dry_run_prints_sizes_and_does_not_train(imagenet, tmp_path, capsys):
    argv = cli(f"-cfg=configs/vit_tiny_patch16_224.yaml -data_path={imagenet / 'data'} -output={tmp_path / 'out'}")
    assert main_single_gpu.main([*argv, "-batch_size=4", "-accum_iter=4", "-dry_run"]) == 0
    printed = capsys.readouterr().out
    assert "5.717 M parameters" in printed
    assert "2.51 GFLOPs per image" in printed
    assert " of 2 steps of 16 images" in printed  # 6 batches, 4 per step
    assert not (tmp_path / "out").exists()


def test_several_processes_are_refused_by_the_script_for_one(imagenet, tmp_path):
    with refused(r"-ngpus 2: .*main_multi_gpu\.py"):
        main_single_gpu.main(flags(imagenet, tmp_path, "-ngpus=2"))
