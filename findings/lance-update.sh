#!/usr/bin/env bash
# pylance 14.0.2 (import lance), pyarrow 26.0.1
# Subject: shards and loaders
# Behaviour: update() and merge_insert() of a Lance data set move the rows that they change to its end: after the label
#   of row 2 was changed, take([2]) is another image, and to_table() has another order.
# Expected: the row stays, as in a table of SQLite or pandas; a version has other values, not other places.
# Why it matters: features, predictions, splits and sampler orders are kept as arrays by the number of the row. After
#   one corrected label all images behind it have the features and the split of their neighbours; the number of rows
#   is the same, and no check of shapes fails.
# Instead: join by a column with the name of the image, not by the number of the row
# Last lines of a run on 2026-11-30 (six images; the label of 2.jpg is changed):
#   lance 14.0.2, row 2: ['2.jpg'], after update() ['3.jpg']
#   order: 0.jpg 1.jpg 3.jpg 4.jpg 5.jpg 2.jpg; after merge_insert() of 0.jpg: 1.jpg 3.jpg 4.jpg 5.jpg 2.jpg 0.jpg
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pylance==14.0.2 pyarrow==26.0.1
venv/bin/python - <<'PYTHON'
import lance
import pyarrow

images = [f"{number}.jpg" for number in range(6)]
data = lance.write_dataset(pyarrow.table({"image": images, "label": ["cat"] * 6}), "images.lance")
before = data.take([2]).to_pydict()
data.update({"label": "'dog'"}, where="image = '2.jpg'")
data = lance.dataset("images.lance")
after = data.take([2]).to_pydict()
updated = data.to_table()["image"].to_pylist()
changed = pyarrow.table({"image": ["0.jpg"], "label": ["fox"]})
data.merge_insert("image").when_matched_update_all().execute(changed)
merged = lance.dataset("images.lance").to_table()["image"].to_pylist()
print(f"lance {lance.__version__}, row 2: {before['image']}, after update() {after['image']}")
print(f"order: {' '.join(updated)}; after merge_insert() of 0.jpg: {' '.join(merged)}")
assert before["image"] == ["2.jpg"] and after["image"] == ["3.jpg"]
assert updated == [*images[:2], *images[3:], "2.jpg"] and merged[-1] == "0.jpg"
PYTHON
