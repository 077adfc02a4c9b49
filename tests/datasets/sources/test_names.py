"""Names of classes, files and folders with any bytes: control characters reach neither the terminal nor the log."""

import os
import re

from conftest import GREY, TINY_VIT, config_for, read_result, train
from source_helpers import write_image

from scripts import report

NAMES = [
    r"$\frac{", "<script>alert(1)<", "\x1b[31m\x1b]0;harm\x07", "two\nlines", "x" * 255, os.fsdecode(b"\xff\xfe\xe9"),
    "'; DROP TABLE", "ünï 中🙂", "{format} %s %(message)s", "a: &b *c #", "$HOME `id`", "\u202egpj", "-opts",
    "a\u2028b",
]  # fmt: skip
FOLDER = "data $\\frac{ \x1b[31m\n{}%s"


def test_a_whole_run(tmp_path, cpu, capsys):
    """Class folders with these names, two images in each; the log reports one bad image and one ignored link."""
    root = tmp_path / FOLDER
    for split in ("train", "val"):
        for name in NAMES:
            write_image(root / split / name / f"a {FOLDER}.png")
            write_image(root / split / name / "b.png")
        (root / split / NAMES[2] / "\x1b[2J\n.png").write_text("not an image")
        (root / split / NAMES[2] / "\x1b[2J\nlink").symlink_to(root)
    output = tmp_path / "output \x1b[31m$\\frac{"
    flags = ["-dataset=folder", f"-data_path={root}", "-batch_size=4", f"-output={output}", "-num_workers=0", "-opts"]
    folder = train([*flags, *TINY_VIT, *GREY, "DATA.ON_BAD_IMAGE=skip", f"MODEL.NUM_CLASSES={len(NAMES)}"], cpu)
    assert read_result(folder)["finished"]
    screen = capsys.readouterr().out
    assert f"of {len(NAMES)} classes" in screen
    assert report.main([str(folder)]) == 0
    assert config_for(f"-cfg={folder / 'config.yaml'}").data.data_path == str(root)
    texts = {
        path.name: path.read_bytes().decode()
        for path in folder.rglob("*.*")
        if path.suffix in (".txt", ".csv", ".yaml", ".html", ".json", ".jsonl")
    }
    assert {"log.txt", "bad_images_0.csv", "config.yaml", "report.html", "per_class.csv"} <= texts.keys()
    texts["screen"] = screen
    for name, text in texts.items():
        assert all(character.isprintable() or character in "\r\n" for character in text), name
    assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in texts["log.txt"].splitlines())
    for name in ("report.html", "screen"):  # of the class that is predicted, and of the worst one
        assert "two\nlines" not in texts[name]
    assert r"two\nlines" in texts["report.html"]
    assert texts["bad_images_0.csv"].count("\n") == len(texts["bad_images_0.csv"].splitlines())
