"""Images without labels: an image, a folder, a list, a table."""

import os
from pathlib import Path

import pytest
from source_helpers import assert_refused, write_image

from datasets.decoding.images import BadImage
from datasets.registry import unlabelled
from datasets.sources.files.class_folders import read_class_folders


def names(path) -> list[str]:
    samples = unlabelled(str(path))
    return [samples.name(index) for index in range(len(samples))]


def test_a_folder_is_read_as_class_folders_are(tmp_path):
    for name in ("b/2.jpg", "b/deep/1.PNG", "a/3.jpg", ".hidden.jpg", ".git/4.jpg", "a/.5.jpg"):
        write_image(tmp_path / name)
    (tmp_path / "b" / "notes.txt").touch()
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "same").symlink_to(tmp_path / "b")
    samples = unlabelled(str(tmp_path))
    assert [str(Path(samples.name(index)).relative_to(tmp_path)) for index in range(3)] == [
        *("a/3.jpg", "a/same/2.jpg", "a/same/deep/1.PNG")
    ]
    assert len(samples) == 3 and not samples.has_class_names
    assert samples.targets.tolist() == [0, 0, 0]
    assert samples.open(1, 3).pixels.shape == (3, 9, 12)
    labelled = read_class_folders(tmp_path)  # here, each class is read by itself
    assert labelled.arrays["targets"].tolist() == [0, 0, 0, 1, 1]


def test_unusable_images_of_a_folder_are_found_when_they_are_read(tmp_path):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "c.jpg")
    (tmp_path / "d.jpg").write_bytes(b"")
    samples = unlabelled(str(tmp_path))
    assert len(samples) == 4
    for index, reason in ((1, "No such file"), (2, "not a regular file"), (3, "is empty")):
        with pytest.raises(BadImage, match=reason):
            samples.open(index, 3)


def test_a_list_has_paths_with_or_without_labels(tmp_path):
    text = "\ufeffa.jpg 3\r\nb c.jpg\t12\n\n  d e.jpg\n/abs/f.jpg\n../g.jpg 0\na.jpg\n"
    (tmp_path / "list.TXT").write_text(text, encoding="utf-8")
    assert names(tmp_path / "list.TXT") == [
        *(f"{tmp_path}/a.jpg", f"{tmp_path}/b c.jpg", f"{tmp_path}/d e.jpg", "/abs/f.jpg", f"{tmp_path}/../g.jpg"),
        f"{tmp_path}/a.jpg",
    ]


def test_a_table_has_the_column_image_path(tmp_path):
    (tmp_path / "t.csv").write_text('id,image_path,target\n1,"a, b.jpg",dog\n2,/abs/c.jpg,cat\n')
    assert names(tmp_path / "t.csv") == [f"{tmp_path}/a, b.jpg", "/abs/c.jpg"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("missing", None, "no such file or folder"),
        ("empty.txt", "\n\n", "lists no images"),
        ("no_column.csv", "path\na.jpg\n", "no_column.csv:1: the header lacks image_path"),
        ("blank.csv", "id,image_path\n1,a.jpg\n2,\n", "blank.csv:3: image_path is empty"),
        ("utf16.txt", "a.jpg".encode("utf-16-le"), r"utf16.txt:1: 'a\x00.\x00"),
        ("folder", ..., "contains no images"),
    ],
)
def test_mistakes_are_one_line(name, content, problem, tmp_path):
    path = tmp_path / name
    if content is ...:
        (path / "sub").mkdir(parents=True)
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(lambda: unlabelled(str(path)), str(path)[:80], problem)
