"""-format deploy: the ONNX that reads pixels shows the network what an evaluation shows, and decides as -predict."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from client_pixels import photographs, pixel_options, steps_between
from conftest import ROOT, TINY_VIT, cli, config_for, export_as, refused, run_here, seeded, train, values_of
from numpy.random import default_rng
from PIL import Image
from pytest import approx, importorskip, mark
from test_export import client_of_docs, paths_of_machine
from torch import Tensor

from configs.schema.operating_point import Decision, OperatingPoint
from datasets.decoding.decode import LazyImage
from engine.evaluation.intervals import figures_at
from engine.evaluation.ranking import log_odds
from engine.evaluation.results import results_of_scores
from scripts.weights.trained_model import TrainedModel
from utils.files import read_json
from utils.tables import read_csv_rows

onnxruntime = importorskip("onnxruntime")
deploy = importorskip("scripts.exporting.deploy")


def session_of(graph) -> "onnxruntime.InferenceSession":
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


# resize, size, crop_pct
RULES = """
crop | 64 | 0.875
crop | 65 | 1.3
crop | [48, 64] | 0.9
squash | 64 | 1
pad | 47 | 1
pad | [48, 80] | 1
"""


@mark.slow
@mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
def test_the_graph_reads_pixels_as_an_evaluation_and_as_pillow(interpolation, tmp_path):
    """Of nearest equal to torch, of filters within 1 of 255: less than the steps between torch and Pillow."""
    preprocess = client_of_docs()
    file = tmp_path / "photo.png"
    for channels, rule in product((1, 3), values_of(RULES)):
        data, values = pixel_options(*rule, interpolation, channels)
        session = session_of(deploy.preprocessing_graph(data))
        for photograph in photographs():
            image = photograph.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(image).reshape(image.height, image.width, channels)
            (found,) = session.run(None, {"image": pixels})
            steps = steps_between(data, LazyImage(torch.from_numpy(pixels.copy()).permute(2, 0, 1)), found)
            assert steps.max() < (0.01 if interpolation == "nearest" else 2.01)
            assert (steps > 0.5).mean() < 0.03
            if isinstance(values["image_size"], int) and interpolation != "nearest":
                image.save(file)
                steps = np.abs(found - preprocess(file, values)) * 255 * np.float32(values["std"])[:, None, None]
                assert steps.max() < 1.01
                assert (steps > 0.5).mean() < 0.03


NAMES = ["cat", "dog", "emu"]
TEMPERATURES = (1.0, 2.5)


def decided_by(logits: Tensor, decision: Decision, temperature: float, *keys: str) -> list[np.ndarray]:
    """Probabilities (N, K), the highest, and the decisions; the names of the decisions."""
    decision = decision._replace(temperature=temperature)
    trained = TrainedModel(config_for("-dataset=csv", "-data_path=x", *keys), NAMES, [], decision=decision)
    graph, known = deploy.decision_graph(trained, NAMES)
    return [*session_of(graph).run(None, {"logits": logits.numpy()}), known]


@mark.parametrize("temperature", TEMPERATURES)
def test_the_decision_is_the_most_probable_class_or_of_the_operating_point(temperature):
    targets = torch.arange(200) % 3
    logits = torch.randn(200, 3, generator=seeded(0)) * 4
    scaled = logits / temperature
    probabilities, highest, decided, known = decided_by(logits, Decision(), temperature)
    assert probabilities == approx(scaled.softmax(1).numpy(), abs=1e-6)
    assert highest[:, 0] == approx(probabilities.max(1))
    assert (decided == np.eye(3, dtype=bool)[logits.argmax(1)]).all()
    assert known["decisions"] == NAMES
    results = results_of_scores(targets.numpy(), log_odds(scaled).numpy())
    point = replace(results, point=OperatingPoint(name="dog", label=1, specificity=0.8)).used_point
    _, _, decided, known = decided_by(logits, Decision(point=point), temperature)
    assert (known["decisions"], known["other"]) == (["dog"], "not dog")
    assert decided.shape == (200, 1)
    (_, false), (_, hits) = figures_at(results, point)["confusion"]
    is_dog = (targets == 1).numpy()
    assert [(decided[:, 0] & kind).sum() for kind in (~is_dog, is_dog)] == [false, hits]
    shares = scaled.softmax(1)[:, 1].numpy()
    assert (decided[:, 0] == (shares >= known["threshold"])).all()


@mark.parametrize("temperature", TEMPERATURES)
def test_the_decisions_of_several_labels_reach_their_thresholds(temperature):
    logits = torch.randn(200, 3, generator=seeded(1)) * 3
    thresholds = (-1.0, 0.25, 2.0)
    several = "-opts", "DATA.MULTI_LABEL=true"
    probabilities, _, decided, known = decided_by(logits, Decision(thresholds), temperature, *several)
    assert probabilities == approx((logits / temperature).sigmoid().numpy(), abs=1e-6)
    assert (decided == (logits >= torch.tensor(thresholds)).numpy()).all()
    assert known["thresholds"] == approx((torch.tensor(thresholds) / temperature).sigmoid().tolist())
    point = OperatingPoint(name="dog", label=1, specificity=0.8, threshold=0.5)
    *_, with_point = decided_by(logits, Decision(thresholds, point), temperature, *several)
    assert (with_point["decisions"], with_point["thresholds"]) == (["dog"], known["thresholds"])


def as_pnm(file: Path, target: Path) -> np.ndarray:
    """Writes a PNG as PGM or PPM, of 16 bits with the high byte first; returns its pixels."""
    pixels = np.asarray(Image.open(file))
    kind = b"P5" if pixels.ndim == 2 else b"P6"
    deep = pixels.dtype == np.uint16
    header = b"%s\n# a comment\n%d %d\n%d\n" % (kind, pixels.shape[1], pixels.shape[0], 65535 if deep else 255)
    target.write_bytes(header + pixels.astype(">u2" if deep else "u1").tobytes())
    return pixels


def compiled(folder: Path, tmp_path: Path) -> Path:
    """decide.cpp, by the commands of the card, with the library of Python's onnxruntime and a subset of its header."""
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    archive = tmp_path / f"onnxruntime-linux-x64-{onnxruntime.__version__}"
    (archive / "lib").mkdir(parents=True)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (archive / "lib" / name).symlink_to(library)
    (archive / "include").symlink_to(ROOT / "tests/fixtures/onnxruntime")
    with tarfile.open(folder / f"{archive.name}.tgz", "w:gz") as file:
        file.add(archive, archive.name)
    commands = re.search(r"```\n(tar .*?g\+\+ .*?\n)", (folder / "README.md").read_text(), re.DOTALL)[1]
    strict = commands.replace("g++", "g++ -Wall -Wextra -Werror")
    subprocess.run(strict, shell=True, check=True, cwd=folder)
    return folder / "decide"


@mark.slow
@mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
@mark.parametrize("channels", [1, 3])
def test_the_folder_decides_as_a_prediction_in_python_and_in_cpp(channels, tmp_path, capfd):
    """Of parts, some of 16 bits in 0..4095 (DATA.GREY_RANGE); and of classes without an operating point."""
    rng = default_rng(0)
    for number in range(80):
        name = ("bad", "good")[number % 2]
        pixels = rng.normal(90 + 60 * (number % 2), 40, (20, 30)).clip(0, 255)
        is_deep = number % 3 == 0
        pixels = (pixels * 16).astype(np.uint16) if is_deep else pixels.astype(np.uint8)
        file = tmp_path / f"parts/{name}/{number}.{'tif' if is_deep else 'png'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    keys = cli(f"DATA.GREY_RANGE=[0,4095] DATA.IMAGE_CHANNELS={channels} MODEL.NUM_CLASSES=2 DATA.VAL_FRACTION=0.5")
    if channels == 1:
        keys.append("EVAL.OPERATING_POINT={class: bad, sensitivity: 0.9}")
    flags = cli(f"-data_path={tmp_path / 'parts'} -dataset=folder -batch_size=8 -output={tmp_path / 'out'}")
    run = train([*flags, "-epochs=4", "-opts", *TINY_VIT, *keys, "TRAIN.BASE_LR=1e-2"])
    folder = tmp_path / "deploy"
    with refused("no_check"):
        export_as("deploy", run, folder, "-no_check")
    export_as("deploy", run, folder, "-no_paths")
    assert not [file for file in folder.iterdir() if file.is_file() and paths_of_machine(file.read_bytes(), tmp_path)]
    check = [sys.executable, str(folder / "check.py")]
    assert subprocess.run(check).returncode == 0
    assert ("**Operating point:** `bad` from" in (folder / "README.md").read_text()) == (channels == 1)
    run_here("-predict", str(folder / "reference"), f"-resume={run}", f"-output={tmp_path / 'p'}")
    column = "decision" if channels == 1 else "class_1"
    rows = read_csv_rows(tmp_path / "p/predictions.csv")
    assert len({row[column] for row in rows}) == 2
    capfd.readouterr()
    program = compiled(folder, tmp_path)
    modes = set()
    own = shutil.copytree(folder, tmp_path / "own")  # as without DATA.GREY_RANGE: white is as the file says
    (own / "model.txt").write_text((folder / "model.txt").read_text().replace(" 4095\n", " 65535\n"))
    for row in rows:
        picture = tmp_path / "a.pnm"
        pixels = as_pnm(Path(row["path"]), picture)
        modes.add(pixels.dtype.name)
        words = [program, folder, picture]
        decision, probability = subprocess.check_output(words, text=True).strip().split("\t")
        assert decision == row[column]
        assert float(probability) == approx(float(row["probability_1"]), abs=0.02)
        if pixels.dtype == np.uint8:
            picture.write_bytes(pixels.tobytes())
            shape = [*map(str, pixels.shape), *["1"] * (pixels.ndim == 2)]
            assert subprocess.check_output([*words, *shape], text=True).split("\t")[0] == decision
        else:
            picture.write_bytes(picture.read_bytes().replace(b"\n65535\n", b"\n4095\n", 1))
            assert subprocess.check_output([program, own, picture], text=True) == f"{decision}\t{probability}\n"
    assert modes == {"uint8", "uint16"}
    assert subprocess.run([program, folder, folder / "model.txt"], stderr=subprocess.DEVNULL).returncode == 1
    known = read_json(folder / "model.json") | {"grey_range": [0, 65535]}
    (folder / "model.json").write_text(json.dumps(known))  # as a client that reads 16 bits in another way
    assert subprocess.run(check).returncode == 1
