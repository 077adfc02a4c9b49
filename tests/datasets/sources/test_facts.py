# ruff: noqa: E501
"""What a run reads of each tree and table of these tests: rows, classes, names and groups of its splits, and how many
warnings and notes on the screen it has, or a question; and of each option that it prints the same, typed.

They are kept in facts.txt. After a wanted change, `GOLDEN=write python -m pytest -m slow` writes them anew, and
`git diff` shows which images are read otherwise, or are asked about.
"""

import os
import re
from pathlib import Path

import test_known_sets
import test_labels
import test_tables
from conftest import cells_of, told
from pytest import mark
from source_helpers import (
    COMMAND,
    classes_of,
    expand,
    options,
    paths_of,
    read,
    rows_of,
    tree,
    typed,
    write_rows,
    write_set,
    write_table,
)
from test_trees import REFUSED, TRAINED

from configs.yaml_io import parse_value
from datasets.reading import unlabelled
from utils.errors import UserError
from utils.notes import Note

FILE = Path(__file__).with_name("facts.txt")
# Images, where @ is 0 to 11; the table of each; its header; the row of an image, by its number n; `values` in turn;
# DATA_PATH in R; other options. value: in place of VALUE in options; values2: in turn, too; tables: of the same rows
TABLES = r"""
name | images | table | header | row | values | path | options
# Paths of other folders and machines
own folder | @.png | labels.csv | path,label | R/{path},{label} | | labels.csv
own folder and splits | {train,test}/@.png | labels.csv | path,label | R/{path},{label} | | labels.csv
windows | {train,test}/@.png | labels.csv | path,label | {windows},{label} | | labels.csv
windows, own folder | {train,test}/@.png | labels.csv | path,label | R\{windows},{label} | | labels.csv
windows, drive | {train,test}/@.png | labels.csv | path,label | C:\data\R\{windows},{label} | | labels.csv
slash | {train,test}/@.png | labels.csv | path,label | /{path},{label} | | labels.csv
dot | {train,test}/@.png | labels.csv | path,label | ./{path},{label} | | labels.csv
dot twice | {train,test}/@.png | labels.csv | path,label | ././{path},{label} | | labels.csv
another machine | {train,test}/@.png | labels.csv | path,label | /mnt/data/set/{path},{label} | | labels.csv
another machine, one folder | images/@.png | labels.csv | path,label | /mnt/data/set/{path},{label} | | labels.csv
stems | {train,test}/@.png | labels.csv | path,label | {folder}/{stem},{label} | | labels.csv
two columns | a/{train,test}/@.png | labels.csv | dir,file,label | {folder},{name},{label} | | labels.csv | {columns: {path: dir/file}}
two columns, windows | {train,test}/{x,y}/@.png | labels.csv | dir,file,label | {folder_windows},{name},{label} | | labels.csv | {columns: {path: dir/file}}
below one folder | img/{p1,p2}/@.png | labels.csv | path,label | {inner},{label} | | labels.csv
below two folders | images/batch/{p1,p2}/@.png | labels.csv | path,label | {last2},{label} | | labels.csv
other patients | images/batch/p1/@.png | labels.csv | path,label | p{value}/{name},{label} | 1 2 3 | labels.csv
same names, lost folder | images/p1/@.png | labels.csv | path,label,split | p{value}/{name},{label},{label} | 1 2 | labels.csv
lists beside, windows | images/@.png | labels.csv | path,label | images\{name},{label} | | labels.csv
URLs | a/1@.png & b/2@.png | labels.csv | path,label | gs://bucket/{name},{label} | | labels.csv
mixed endings | @.png | labels.csv | path,label | {stem}.PNG,{label} | | labels.csv
two columns of names | a/@.jpg | train.csv | id,label | {stem},{label} | | .
tables of splits | {train,val}/@.png | {folder}.csv | id,label | {stem},{label} | | .
tables of splits, windows | {train,val}/@.png | {folder}.csv | path,label | {windows},{label} | | .
tables in the folders | {train,val}/@.png | {folder}/metadata.csv | file_name,label | {name},{label} | | .
# Folders of splits
train, test, extra | {train,test,extra}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
evaluation | {training,validation,evaluation}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
deep splits | a/b/c/d/{train,test}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
splits of images | {seg_train,seg_test}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
deep splits beside test | a/{train,val}/1@.png & seg_test/2@.png | labels.csv | path,label | {path},{label} | | labels.csv
classes of deep splits | {control,test}/{train,val}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
folder and test | {a,test}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
folders of test | {test,test2}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
no test | {contest,valley}/@.png | labels.csv | path,label | {path},{label} | | labels.csv
names | {train,test}_@.png | labels.csv | path,label | {path},{label} | | labels.csv
table in the folder of train | {train,test}/@.png | train/labels.csv | path,label | {path},{label} | | train/labels.csv
table in the folder of train, deep | {train,test}/a/@.png | train/labels.csv | path,label | {path},{label} | | train/labels.csv
table of val beside images of test | {test,train,val}/{0,1,2,3}.png | {value}.csv | path,label | {path},{label} | \
    train train train train train train train train val val val val | .
column and folders | {train,test}/@.png | labels.csv | path,label,split | {path},{label},{value} | val train train | labels.csv
column of train, folder of test | {a,test}/@.png | labels.csv | path,label,split | {path},{label},train | | labels.csv
column of folders | @.png | labels.csv | path,label,origin | {path},{label},{value} | train train test extra | labels.csv
list of the root | aa/{airfield,alley}/@.jpg | places.txt | | /{path} {parent} | | places.txt
list of the root of a folder | data_256/aa/{airfield,alley}/@.jpg | places.txt | | /{inner} {parent} | | places.txt
list, names with a space | {a 1,b 2}.jpg & {c,d}.jpg | train_list.txt | | {path} {value} | 1 0.0 | train_list.txt
list of one folder, names with a space | x/{a 1,b 2}.jpg & x/{c,d}.jpg | train_list.txt | | {name} {value} | 1 0.0 | train_list.txt
list of two folders, names with a space | {p1/a 1,p2/b 2,p1/c,p2/d}.jpg | train_list.txt | | {name} {value} | dog cat | train_list.txt
list | {train,test}/@.png | labels.txt | | {path} {is_x} | | labels.txt
column of folds | @.png | labels.csv | path,label,fold | {path},{label},{value} | 0 1 2 3 | labels.csv
# Words of splits
train, test | @.png | labels.csv | path,label,split | {path},{label},{value} | train train train test | labels.csv
train, holdout | @.png | labels.csv | path,label,split | {path},{label},{value} | train train train holdout | labels.csv
holdout, train | @.png | labels.csv | path,label,split | {path},{label},{value} | holdout holdout holdout train | labels.csv
tr, te | @.png | labels.csv | path,label,split | {path},{label},{value} | tr tr tr te | labels.csv
tr, te, va | @.png | labels.csv | path,label,split | {path},{label},{value} | tr tr tr tr te va | labels.csv
0, 1 | @.png | labels.csv | path,label,split | {path},{label},{value} | 0 0 0 1 | labels.csv
pool | @.png | labels.csv | path,label,split | {path},{label},{value} | pool pool pool pool labeled_train | labels.csv
column train | @.png | labels.csv | path,label,train | {path},{label},{value} | TRAIN TRAIN TEST | labels.csv
column train of 0 and 1 | @.png | labels.csv | path,label,train | {path},{label},{value} | 1 1 0 | labels.csv
sites | @.png | labels.csv | path,label,site | {path},{label},{value} | A A B | labels.csv
test alone | @.png | labels.csv | path,label,split | {path},{label},test | | labels.csv
train and unknown | @.png | labels.csv | path,label,split | {path},{label},{value} | train train x9 | labels.csv
train.csv with test rows | @.png | {value}.csv | path,label,split | {path},{label},{value2} | train train val | . | {values2: train train test}
train.csv with test rows alone | @.png | train.csv | path,label,split | {path},{label},{value} | train train test | .
train.csv with rows of val and test beside both | @.png | {value}.csv | path,label,split | {path},{label},{value2} | \
    train train train train train train train train train train val test | . | {values2: train train val test}
train.csv with rows of val and test beside val | @.png | {value}.csv | path,label,split | {path},{label},{value2} | \
    train train train val | . | {values2: train val test}
folds of a table with splits | @.png | labels.csv | path,label,split | {path},{label},{value} | \
    train train train train val test | labels.csv | {folds: 3, fold: 0}
MIMIC-CXR | @.png | labels.csv | path,label,split | {path},{label},{value} | train train train validate id_test test | labels.csv
train, validate | @.png | labels.csv | path,label,split | {path},{label},{value} | train train validate | labels.csv
# Options in notes and in errors
no finding | @.png | labels.csv | path,label | {path},{value} | x x;y No_Finding y | labels.csv | {multi_label: true}
combined words | @.png | labels.csv | path,label | {path},{value} | haze "haze,road" road clear "clear,road" | labels.csv
patients | @.png | labels.csv | path,label,patient | {path},{label},{value} | 1 2 3 4 5 6 | labels.csv
no label | @.png | labels.csv | path,label | {path},{value} | x y "" | labels.csv
no cell of 0 and 1 | @.png | labels.csv | path,x,y,z | {path},{is_x},{is_y},0 | | labels.csv
columns with normal | @.png | labels.csv | path,normal,x,y | {path},{value} | 1,0,0 0,1,0 0,0,1 0,1,1 | labels.csv | {multi_label: true}
columns of yes and no | @.png | labels.csv | path,x,y | {path},{value} | no,yes yes,no | labels.csv | {multi_label: true}
several columns | @.png | labels.csv | path,x,y,z | {path},{is_x},1,0 | | labels.csv
# Beside folders
folders, train and test | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | train train test | .
folders, train and holdout | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | train train holdout | .
folders, holdout and train | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | holdout holdout holdout train | .
folders, tr, va and te | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | tr tr va te | .
folders, 0 and 1 | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | 0 0 0 1 | . | {value: 1}
folders, pool | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | pool pool pool labeled_train | . | {value: labeled_train}
folders, train and unknown | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | train train x9 x9 | . | {value: x9}
folders, another name of labels | {a,b}/@.png | labels.csv | path,kind,split | {path},{folder},{value} | train train train holdout | .
folders, no name of labels | {a,b}/@.png | labels.csv | path,sex,split | {path},{folder},{value} | train train train holdout | .
folders, no name of labels, unknown | {a,b}/@.png | labels.csv | path,sex,split | {path},{folder},{value} | train train x9 x9 | . | {value: x9}
folders, tables of both splits | {a,b}/@.png | {value}.csv | path,label | {path},{folder} | train train val | .
folders, tr and te | {a,b}/@.png | labels.csv | path,label,split | {path},{folder},{value} | tr tr te | .
folders, column train | {a,b}/@.png | labels.csv | path,label,train | {path},{folder},{value} | TRAIN TRAIN TEST | .
folders, splits alone | {a,b}/@.png | meta.csv | path,age,split | {path},{n},{value} | train train test | .
folders, splits alone, one folder | images/{a,b}/@.png | meta.csv | path,split | {path},{value} | 0 0 1 | .
folders, a flag of test | {a,b}/@.png | meta.csv | path,age,is_test | {path},{n},{value} | 0 0 1 | .
folders, subsets | {a,b}/@.png | meta.csv | path,subset | {path},{value} | 0 1 2 | .
folders of splits, the same splits | train/{a/1,b/2}@.png & test/{a/3,b/4}@.png | meta.csv | id,split | {stem},{folder} | | .
folders, splits in JSON lines | {a,b}/@.png | meta.jsonl | | {{"path": "{path}", "split": "{value}"}} | train test | .
patients, train and holdout | {p1,p2}/@.png | labels.csv | path,label,split | {path},{label},{value} | train train train holdout | .
patients, tr and te | {p1,p2}/@.png | labels.csv | path,label,split | {path},{label},{value} | tr tr tr te | .
patients, 0 and 1 | {p1,p2}/@.png | labels.csv | path,label,split | {path},{label},{value} | 0 0 0 1 | . | {value: 1}
patients, column train | {p1,p2}/@.png | labels.csv | path,label,train | {path},{label},{value} | TRAIN TRAIN TEST | .
patients, windows | {p1,p2}/@.png | labels.csv | path,label | {windows},{label} | | .
two tables | {p1,p2}/@.png | {table}.csv | path,label | {path},{label} | | . | {tables: one other}
two tables, flat | @.png | {table}.csv | path,label | {path},{label} | | . | {tables: one other}
copies of Windows | {cat,dog} (@).jpg | | | | | .
folders, train alone | {a,b}/@.png | metadata.csv | file_name,label,split | {path},{folder},train | | .
folders, metadata of splits | {a,b}/@.png | metadata.csv | file_name,label,split | {path},{folder},{value} | train train train test | .
a table of few images | @.png | {value} | path,label | {path},{label} | labels.csv a.log b.log | .
recurring names | images/ST{1,2,3}/@.jpg | labels.csv | station,file,species | {parent},{name},{label} | | .
recurring names, images | images/ST{1,2,3}/@.jpg | labels.csv | station,file,species | {parent},{name},{label} | | images
recurring names, table | images/ST{1,2,3}/@.jpg | labels.csv | station,file,species | {parent},{name},{label} | | labels.csv
recurring names, no label's name | images/ST{1,2,3}/@.jpg | labels.csv | station,file,grade | {parent},{name},{label} | | labels.csv
lists of images alone | images/@.jpg | {value}.txt | | {name} {is_x} | train val test | . | {dataset: folder}
lists of both splits | {train,val}/@.jpg | {folder}_list.txt | | {path} {is_x} | | . | {dataset: folder}
each column that may be the label | site{1,2,3}/@.jpg | images.csv | filename,location,class,species,common_name,class_id | \
    {path},gs://x/{path},{value} | Mammalia,vulpes,Fox,0 Mammalia,capreolus,Deer,1 Aves,corone,Crow,2 | .
other names of the folders | p{a,b,c}/@.jpg | labels.csv | image,label | {path},{path[1]} | | .
age and site | p{a,b,c}/@.jpg | meta.csv | image,age,site | {path},{n},{label} | | .
a kind of each folder | {a,b,c}/@.jpg | meta.csv | image,kind | {path},{folder}{folder} | | .
predictions | p{a,b,c}/@.jpg | predictions.csv | path,class_1,probability_1,label | {path},x,0.9,{label} | | .
other images | p{a,b,c}/@.jpg | labels.csv | image,label | {n}.png,{label} | | .
# Classes one level too high: images are named after their class
inner organs | {train,val}/{colon/colon_aca/colon_colon_aca,colon/colon_n/colon_colon_n,lung/lung_aca/lung_lung_aca,lung/lung_n/lung_lung_n,lung/lung_scc/lung_lung_scc}_{0..3}.jpg | | | | | .
inner LC25000 | {colon_image_sets/colon_aca/colon_colon_aca,colon_image_sets/colon_n/colon_colon_n,lung_image_sets/lung_aca/lung_lung_aca,lung_image_sets/lung_n/lung_lung_n,lung_image_sets/lung_scc/lung_lung_scc}_{0..3}.jpg | | | | | .
inner HyperKvasir | {lower/pathological/polyps/lower_pathological_polyps,lower/pathological/haem/lower_pathological_haem,lower/landmarks/cecum/lower_landmarks_cecum,lower/landmarks/ileum/lower_landmarks_ileum,upper/landmarks/pylorus/upper_landmarks_pylorus,upper/landmarks/z/upper_landmarks_z}_{0..3}.jpg | | | | | .
inner hospitals | {Bonn/ill/Bonn_ill,Bonn/well/Bonn_well,Ulm/ill/Ulm_ill,Ulm/well/Ulm_well}_{0..3}.jpg | | | | | .
inner patients | {ill/p1/ill_p1,ill/p2/ill_p2,well/p3/well_p3,well/p4/well_p4}_{0..3}.jpg | | | | | .
hospitals | {Bonn,Ulm}/{ill,well}/{0..3}.jpg | | | | | .
HyperKvasir | {lower/{pathological/{polyps,haem},landmarks/{cecum,ileum}},upper/landmarks/{pylorus,z}}/{0..3}.jpg | | | | | .
confirmed folders in splits | {seg_train,seg_test}/{a,b}/{0..3}.jpg | | | | | . | {class_folders: true}
# Groups
column of groups | @.png | labels.csv | path,label,who | {path},{label},p{value} | 1 1 1 1 2 2 2 2 3 3 3 3 | labels.csv | {columns: {group: who}}
groups, one of both classes | @.png | labels.csv | path,label,who | {path},{label},p{value} | 1 1 2 3 2 3 4 5 4 5 6 7 | labels.csv | {columns: {group: who}}
patients in folders | ill/SOB/P-ill{1,2,3,4}/{40X,100X}/@.png & well/SOB/P-well{1,2,3,4}/{40X,100X}/@.png | | | | | .
magnifications | {ill/duct,ill/lobe,well/fib,well/ade}/{40X,100X,200X}/@.png | | | | | .
patients in names of classes | ill/P1@_{1,2,3}.png & well/P2@_{1,2,3}.png | | | | | .
patients in names of a table | ill/P1@_{1,2,3}.png & well/P2@_{1,2,3}.png | train.csv | image_path,target | {path},{folder} | | .
column of patients around | images/{a,b}/@.png | meta.csv | file,patient | {path},P{half} | | images | {groups: patient}
patients beside folders | {a,b}/@.png | meta.csv | path,patient | {path},p{value} | 1 1 2 2 3 3 4 4 5 5 6 6 | .
plates of both classes | {ill,well}/P{1,2,3,4,5,6}/@.png | | | | | .
magnifications of both classes | {ill,well}/{40X,100X,200X,400X}/@.png | | | | | .
patients in names | images/PAT{0,1,2,3}_{0,1,2}.png | | | | | .
iNaturalist 2018 | train_val2018/{Aves/{200,202},Plantae/{201,203}}/@.jpg | {value}2018.json | | "{path}", | train train train val | .
# Well-known sets
GTSRB | Train/{0,1,2,3}/@.png | Train.csv | Width,Height,ClassId,Path | 27,26,{parent},{path} | | .
Food-101 | images/{pie,ramen}/@.jpg | classes.txt | | {parent} | | .
HAM10000 | HAM10000_images_part_1/ISIC_1@.jpg & HAM10000_images_part_2/ISIC_2@.jpg | HAM10000_metadata.csv | lesion_id,image_id,dx,age | HAM_{n},ISIC_{number},{label},80 | | .
Label Studio | a/1@.jpg & b/2@.jpg | project-1.csv | image,id,choice,annotator | /data/upload/1/{name},{n},{label},1 | | project-1.csv
PAD-UFES-20 | images/imgs_part_1/imgs_part_1/PAT_1_@.png & images/imgs_part_2/imgs_part_2/PAT_2_@.png | metadata.csv | patient_id,lesion_id,smoke,diagnostic,img_id,biopsed | PAT_{n},1,False,{label},{name},True | | .
ISIC | Input/ISIC_@.jpg | GroundTruth.csv | image,MEL,NV | {stem},{is_x}.0,{is_y}.0 | | .
Messidor | IMAGES/@.png | messidor_data.csv | image_id,adjudicated_dr_grade,adjudicated_dme,adjudicated_gradable | {name},{is_x},{is_y},1 | | .
ODIR | Training/@_left.jpg | full_df.csv | ID,Age,Left-Fundus,Left-Diagnostic Keywords,N | {n},60,{name},{label},0 | | .
Wildlife Insights | site{1,2}/100/@.jpg | images.csv | image_id,filename,location,class,species,common_name | id{n},{path},gs://b/{path},Mammalia,{label},{label} | | .
Camera traps | site{1,2}/2025-06/@.jpg | labels.csv | filename,species,count,location,sequence_id | {path},{label},1,{folder},{folder}-{n} | | labels.csv
parts | {good,dent,both}/m{1,2}_@.png | | | | | .
RAF-DB | Image/aligned/{train,test}_@_aligned.jpg | EmoLabel/list_patition_label.txt | | {name} {is_x} | | .
organs | {train,val}/{colon/{colon_aca,colon_n},lung/{lung_aca,lung_n}}/@.jpg | | | | | .
items | {train_images,test_images}/{item1,item2}/@.jpg | | | | | .
slides | {seg_train,seg_test}/{TCGA-A1-A0SB-01Z,TCGA-B2-C0SC-01Z}/@.jpg | | | | | .
variants in val and test | {val,test}/{grey,color}/{a,b}/@.jpg | | | | | .
bricks | {2x4 3001,2x2 3003,1x1 3005}/@.png | | | | | .
Dataset in splits | {train,val}/Dataset/{a,b}/@.jpg | | | | | .
one folder of splits | ants/{train,val}/{a,b}/@.jpg | | | | | .
one folder of classes | images/{banded,braided}/@.jpg | | | | | .
Kaggle | train/@.jpg | train.csv | id,breed | {stem},{label} | | .
numbers | @.png | labels.csv | image_path,target | {path},{value} | 5 1001 40000 | labels.csv
lists beside | {a,b}/@.jpg | test_list.txt | | {stem} | | .
lists of paths beside | {a,b}/photo@.jpg | test_list.txt | | {path} | | .
lists beside the folder of images | images/{a,b}/photo@.jpg | test_list.txt | | {last2} | | .
lists of stems beside the folder of images | images/{a,b}/photo@.jpg | test_list.txt | | {stem} | | .
a text beside | {a,b}/photo@.jpg | test_list.txt | | pytest==9 | | .
a list of more images beside | {a,b}/photo@.jpg | test_list.txt | | {value} | \
    photo0 photo1 photo2 photo3 photo4 photo5 photo6 photo7 photo8 photo9 1 2 3 4 5 6 7 8 9 10 11 12 13 14 | .
a log beside | {a,b}/photo@.jpg | train_log.txt | | {value} | photo0 1 2 3 | .
lists beside DATA_PATH | images/{a,b}/photo@.jpg | splits/test_list.txt | | {name} | | images
TrashNet | G/G/{a,b}/photo@.jpg | one-indexed-files_test.txt | | {name} 1 | | .
DeepFashion | Img/img/{a,b}/photo@.jpg | Eval/list_eval_partition.txt | | img/{last2}  test | | .
COVID-CT | images/{a,b}/photo@.jpg | Data-split/COVID/testCT_COVID.txt | | {name} | | .
WikiArt | wikiart/{a,b}/photo@.jpg | wikiart_csv/style_val.csv | | "{last2},1" | | .
VireoFood-172 | ready/{a,b}/photo@.jpg | SplitAndIngreLabel/TE.txt | | /{last2} | | .
Kvasir-Capsule | labelled_images/{a,b}/photo@.jpg | official_splits/split_1.csv | filename,label | {name},{parent} | | .
"""


def readings(root):
    """Each data set: its name, the options that read it, and the value that a person knows in options of its question."""
    for group, rows in (
        ("tree", TRAINED),
        ("tree", REFUSED),
        ("labels", test_labels.ADVISED),
    ):
        for name, parts, *_ in cells_of(rows)[1:]:
            folder = tree(root / f"{group}_{name}".replace(" ", "_") / "R", *parts.split())
            yield f"{group} {name}", options(folder, dataset="folder"), ""
    for number, (parts, _) in enumerate(cells_of(test_labels.UNCLEAR)[1:]):
        yield f"unclear {parts}", options(tree(root / f"unclear {number}" / "R", *parts.split()), labels="(.)_"), ""
    for name, of_set in test_known_sets.SETS.items():
        folder = root / f"set {name}" / name.split("-")[0]
        write_set(folder, **of_set)
        yield f"set {name}", options(folder), ""
    for name, header, row, *_ in (*cells_of(test_tables.COLUMNS)[1:], *cells_of(test_tables.UNCLEAR)[1:]):
        table = test_tables.FILES, "all.csv", header, row
        yield f"table {name}", options(write_rows(root / f"table {name}", *table, **test_tables.VALUES)), ""
    for number, (table, folders, _) in enumerate(cells_of(test_tables.FOLDERS)[1:]):
        folder = root / f"folders {number}"
        tree(folder, "sample/other.png", *(f"{one}/{{0..29}}.png" for one in folders.split()))
        write_table(folder / table, rows_of("{n},{label}", test_tables.FILES, **test_tables.VALUES), "id,label")
        yield f"images of {table} beside {folders}", options(folder / table), ""
    for name, images, table, header, row, *rest in cells_of(TABLES.replace("\\\n", ""))[1:]:
        values, path, more = [*rest, ""][:3]
        given = parse_value(more or "{}")
        value = str(given.pop("value", ""))
        words = {"label": "xy", "is_x": "01", "is_y": "10", "value": values.split() or [""]}
        words["value2"] = str(given.pop("values2", "")).split() or [""]
        folder = tree(root / f"case {name}" / "R", *expand(images.replace("@", "{0..11}")))
        found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
        for one in given.pop("tables", "all").split() if table else ():
            write_rows(folder, found, table, header, row, table=[one], **words)
        yield f"case {name}", options(folder / path, **given), value


def facts_of(root, splits):
    """A line for each split: its rows, those of each class, its folder, the first and the last image, its groups."""
    parts = []
    for samples, split in zip(splits, ("train", "val", "test"), strict=False):
        names = samples.class_names
        counts = samples.class_counts(len(names)).tolist()
        of_classes = " ".join(f"{name}={count}" for name, count in zip(names, counts, strict=True))
        images = sorted(map("=".join, classes_of(samples).items()))
        place = os.path.relpath(samples.root, root)
        groups = f", {len({*samples.groups})} groups" if samples.groups else ""
        parts.append(f"{split} {len(samples)} of {of_classes} in {place}: {images[0]} - {images[-1]}{groups}")
    return "; ".join(parts)


def found_in(root, data, value):
    """The facts, None of a question; notes, or the text of the question; its answers. value: what a person knows."""
    try:
        splits = read(data)
    except UserError as error:
        answers = getattr(error.__cause__ or error, "answers", [])
        known = [one for one in answers if "VALUE" not in one.options]
        return None, [Note("", str(error).replace("VALUE", value or "VALUE"))], known
    if os.path.isfile(data.data_path):
        assert paths_of(unlabelled(data.data_path, data)) >= paths_of(*splits)
    return facts_of(root, splits), splits[0].notes, []


NO_ANSWERS = 'torchvision/NAME|VALUE|: "?NAME'  # a person fills them in


def size_of(facts):
    """The images of all splits."""
    return sum(map(int, re.findall(r"(?:train|val|test) (\d+) of ", facts)))


def lines_of(root):
    """Of each data set, and of each option that is printed, typed: it reads what the answer in the question reads."""
    for name, data, value in readings(root):
        place = root / Path(data.data_path).relative_to(root).parts[0]
        facts, notes, answers = found_in(place, data, value)
        kinds = [f"; {kind}" for kind in ("warning", "screen") for _ in told(notes, kind=kind)]
        yield f"{name} | {facts or 'asks'}{''.join(kinds)}"
        text = " ".join(note.text for note in notes)
        options_in = re.findall(COMMAND, text)
        for words, given in zip(options_in, typed(text, data), strict=True):
            changes = {key: getattr(given, key) for key in sorted(given.model_fields_set)}
            shown = {key: value for key, value in changes.items() if value != getattr(data, key)}
            found, _, _ = found_in(place, given, value)
            yield f"{name}, {str(shown).replace(str(place), 'DIR')} | {found or 'asks'}"
            is_known = not re.search(NO_ANSWERS, words)
            assert not found or is_known or facts
            assert found or not is_known, (name, words)
            assert not (found and facts) or size_of(found) == size_of(facts), (name, words)  # of a note
            if not (answers and is_known and not value):  # of a note, or of an error that is no question
                continue
            answer = answers.pop(0)
            assert answer.options.strip() in words, (name, words, answer.options)
            assert found == facts_of(place, answer.rows.splits.values()), (name, words)
        assert not answers or value, (name, text)


@mark.slow
def test_each_tree_and_table_is_read_as_before(tmp_path):
    lines = [*lines_of(tmp_path)]
    assert len(lines) > 300
    if os.environ.get("GOLDEN") == "write":
        FILE.write_text("\n".join(lines) + "\n")
    assert lines == FILE.read_text().splitlines()
