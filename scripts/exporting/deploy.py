"""A folder for a computer without this program: ONNX that reads pixels and decides, references, and their check.

Legend: N images, H, W their size, C channels, S pixels on a side, K classes, D decisions.
"""

import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from configs.schema import Data
from configs.schema.operating_point import probability_of
from configs.yaml_io import Values
from datasets.decoding.decode import MAX_VALUE, open_image, read_deep_values, to_pillow
from datasets.decoding.images import BadImage
from datasets.sources.samples import EncodedImages, Samples, spread
from datasets.transforms.device import Normalize
from datasets.transforms.host import crop_sides, eval_crop
from engine.evaluation.predictions import decision_names
from scripts.exporting.files import card_facts, list_facts, write_onnx
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError, to_single_line
from utils.files import indented_json

_TEMPLATES = Path(__file__).parent / "deployment"
_NUM_REFERENCES = 10
_OTHER_RATIO = """
    exact = Cast<to=11>(sides)
    wanted = Cast<to=11>(crop)
    ratios = Div(exact, wanted)
    ratio = {}<keepdims=1>(ratios)
    quotients = Div(exact, ratio)
    rounded = Round(quotients)
    whole = Cast<to=7>(rounded)"""
_RESIZED = {  # DATA.RESIZE: `_resized_sides` of datasets/transforms/host.py
    "squash": "whole = Identity(crop)",
    "pad": _OTHER_RATIO.format("ReduceMax"),
    "crop": _OTHER_RATIO.format("ReduceMin"),
    "square": """
    shorter = ReduceMin<keepdims=1>(sides)
    products = Mul(sides, crop)
    whole = Div(products, shorter)""",
}
_FILTER = (
    "target = Concat<axis=0>(planes, resized)\n pixels = Resize<{}, antialias=1, exclude_outside=1>(batch, , , target)"
)
_PIXELS = {  # DATA.INTERPOLATION: Pillow's filters, and torch's nearest-exact
    "bicubic": _FILTER.format('mode="cubic", cubic_coeff_a=-0.5'),
    "bilinear": _FILTER.format('mode="linear"'),
    "nearest": """
    sides_32 = Cast<to=1>(sides)
    resized_32 = Cast<to=1>(resized)
    steps_32 = Div(sides_32, resized_32)
    steps = Cast<to=11>(steps_32)
    row_step, column_step = Split<num_outputs=2>(steps)
    num_rows, num_columns = Split<num_outputs=2>(resized)
    first = Squeeze(zero)
    next = Squeeze(one)
    rows_end = Squeeze(num_rows)
    row_numbers = Range(first, rows_end, next)
    rows_64 = Cast<to=11>(row_numbers)
    row_centers = Add(rows_64, half)
    row_places = Mul(row_centers, row_step)
    row_places_32 = Cast<to=1>(row_places)
    rows = Cast<to=7>(row_places_32)
    columns_end = Squeeze(num_columns)
    column_numbers = Range(first, columns_end, next)
    columns_64 = Cast<to=11>(column_numbers)
    column_centers = Add(columns_64, half)
    column_places = Mul(column_centers, column_step)
    column_places_32 = Cast<to=1>(column_places)
    columns = Cast<to=7>(column_places_32)
    limits = Sub(sides, one)
    last_row, last_column = Split<num_outputs=2>(limits)
    rows_inside = Min(rows, last_row)
    columns_inside = Min(columns, last_column)
    rows_of = Gather<axis=2>(batch, rows_inside)
    pixels = Gather<axis=3>(rows_of, columns_inside)""",
}
# `eval_crop` and `Normalize`. The pads are negative where the image is larger than the crop.
_GRAPH = """<ir_version: 10, opset_import: ["" : 18]>
preprocess (uint8[height, width, $channels] image) => (float[1, $channels, rows, columns] images)
<int64[2] size = {$size}, int64[2] crop = {$crop}, float[$channels, 1, 1] color = {$color},
 float[$channels, 1, 1] factor = {$factor}, float[$channels, 1, 1] offset = {$offset},
 int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[2] axes = {2, 3}, double[1] half = {0.5},
 int64[2] planes = {1, $channels}>
{
    shape = Shape(image)
    sides = Slice(shape, zero, two)
    $whole
    resized = Max(whole, one)
    planar = Transpose<perm=[2, 0, 1]>(image)
    batch = Unsqueeze(planar, zero)
    $pixels
    margins = Sub(resized, size)
    exact_margins = Cast<to=11>(margins)
    halves = Mul(exact_margins, half)
    rounded_halves = $rounding(halves)
    start = Cast<to=7>(rounded_halves)
    before = Neg(start)
    after = Sub(start, margins)
    pads = Concat<axis=0>(before, after)
    levels = Cast<to=1>(pixels)
    colored = Sub(levels, color)
    padded = Pad(colored, pads, , axes)
    shown = Add(padded, color)
    scaled = Mul(shown, factor)
    images = Add(scaled, offset)
}"""


_DECISION = """<ir_version: 10, opset_import: ["" : 18]>
decide (float[N, K] logits) => (float[N, K] probabilities, float[N, 1] highest, bool[N, D] decided)
<double[1] temperature = {$temperature}, int64[1] last = {-1}, double[1] one = {1.0}, int64[$number] labels = {$labels}>
{
    exact = Cast<to=11>(logits)
    scaled = Div(exact, temperature)
    shares = $activation(scaled)
    probabilities = Cast<to=1>(shares)
    highest = ReduceMax(probabilities, last)
    others = Sub(one, shares)
    $rule
}"""
_BEST = "best = ArgMax<axis=1>(scaled)\n decided = Equal(best, labels)"
_REACHED = """
    log_shares = Log(shares)
    log_others = Log(others)
    all_odds = Sub(log_shares, log_others)
    odds = Gather<axis=1>(all_odds, labels)
    thresholds = Constant<value = double[$number] {$thresholds}>()
    decided = GreaterOrEqual(odds, thresholds)"""


def _parsed(graph: str, **words: Any) -> Any:
    """The prefix: edges of the network may have the same names."""
    from onnx import compose, parser

    text = Template(graph).substitute(words).replace("{[", "{").replace("]}", "}")
    parsed = parser.parse_model(text)
    return compose.add_prefix(parsed, f"{parsed.graph.name}_", rename_inputs=False, rename_outputs=False)


def preprocessing_graph(data: Data) -> Any:
    """An ONNX model: `image` uint8 (H, W, C) -> `images` float32 (1, C, S, S), as an evaluation shows it."""
    size = data.input_size
    normalize = Normalize(data)
    is_square_crop = data.resize == "crop" and size[0] == size[1]
    return _parsed(
        _GRAPH,
        size=[*size],
        crop=crop_sides(data),
        whole=_RESIZED["square" if is_square_crop else data.resize],
        pixels=_PIXELS[data.interpolation],
        channels=data.image_channels,
        rounding="Round" if data.resize == "crop" else "Ceil",
        color=[float(round(255 * value)) if data.resize == "pad" else 0.0 for value in data.imagenet_mean],
        factor=normalize.factor.flatten().tolist(),
        offset=normalize.offset.flatten().tolist(),
    )


def decision_graph(trained: TrainedModel, names: list[str]) -> tuple[Any, Values]:
    """An ONNX model: logits (N, K) -> probabilities, the highest one, and which decisions are taken, (N, D).

    Also the names of the decisions: the class of the operating point, else all classes, and of no decision.
    """
    decision = trained.decision
    point = decision.point
    thresholds = [logit / decision.temperature for logit in decision.thresholds or ()]
    is_multi_label = trained.config.data.multi_label
    known = {"decisions": names, "other": "", "threshold": None}
    labels = [*range(len(names))]
    if is_multi_label and not thresholds:
        thresholds = [0.0] * len(names)
    if thresholds:
        known["thresholds"] = [*map(probability_of, thresholds)]  # of the divided logits, as `probabilities`
    if point and point.threshold is not None:
        other, name = decision_names(point, names, is_multi_label)
        known |= {"decisions": [name], "other": other, "threshold": probability_of(point.threshold)}
        labels = [point.label]
        thresholds = [point.threshold]
    graph = _parsed(
        _DECISION.replace("$rule", _REACHED if thresholds else _BEST),
        temperature=decision.temperature,
        activation="Sigmoid" if is_multi_label else "Softmax",
        number=len(labels),
        labels=labels,
        thresholds=thresholds,
    )
    return graph, known


def write_deploy(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Raises UserError: without validation images; check.py finds a difference."""
    import onnx
    import onnxruntime
    from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed

    data = trained.config.data
    if trained.samples is None:
        raise UserError("-format deploy has validation images as references; remove -no_check or -check")
    path.mkdir()
    names = list(map(to_single_line, trained.names))
    decision, known = decision_graph(trained, names)
    batch_file = path / "model-batch.onnx"
    write_onnx(model, trained, batch_file)
    network = onnx.load(batch_file)
    make_dim_param_fixed(network.graph, "batch", 1)
    reading = preprocessing_graph(data)
    reading.ir_version = decision.ir_version = network.ir_version
    whole = onnx.compose.merge_models(reading, network, [("images", "images")], outputs=["images", "logits"])
    outputs = ["images", "logits", "probabilities", "highest", "decided"]
    onnx.save(onnx.compose.merge_models(whole, decision, [("logits", "logits")], outputs=outputs), path / "model.onnx")
    low, high = data.grey_range or (0, MAX_VALUE)
    known |= {"name": trained.config.model.name, "grey_range": [low, high], "level": Normalize(data).factor.tolist()}
    (path / "model.json").write_text(indented_json(trained.description | known), encoding="utf-8")
    lines = [f"{data.image_channels} {low:g} {high:g}", known["other"], *known["decisions"]]
    (path / "model.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_references(path / "reference", trained.samples, data, model, decision)
    for name in ("check.py", "decide.cpp"):
        shutil.copy(_TEMPLATES / name, path)
    checked = subprocess.run([sys.executable, path / "check.py"], capture_output=True, text=True)
    if checked.returncode:
        raise UserError(
            f"-format deploy: check.py: {to_single_line(checked.stdout + checked.stderr)}; use -format onnx"
        )
    card = Template((_TEMPLATES / "README.md").read_text(encoding="utf-8"))
    facts = list_facts(card_facts(model, trained))
    texts = {"facts": facts, "check": checked.stdout, "onnxruntime": onnxruntime.__version__}
    (path / "README.md").write_text(card.substitute(known, **texts), encoding="utf-8")


def _write_references(folder: Path, samples: Samples, data: Data, model: nn.Module, decision: Any) -> None:
    """PNG files, of as many classes as possible; their inputs, logits and decisions by this program (.npz)."""
    from onnxruntime import InferenceSession

    folder.mkdir()
    firsts = np.unique(samples.targets, axis=0, return_index=True)[1].tolist()
    chosen = dict.fromkeys([*firsts[:_NUM_REFERENCES], *spread(len(samples), _NUM_REFERENCES)])
    crops = {}
    for index in [*chosen][:_NUM_REFERENCES]:
        file = folder / f"{index}.png"
        with suppress(BadImage):
            _reference_picture(samples, index, data).save(file)
            image = open_image(file.read_bytes(), data.image_channels, str, samples.decoding)
            crops[file.name] = eval_crop(data, image, random.Random())
    images = Normalize(data)(torch.stack([*crops.values()]))
    with torch.inference_mode():
        logits = model(images).numpy()
    session = InferenceSession(decision.SerializeToString(), providers=["CPUExecutionProvider"])
    (decided,) = session.run(["decided"], {"logits": logits})
    np.savez_compressed(folder / "reference.npz", names=[*crops], images=images.numpy(), logits=logits, decided=decided)


def _reference_picture(samples: Samples, index: int, data: Data) -> Image.Image:
    """The image, gray of 16 bits as it is stored; of a large one every second, third ... pixel."""
    picture = to_pillow(samples.open(index, data.image_channels).pixels)
    if isinstance(samples, EncodedImages):
        deep = read_deep_values(samples.read_bytes(index), samples.name(index), data.max_pixels)
        if deep and deep[0].ndim == 2:
            picture = Image.fromarray(deep[0])
    step = -(-max(picture.size) // (2 * max(data.input_size)))
    return Image.fromarray(np.asarray(picture)[::step, ::step])
