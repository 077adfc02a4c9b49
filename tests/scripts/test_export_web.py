"""The page of -format web in a headless browser: its input is the input of an evaluation, its answer is -predict's."""

import functools
import http.server
import json
import queue
import re
import shutil
import subprocess
import threading

import numpy as np
from client_pixels import pixel_options, steps_between
from conftest import ROOT, each_value, export_as, rotated
from PIL import Image
from pytest import approx, fixture, importorskip, mark, skip

from configs.schema.operating_point import OperatingPoint
from datasets.decoding.decode import open_image
from utils.files import read_json

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGE = (ROOT / "scripts/exporting/web.html").read_text()
# In place of onnxruntime-web, which is not installed: writes the input into the page, and answers with given logits.
STUB = """<script>
const ort = { Tensor: class { constructor(kind, data, dims) { Object.assign(this, { data, dims }); } } };
ort.InferenceSession = {
  create: async () => ({ run: async ({ images }) => {
    const text = document.createElement("pre");
    text.id = "input";
    text.textContent = JSON.stringify({ shape: images.dims, values: Array.from(images.data) });
    document.body.append(text);
    return { logits: { data: Float32Array.from(model.test_logits) } };
  } }) };
</script>"""


# The page says when it has answered: a budget of virtual time may run out before a slow machine has decoded the image.
REPORT = """<script>
const timer = setInterval(() => {
  const answered = document.querySelector("#result tr") || element("status").textContent.startsWith("Error");
  if (!answered) return;
  clearInterval(timer);
  fetch("/page", { method: "POST", body: document.documentElement.outerHTML });
}, 50);
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and puts what is posted into `pages`."""

    def __init__(self, *args, pages, **kwargs):
        self.pages = pages
        super().__init__(*args, **kwargs)

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        super().end_headers()
        self.pages.put(text)

    def log_message(self, *_):
        pass

    def end_headers(self):
        self.send_header("Cache-Control", "no-store")  # a second page has another model.json
        super().end_headers()


@fixture
def opened(tmp_path):
    """Writes model.json and the page, and returns the page as the browser shows it once it has answered."""
    if not BROWSER:
        skip("no Chromium")
    pages = queue.Queue()
    handler = functools.partial(Handler, directory=tmp_path, pages=pages)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def shown(model, image):
        page = re.sub(r"<script src=.*?</script>", lambda _: STUB, PAGE)
        (tmp_path / "index.html").write_text(page + REPORT)
        (tmp_path / "model.json").write_text(json.dumps({"name": "digits", "test_logits": [0.0], **model}))
        url = f"http://127.0.0.1:{server.server_port}/index.html?image={image}"
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        command += [f"--user-data-dir={tmp_path / 'browser'}", url]
        browser = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            return pages.get(timeout=300)
        finally:
            browser.terminate()
            browser.wait()

    yield shown
    server.shutdown()


# box: of the photograph
CASES = """
resize | size | crop_pct | interpolation | channels | box
crop | 64 | 0.875 | bicubic | 3 | [0, 0, 301, 223]
crop | 65 | 1.3 | bilinear | 3 | [50, 20, 150, 400]
squash | [48, 64] | 1.0 | bicubic | 1 | [0, 0, 500, 33]
pad | 47 | 1.0 | bilinear | 3 | [10, 10, 90, 60]
crop | 32 | 1.0 | nearest | 3 | [0, 0, 77, 91]
"""


@mark.slow
@each_value(CASES)
def test_the_input_of_the_page_is_the_input_of_an_evaluation(
    resize, size, crop_pct, interpolation, channels, box, opened, tmp_path
):
    """Equal bytes, of a JPEG with an orientation too; values within float32's rounding."""
    photograph = importorskip("sklearn.datasets").load_sample_image("china.jpg")
    photo = tmp_path / "photo.jpg"
    Image.fromarray(photograph).crop(box).save(photo, exif=rotated(6), quality=95, subsampling=0)
    data, values = pixel_options(resize, size, crop_pct, interpolation, channels)
    page = opened({"preprocessing": values}, "photo.jpg")
    found = json.loads(re.search(r'<pre id="input">(.*?)</pre>', page)[1])
    image = open_image(photo.read_bytes(), channels, str)
    steps = steps_between(data, image, np.reshape(found["values"], found["shape"]))
    assert steps.max() < 1e-3


@mark.slow
def test_the_page_answers_with_probabilities_and_the_operating_point(opened, tmp_path):
    Image.new("RGB", (40, 30), (200, 30, 60)).save(tmp_path / "a.png")
    _, values = pixel_options("squash", 8, 1, "bilinear")
    model = {"preprocessing": values, "class_names": ["cat", "dog", "<b>"]}
    logits = np.float32([0.2, 1.5, -1.0])
    odds = logits[1] - np.logaddexp(logits[0], logits[2])  # of dog against the others
    for threshold, answer in ((odds - 0.01, "yes"), (odds + 0.01, "no")):
        point = OperatingPoint(name="dog", specificity=0.9, label=1, threshold=float(threshold)).model_dump()
        divided = {"test_logits": (2.5 * logits).tolist(), "tempered_operating_point": point, "temperature": 2.5}
        for entries in ({"test_logits": logits.tolist(), "operating_point": point}, divided):
            page = opened(model | entries, "a.png")
            assert f"dog: {answer}" in page
    shares = np.exp(logits) / np.exp(logits).sum()  # of the last page
    assert [float(text) for text in re.findall(r"<td>([\d.]+)%</td>", page)] == [
        approx(100 * share, abs=0.06) for share in sorted(shares, reverse=True)
    ]
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.partition("<script>")[0]


@mark.slow
def test_the_folder_has_the_model_of_the_run_and_what_the_page_reads(trained_digits, tmp_path):
    onnxruntime = importorskip("onnxruntime")
    trained = trained_digits("TRAIN.BASE_LR=1e-2")
    target = tmp_path / "site"
    for _ in range(2):  # the second one replaces the first
        export_as("web", trained, target)
    assert sorted(path.name for path in target.iterdir()) == ["index.html", "model.json", "model.onnx"]
    model = read_json(target / "model.json")
    assert (model["class_names"], model["preprocessing"]["image_size"]) == ([*"0123456789"], 8)
    read = set(re.findall(r"model\.([a-z_]+)", PAGE)) - {"json", "onnx"}
    assert read <= {*model, "threshold_logits", "operating_point", "tempered_operating_point", "temperature"}
    assert onnxruntime.InferenceSession(str(target / "model.onnx")).get_inputs()[0].name == "images"
