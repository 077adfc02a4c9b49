"""Trees of well-known downloads, and random mixtures of layouts: read right, or refused in one line that helps."""

import re
import shlex
from pathlib import Path

import pytest
from source_helpers import IMAGE, options, tree

from datasets.registry import has_test_split, read_samples, recognize_dataset
from utils.errors import UserError


def read(root, cpu, known=None, **values):
    """The classes, and the number of images of train, val and test; all notes."""
    given = recognize_dataset(options(root, batch_size=1, **values), cpu)
    has_test, _ = has_test_split(given, cpu, known)
    names = ("train", "val", "test") if has_test else ("train", "val")
    splits = read_samples(given, None, cpu, *names, class_names=known)
    return splits, " | ".join(note.text for samples in splits for note in samples.notes)


def refusal(root, cpu, **values) -> str:
    with pytest.raises(UserError) as error:
        read(root, cpu, **values)
    assert "\n" not in str(error.value) and len(str(error.value)) < 700, str(error.value)
    return str(error.value)


def proposed(text: str) -> list[str]:
    return [shlex.split(path)[0] for path in re.findall(r"-data_path=('[^']+'|[^\s;]+)", text)]


READ = {
    "Intel": (["{seg_train/seg_train,seg_test/seg_test}/{sea,street}", "seg_pred/seg_pred"], (6, 2, 8), "seg_pred lab"),
    "cats and dogs": (["{training_set/training_set,test_set/test_set}/{cats,dogs}"], (6, 2, 8), "train is 'training"),
    "chest X-rays": (["{train,val,test}/{N,P}", "chest/{train,val,test}/{N,P}", "__MACOSX/N"], (8, 8, 8), ""),
    "unzipped": (["R/R/{train,val}/{a,b}", "R/__MACOSX/R/train/a"], (8, 8), ""),
    "flat test": (["train/{a,b}", "test"], (6, 2), ""),
    "files beside classes": (["train/{a,b}", "val/{a,b}", "train", "raw", "train/.cache"], (8, 8), "not read: 'raw'"),
    "STL-10": (["{train,test}/{a,b}", "unlabeled"], (6, 2, 8), "unlabeled labels images"),
    "camel": (["{ImgTrain,ImgTest}/{a,b}"], (6, 2, 8), ""),
    "root": (["{a,b}", "{validation,Test}/{a,b}", "predictions"], (8, 8, 8), "not read: 'predictions'"),
    "classes of classes": (["colon/{aca,n}", "lung/{aca2,n2,scc}"], (18, 2), "the classes are 'colon', 'lung'"),
    "varieties": (["rose/{red,white}", "tulip/{red,yellow}", "daisy"], (17, 3), ""),
    "patients": (["well/{p1,p2}", "ill/{p3,p4}"], (14, 2), ""),
    "vehicles": (["bus", "car", "train"], (9, 3), "train is read as a class"),
    "words that begin so": (["{predator,prey,valley,trains,devices,TESTAMENT}"], (18, 6), ""),
    "lists of PaddleClas": (["{a,b}", "{train,val}.txt!"], (6, 2), "val.txt: not read, the folders decide"),
    "Synology": (["{a,b}", "{a,b}/@eaDir/0.jpg"], (6, 2), "2 '@eaDir/'"),
    "systems": (
        ["{a,b}", "a/{#recycle,.@__thumb}", "$RECYCLE.BIN", "System Volume Information/", "lost+found/", "@Recycle/b"],
        (6, 2),
        "1 '$RECYCLE.BIN/'",
    ),
    "no class in val": (["train/{a,b,c}", "val/{a,c}"], (12, 8), "val: has no image of 'b', unlike"),
    "empty class in val": (["train/{a,b,c}", "{val,test}/{a,c}", "{val,test}/b/"], (12, 8, 8), "test: has no image of"),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_trees_that_are_read(name, tmp_path, cpu):
    parts, sizes, note = READ[name]
    root = tree(tmp_path, *parts)
    root = root / "R" if (root / "R").is_dir() else root
    splits, notes = read(root, cpu, dataset="folder")
    train, *others = splits
    leaves = {path.rsplit("/", 2)[-2] for path in map(train.name, range(len(train)))}
    if name not in ("classes of classes", "varieties", "patients"):
        assert set(train.class_names) == leaves
    assert tuple(map(len, splits)) == sizes and note in notes, (sizes, notes)
    for samples in others:
        for index, label in enumerate(samples.targets):
            assert f"/{train.class_names[label]}/" in samples.name(index)
    (again,) = read_samples(
        options(root, batch_size=1, dataset="folder"), None, cpu, "train", class_names=train.class_names
    )
    assert list(again.listing.paths) == list(train.listing.paths)  # a resumed run reads the same


BOTH = "-opts DATA.CLASS_FOLDERS=true"
REFUSED = {
    "PlantVillage": (["{color,grayscale,segmented}/{apple,corn}"], ["color", "grayscale", "segmented"], BOTH),
    "folds": (["fold{1,2,3,4,5}/{a,b}"], [], BOTH),
    "MURA": (["{train,valid}/XR_{WRIST,HAND}/patient0000{1,2,3}/study1_{negative,positive}"], [], BOTH),
    "sites": (["site{A,B,C}/{a,b}", "color/{a,b}"], ["color"], BOTH),
    "twice": (["{2020,2021}/{color,gray}/{a,b}"], ["2020/color", "2020/gray", "2021/color"], BOTH),
    "most images": (["Dataset/{0,1,2,3,4,5,6,7,8,9}", "Examples"], ["Dataset"], "40 of 44 images"),
    "most images in splits": (["Dataset/{train,val}/{a,b}", "Examples"], ["Dataset"], "16 of 20 images"),
    "splits in one": (["ants/{train,val}/{a,b}"], ["ants"], "only one folder"),
    "flowers": (["{daisy,rose}", "flowers/{daisy,rose}"], ["flowers"], BOTH),
    "Food-101": (["images/{pie,rice}", "meta/train.txt!"], ["images"], "images are in the folders of images"),
    "two trainings": (["{images_train,masks_train,images_test}/{a,b}"], [], "which one is train? Rename it train"),
    "vehicles": (["bus", "car", "train/{steam,electric}"], ["train"], BOTH),
    "unlabelled": (["{a,b}", "unlabeled"], [], BOTH),
    "test images": (["{a,b}", "test_images"], [], BOTH),
    "class of val": (["train/{a,b}", "val/{a,b,c}"], [], "'c' is in val, not in train"),
    "Tiny ImageNet": (["train/{n1,n2}/images", "val/images", "val/val_annotations.txt!"], ["train"], "tions.txt' is"),
    "nothing in common": (["training_set/{a,b}", "test_set/{x,y}"], [], "'test_set', 'training_set' a class"),
    "valid twice": (["train/{a,b}", "{valid,validation}/{a,b}"], [], "which one is val"),
    "no training": (["{validation,test}/{a,b}"], [], "has no folder train beside 'validation'"),
    "flat splits": (["{train,val}"], [], "train: contains no folders"),
    "wrong folder": (["{train,val}/Dataset/{a,b}"], ["train/Dataset"], "only one folder"),
    "COVID-19 Radiography": (["{COVID,Normal}/{images,masks}", "list.xlsx!"], [], "move the folders 'masks' out of"),
    "CIFAR-10": (["data_batch_1!", "test_batch!"], [], "use -dataset=cifar10"),
    "masks": (["images", "masks"], [], "is 'images' a class, beside 'masks'"),
    "ChestX-ray14": (["images_{001,002,012}/images"], [], BOTH),
    "batches": (["batch1/{a,b}", "batch2/{a,c}"], [], BOTH),
    "archive": (["images.zip!"], [], "'images.zip' is not read"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "proposed_table"),
    [
        (["train_labels.csv", "test_labels.csv"], "train_labels.csv"),
        (["Testing_set.csv", "Training_set.csv"], "Training_set.csv"),
        (["sample_submission.csv", "solution.csv"], "solution.csv"),
        (["train.jsonl"], "train.jsonl"),
    ],
)
def test_a_table_of_the_training_is_proposed_and_no_other(tables, proposed_table, tmp_path, cpu):
    root = tree(tmp_path / "R", "{0,1}.jpg!", *(f"{name}!" for name in tables))
    assert [Path(path).name for path in proposed(refusal(root, cpu))] == [proposed_table]


@pytest.mark.parametrize(
    ("files", "num_named"),
    [
        ("{0,1,2}.png {0,1,2}_mask.png", 3),
        ("{0,1,2}.jpg {0,1,2}.png", 3),
        ("{0,1,2}.jpg {0,1}_copy.jpg", 2),
        ("{0,1,2,3}.jpg 0.png", 0),  # few, perhaps by chance
        ("1.2.{0,1,2}", 0),
        ("cat_{0,1,2}.jpg mask_{0,1}.jpg maskray.jpg 3_mask.jpg", 0),
    ],
)
def test_masks_and_copies_beside_their_images_are_a_warning(files, num_named, tmp_path, cpu):
    root = tree(tmp_path / "R", *(f"{{a,b}}/{file}!" for file in files.split()))
    for file in root.glob("*/*"):
        file.write_bytes(IMAGE)
    notes = {note for note in read(root, cpu)[1].split(" | ") if "have the name of another image" in note}
    assert [f": {2 * num_named} of " in note for note in notes] == [True] * bool(num_named)


@pytest.mark.parametrize("name", REFUSED)
def test_trees_that_are_refused(name, tmp_path, cpu):
    parts, paths, text = REFUSED[name]
    root = tree(tmp_path / "R", *parts)
    message = refusal(root, cpu)
    assert text in message and [Path(path).relative_to(root).as_posix() for path in proposed(message)] == paths
    for path in paths:
        (train, *_), _ = read(root / path, cpu, dataset="folder")
        assert len(train.class_names) > 1
    if BOTH in message:
        (train, *_), _ = read(root, cpu, dataset="folder", class_folders=True)
        assert len(train.class_names) > 1


@pytest.mark.parametrize(
    "parts",
    [
        ["{color,grayscale}/{a,b}"],
        ["seg_train/seg_train/{a,b}", "seg_test/seg_test/{a,b}", "seg_pred/seg_pred"],
        ["bus", "car", "train/{steam,electric}"],
    ],
)
def test_a_run_of_an_older_version_keeps_its_classes(parts, tmp_path, cpu):
    root = tree(tmp_path, *parts)
    names = sorted(path.name for path in root.iterdir())
    (train, val), _ = read(root, cpu, known=names, dataset="folder")
    assert train.class_names == names and len(train) + len(val) == len(list(root.rglob("*.jpg")))


def test_links_and_permissions(tmp_path, cpu, monkeypatch):
    root = tree(tmp_path / "R", "{a,b}")
    tree(tmp_path, "far/{train,val}/{a,b}")
    (tmp_path / "linked").symlink_to(tmp_path / "far")
    assert list(map(len, read(tmp_path / "linked", cpu)[0])) == [8, 8]
    (root / "c").symlink_to(tmp_path / "missing")
    assert f"{root}/c: is a broken link, to {tmp_path}/missing; restore the folder" in refusal(root, cpu)
    assert "c: is a broken link (to " in refusal(root / "c", cpu, dataset="folder")
    (root / "c").unlink()
    (root / "a" / "more").symlink_to(tmp_path / "missing")
    assert "1 broken link(s) are ignored; the first is" in read(root, cpu)[1]
    (root / "a" / "x.jpg").symlink_to("nowhere.jpg")
    (train, *_), _ = read(root, cpu, val_fraction=0.01)
    image = train.missing_image(list(train.listing.paths).index("a/x.jpg"))
    assert "a/x.jpg' is a broken link, to 'nowhere.jpg'" in image.reason and "did you mean" not in str(image)
