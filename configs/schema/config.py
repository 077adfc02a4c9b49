"""The options of a run."""

from pydantic import Field, field_validator, model_validator

from configs.schema.amp import Amp
from configs.schema.data import Data
from configs.schema.families.registry import AnyModel
from configs.schema.families.vit import ViT
from configs.schema.loss import Loss
from configs.schema.train import Train
from configs.section import Path, Section

MAX_NAME_CHARS = 100
_IMAGE_SIZE_REACH = 1000  # pixels; searched for an image size that works


class Config(Section):
    """All options of a run, checked and frozen."""

    name: str | None = Field(None, description="name of the run's folder; null: that of the recipe")
    save: Path = Field("./output", description="output folder; each run creates a folder in it")
    save_freq: int = Field(10, ge=1, description="epochs between checkpoints")
    save_freq_steps: int | None = Field(None, ge=1, description="steps between additional checkpoints; null: off")
    save_freq_minutes: float | None = Field(15, gt=0, description="minutes between additional checkpoints; null: off")
    keep_checkpoints: int = Field(3, ge=0, description="number of periodic checkpoints to keep besides last and best")
    report_freq: int = Field(20, ge=1, description="steps between log lines")
    validate_freq: int = Field(1, ge=1, description="epochs between evaluations; the last epoch is always evaluated")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of all random numbers of the run")
    deterministic: bool = Field(False, description="deterministic algorithms only, which are slower on a GPU")
    timeout_seconds: float = Field(
        600,
        ge=1,
        le=10**6,
        description="a rank aborts after waiting this long for another rank, or 0.9 times as long for its workers",
    )
    eval: bool = Field(False, description="evaluate only")
    eval_raw: bool = Field(
        False, description="training with TRAIN.MODEL_EMA: evaluate the raw weights too; the average decides the best"
    )
    amp: Amp = Amp()
    data: Data = Data()
    model: AnyModel = ViT()
    loss: Loss = Loss()
    train: Train = Train()

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None and (not name or "/" in name or not name.isprintable() or len(name) > MAX_NAME_CHARS):
            raise ValueError(f"must be a printable name without /, at most {MAX_NAME_CHARS} characters long")
        return name

    def with_model(self, **changes: str | int | None) -> "Config":
        """A copy with other values of some MODEL keys."""
        return self.model_copy(update={"model": self.model.model_copy(update=changes)})

    def _nearest_image_size(self) -> str:
        size = self.data.image_size
        nearby = (other for step in range(1, _IMAGE_SIZE_REACH) for other in (size + step, size - step) if other > 0)
        nearest = next((other for other in nearby if self.model.image_size_problem(other) is None), None)
        return f"; the nearest that works is {nearest}" if nearest else ""

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if problem := self.model.image_size_problem(self.data.image_size):
            raise ValueError(f"DATA.IMAGE_SIZE {self.data.image_size} {problem}{self._nearest_image_size()}")
        if self.eval and not (self.model.pretrained or self.model.resume):
            raise ValueError("EVAL needs weights; give -pretrained or -resume")
        if self.eval_raw and not self.train.model_ema:
            raise ValueError("EVAL_RAW needs an average of the weights; set TRAIN.MODEL_EMA=true or remove EVAL_RAW")
        patience = self.train.patience
        if patience is not None and patience < self.validate_freq:
            raise ValueError(
                f"TRAIN.PATIENCE {patience} is less than VALIDATE_FREQ {self.validate_freq}, the epochs between two "
                "evaluations; raise the first or lower the second"
            )
        return self
