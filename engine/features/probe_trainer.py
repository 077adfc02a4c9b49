"""A training whose only step fits the head on the features of the frozen backbone.

Legend: N samples, F width of the features, C classes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from datasets.batch import Batch
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import lock_run_folder
from engine.evaluation.part_file import digest_inputs
from engine.features.extract import extract
from engine.features.knn import knn_top1
from engine.features.linear_probe import ROWS, fit_probe, full_precision
from engine.features.store import FeatureFile
from engine.parallel.compile import run_eagerly
from engine.training.eval_model import dummy_images
from engine.training.losses.loss import build_loss, read_class_weights
from engine.training.trainer import Trainer
from models.features import FeatureModel
from models.timm_model import classifiers
from utils.distributed import broadcast_object, call_on_main
from utils.errors import UserError
from utils.metrics import BatchSums

Features = tuple[torch.Tensor, torch.Tensor]  # of the readable samples, float32 (N, F), and their targets, (N, ...)


class ProbeTrainer(Trainer):
    """Has the epochs, files and results of `Trainer`; needs the options of `for_probe`.

    The features of the training and of the validation images are kept in SAVE/features, for the same run after a kill
    and for other probes with this backbone, these images and this preprocessing.
    """

    def _batches(self) -> Iterator[Batch]:
        return iter(())

    def _train_steps(self, batches: Iterator[Batch], stop_step: int) -> None:
        run, state = self.run, self.state
        model = FeatureModel(state.eval_model, self.config.model.name)
        self._check_head(model)
        train = self._features(model, run.train, "train")
        val = self._features(model, run.validation.files.samples, "val")
        fitted = call_on_main(lambda: self._fit(train, val), self.context)  # None on other ranks
        weight, bias, figures = broadcast_object(fitted[:3] if fitted else None, self.context)  # type: ignore[misc]
        (head,) = classifiers(state.precision.weights.saved)
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            head.weight.copy_(weight)
            head.bias.copy_(bias)
        state.precision.weights.sync_after_load()
        self._evaluated |= figures
        if fitted:  # the sums are over all ranks
            no = torch.zeros((), device=self.context.device)
            self.progress.sums.add_step(fitted[3], no, no > 0)
        self.progress.done_steps += 1
        self.after_step(self.progress)

    def _check_head(self, model: FeatureModel) -> None:
        """Raises UserError unless the only classifier is a linear layer that receives exactly the features."""
        heads, images = classifiers(model.model), dummy_images(self.config.data, self.context)
        is_linear = len(heads) == 1 and isinstance(heads[0], nn.Linear) and heads[0].bias is not None
        received: list[torch.Tensor] = []
        if is_linear:
            hook = heads[0].register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
            with torch.inference_mode(), self.state.precision.autocast(), run_eagerly():
                received.append(model.eval()(images))
                model.model(images)
            hook.remove()
        if not is_linear or not torch.equal(*received):
            raise UserError(
                f"MODEL.TUNE probe: the head of {self.config.model.name} is not one linear layer on its features; set "
                "it to head, which trains any head"
            )

    def _features(self, model: FeatureModel, samples: Samples, split: str) -> Features:
        """The features of a split on the main process, none on the others; a collective call."""
        run, config = self.run, self.config
        file: FeatureFile | None = None
        lock: AbstractContextManager[None] = nullcontext()
        if self.context.is_main:
            digest = digest_inputs(config, samples, model.backbone(), self.context.device.type)
            folder = Path(config.save) / "features" / f"{split}-{digest[:16]}"
            folder.mkdir(parents=True, exist_ok=True)
            lock = lock_run_folder(folder)
        with lock:
            if self.context.is_main:
                file = FeatureFile(folder / "features.npy", digest, len(samples))
                run.logger.info(f"----- Features of {split}: {file.num_done} of {len(samples)} are in {file.path}")
            evaluator = run.validation.evaluator
            extract(config, samples, evaluator, model, file, run.bad_images, self._after_eval_batch)
        if file is None:
            return torch.empty(0), torch.empty(0)
        readable = np.setdiff1d(np.arange(len(samples)), list(file.errors))
        assert file.values is not None
        values = torch.from_numpy(file.values[readable])
        if len(values) < 2 or not values.isfinite().all():
            problem = "fewer than two images can be read" if len(values) < 2 else "NaN or infinite; use bfloat16"
            raise UserError(f"MODEL.TUNE probe: features of {split}: {problem}")
        return values.to(self.context.device), torch.from_numpy(samples.targets[readable]).to(self.context.device)

    def _fit(self, train: Features, val: Features) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any], BatchSums]:
        """Weight (C, F) and bias (C,) on the CPU, figures for result.json, and the sums of the training images."""
        config, device, classes = self.config, self.context.device, self.config.model.num_logits
        class_weights = read_class_weights(config.loss, self.run.train.targets, classes, device)
        loss = build_loss(config.loss, config.train.smoothing, class_weights)
        with full_precision():
            weight, bias, l2 = fit_probe(*train, classes, loss)
            figures = {"probe_l2": l2}
            self.run.logger.info(f"----- Probe: L2 penalty {l2:g} of the weights for standardized features")
            if not config.data.multi_label:
                figures["knn_top1"] = knn_top1(*train, *val, classes)
                self.run.logger.info(f"----- k-NN top-1 on the same features: {figures['knn_top1']:.2f}%")
            sums = []
            for rows, labels in zip(*(tensor.split(ROWS) for tensor in train), strict=True):
                logits = F.linear(rows, weight, bias)
                sums.append(BatchSums.of(loss(logits, labels), logits, labels, len(labels)))
        return weight.cpu(), bias.cpu(), figures, reduce(add, sums)
