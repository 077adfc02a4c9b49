"""The pages: files of their commands exist, and the programs accept their flags and options; links have a target; the
commands and the code of docs/python.md run in order, and their results are those of the program."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import torch
from conftest import ROOT, cli, code_of, config_for, samples_for
from PIL import Image
from pytest import approx, importorskip, mark, raises
from torch import nn
from torch.testing import assert_close

import main_single_gpu
from configs.command_line import parse_command_line
from configs.flags import entry_parser
from configs.help import all_keys
from configs.yaml_io import parse_value
from datasets.transforms.device import Normalize
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import attention_rollout, to_unit_range
from engine.parallel import Strategy
from engine.precision.policy import Precision
from scripts import export

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"\b((?:main_\w+|scripts/[\w/]+|tests/[\w/]+)\.py)\b((?: [-$\w][^`\n]*)?)")
STANDS_FOR = (  # files that do not exist here
    (r"-cfg[= ](\.\.\.|CONFIG\.yaml|a1\.yaml|(P|RUN)/\S+)", "-cfg=configs/vit_digits.yaml"),
    (r'-resume[= ]("[^"]*"|\S+)', "-resume=auto"),
    (r"-model=(local-dir|hf):\S+ -pretrained=timm|-pretrained=FOLDER", "-model=resnet18 -pretrained=timm"),
    (r"-pretrained=RUN/best-hf|-model=NAME -pretrained=FILE", "-pretrained=best.pth"),
    (r"-model vit_registers| \.\.\.", ""),
)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each program of this project on the page, with the words behind it as a shell reads them."""
    for program, rest in PROGRAM.findall(page.read_text().replace("\\\n", " ")):
        if not program.startswith("main_") or rest.startswith(" -"):  # else a sentence
            for pattern, replacement in STANDS_FOR:
                rest = re.sub(pattern, replacement, rest)
            words = shlex.shlex(rest, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            argv = list[str]()
            while (word := words.get_token()) and word.strip(";&|()<>"):  # else the end of the command
                argv.append(word)
            yield program, argv


@mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_flags_and_options_are_known(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    for name, content in re.findall(r"`(my_parts\.py)`:[^`]*```python\n(.*?)```", page.read_text(), re.S):
        (tmp_path / name).write_text(content)
    for program, argv in commands(page):
        assert (ROOT / program).exists(), program
        assert all((ROOT / word).exists() for word in argv if re.match(r"(configs|tests|docs)/\S+$", word)), argv
        if program.startswith("main_") and "-h" not in argv:
            words = [word.replace("my_parts.py", f"{tmp_path}/my_parts.py") for word in argv]
            parse_command_line(words, program)
        elif re.match(r"scripts/(?!kubernetes|make_imagenet)", program) and argv:
            with raises(SystemExit):
                importlib.import_module(program.removesuffix(".py").replace("/", ".")).main(["-h"])
            known = {*re.findall(r"-\w+", capsys.readouterr().out), "-opts"}
            known |= {f"-{name}" for name in vars(entry_parser("").parse_args([]))}
            given = {word.partition("=")[0] for word in argv if re.match(r"-[a-z]|[A-Z]+(\.[A-Z_]+)*=", word)}
            assert given <= known | {key.name for key in all_keys()}, argv


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_each_link_has_a_target(page):
    """With the anchors that GitHub makes of headings."""
    for file, anchor in LINK.findall(prose(page)):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


PROGRAMS = {"scripts/export.py": export.main, "main_single_gpu.py": main_single_gpu.main}


def test_the_mean_of_several_runs_is_by_class_name(tmp_path, monkeypatch):
    code = code_of("docs/evaluation.md", "Several runs")
    tables = {
        "a": "path,Cat,ant\n1.jpg,0.9,0.1\n2.jpg,0.5,0.5\n3.jpg,0.2,0.8\n",
        "b": "path,ant,Cat,decision\n1.jpg,0.3,0.7,Cat\n2.jpg,,,\n3.jpg,0.6,0.4,ant\n",
    }
    for name, text in tables.items():
        (tmp_path / "predictions" / name).mkdir(parents=True)
        (tmp_path / "predictions" / name / "predictions.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    exec(code, names := {})
    expected = parse_value("{Cat: {1.jpg: 0.8, 3.jpg: 0.3}, ant: {1.jpg: 0.2, 3.jpg: 0.7}}")
    assert names["means"].round(6).to_dict() == expected
    (tmp_path / "predictions/b/predictions.csv").write_text(tables["b"].replace("Cat", "cat"))
    with raises(AssertionError, match="different classes"):
        exec(code, {})


PAGE = (ROOT / "docs/python.md").read_text().partition("## Kaggle and Colab")[0]
EXAMPLE = re.findall(r"^RUN=(.*)$", PAGE, re.M)[0]
BLOCKS = re.findall(r"```(shell|python)\n(.*?)```", PAGE, re.S)

OPTIONS = """
DATA.IMAGE_SIZE=16 DATA.CROP_PCT=0.9 DATA.BATCH_SIZE=32 TRAIN.BASE_LR=1e-2 TRAIN.MODEL_EMA=true
TRAIN.MODEL_EMA_DECAY=0.9
"""


@mark.slow
def test_the_page_runs_and_gives_the_results_of_the_program(digits_run, tmp_path, monkeypatch, cpu):
    importorskip("pandas")
    run = digits_run(*cli(OPTIONS))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    run.parent.rename(tmp_path / "output")
    run = (tmp_path / "output" / run.name).rename(tmp_path / EXAMPLE)
    (tmp_path / "out").symlink_to("output")
    names = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(text, names)
        elif not text.startswith("RUN="):
            _, program, *flags = shlex.split(text.replace("$RUN", EXAMPLE))
            assert not PROGRAMS[program](flags)
    assert {path.name for path in tmp_path.iterdir()} == {"docs", "out", "output"}  # all files are in the run
    classes = names["class_names"]
    model = names["model"]
    images = names["images"]
    for row, probabilities in zip(names["rows"], names["probabilities"], strict=True):
        found = {row[f"class_{rank}"]: float(row[f"probability_{rank}"]) for rank in range(1, 6)}
        assert found == approx({name: probabilities[classes.index(name)].item() for name in found}, abs=1e-3)

    config = config_for(f"-cfg={run / 'config.yaml'}")
    evaluator = Evaluator(Normalize(config.data), Precision(config.amp, cpu.device), Strategy(), cpu)
    rollout = attention_rollout(model, images, evaluator)
    assert_close(to_unit_range(names["heat"]), rollout, rtol=0, atol=1e-3)

    (samples,) = samples_for(config, cpu, "val")
    pictures = [Image.fromarray(samples.open(index, 1).pixels[0].numpy()) for index in range(len(samples))]
    with torch.inference_mode():
        logits = model(torch.stack([names["preprocess"](picture) for picture in pictures]))
    targets = torch.tensor(samples.targets)
    result = names["record"]["result"]
    assert nn.functional.cross_entropy(logits, targets).item() == approx(result["loss"], abs=1e-3)
    hits = (logits.argmax(1) == targets).sum().item()
    assert hits == approx(result["top1"] / 100 * len(targets), abs=1.01)  # a tie may round to another class
    best = names["evaluated"].loc[result["epoch"]]
    assert best["val_top1"] == result["top1"]
    assert names["runs"].loc[run.name, "top1"] == result["top1"]
    assert names["record"]["facts"]["Model"]["parameters"] == sum(weight.numel() for weight in model.parameters())
