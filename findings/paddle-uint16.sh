#!/usr/bin/env bash
# paddlepaddle 3.3.1, numpy 2.4.6
# Subject: training
# Behaviour: uint16 is PaddlePaddle's bfloat16 in NumPy. to_tensor(), ToTensor() and the DataLoader take the bits of a
#   uint16 array as bfloat16: 1000 becomes 1.4e-36, 30000 becomes 2.2e32, 65535 NaN. numpy() of a bfloat16 tensor has
#   the bits: 1.0 is 16256, and so is the mean of ones. There is no warning. int32 arrays keep their values.
# Expected: the numbers, as of uint8 and int32; for bfloat16 a conversion to float32, or an error, as of torch.
# Why it matters: X-rays, depth and microscope images are uint16, and a loss that is NaN from the first step looks like
#   a fault of the mixed precision. Predictions in bfloat16 that are written by numpy() are numbers above 16000, and
#   negative logits are the largest of them.
# Instead: `astype(np.int32)` before `to_tensor()`, `astype("float32")` before `numpy()`
# Last lines of a run on 2026-11-30:
#   paddlepaddle 3.3.1, uint16 [0, 1000, 30000, 65535]: bfloat16 [0, 1.36357e-36, 2.23107e+32, nan]
#   as int32: int32 [0, 1000, 30000, 65535]; DataLoader: bfloat16 [0, 1.36357e-36, 2.23107e+32, nan]
#   numpy() of bfloat16 1, 2, -1, -2: [16256, 16384, 49024, 49152], sorted by numpy: [-2.0, -1.0, 2.0, 1.0]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq paddlepaddle==3.3.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import paddle

pixels = np.array([0, 1000, 30000, 65535], np.uint16)


class Images(paddle.io.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return pixels


def described(tensor):
    values = tensor.astype("float32").numpy().ravel().tolist()
    return f"{str(tensor.dtype).removeprefix('paddle.')} [{', '.join(f'{value:.6g}' for value in values)}]"


direct, integers = paddle.to_tensor(pixels), paddle.to_tensor(pixels.astype("int32"))
(loaded,) = next(iter(paddle.io.DataLoader(Images(), batch_size=1)))
scores = paddle.to_tensor([1.0, 2.0, -1.0, -2.0]).astype("bfloat16")
bits = scores.numpy()
order = [scores.astype("float32").tolist()[place] for place in np.argsort(-bits.astype(int))]
print(f"paddlepaddle {paddle.__version__}, uint16 {pixels.tolist()}: {described(direct)}")
print(f"as int32: {described(integers)}; DataLoader: {described(loaded)}")
print(f"numpy() of bfloat16 1, 2, -1, -2: {bits.tolist()}, sorted by numpy: {order}")
values = direct.astype("float32").numpy()
assert direct.dtype == loaded.dtype == paddle.bfloat16 and integers.numpy().tolist() == pixels.tolist()
assert values[1] < 1e-30 and values[2] > 1e30 and np.isnan(values[3])
assert bits.dtype == np.uint16 and bits[0] == 16256 and order == [-2, -1, 2, 1]
PYTHON
