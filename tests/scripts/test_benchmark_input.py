"""benchmark_input.py: test images, ratios, equal transforms, and a small run. No test here asserts a time."""

import json
import sys
import time

import pytest
import timm.data
import torch
from conftest import samples_for
from PIL import Image

from configs.reading.command_line import parse_command_line
from datasets.loading.loader import BatchReader
from datasets.transforms.device import build_eval_transform
from datasets.transforms.host import build_host_transform
from datasets.transforms.mixup import Mixup
from scripts import make_shards
from scripts.benchmarks import benchmark_input, input_contenders, source_contenders
from scripts.benchmarks.augmentation_contenders import DEIT, deit_contenders
from scripts.benchmarks.benchmark_images import link_images, make_images, mean_kilobytes
from scripts.benchmarks.benchmark_input import Size, contender_table, fidelity
from scripts.benchmarks.input_contenders import Contender
from scripts.benchmarks.source_contenders import source_table
from scripts.benchmarks.turns import measure, measure_turn, with_ratios
from utils.errors import UserError

WHOLE = [
    "DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.3333333, 1.3333334]", "DATA.HFLIP_PROB=1.0"
]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("scripts.benchmarks.common.visible_gpus", lambda: 0)
    monkeypatch.setattr(benchmark_input, "SIZES", (Size(64, 48, 2000, 1.0),))
    monkeypatch.setattr(benchmark_input, "EPOCH", 48)


# Images


def test_images_have_the_given_size_and_are_reproducible(tmp_path):
    for name in ("a", "b"):
        make_images(tmp_path / name, (120, 90), count=16, mean_bytes=7000)
    one, other = (sorted((tmp_path / name).rglob("*.jpg")) for name in ("a", "b"))
    assert len(one) == 16
    assert mean_kilobytes(one) == pytest.approx(7, rel=0.1)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    assert len({path.read_bytes() for path in one}) == 16
    with Image.open(one[0]) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (120, 90))


def test_images_need_no_photographs(tmp_path, monkeypatch):
    for name in ("sklearn", "sklearn.datasets", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    make_images(tmp_path, (120, 90), count=16, mean_bytes=7000)
    images = sorted(tmp_path.rglob("*.jpg"))
    assert len({path.read_bytes() for path in images}) == 16
    assert mean_kilobytes(images) == pytest.approx(7, rel=0.1)


def test_links_make_a_long_epoch_of_few_images(tmp_path):
    make_images(tmp_path / "images", (16, 16), count=10, mean_bytes=400)
    images = link_images(tmp_path / "images", tmp_path / "data", entries=35)
    entries = list((tmp_path / "data" / "train").rglob("*.jpg"))
    assert (len(images), len(entries)) == (10, 35)
    assert {entry.resolve() for entry in entries} == {image.resolve() for image in images}
    assert all(entry.resolve().parent.name == entry.parent.name for entry in entries)
    assert len(list((tmp_path / "data" / "val").rglob("*.jpg"))) == 8


def test_a_folder_without_classes_is_refused(tmp_path):
    (tmp_path / "only").mkdir()
    with pytest.raises(UserError, match="has fewer than two folders of JPEGs"):
        link_images(tmp_path, tmp_path / "data", entries=4)


# Figures


def speeds(ours: list[float], its: list[float]) -> dict:
    one = {"first_batch_seconds": 1.0, "ends_as": "float32", "against": "ours"}
    return {"timm": one | {"images_per_second": its}, "ours": one | {"images_per_second": ours}}


def test_a_ratio_is_the_median_of_the_rounds():
    found = with_ratios(speeds([100.0, 240.0, 90.0], [50.0, 80.0, 90.0]))
    assert found["timm"]["ratios"] == [2.0, 3.0, 1.0]
    table = contender_table(found)
    assert "| timm | 80 (50 to 90) | 2.00 (1.00 to 3.00) | 1.00 | float32 |" in table
    assert "| ours | 100 (90 to 240) |  | 1.00 | float32 |" in table


def test_a_restarted_contender_has_a_new_stream_in_each_turn(cpu):
    starts = {"once": [], "each turn": []}

    def stream(name: str):
        starts[name].append("started")
        try:
            while True:
                yield 4
        finally:
            starts[name].append("ended")

    contenders = {name: Contender(lambda name=name: stream(name), "", "once", name == "each turn") for name in starts}
    measured = measure(contenders, rounds=3, seconds=0.001, device=cpu.device, prefetched=2)
    assert starts["each turn"] == ["started", "ended"] * 3
    assert starts["once"][0] == "started" and starts["once"].count("started") == 1
    assert all(len(one["ratios"]) == 3 for one in measured.values())


def test_a_turn_ends_with_a_whole_batch(monkeypatch, cpu):
    clock = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def batches():
        while True:
            clock[0] += 0.4
            yield 8

    assert measure_turn(batches(), seconds=1.0, device=cpu.device) == pytest.approx(3 * 8 / 1.2)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-num_workers=0"], "-num_workers"),
        (["-opts", "DATA.AFFINE_DEGREES=10"], "AFFINE"),
        (["-round=1"], "unknown flag -round; did you mean -rounds?"),
        (["-data=/no/such/folder"], "/no/such/folder"),
        (["-augment=vit"], "-augment"),
        (["-sources", "-augment=deit"], "-sources: compares crops and flips only; remove -augment"),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_input, "measure_section", lambda *_: pytest.fail("a measurement started"))
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        benchmark_input.main(argv)


# Measurements


def folder_config(tmp_path, *argv: str):
    make_images(tmp_path / "images", (64, 48), count=16, mean_bytes=1500)
    link_images(tmp_path / "images", tmp_path / "data", entries=32)
    data = ["-dataset=folder", f"-data_path={tmp_path / 'data'}", "-batch_size=8", "-image_size=32"]
    return parse_command_line([*data, "-opts", "MODEL.PATCH_SIZE=16", *argv]).config


def test_fidelity_compares_crops_with_pillows_crops_of_the_same_boxes(tmp_path, monkeypatch, cpu):
    config = folder_config(tmp_path)
    found = fidelity(config, cpu, 20)
    assert found["crops"] == 24
    assert 0 <= found["mean"] <= found["largest"] <= 1
    pillow_crop = benchmark_input.pillow_crop
    monkeypatch.setattr(benchmark_input, "pillow_crop", lambda *args: pillow_crop(*args) + 3)
    assert fidelity(config, cpu, 20)["mean"] == pytest.approx(3, abs=1)


def test_all_contenders_apply_the_same_transform(tmp_path, cpu):
    """Crops of the whole image that are always flipped have only one result."""
    config = folder_config(tmp_path, *WHOLE)
    data = config.data
    timm_image, _ = input_contenders.timm_images(data, use_prefetcher=False)[0]
    path = sorted((tmp_path / "data" / "train").rglob("*.jpg"))[0]
    with Image.open(path) as image:
        references = input_contenders.reference_transform(data)(image)
    (samples,) = samples_for(config, cpu, "train")
    assert samples.location(0) == str(path)
    batch = BatchReader(samples, data, build_host_transform(data, config.train, config.seed)).__getitems__([(0, 0, 0)])
    ours = build_eval_transform(data)(batch.images)[0]
    torch.testing.assert_close(timm_image, references, rtol=0, atol=1e-6)
    assert (ours - references).abs().mean() < 0.5 / 127.5


def test_a_run_prints_the_tables_and_writes_the_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    small = ["-images=16", "-rounds=1", "-seconds=0.1", "-batch_size=4", "-num_workers=1", "-image_size=32"]
    status = benchmark_input.main([*small, f"-json={tmp_path / 'a.json'}"])
    printed = capsys.readouterr().out
    for start in (
        "## 64x48-2KB: 16 JPEGs of 2 KB, to 32x32",
        "One process, one thread:",
        "Loaders with 1 workers",
        "| ours |",
    ):
        assert f"\n{start}" in printed
    (section,) = json.loads((tmp_path / "a.json").read_text())["sections"]
    assert len(section["one_process"]) == 5
    assert status == (0 if section["fidelity"]["largest"] <= 0.5 else 1)
    for name, one in section["loaders"].items():
        assert one["images_per_second"][0] > 0, name
        assert one["ratios"][0] == section["loaders"]["ours"]["images_per_second"][0] / one["images_per_second"][0]


def test_sources_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(source_contenders, "ENTRIES", 64)
    monkeypatch.setattr(source_contenders, "SHARD_MB", 0.05)
    make_images(tmp_path / "images", (64, 48), count=16, mean_bytes=1500)
    argv = ["-batch_size=8", "-num_workers=0", "-image_size=32", "-opts", "MODEL.PATCH_SIZE=16"]
    config = parse_command_line(argv).config
    result = source_contenders.measure_sources(tmp_path / "images", tmp_path, config, rounds=2, seconds=0.02)
    sources = result["sources"]
    assert source_contenders.GOALS.keys() < sources.keys() and len(sources) == 7
    assert all(len(one["images_per_second"]) == 2 and min(one["images_per_second"]) > 0 for one in sources.values())
    num_shards = len(list((tmp_path / "shards").glob("train-*.tar")))
    assert num_shards > 1
    assert len(list((tmp_path / "warm").rglob("*.tar"))) == num_shards


def test_the_table_of_sources_has_medians_of_ratios():
    speeds = {
        "folder": [100.0, 200.0, 50.0],
        "tar, local": [98.0, 160.0, 51.0],
        "WebDataset, local": [49.0, 40.0, 51.0],
    }
    against = {"folder": "folder", "tar, local": "folder", "WebDataset, local": "tar, local"}
    speeds = dict(zip(against, ([100.0, 200.0, 50.0], [98.0, 160.0, 51.0], [49.0, 40.0, 51.0]), strict=True))
    sources = {name: {"images_per_second": speeds[name], "against": against[name]} for name in speeds}
    lines = source_table({"sources": with_ratios(sources), "mean_kilobytes": 105.7}).splitlines()
    assert lines[0] == "| JPEGs of 106 KB from | images/s | ratio | goal |"
    assert lines[2:] == [
        "| folder | 100 (50 to 200) |  |  |",
        "| tar, local | 98 (51 to 160) | 0.98 (0.80 to 1.02) of folder | 0.95 |",
        "| WebDataset, local | 49 (40 to 51) | 2.00 (1.00 to 4.00): tar, local / it | 1.50 |",
    ]


def test_webdataset_applies_the_transform_of_the_references(tmp_path):
    config = folder_config(tmp_path, *WHOLE)
    make_shards.main(
        ["-dataset=folder", f"-data_path={tmp_path / 'data'}", f"-output={tmp_path / 'shards'}", "-shard_mb=1"]
    )
    shards = [tmp_path / "shards" / "train-000000.tar"]
    images, labels = next(iter(source_contenders.webdataset_samples(shards, config.data)))
    assert images.shape == (8, 3, 32, 32) and len(labels) == 8
    expected = []
    for path in (tmp_path / "data" / "train").rglob("*.jpg"):
        with Image.open(path) as image:
            expected.append(input_contenders.reference_transform(config.data)(image))
    assert all(any(torch.equal(image, other) for other in expected) for image in images)


def test_deits_augmentation_in_both_loaders(tmp_path, monkeypatch, capsys):
    """All loaders mix, erase and augment; the fidelity is that of the crops."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    batches = []
    mix = Mixup.forward
    monkeypatch.setattr(Mixup, "forward", lambda *args: batches.append(mix(*args)) or batches[-1])
    small = ["-images=16", "-rounds=1", "-seconds=0.1", "-batch_size=3", "-num_workers=1", "-image_size=32"]
    status = benchmark_input.main(["-augment=deit", *small, f"-json={tmp_path / 'a.json'}"])
    (section,) = json.loads((tmp_path / "a.json").read_text())["sections"]
    assert list(section["loaders"]) == ["timm create_loader", "ours, PaddleViT's RandAugment", "ours"]
    assert section["one_process"] == {} and section["batch_size"] == 4
    assert batches and all(targets.shape == (4, 1000) for _, targets in batches)
    assert status == (0 if section["fidelity"]["largest"] <= 0.5 else 1)
    assert "One process" not in capsys.readouterr().out


def test_timms_loader_has_our_options(tmp_path, monkeypatch, cpu):
    seen = {}
    monkeypatch.setattr(
        timm.data, "create_loader", lambda *args, **options: seen.update(options) or [(torch.zeros(2), torch.zeros(2))]
    )
    config = folder_config(tmp_path, *DEIT)
    next(deit_contenders(config, cpu)["timm create_loader"].start())
    mixing = seen["collate_fn"]
    assert (mixing.mixup_alpha, mixing.cutmix_alpha, mixing.mix_prob, mixing.switch_prob) == (0.8, 1.0, 1.0, 0.5)
    given = [seen[key] for key in ("auto_augment", "color_jitter", "re_prob", "re_mode", "interpolation")]
    assert given == ["rand-m9-mstd0.5-inc1", 0.4, 0.25, "pixel", "bicubic"] and seen["use_prefetcher"]
    assert (config.train.augment_policy, config.train.color_jitter) == ("rand-m9-mstd0.5-inc1", 0.4)
