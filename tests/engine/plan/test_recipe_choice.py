"""Without -cfg, the data, the weights and the device choose the recipe of a training."""

import os
import shlex
import shutil
import socket
import time
from collections import Counter
from unittest.mock import Mock

import timm
import torch
from conftest import (
    CPU,
    ROOT,
    cells_of,
    cli,
    config_for,
    each_value,
    line_of,
    log_of,
    noise_folder,
    of_module,
    only_run,
    read_result,
    read_samples,
    refused,
)
from huggingface_hub import HfApi
from pytest import fixture, mark
from timm import create_model

import main_single_gpu
from configs import command_line
from configs.command_line import parse_command_line
from configs.resolve import recipe_follows_data
from engine.plan import recipe
from engine.plan.recipe import choose_recipe
from utils.distributed import single_process
from utils.file_formats.hf_folder import find_on_hub

VIT = "vit_small_patch16_224"


@of_module
def images(tmp_path_factory):
    return noise_folder(tmp_path_factory.mktemp("images"), 34, 6, (40, 60, 3))


@fixture
def place(request, monkeypatch):
    """Where timm's weights are, on a machine without a GPU, in the project's folder."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(recipe, "lacks_gpus", lambda device: True)
    answer = getattr(request, "param", None)
    monkeypatch.setattr(recipe, "find_on_hub", lambda repository, names: names and answer)
    return answer


def chosen(*argv):
    return choose_recipe(parse_command_line(argv), single_process("cpu"))


# Images, what is so, the recipe and its epochs
RULE = """
1000000 | has_weights on_cpu | probe None
1854 | has_weights on_cpu trains | finetune 10
1854 | has_weights probes | probe None
500 | has_weights | finetune 19
1000000 | has_weights | finetune 3
4500 | trains | folder_small 12
1 | probes | folder_small 60
1000000 | | folder_small 8
"""


@mark.parametrize("images, facts, expected", cells_of(RULE))
def test_the_rule(images, facts, expected):
    known = dict.fromkeys(("has_weights", "on_cpu", "trains", "probes"), False) | dict.fromkeys(facts.split(), True)
    recipe, epochs = recipe_follows_data(int(images), **known)
    assert f"{recipe} {epochs}" == expected


def test_all_folds_have_one_recipe(tmp_path, place):
    """Of 254 images, folds 0 and 1 have 169 or 170 for training: 60 or 59 epochs."""
    (image,) = noise_folder(tmp_path / "one", 1, 0, (8, 8, 3)).rglob("*.png")
    for number in range(254):
        file = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        os.link(image, file)
    sizes = set()
    epochs = set()
    for fold in range(3):
        command = chosen(f"-data_path={tmp_path / 'data'}", "-opts", "DATA.FOLDS=3", f"DATA.FOLD={fold}")
        sizes.add(len(read_samples(command.config.data, None, CPU, "train")[0]))
        epochs.add(command.config.train.num_epochs)
    assert sizes == {169, 170}
    assert epochs == {60}
    assert [recipe_follows_data(size, False, True, False, False)[1] for size in (169, 170)] == [60, 59]


# Flags; the run, its model and its epochs with timm's weights, and without them if these differ
WITH_FLAGS = """
 | probe VIT 1 | folder_small resnet10t 60
-dataset=folder -epochs=3 | finetune VIT 3 | folder_small resnet10t 3
-opts TRAIN.BASE_LR=1e-4 | finetune VIT 20 | folder_small resnet10t 60
-minutes=2 | finetune VIT 10 | folder_small resnet10t 18
-model=resnet18 | probe resnet18 1 | folder_small resnet18 60
-opts MODEL.TYPE=timm MODEL.NAME=resnet18 | probe resnet18 1 | folder_small resnet18 60  # the form of docs/options.md
-model=vit_small_patch14_dinov2 | probe vit_small_patch14_dinov2 1 | folder_small vit_small_patch14_dinov2 60
-model=crossvit_9_240 | finetune crossvit_9_240 20 | folder_small crossvit_9_240 60
-model=resnet18.no_tag | folder_small resnet18.no_tag 60 |
-opts MODEL.PRETRAINED=null | folder_small resnet10t 60 |
-pretrained=timm | probe VIT 1 |
-model=test_vit -opts 'MODEL.KWARGS={qk_norm: true}' | folder_small test_vit 60 |
"""


@mark.parametrize("place", ["in the cache", None], indirect=True)
@mark.parametrize("flags, with_weights, without", cells_of(WITH_FLAGS))
def test_flags_win_over_the_recipe(images, place, flags, with_weights, without):
    """And the command in the note has the same options, as the words on the screen."""
    command = chosen(f"-data_path={images}", *shlex.split(flags))
    config = command.config
    expected = with_weights if place or not without else without
    assert f"{command.run_name} {config.model.name} {config.train.num_epochs}" == expected.replace("VIT", VIT)
    assert config.model.pretrained == ("timm" if command.run_name != "folder_small" else None)
    shown, *_ = command.choice.partition(" (34 images; ")
    note = next(note.text for note in command.notes if note.kind == "log")
    python, script, *words = shlex.split(note.partition("The same: ")[2])
    assert (python, script, config_for(*words)) == ("python", "main_single_gpu.py", config)
    assert config_for(*shlex.split(shown), f"-data_path={images}", *shlex.split(flags)) == config


RATES = """
 | 0.0002
-model=convnext_atto | 0.0002  # layer norms
-model=xcit_nano_12_p16_224 | 0.0002  # a transformer with batch norms
-model=resnet18 | 0.0005
-model=resnet18 -cfg=configs/finetune.yaml | 0.0005
-model=vit_base_patch16_224 -cfg=configs/finetune.yaml | 5e-05
-model=vit_base_patch16_224 -cfg=configs/lora.yaml | 0.0002
-cfg=configs/lora.yaml | 0.0005
"""


@mark.parametrize("place", ["in the cache"], indirect=True)
@mark.parametrize("flags, rate", cells_of(RATES))
def test_the_rate_follows_the_model_and_its_tuned_part(images, place, flags, rate):
    assert chosen(f"-data_path={images}", "-epochs=3", *flags.split()).config.train.base_lr == float(rate)


OTHER_COMMANDS = """
-cfg=configs/finetune.yaml
-resume=run
-eval -pretrained=a.pth
-dataset=imagenet2012
-predict -pretrained=a.pth
-embed -pretrained=a.pth
-opts MODEL.DEPTH=3
-data_path=/nowhere
-data_path=configs
-dataset=tar
"""


@mark.parametrize("flags", OTHER_COMMANDS.strip().splitlines())
def test_other_commands_stay_as_they_are(images, place, flags):
    command = parse_command_line([f"-data_path={images}", *flags.split()])
    assert choose_recipe(command, single_process("cpu")) == command


@mark.parametrize("flags", [[], ["-cfg=configs/finetune.yaml"], ["-resume=run"], ["-opts", "MODEL.DEPTH=3"]])
def test_ranks_with_other_options_take_part_in_the_same_collectives(images, place, monkeypatch, flags):
    """Else a rank with another command line waits until its time is over, and no line names the difference."""
    find = Mock(return_value=None)
    monkeypatch.setattr(recipe, "find_on_main", find)
    choose_recipe(parse_command_line([f"-data_path={images}", *flags]), single_process("cpu"))
    assert find.call_count == 1


def test_the_digits_have_a_recipe_unless_a_model_is_given():
    runs = [chosen("-dataset=digits", *flags).config for flags in (["-lr=1e-4", "-resume=auto"], ["-model=resnet18"])]
    assert [(run.model.name, run.data.input_size, run.train.base_lr) for run in runs] == [
        ("vit_digits", (16, 16), 1e-4), ("resnet18", (224, 224), 3e-3)
    ]  # fmt: skip


ON_GPU = """
flags | recipe_name | amp
 | finetune | true
-amp=no | finetune | false
-opts AMP.LEVEL=O2 | finetune | true
-device=cpu | probe | false
"""


@each_value(ON_GPU)
def test_a_gpu_has_time_to_train_and_does_it_in_mixed_precision(images, monkeypatch, flags, recipe_name, amp):
    monkeypatch.setattr(recipe, "find_on_hub", lambda *_: "in the cache")
    monkeypatch.setattr(recipe, "lacks_gpus", lambda device: device == "cpu")
    command = chosen(f"-data_path={images}", *cli(flags or ""))
    assert (command.run_name, command.config.amp.enabled) == (recipe_name, amp)


def test_weights_name_their_model(images, place, tmp_path):
    """place: is not asked for."""
    torch.save({"arch": "test_resnet", "state_dict": {"x": torch.zeros(1)}}, tmp_path / "other.pth")
    torch.save({"x": torch.zeros(1)}, tmp_path / "plain.pth")
    for file, flags, name in (
        ("other", [], "test_resnet"),
        ("other", ["-model=resnet18"], "resnet18"),
        ("plain", [], VIT),
    ):
        path = str(tmp_path / f"{file}.pth")
        command = chosen(f"-data_path={images}", f"-pretrained={path}", *flags)
        model = command.config.model
        assert (command.run_name, model.type, model.name, model.pretrained) == ("probe", "timm", name, path)
    with refused(r"^/nowhere\.pth: no such file"):
        chosen(f"-data_path={images}", "-pretrained=/nowhere.pth")


@mark.parametrize("recipe", ["finetune", "probe", VIT])
def test_a_folder_of_weights_names_the_model_of_a_recipe_that_fine_tunes(recipe, images, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    timm.models.save_for_hf(create_model("test_resnet"), tmp_path)
    given = cli(f"-data_path={images} -cfg=configs/{recipe}.yaml -pretrained={tmp_path}")
    models = [chosen(*given, *flags).config.model.name for flags in ([], ["-model=resnet18"])]
    assert models == [VIT if recipe == VIT else "test_resnet", "resnet18"]


@mark.parametrize("recipe, name", [("probe", "vit_digits"), ("finetune", "vit_digits"), (VIT, VIT)])
def test_own_weights_name_the_model_of_a_recipe_that_fine_tunes(recipe, name, images, tmp_path, monkeypatch):
    """And its size, also where the recipe is for the same model with other options."""
    monkeypatch.chdir(ROOT)
    own_model = config_for("-cfg=configs/vit_digits.yaml", "-opts", "MODEL.DEPTH=3").model
    section = own_model.model_dump(by_alias=True, mode="json")
    torch.save({}, tmp_path / "best.pth")
    monkeypatch.setattr("engine.checkpoint.weights_record.record_in", lambda file: Mock(model=section))
    given = cli(f"-data_path={images} -cfg=configs/{recipe}.yaml -pretrained={tmp_path / 'best.pth'}")
    model = chosen(*given).config.model
    assert model.name == name
    assert (model.depth == 3) == (name == "vit_digits")
    own = cli("-cfg=configs/vit_digits.yaml -opts MODEL.TUNE=probe")  # the same model: the recipe's options stay
    assert chosen(*given[::2], *own).config.model.depth == 4


def test_own_weights_keep_all_arguments_of_their_model(images, tmp_path, monkeypatch):
    """More than an error shows of a value; texts that YAML reads as another type, too."""
    kwargs = {f"argument_{number}": number for number in range(9)}
    kwargs |= {"a": "null", "b": "1e-3", "c": {"d": [True, None]}}
    section = {"TYPE": "timm", "NAME": "test_vit", "KWARGS": kwargs}
    torch.save({}, tmp_path / "best.pth")
    monkeypatch.setattr("engine.checkpoint.weights_record.record_in", lambda file: Mock(model=section))
    for flags in ([], [f"-cfg={ROOT}/configs/probe.yaml"]):
        command = chosen(f"-data_path={images}", f"-pretrained={tmp_path / 'best.pth'}", "-epochs=1", *flags)
        assert (command.config.model.name, command.config.model.kwargs) == ("test_vit", kwargs)


FOREIGN = """
--data-path {} --model resnet18 | defaults are in -cfg=configs/programs/torchvision.yaml; docs/flags.md#torchvision
-data_path={} -model=resnet18 |
--data-path {} --model resnet18 -image_size=32 |
"""


@mark.parametrize("words, part", cells_of(FOREIGN))
def test_flags_of_another_program_are_answered_by_its_recipe(words, part, images, place):
    notes = [note.text for note in chosen(*words.format(images).split()).notes if note.kind == "warning"]
    assert len(notes) == bool(part)
    assert all(part.format(images) in text for text in notes)


def test_many_images_are_told_the_flags_of_larger_ones(images):
    command = parse_command_line([f"-data_path={images}"])
    assert not recipe._warning_of(command, "folder_small", 20_000)
    assert "-image_size=224" in recipe._warning_of(command, "folder_small", 20_001)


def test_a_start_parses_its_words_once_and_applies_the_rules_again_for_the_recipe_alone(
    images, place, tmp_path, monkeypatch
):
    """And lists each folder of a class once."""
    images = shutil.copytree(images, tmp_path / "images")  # of which nothing is known yet
    calls = Counter[str]()

    def count(module, name, key=lambda *_: ""):
        original = getattr(module, name)

        def counted(*args):
            calls[f"{name} {key(*args)}".strip()] += 1
            return original(*args)

        monkeypatch.setattr(module, name, counted)

    count(command_line, "parse_flags")
    count(command_line, "follow_options")
    count(os, "scandir", key=str)
    argv = cli(f"-data_path={images} -device=cpu -dry_run -output={tmp_path} -model=resnet10t")
    assert main_single_gpu.main(argv) == 0
    assert calls["parse_flags"] == 1
    assert calls["follow_options"] == 2
    for folder in images.glob("*/class?"):
        assert calls[f"scandir {folder}"] == 1


def test_the_hub_is_asked_for_a_limited_time(monkeypatch):
    """By a server that is silent, and one that refuses the connection; a file in the cache needs no request."""
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.file_exists", HfApi(endpoint=address).file_exists)
        started = time.monotonic()
        assert find_on_hub("timm/x", ("a", "b"), limit_seconds=0.2) is None
        assert time.monotonic() - started < 5
    assert find_on_hub("timm/x", ("a", "b")) is None
    monkeypatch.setattr("huggingface_hub.file_exists", lambda repository, name: name == "b")
    assert find_on_hub("timm/x", ("a", "b")) == "on the Hub"
    assert find_on_hub("timm/x", ("a",)) is None
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repository, name: name == "b" and "file")
    assert find_on_hub("timm/x", ("a", "b")) == "in the cache"


def test_a_run_without_weights_and_its_resume(images, tmp_path, monkeypatch, capsys, without_pictures):
    monkeypatch.setattr(recipe, "find_on_hub", lambda *_: None)
    flags = cli(f"-data_path={images} -epochs=1 -output={tmp_path / 'out'} -device=cpu -image_size=32 -num_workers=0")
    assert main_single_gpu.main(flags) == 0
    assert capsys.readouterr().out.count(" -model=resnet10t -batch_size=8 (34 images; ") == 1
    folder = only_run(tmp_path / "out")
    assert folder.name.startswith("folder_small-")
    assert main_single_gpu.main(cli(f"-resume={folder} -epochs=2 -device=cpu -dry_run")) == 0
    assert main_single_gpu.main([*flags, "-epochs=2", "-resume=auto"]) == 0
    assert "Epoch[002/002]" in log_of(only_run(tmp_path / "out"))


@mark.slow
@mark.parametrize("words", ["-opts MODEL.TUNE=probe", f"-cfg={ROOT}/configs/lora.yaml"])
def test_the_way_without_weights_works_in_any_folder(words, images, tmp_path, monkeypatch, without_pictures):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    flags = [*cli(f"-data_path={images} -pretrained=timm -device=cpu -epochs=1"), *words.split()]
    message = line_of(main_single_gpu.main, flags)
    assert main_single_gpu.main([*flags, *shlex.split(message.partition("from scratch with ")[2])]) == 0
    assert read_result(only_run(tmp_path / "output"))["trainable_parameters"] > 1e6
