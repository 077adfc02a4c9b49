"""Training for measurements: steps with reports, without evaluations and checkpoints."""

from collections.abc import Iterator

from datasets.batch import Batch
from engine.training.run import Run
from engine.training.step import train_steps


class MeasuredTraining:
    """Trains from the start of a run, through as many epochs as the steps take."""

    def __init__(self, run: Run, batches: Iterator[Batch]) -> None:
        self.run, self.batches = run, batches
        self.progress = run.state.new_progress(epoch=0)
        run.reporter.start(epochs_done=0, steps_done=0)

    @property
    def images(self) -> int:
        """Trained on so far, over all ranks."""
        progress, layout = self.progress, self.run.state.layout
        batches = progress.epoch * progress.batches + progress.done_batches(layout.accum_iter)
        return batches * layout.batch_size

    def train(self, steps: int) -> None:
        run = self.run
        while steps:
            if self.progress.done_steps == self.progress.steps:
                self.progress = run.state.new_progress(self.progress.epoch + 1)
            progress = self.progress
            if progress.done_steps == 0:
                run.reporter.start_epoch(progress)
            stop_step = min(progress.steps, progress.done_steps + steps)
            steps -= stop_step - progress.done_steps
            train_steps(run.state, self.batches, progress, stop_step, run.reporter.after_step)
