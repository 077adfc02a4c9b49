"""Command lines of other programs: each flag has a row, and the error has the words that replace each flag."""

import re
import shlex

import timm
import torchvision
import yaml
from conftest import ROOT, cli, config_for, each_row, line_of
from pytest import mark

from configs.command_line import parse_command_line
from configs.flags import entry_parser
from configs.help import all_keys
from configs.programs import describe_flags, flags_page, name_of_model, paddleclas_keys, programs
from configs.yaml_io import read_yaml
from tests.configs.option_values import assert_options

NAMES = {name: text.split() for name, text in read_yaml(ROOT / "tests/configs/program_flags.yaml").items()}
KNOWN = {key.name for key in all_keys()} | entry_parser("").parse_args([]).__dict__.keys()


def names_of(program: str) -> set[str]:
    return set.union(*(one.names for stem, one in programs().items() if stem.startswith(program)))


@mark.parametrize("name", NAMES)
def test_each_flag_of_a_program_is_in_its_table(name):
    assert {flag.lstrip("-") for flag in NAMES[name]} <= names_of(name)


def test_each_option_of_the_tables_exists():
    page = flags_page().partition("## PaddleClas")[0]
    cells = re.findall(r"`([^`]+)`", re.sub(r"\| `--?[^|]*\|", "|", page))
    options = {cell.partition("=")[0] for cell in cells if " " not in cell.partition("=")[0]}
    options |= {*re.findall(r"\b(?:[A-Z_]+\.)+[A-Z_]+", page), *paddleclas_keys().values()}
    wrong = {one for one in options if one.lstrip("-").partition("=")[0].partition(",")[0] not in KNOWN}
    assert not wrong - {"scripts/export.py", "KEY", "LOGGERS"}
    assert len(options) > 80


def test_the_line_of_a_program_names_a_heading_of_the_page():
    headings = re.findall("^## (.*)$", flags_page(), re.MULTILINE)
    assert {program.page for program in programs().values()} <= {*headings}
    assert not [one for one in headings if one != one.lower().replace(" ", "-")][1:]  # but PaddleClas


def test_the_page_of_the_tables_is_current():
    """Else: python -m configs.programs > docs/flags.md"""
    assert (ROOT / "docs/flags.md").read_text() == flags_page() + "\n"


# A line, texts of the error, and a text that it lacks
LINES = """
line | texts | lacks
--opt-betas 0.9 0.95 | --opt-betas 0.9 0.95: -opts 'TRAIN.OPTIMIZER.BETAS=[0.9, 0.95]'; timm's train.py | python
D --model resnet50 --opt sgd | D: -data_path=D; TRAIN.OPTIMIZER.NAME=nesterov; -cfg=configs/programs/timm.yaml; \
docs/flags.md#timm | -model
--opt AdamW -b 512 | --opt AdamW: -opts TRAIN.OPTIMIZER.NAME=AdamW; without --lr add -lr; root of this | -batch_size
--mean 0.5 | 'DATA.IMAGENET_MEAN=[0.5, 0.5, 0.5]' |
--input-size 1 160 192 | -image_size=160,192 -opts DATA.IMAGE_CHANNELS=1 |
--bce-pos-weight 2.0 | 2.0 for each class | CLASS_WEIGHTS=[2.0]
--clip-mode agc --clip-grad 0.01 | none for value and agc; GRAD_CLIP=0.01 (with --clip-mode norm |
--sched step | LR_SCHEDULER.NAME=step TRAIN.LR_SCHEDULER.DECAY_EPOCHS=90 |
--sched poly --decay-rate 2 | --sched poly: none; --decay-rate 2: none | NAME=linear
--sched wsd --decay-epochs 0.2 | --sched wsd: none, timm's wsd decays by 1 - sqrt; of wsd it is a share | NAME=wsd
--aug-splits 3 --sched tanh --aa zz | --aug-splits 3: none; --sched tanh: none; --aa zz: none, TRAIN.AUGMENT_POLICY |
--interpolation bilinear --train-interpolation bicubic | INTERPOLATION=bilinear; none of its own | INTERPOLATION=bicubic
# validate.py and inference.py
D --model resnet50 --checkpoint a.pth --crop-pct .9 | validate.py; -pretrained=a.pth; -eval; #timm-validate | timm.yaml
--data-dir D --split validation --model resnet50 --pretrained | -split=val; -eval | timm.yaml
--model resnet18 --topk 3 D/val | --topk 3: -top_k=3; D/val: -predict=D/val; timm's inference.py | timm.yaml
# torchvision
--model vit_b_16 --opt SGD --lr-scheduler CosineAnnealingLR --test-only | -model=vit_base_patch16_224; \
NAME=SGD; NAME=cosine; --test-only: -eval; -cfg=configs/programs/torchvision.yaml; docs/flags.md#torchvision | nesterov
--lr-warmup-epochs 5 --val-resize-size 236 | WARMUP_EPOCHS=5 (with --lr-warmup-method linear; none with constant |
# A wrong value of an own flag is no line of another program
-predict D -resume=R -format wde | -format; wide | timm
-eval -resume=R -split valid | -split; test | timm
# Not translated
--model deit_small_patch16_224 --data-path D --output_dir out --input-size 192 --drop-path 0.2 --dist-eval | \
--output_dir, --dist-eval: flags of DeiT; configs/deit_*.yaml; not translated | -opts
--finetune a.pth --blr 5e-4 --layer_decay 0.65 --data_path D | MAE; not translated | -opts
--train_dir D/train --validation_dir D/val --output_dir out | transformers'; not translated | DeiT
-a resnet18 D | PyTorch's examples; D: -data_path=D; torchvision.yaml | timm
"""


@each_row(LINES)
def test_the_error_has_the_words_that_replace_each_flag(line, texts, lacks):
    message = line_of(parse_command_line, shlex.split(line))
    assert [text for text in texts.split("; ") if text not in message] == []
    assert not lacks or lacks not in message


def test_the_words_of_the_error_work_when_they_are_typed():
    """All flags of timm's and torchvision's tables with a value of their mappings, or one that fits."""
    values = """layer-decay=0.7 epochs=7 aa=rand-m9 remode=rand gp=avg crop-pct=0.9 scale=0.5,1 ratio=0.5,2
        cutmix-minmax=0.1,0.9 opt-betas=0.9,0.95 in-chans=1 mean=0.4,0.5,0.6 std=0.4 input-size=3,64,96 class-map=a
        device=cpu amp-dtype=float16 model-dtype=bfloat16 bce-target-thresh=0.2
        model-ema-decay=0.9 kd-model-name=resnet18"""
    given = {name: value.replace(",", " ") for name, _, value in (word.partition("=") for word in values.split())}
    given |= {"model-kwargs": "depth=3", "opt-kwargs": "caution=true"}
    typed = 0
    for program in (programs()["timm"], programs()["torchvision"]):
        for name, row in program.flags.items():
            value = next(iter(row)) if isinstance(row, dict) else given.get(name, "1")
            text = describe_flags(program, [(f"--{name}", value.split())], {}).partition(f"Here: --{name} {value}: ")[2]
            words, _, remark = text.partition(". For the rest")[0].partition(" (")
            needs_others = name in ("dataset-download", "test-only")  # other data, weights
            if remark.startswith("with") or words.startswith("none") or needs_others:
                continue
            assert parse_command_line(["-cfg=configs/programs/timm.yaml", *shlex.split(words)]).config
            typed += 1
    assert typed > 100


@mark.parametrize("flag", ["--aa=rand-m9-mstd0.5", "--ra-sampler"])
def test_the_recipe_in_the_error_is_found_from_another_folder(flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = re.search(r"-cfg=(\S+\.yaml)", line_of(parse_command_line, ["--model=resnet18", flag]))[1]
    assert config_for(f"-cfg={recipe}").train.optimizer.momentum == 0.9


def test_pretrained_alone_is_timms():
    config = config_for(*cli("--model resnet18 --pretrained --epochs 2"))
    assert_options(config, "MODEL.PRETRAINED=timm TRAIN.NUM_EPOCHS=2")


def test_torchvisions_names_of_models_are_timms():
    """All models of torchvision that timm has; it has none of three old families, and no mnasnet1_3."""
    names = torchvision.models.list_models(module=torchvision.models)
    unknown = {name for name in names if not timm.is_model(name_of_model(name) or name)}
    assert {name.partition("net")[0] for name in unknown} == {"alex", "google", "mnas", "shuffle", "squeeze"}


def test_an_args_yaml_of_timm_is_answered_with_the_words_for_all_values_but_its_defaults(tmp_path):
    """The words are those for the flags; typed after timm's recipe, they work."""
    defaults = yaml.safe_load((ROOT / "configs/programs/defaults.yaml").read_text())["timm"]
    given = {"model": "resnet18", "input_size": [3, 64, 96], "model_kwargs": {"drop_rate": 0.1}, "epochs": 7}
    given["data_dir"] = f"/my, {'long ' * 20}[1]"
    values = {name.replace("-", "_"): value for name, value in defaults.items()} | given
    (tmp_path / "args.yaml").write_text(yaml.safe_dump(values))
    line = line_of(parse_command_line, [f"-cfg={tmp_path}/args.yaml"])
    rows = dict(row.split(": ", 1) for row in line.partition("Here: ")[2].partition(". For the rest")[0].split("; "))
    data = shlex.join(["--data-dir", given["data_dir"]])
    words = {"--model resnet18", "--input-size 3 64 96", "--model-kwargs drop_rate=0.1", "--epochs 7", data}
    assert {*rows} == words
    config = config_for(
        "-cfg=configs/programs/timm.yaml", *(word for words in rows.values() for word in shlex.split(words))
    )
    assert_options(config, "TRAIN.NUM_EPOCHS=7 DATA.IMAGE_SIZE=[64,96] 'MODEL.KWARGS={drop_rate: 0.1}'")
    assert config.data.data_path == given["data_dir"]
