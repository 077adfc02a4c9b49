"""The folder of a run, whose files the report page reads: valid examples as one text, and a reader."""

import json
import shutil
from pathlib import Path

from configs.reading.command_line import parse_command_line, to_yaml
from engine.report.contents import read_contents
from engine.report.page import comparison_page, run_page
from utils.errors import UserError

_MARK = "=== "  # before the name of a file
_METRICS = """\
epoch,step,lr,train_loss,train_top1,val_loss,val_top1,val_top5,images_per_second,data_wait_share,peak_memory_bytes,train_seconds
1,20,0.1,2.3,10,2.1,20,60,1000,0.05,1000000,60
2,40,0.01,1.3,40,1.1,50,90,1001,0.04,1000001,120
"""
_SUMMARY = {"epoch": 2, "samples": 8, "loss": 1.1, "top1": 50.0, "top5": 90.0, "ece": 4.5, "attention": None}
_CLASSES = """\
label,class,count,predicted,precision,recall,f1,top1,top5
0,cat,4,4,75,75,75,75,100
1,dog,4,4,,75,75,75,100
"""
_MISTAKES = """\
kind,index,path,true,predicted,probability,true_probability,loss
highest_loss,3,a.png,cat,dog,90,5,3
"""
_EVALUATION = {
    "summary.json": json.dumps(_SUMMARY),
    "per_class.csv": _CLASSES,
    "confusion.csv": "true \\ predicted,cat,dog\ncat,3,1\ndog,1,3\n",
    "confused_pairs.csv": "true,predicted,count,share\ncat,dog,1,25\ndog,cat,1,25\n",
    "calibration.csv": "low,high,count,confidence,accuracy\n0,50,0,,\n50,100,8,75,62.5\n",
    "mistakes.csv": _MISTAKES,
}
_FACTS = """\
{"fact": "Devices", "processes": 1, "device": "cpu", "precision": "float32"}
{"fact": "Model", "parameters": 455000, "flops_per_image": 46600000, "peak_flops_per_second": null}
{"fact": "TrainingData", "training": 7, "validation": 8, "test": 0, "classes": 2, "model_classes": 2}
{"fact": "Attention", "kernels": ["flash_attention"]}
{"fact": "RunWarning", "text": "Warning: 12 of 1000 classes have one training image"}
{"fact": "Start", "folder": "output/run", "steps_done": 0}
"""


def run_examples() -> list[bytes]:
    return [_join(_training(status)) for status in _STATES] + [_join(_evaluation())]


_STATES = (
    {"state": "finished", "world_size": 1, "started": "2026-01-02 03:04:05"},
    {"state": "failed", "message": "out of memory"},
    {"state": "interrupted", "signal": "SIGTERM", "resume": "python main_single_gpu.py -resume=run"},
)


def _training(status: dict) -> dict[str, str]:
    files = {
        "status.json": json.dumps(status),
        "result.json": json.dumps({"top1": 50.0, "epoch": 2, "test": {"top1": 49.0, "samples": 8}}),
        "metrics.csv": _METRICS,
        "steps.csv": "step,lr,loss_scale,skipped_steps,grad_norm\n10,0.1,65536,0,1.5\n20,0.05,32768,1,\n",
        "classes.json": json.dumps({"class_names": ["cat", "dog"], "preprocessing": {"crop_pct": 0.9}}),
        "facts.jsonl": _FACTS,
        "recipe.yaml": "TRAIN: {BASE_LR: 0.01}\n",
        **{f"evaluation/{name}": text for name, text in _EVALUATION.items()},
    }
    return files | {"config.yaml": to_yaml(parse_command_line(["-dataset=digits"]).config)}


def _evaluation() -> dict[str, str]:
    options = parse_command_line(["-dataset=digits", "-eval", "-pretrained=best.pth"]).config
    return {
        "result.json": json.dumps({"top1": 50.0, "loss": 1.1}),
        **{f"evaluation/{name}": text for name, text in _EVALUATION.items()},
        "config.yaml": to_yaml(options),
    }


def _join(files: dict[str, str]) -> bytes:
    return "".join(f"{_MARK}{name}\n{text}" for name, text in files.items()).encode()


def read_run_folder(data: bytes, folder: Path) -> None:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    (run / "evaluation").mkdir(parents=True)
    known = {*_training({}), *_evaluation()}
    for part in data.split(_MARK.encode())[1:]:
        name, _, text = part.partition(b"\n")
        if (name := name.decode(errors="replace")) in known:  # not a path outside of the folder
            (run / name).write_bytes(text)
    if not any(run.glob("*.*")):
        raise UserError("no file of a run")
    contents = read_contents(run)
    run_page(contents).encode()
    comparison_page([contents, contents], [], folder).encode()
