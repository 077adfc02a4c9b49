"""The page in a headless browser: what is on the first screen, cut or overlapping text, contrast; on paper, too."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
from conftest import each_value
from numpy.random import default_rng
from pytest import fixture, mark
from run_folders import make_run, update_json, write_rows

from configs.schema.operating_point import OperatingPoint
from engine.evaluation.results import results_of_scores
from engine.evaluation.tables import ResultTables
from engine.report.contents import read_contents
from engine.report.page import run_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [mark.slow, mark.skipif(not BROWSER, reason="no Chromium")]
MEASURE = """<script>
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgb(color) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  return Array.from(canvas.getImageData(0, 0, 1, 1).data);
}
function luminance(color) {
  const [r, g, b] = color.map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(element) {
  const style = getComputedStyle(element);
  const ink = luminance(rgb(element.closest("svg") ? style.fill : style.color));
  let back = element;
  while (back && rgb(getComputedStyle(back).backgroundColor)[3] < 255) back = back.parentElement;
  const paper = back ? luminance(rgb(getComputedStyle(back).backgroundColor)) : 1;
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}
function cutBy(element, box) {  // the nearest ancestor that does not show all of the text
  for (let one = element; one && one !== document.body; one = one.parentElement) {
    const clip = one.getBoundingClientRect();
    if (getComputedStyle(one).overflowX !== "visible" && (box.right > clip.right + 1 || box.left < clip.left - 1)) {
      return one.closest("nav") ? "nav" : one.className || one.tagName;
    }
  }
  return box.right > innerWidth + 1 || box.left < -1 ? "window" : "";
}
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || !parent.checkVisibility() || parent.closest("script,style,title,.skip,.scrub")) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    const tall = parent.closest(".tall");
    const isBelow = tall && box.bottom > tall.getBoundingClientRect().bottom;  // the table scrolls
    if (box.width > 1 && !isBelow) texts.push({ node, box, parent, text: node.data.trim(), cut: cutBy(parent, box) });
  }
}
const overlaps = [];
texts.forEach((a, index) => texts.slice(index + 1).forEach((b) => {
  const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
  const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
  if (a.node !== b.node && !a.cut && !b.cut && width > 2 && height > 5) overlaps.push([a.text, b.text]);
}));
const found = {
  width: innerWidth, wide: document.documentElement.scrollWidth, overlaps,
  cutFirst: texts.filter((one) => one.cut && one.parent.closest(".first") && !one.cut.startsWith("TH")).length,
  cut: texts.map((one) => [one.text, one.cut]).filter((one) => one[1]),
  faint: texts.map((one) => [one.text, contrast(one.parent)]).filter((one) => one[1] < 4.5),
  bottoms: Object.fromEntries(texts.map((one) => [one.text, one.box.bottom])),
  matrix: document.querySelector(".first .matrix").getBoundingClientRect().bottom,
  charts: document.querySelectorAll("figure").length,
};
parent.postMessage(JSON.stringify(found), "*");
</script>"""
FRAME = """<iframe src="page.html" width="{}" height="850" style="border: 0"></iframe><pre id="measured"></pre>
<script>onmessage = (event) => { document.getElementById("measured").textContent = event.data; };</script>"""
CLASSES = {
    "two": ["benign", "malignant"],
    "five": ["Jacken & M\u00e4ntel", "Hosen (kurz)", "a-very-long-name-of-a-class", "Kleider", "Schuhe"],
    "twelve": ["Jacken & M\u00e4ntel", "Hosen (kurz)", "a-very-long-name-of-a-class-without-a-space", *"012345678"],
}


@fixture(scope="module", params=CLASSES)
def html(request, tmp_path_factory):
    """The page of a probe with validation and test images, and an operating point."""
    names = CLASSES[request.param]
    folder = make_run(tmp_path_factory.mktemp("page") / "probe-20260101-12-00", 1, ["MODEL.TUNE=probe"])
    write_rows(folder, [{"epoch": 1, "step": 1, "val_top1": 80.0, "val_loss": 0.5, "train_loss": 0.4, "lr": 0.0}])
    rng = default_rng(0)
    for name, split in (("evaluation", "val"), ("evaluation-test", "test")):
        targets = rng.integers(0, len(names), 400)
        scores = rng.normal(size=(400, len(names))).astype(np.float32)
        scores[np.arange(400), targets] += 3
        point = OperatingPoint(name=names[1], specificity=0.95, label=1)
        results = replace(results_of_scores(targets, scores), point=point)
        tables = ResultTables(folder / name, names, lambda index: f"some/folder/of/images/IMG_{index:04}.jpg")
        tables.write(results.metrics(None), results, {"epoch": 1, "split": split})
    test = json.loads((folder / "evaluation-test/summary.json").read_text())
    update_json(folder / "run.json", result={"test": test, "pixel_baseline": 40.0, "majority_class": 30.0})
    return run_page(read_contents(folder))


def shown(html: str, width: int, folder, media: str = "") -> dict:
    """What the browser shows in a frame of this width and a height of 850 pixels, with the rules for `media`."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", html)
    page = page.replace(f"@media {media}", "@media all") if media else page
    (folder / "page.html").write_text(page.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.replace("{}", str(width)))  # a window has at least 500 pixels
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--dump-dom"]
    command += ["--virtual-time-budget=20000", f"--user-data-dir={folder / 'browser'}", f"file://{folder}/frame.html"]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    text = re.search(r'<pre id="measured">(.*?)</pre>', dumped, re.S)[1]
    found = json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert found["width"] == width
    return found


MEDIA = """
width | media
1200 |
1200 | '(prefers-color-scheme: dark)'
400 |
718 | print  # A4 without its margins
"""


@each_value(MEDIA)
def test_the_page_shows_the_result_first_and_no_text_is_cut_covered_or_faint(width, media, html, tmp_path):
    """On a narrow screen wide tables and the list of sections scroll in themselves."""
    found = shown(html, width, tmp_path, media)
    assert found["wide"] <= width
    assert not found["overlaps"]
    assert not found["faint"]
    scrolls = {"nav", "scroll", "scroll tall", "TH"} if width == 400 else {"nav"}
    assert [one for one in found["cut"] if one[1] not in scrolls] == []
    assert not found["cutFirst"] or (width == 400 and "<bdi>8</bdi>" in html)  # of five classes all columns are there
    first = {text: bottom for text, bottom in found["bottoms"].items() if bottom <= 850}
    starts = "test top-1; 95% interval", "pixel baseline", "test sensitivity", "Confusion matrix of the test images"
    for start in starts:
        assert any(text.startswith(start) for text in first)
    assert width < 1200 or found["matrix"] <= 850
    # Of images and test images: ROC, precision, calibration, coverage; no curve of one epoch
    assert found["charts"] == 8
    assert not any("1000000000" in text for text in found["bottoms"])
