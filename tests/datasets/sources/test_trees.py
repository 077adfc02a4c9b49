"""Trees of well-known downloads: what trains, or an error in one line whose every advice trains when it is typed."""

import re
import shlex

from conftest import each_row, line_of, told
from source_helpers import read, tree


def read_tree(root, **values):
    """The samples of train, val, and perhaps test, whose labels are the names of folders."""
    splits = read(root, dataset="folder", **values)
    for samples in splits:
        for index, label in enumerate(samples.targets):
            assert f"/{splits[0].class_names[label]}/" in samples.name(index)
    return splits


# The tree, classes, images of train, val and perhaps test, the number of warnings
TRAINED = """
name | parts | names | sizes | warnings
Intel | {seg_train/seg_train,seg_test/seg_test}/{sea,street} seg_pred/seg_pred | sea street | 6 2 8 | 0
chest X-rays | {train,val,test}/{N,P} chest/{train,val,test}/{N,P} __MACOSX/N | N P | 8 8 8 | 0
unzipped | R/R/{train,val}/{a,b} R/__MACOSX/R/train/a | a b | 8 8 | 0
flat test | train/{a,b} test | a b | 6 2 | 0
files beside classes | train/{a,b} val/{a,b} train raw train/.cache | a b | 8 8 | 1
STL-10 | {train,test}/{a,b} unlabeled | a b | 6 2 8 | 0
holdout | {train,holdout}/{a,b} | a b | 6 2 8 | 0
Food-11 | {training,validation,evaluation}/{bread,egg} | bread egg | 8 8 8 | 0
dev and eval | {train,dev,eval}/{a,b} | a b | 8 8 8 | 0
eval alone | {train,eval}/{a,b} | a b | 8 8 | 0
names of images | {cat,dog,bird_images} | bird_images cat dog | 9 3 | 0
camel | {ImgTrain,ImgTest}/{a,b} | a b | 6 2 8 | 0
classes beside splits | {a,b} {validation,Test}/{a,b} predictions | a b | 8 8 8 | 0
classes of classes | colon/{aca,n} lung/{aca2,n2,scc} | colon lung | 18 2 | 0
varieties | rose/{red,white} tulip/{red,yellow} daisy | daisy rose tulip | 17 3 | 0
patients in classes | well/{p1,p2} ill/{p3,p4} | ill well | 14 2 | 1
vehicles | bus car train | bus car train | 9 3 | 1
words that begin so | {prey,valley,trains,TESTAMENT} | TESTAMENT prey trains valley | 12 4 | 0
lists of PaddleClas | {a,b} {train,val}.txt! | a b | 6 2 | 1
a text beside the data | {a,b} {requirements-dev,test_log}.txt!! | a b | 6 2 | 0
Synology | {a,b} {a,b}/@eaDir/0.jpg | a b | 6 2 | 0
systems | {a,b} a/{#recycle,.@__thumb} $RECYCLE.BIN lost+found/ @Recycle/b | a b | 6 2 | 0
no class in val | train/{a,b,c} val/{a,c} | a b c | 12 8 | 0
empty class in val | train/{a,b,c} {val,test}/{a,c} {val,test}/b/ | a b c | 12 8 8 | 0
two cases | {dog,Dog} | Dog dog | 6 2 | 1
masks | {a,b}/{0,1,2}{,_mask}.png | a b | 10 2 | 1
other kinds | {a,b}/{0,1,2}.{jpg,png} | a b | 10 2 | 1
a few copies | {a,b}/{0,1,2,3}.jpg {a,b}/0_copy.jpg | a b | 8 2 | 0
splits beside examples | Dataset/{train,val}/{a,b} Examples | a b | 8 8 | 1
splits in one folder | ants/{train,val}/{a,b} | a b | 8 8 | 0
one folder in splits | {train,val}/Dataset/{a,b} | a b | 8 8 | 0
NEU-DET, unzipped | N/{train,validation}/images/{crazing,scratches} | crazing scratches | 8 8 | 0
DTD | images/{banded,braided} labels/{train,val,test}{1,2}.txt! imdb/imdb.mat! | banded braided | 6 2 | 1
items in both splits | {train_images,test_images}/{item1,item2} | item1 item2 | 6 2 8 | 0
slides in both | {seg_train,seg_test}/{TCGA-A1-A0SB-01Z,TCGA-B2-C0-01Z} | TCGA-A1-A0SB-01Z TCGA-B2-C0-01Z | 6 2 8 | 0
bricks | {2x4_3001,2x2_3003} | 2x2_3003 2x4_3001 | 6 2 | 0
numbered classes | class{1,2,3,4}/img_{1,2,3,4,5}.jpg | class1 class2 class3 class4 | 16 4 | 0
numbered classes of few images | class{1,2,3,4,5}/{a,b}.jpg | class1 class2 class3 class4 class5 | 5 5 | 0
grades | Grade_{1,2,3,4,5}/{a,b}.jpg | Grade_1 Grade_2 Grade_3 Grade_4 Grade_5 | 5 5 | 0
types | type-{1,2,3,4,5}/{a,b}.jpg | type-1 type-2 type-3 type-4 type-5 | 5 5 | 0
official splits by number | {x,y,z} train_test_split.txt!! | x y z | 9 3 | 1
a class called test | {train,val}/{a,test} | a test | 8 8 | 0
lacking labels | {a,b,nan,None,-1} | -1 None a b nan | 15 5 | 1
names of masks | {a,b}/{cat_0,cat_1,mask_0,mask_1,3_mask}.jpg | a b | 8 2 | 0
"""


@each_row(TRAINED)
def test_a_tree_that_trains(name, parts, names, sizes, warnings, tmp_path):
    root = tree(tmp_path / "R", *parts.split())
    splits = read_tree(root)
    assert splits[0].class_names == names.split()
    assert [*map(len, splits)] == [*map(int, sizes.split())]
    assert len({*told(splits[0].notes, kind="warning")}) == int(warnings)
    (again,) = read(root, "train", dataset="folder", class_names=names.split())
    assert list(again.paths) == list(splits[0].paths)  # a resumed run reads the same


# The tree, the folders that the error gives, another part of the error; ALL: DATA.CLASS_FOLDERS=true.
# facts.txt has what each of its options reads
REFUSED = """
name | parts | names | text
PlantVillage | {color,grayscale,segmented}/{apple,corn} | color | ALL
variants in a folder | raw/{color,grayscale,segmented}/{apple,corn} | raw/color | ALL
folds | fold{1,2,3,4,5}/{a,b} |  | ALL reads 2 classes
MURA | train/XR_{WRIST,HAND}/patient0000{1,2,3}/study1_{negative,positive} \
    valid/XR_HAND/patient1118{5,6}/study1_{negative,positive} |  | ALL reads 2 classes
sites | site{A,B,C}/{a,b} color/{a,b} | color | ALL
a site without a class | site_{a,b}/benign site_a/malignant |  | ALL reads 2 classes
three varieties | rose/{red,white} tulip/{red,yellow} lily/{white,pink} | lily | ALL
most images | Dataset/{0,1,2,3,4,5,6,7,8,9} Examples | Dataset | ALL
flowers | {daisy,rose} flowers/{daisy,rose} | flowers | ALL
GTSRB | Train/{0,1,2,3} Test Meta {Train,Test,Meta}.csv! | Train | ALL
Flowers-102 | jpg {imagelabels,setid}.mat! |  | torchvision/NAME
two trainings | {images_train,masks_train,images_test}/{a,b} | images_train masks_train |
a bare holdout | {a,b} hold-out |  | ALL; move 'hold-out' out of
a hidden test | {a,b} hidden_test |  | ALL
IQ-OTH NCCD | {benign,normal,Test}_cases |  | ALL; move 'Test_cases' out of
HAM10000, official test | HAM10000_images_part_{1,2} HAM10000_segmentations ISIC2018_Task3_Test_Images |  | ALL
copies of all images | images_{original,compressed} |  | ALL
Market-1501 | bounding_box_{train,test} query gt_bbox |  | ALL
EyePACS, resized | {resized_train,resized_train_cropped} |  | ALL
short words of splits | {tr,te}/{a,b} | tr | rename them to t
Food-11, without folders | {training,validation,evaluation} |  | rename them to test, train, val
noisy | {train_clean,train_noisy,test}/{a,b} | train_clean train_noisy |
a train of two kinds | bus car train/{steam,electric} | train | ALL
unlabelled | {a,b} unlabeled |  | ALL
Datumaro's ImageNet | {a,b} no_label |  | ALL
a test in train | train/{a,b,test} val/{a,b} |  | ALL
splits in train | train/{a,b} test/{a,b} train/test/{a,b} | train | ALL
splits in val | train/{a,b} val/{a,b} val/test/{a,b} |  |
no image in val | train/{a,b} val/{a,b}/ |  | no images of the training's classes
class of val | train/{a,b} val/{a,b,c} |  |
Tiny ImageNet | train/{n1,n2}/images val/images val/val_annotations.txt! | train |
nothing in common | training_set/{a,b} test_set/{x,y} | training_set | ALL
splits as classes | train/{train_images,test_images} |  | ALL may be of test or val
train twice | {train,training}/{a,b} cat/{p,q} | cat |
valid twice | train/{a,b} {valid,validation}/{a,b} | train |
no training | {validation,test}/{a,b} |  |
no class in common | train/{cat,dog} val/{fox,elk} | train |
test alone | test/{cat,dog} | test |
flat splits | {train,val} |  |
COVID-19 Radiography | {COVID,Normal}/{images,masks} list.xlsx! |  | ALL
CIFAR-10 | data_batch_1! test_batch! |  | torchvision/NAME
images and masks | images masks |  | ALL
DSB2018 | {0a1b2c3d4e5f60718,9b1c2d3e4f5a60718,c01d2e3f4a5b60718}/{images,masks} |  | ALL
TCGA | TCGA-{A1-A0SB,B2-C0SC,D3-E1}-01Z-00-DX1 |  | ALL
BBBC021 | Week{1_22123,2_22141} |  | ALL
Supervisely | ds{0,1}/img ds0/ann/0.jpg.json!! |  | ALL
ChestX-ray14 | images_{001,002,012}/images |  | ALL
batches | batch1/{a,b} batch2/{a,c} |  | ALL reads 3 classes
MIMIC-CXR | files/p10/p10000{1,2,3,4}/s5{1,2} |  |
Camelyon17 | patches/patient_00{1,2,3,4}_node_0 |  |
BigEarthNet | {S2_1_45/S2_1_45,S2_2_46/S2_2_46,S2_3_47/S2_3_47,S2_4_48/S2_4_48}_{B01,B02,B8A}.jpg |  | ALL
KolektorSDD | kos{01,02,03,04,05,06,07,08,09}/{Part0,Part1}{,_label}.jpg |  | ALL
RxRx1 | Plate{1,2,3,4}/{B02,B03}_s{1,2}_w{1,2,3}.png |  | ALL
RxRx1, all | HEPG2-{01,02,03,04,05}/Plate{1,2}/{B02,B03}_s1_w{1,2}.png |  | ALL
names of a camera | IMG_{1,2,3,4}.jpg |  |
numbers | {1,2,3,4}.jpg |  |
no pattern | a{1,2}.jpg b_1.jpg 3.jpg |  |
checksums | 0a1b2c3d{4,5,6}/images/{1,2}.jpg 0a1b2c3d{4,5,6}/masks/{3,4}.jpg |  | ALL
tiles | tiles/{A1,B2,C3}-01Z/tile_{0,1,2}_{0,1}.jpg | tiles |
SUN397 | {a/abbey,a/apse/indoor,b/bar,c/church/indoor,c/church/out} |  | ALL reads 5 classes
one split in classes | {a,b}/holdout |  | ALL
splits in a class | color/{a,b}/seg_{train,test} grey |  | ALL
archive | images.zip! |  |
a lost split | train/{a,b} val>unmounted |  | val: is a broken link
a lost test | {train,val}/{a,b} test>unmounted |  | test: is a broken link
a lost class | {train,val}/{a,b} train/c>unmounted |  | train/c: is a broken link
"""


@each_row(REFUSED)
def test_a_tree_that_is_refused(name, parts, names, text, tmp_path):
    root = tree(tmp_path / "R", *parts.split())
    message = line_of(read_tree, root)
    paths = [shlex.split(path)[0] for path in re.findall(r"-data_path=('[^']+'|[^\s;]+)", message)]
    assert paths == [str(root / path) for path in names.split()]
    assert len(message) < 900
    assert text.replace("ALL", "") in message
    assert ("DATA.CLASS_FOLDERS=true" in message) == ("ALL" in text)
    assert (" classes in the paths" in message) == ("reads" in text)
