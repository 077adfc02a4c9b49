#!/usr/bin/env bash
# tensorboard 2.21.0
# Subject: trackers
# Behaviour: EventAccumulator, with which scripts read TensorBoard's files, keeps 10,000 points of each scalar, chosen
#   at random, without a warning. Of 30,000 points two thirds are missing, and with them most of the peaks. The last
#   point is always kept, the first is not.
# Expected: the web page thins the curves for its plots; a program that reads a file gets what is in it.
# Why it matters: a table of the best accuracy of each run, from the events, has a value that was never the best, for
#   long runs alone. Two scalars with unequal numbers of points keep different steps: of a loss over an accuracy, or of
#   two runs at the same step, few pairs are left.
# Instead: `size_guidance={"scalars": 0}`
# Last lines of a run on 2026-11-29 (30,000 points of 0.5, and 30 peaks from 0.61 to 0.90 at equal distances):
#   tensorboard 2.21.0: 10000 of 30000 points, first step 2, last step 29999
#   peaks that are kept: 5 of 30, the best 0.87; with size_guidance scalars 0: 30000 points, 30 peaks, the best 0.90
#   a scalar of every second step: 3365 steps that both have; of all: 15000
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq tensorboard==2.21.0 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

STEPS = 30_000
peaks = {500 + 1000 * number: 0.61 + number / 100 for number in range(30)}
writer = EventFileWriter("run")
for step in range(STEPS):
    values = [Summary.Value(tag="val/top1", simple_value=peaks.get(step, 0.5))]
    if step % 2 == 0:
        values.append(Summary.Value(tag="val/loss", simple_value=1))
    writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=values)))
writer.close()


def read(**options):
    events = EventAccumulator("run", **options)
    events.Reload()
    points = events.Scalars("val/top1")
    steps = {point.step for point in events.Scalars("val/loss")}
    both = steps & {point.step for point in points}
    return points, [point.value for point in points if point.value > 0.6], len(both)


points, kept, both = read()
every, all_peaks, all_both = read(size_guidance={"scalars": 0})
print(
    f"tensorboard {tensorboard.__version__}: {len(points)} of {STEPS} points, first step {points[0].step}, last step "
    f"{points[-1].step}"
)
print(
    f"peaks that are kept: {len(kept)} of 30, the best {max(kept):.2f}; with size_guidance scalars 0: {len(every)} "
    f"points, {len(all_peaks)} peaks, the best {max(all_peaks):.2f}"
)
print(f"a scalar of every second step: {both} steps that both have; of all: {all_both}")
assert both < 6000 and all_both == STEPS // 2
assert len(points) == 10_000 and points[-1].step == STEPS - 1 and len(kept) < 20
assert len(every) == STEPS and len(all_peaks) == 30
PYTHON
