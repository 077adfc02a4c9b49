"""DATA.LABELS: labels in paths; the advice in errors about images without class folders trains when it is typed."""

from conftest import each_row, line_of, refused
from source_helpers import classes_of, expand, names_of, options, read, tree, write_rows

from configs.yaml_io import parse_value
from datasets.recognition import recognize_dataset
from datasets.sources.folders.labels import without_masks

NUMBERS = "{1,2,3,4,5,6,7,8}"
# Files; DATA.LABELS or levels in DATA.COLUMNS; classes; images of train, val and perhaps test; groups
READ = """
files | labels | columns | classes | sizes | groups
{Train,valid,test_set}/{a,b}-@.jpg | (\\w+)- | | a b | 16 16 16 |
x/{train,test}/{a,b}-@.jpg | (\\w+)- | | a b | 14 2 16 |
{gt,suv}/@.jpg | ^([^/]+)/ | | gt suv | 14 2 |  # a class with the name of masks
{x,y}/{a,b}_@.jpg | (.)/(.) | | x/a x/b y/a y/b | 28 4 |
{a,b}_@.jpg | (?P<class>.)_(\\d) | | a b | 14 2 |
{1,2,10}_@.jpg | (\\d+)_ | | 1 10 2 | 21 3 |
{a,b}/p{1,2,3,4}/@.jpg | | {label: 1, group: 2} | a b | 48 16 | 4
{train,val}/{a,b}/p{1,2,3,4}/@.jpg | | {label: 1, group: 2} | a b | 64 64 | 4
seg_train/{a,b}/p{1,2,3}/@.jpg | | {label: 1, group: 2} | a b | 32 16 | 3
p{1,2,3,4}/{a,b}/@.jpg | | {label: 2, group: 1} | a b | 48 16 | 4
{p1,p2}/{a,b}/@.jpg test/{p1,p2}/{a,b}/@.jpg | | {label: 2, group: 1} | a b | 16 16 32 | 2
{train,test}/{a,b}/@.jpg | | {label: 1} | a b | 14 2 16 |
p{1,2,3,4}/{train,test}/{a,b}/@.jpg | | {label: 2, group: 1} | a b | 48 16 64 | 4
{train,val}/{c/{c1,c2},d/{d1,d2}}/@.jpg | | {label: 2} | c1 c2 d1 d2 | 32 32 |
{train,val}/{x,dev}/{a,b}-@.jpg | /([^/]+)/ | | dev x | 32 32 |  # a class called so
{a,b}/@.jpg {val,test}/{a,b}/x4.jpg | | {label: 1} | a b | 16 2 2 |  # train without a folder
{a,b}/p{1,2,3,4}/@.jpg test_set/{a,b}/p5/@.jpg | | {label: 1, group: 2} | a b | 48 16 16 | 5
"""


@each_row(READ)
def test_labels_in_paths(files, labels, columns, classes, sizes, groups, tmp_path):
    """The level of splits has no number, so that the columns of a run fit its test data."""
    root = tree(tmp_path / "R", *files.replace("@", NUMBERS).split())
    splits = read(root, labels=labels or None, columns=parse_value(columns or "{}"))
    assert splits[0].class_names == classes.split()
    assert [*map(len, splits)] == [*map(int, sizes.split())]
    assert not any("test" in path for one in splits[:2] for path in names_of(one))
    for path, label in classes_of(*splits).items():
        assert label.rpartition("/")[2] in path
    assert len({group for one in splits for group in one.groups or ()}) == int(groups or 0)


def test_masks_beside_images_are_not_read():
    paths = ["images/cat_1.jpg", "images/dog_2.jpg", "masks/cat_1.png", "masks/dog_2.png"]
    images, (note,) = without_masks(paths)
    assert images == paths[:2]
    assert "2 masks" in note.text
    assert without_masks(paths[1:]) == (paths[1:], [])  # a mask of no image


UNCLEAR = """
files | named
{a,b}_{1,2,3,4,5,6,7,8}.jpg x.jpg | 'x.jpg'  # no match
train/{a,b}_{1,2}.jpg val/{a,c}_1.jpg | 'val/c_1.jpg'  # a class of val
{train,test,raw}/{a,b}_1.jpg | 'raw', 'test', 'train'  # images beside splits
{train,training,test}/{a,b}_1.jpg | 'test', 'train', 'training'
{a,b,test_strip}/{a,b}_1.jpg test_strip/a/b_2.jpg | 'a', 'b', 'test_strip'
train/{train,val}/{a,b}_1.jpg test/{a,b}_2.jpg | 'val'  # splits in train
train/{{a,b}_1.jpg,test/{a,b}_2.jpg} test/{a,b}_3.jpg | 'test'  # a split in another one
{train,val}/{a,b}_1.jpg val/test/{a,b}_2.jpg | 'test'
{train,test}/{train,test}/{a,b}_1.jpg | 'test'
train/{x,y/z/holdout}/{a,b}_1.jpg | 'holdout'
images/images/{a,b}_1.jpg test/{a,b}_2.jpg | 'images', 'test'
"""


@each_row(UNCLEAR)
def test_paths_without_one_meaning_are_named(files, named, tmp_path):
    assert named in line_of(read, tree(tmp_path, *files.split()), labels="(.)_")


LISTS = """
name | header | row
{split}_list.txt | | {path}
{split}_list.txt | | {path} 7
{split}.csv | image_path | {path}
{split}.csv | image_path,age | {path},3
"""


@each_row(LISTS)
def test_lists_and_tables_without_labels(name, header, row, tmp_path):
    images = {split: expand(f"photos/{{cat,dog}}_{split}{NUMBERS}.jpg") for split in ("val", "train")}
    for split, paths in images.items():
        write_rows(tmp_path, paths, name, header, row, split=[split])
    given = options(tmp_path, labels="([a-z]+)_")
    train, val = map(classes_of, read(given))
    assert train == {path: path[7:10] for path in images["train"]}
    assert val == {path: path[7:10] for path in images["val"]}
    write_rows(tmp_path, [*paths, "photos/9.jpg"], name, header, row, split=["train"])
    with refused(r"train\S+:1[78]: DATA.LABELS .*'photos/9.jpg'"):
        read(given)


PATIENTS = "{10253,10254,10255,8863}"
MURA = "study{1_positive,1_negative,2_negative}/image{1,2}.png"
PARTS = " ".join(f"part{n % 3}/{n}_{n % 2}_3_17.jpg" for n in range(24))
# Files, whose labels are in the paths: facts.txt has what each option reads
ADVISED = f"""
name | files
pets | images/{{pug,great_dane}}_{NUMBERS}.jpg annotations/x/0.txt!
trimaps | images/{{a,bb}}_{NUMBERS}.jpg annotations/trimaps/{{a,bb}}_{NUMBERS}.png
dogs and cats | train/{{cat,dog}}.{NUMBERS}.jpg test1/{{1,2}}.jpg
Edge Impulse | {{training,testing}}/{{lamp,plant}}.x{NUMBERS}y.jpg
UTKFace | UTKFace/{{2,50}}_{{0,1}}_3_2017{NUMBERS}.jpg.chip.jpg
parts of UTKFace | {PARTS}
IDC | {PATIENTS}/{{0,1}}/{{1,2,3}}.png
one class per patient | {{1,3,5}}/ill/{{1,2,3}}.png {{2,4,6}}/well/{{1,2,3}}.png
one study per patient | train/XR/patient{{{{1,2,3}}/s1_well,{{4,5,6}}/s1_ill}}/{{1,2}}.png
sites | site{{A,B,C}}/{{ill,well}}/{{1,2,3}}.png
sites in both splits | {{train,test}}/site{{A,B}}/{{ill,well}}/{{1,2,3}}.png
MURA | train/XR_{{HAND,WRIST}}/patient0{{1,2,3}}/{MURA} valid/XR_{{HAND,WRIST}}/patient1{{1,2,3}}/{MURA}
LIVECell | {{A172,MCF7}}_Phase_A{{7,8}}_{{1,2}}_00d00h00m_{{1,2}}.png
LIVECell's kind | {{cat,dog}}-{{1,2}}_{NUMBERS}.jpg
faces | {{mask,nomask}}.{NUMBERS}.jpg
splits in classes | {{a,b}}/{{train,val}}/{NUMBERS}.jpg
"""


def test_a_test_image_without_a_class_folder_is_named(tmp_path):
    root = tree(tmp_path, "{a,b}/x{1,2,3}.jpg", "test/{a,b}/x4.jpg", "test/x5.jpg")
    with refused("test/x5.jpg"):
        read(root, columns={"label": 1})


def test_columns_of_another_kind_are_refused_and_those_of_a_run_are_left_out(tmp_path, cpu):
    tree(tmp_path, "{a,b}")
    (tmp_path / "x.csv").write_text("path,label\na/0.jpg,a\n")
    of_folders = options(tmp_path, columns={"label": "name"})
    of_table = options(tmp_path / "x.csv", columns={"label": 1})
    of_groups = options(tmp_path, columns={"group": 2})  # counted from which folder?
    with refused("name the level of the classes"):
        read(of_groups)
    assert recognize_dataset(of_groups, cpu, has_columns_of_run=True).groups
    for data, problem in ((of_folders, "is read as folders"), (of_table, "is a table; give the names")):
        with refused(problem):
            read(data)
        assert recognize_dataset(data, cpu, has_columns_of_run=True).columns is None
