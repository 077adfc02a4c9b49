"""Each row of docs/flags.md that changes a number: its words, against the other program's objects of the typed flag.

timm's are of the installed package; torchvision's are composed as its references/classification/train.py does.
"""

import math
import re
import shlex
from argparse import Namespace
from functools import partial

import timm
import torch
import torchvision
from conftest import CPU, ROOT, cells_of, config_for, seeded
from PIL import Image
from pytest import MonkeyPatch, fail, mark
from test_optimizer import by_parameter
from timm import create_model
from timm.data import create_transform, resolve_data_config
from timm.data.loader import adapt_to_chs
from timm.data.mixup import mixup_target
from timm.data.random_erasing import RandomErasing
from timm.layers import DropPath
from timm.loss import create_classification_loss
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler_factory import scheduler_kwargs
from timm.task import LogitDistillationTask
from timm.utils import ModelEmaV3, dispatch_clip_grad
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.testing import assert_close
from torchvision import transforms
from torchvision.ops import StochasticDepth

from configs.command_line import parse_command_line
from configs.programs import describe_flags, programs
from configs.schema import Amp, Config, Data
from configs.yaml_io import parse_value, read_yaml
from datasets.decoding.decode import LazyImage
from datasets.transforms import host
from datasets.transforms.device import Mixup, Normalize, TrainTransform
from engine.plan.training import plan_training
from engine.precision.master_weights import WeightAverage
from engine.precision.policy import Precision
from engine.run.log import RunLogger
from engine.training import loss as losses
from engine.training.optimizer import Schedule, build_optimizer
from models.build import build_on_meta
from tests.datasets.photo import PHOTO, as_tensor

DEFAULTS = read_yaml(ROOT / "configs/programs/defaults.yaml")
# A kind of objects | the flags of a command line, the last one with each value between "or"
ROWS = {
    "timm": """
optimizer | model test_vit; momentum 0.7 or 0.8
optimizer | model test_vit; weight-decay 0.05 or 0
optimizer | model test_vit; opt SGD or momentum or AdamW or lamb
optimizer | model test_vit; opt adamw; opt-eps 1e-6 or 1e-3
optimizer | model test_vit; opt adamw; opt-betas 0.9 0.95 or 0.8 0.99
optimizer | model test_vit; opt lion; opt-kwargs caution=true
optimizer | model test_vit; layer-decay 0.7 or 0.5
optimizer | model test_convnext; layer-decay 0.7 or 0.5
optimizer | model test_vit; layer-decay 0.5; layer-decay-min-scale 0.3 or 0.6
optimizer | model test_vit; layer-decay 0.5; layer-decay-no-opt-scale 0.3 or 0.6
optimizer | model test_vit; lr 0.3 or 0.1
schedule | sched cosine or step
schedule | epochs 90 or 40
schedule | sched step; epochs 40 or 200
schedule | lr 0.4 or 0.2
schedule | warmup-lr 1e-3 or 0.01
schedule | warmup-epochs 20 or 0
schedule | min-lr 1e-3 or 0.01
schedule | sched step; decay-epochs 30 or 7.5
schedule | sched step; decay-rate 0.5 or 0.9
clip | clip-grad 0.1 or 1.5
image | img-size 64 or 96
image | input-size 3 64 96 or 1 96 64
image | img-size 96; in-chans 1 or 3
image | crop-pct 0.8 or 1
image | mean 0.4 0.5 0.6 or 0.1 0.2 0.3
image | std 0.4 0.5 0.6 or 0.5 0.4 0.3
image | interpolation bilinear or nearest
augmented_image | no-aug; interpolation bilinear or nearest
augmentation | scale 0.3 0.7 or 0.5 0.9
augmentation | ratio 0.5 1.5 or 0.9 1.1
augmentation | hflip 0 or 0.3
augmentation | vflip 0.2 or 0.3
augmentation | color-jitter 0.2 or 0.3
augmentation | aa rand-m9-mstd0.5-inc1 or original or augmix-m5-w4 or 3a
augmentation | reprob 0.2 or 0.3
augmentation | reprob 0.2; remode rand or const
augmentation | reprob 0.2; recount 2 or 3
augmentation | reprob 0.2; no-prefetcher
mixing | mixup 0.2 or 0.8
mixing | cutmix 0.2 or 1
mixing | mixup 0.2; cutmix-minmax 0.1 0.9 or 0.3 0.5
mixing | mixup 0.2; mixup-prob 0.3 or 0.7
mixing | mixup 0.2; cutmix 1; mixup-switch-prob 0.3 or 0.7
mixing | mixup 0.2; mixup-off-epoch 2 or 4
loss | smoothing 0 or 0.3
loss | mixup 0.2; smoothing 0 or 0.3
loss | bce-loss
loss | bce-loss; bce-target-thresh 0.2 or 0.01
loss | loss ce or bce
loss | loss cross_entropy or bce
loss | task multilabel
loss | task multi-label
loss | task multilabel; smoothing 0 or 0.3
loss | task multilabel; loss asl or bce
distillation | kd-model-name test_convnext or test_resnet
distillation | kd-model-name test_resnet; kd-temperature 1 or 2
average | model-ema
average | model-ema; model-ema-decay 0.9 or 0.99
average | model-ema; model-ema-warmup
model | img-size 160; model test_vit or test_resnet or test_convnext
model | img-size 160; model test_vit; num-classes 5 or 7
model | img-size 160; model test_resnet; gp avg or max
model | img-size 160; model test_vit; drop 0.1 or 0.2
model | img-size 160; model test_vit; drop-path 0.1 or 0.2
model | img-size 160; model test_resnet; drop-block 0.1 or 0.2
model | img-size 160; model test_vit; model-kwargs depth=3 or qkv_bias=false
""",
    "timm_validate": """
image | crop-pct 1; crop-mode center or squash or border
image | interpolation bilinear or nearest
""",
    "torchvision": """
optimizer | model test_resnet; opt sgd or sgd_nesterov or adamw or rmsprop
optimizer | model test_resnet; lr 0.3 or 0.5
optimizer | model test_resnet; momentum 0.7 or 0.8
optimizer | model test_resnet; weight-decay 0.05 or 0
schedule | lr-scheduler steplr or cosineannealinglr
schedule | epochs 50 or 70
schedule | lr 0.3 or 0.5
schedule | lr-step-size 10 or 20
schedule | lr-gamma 0.5 or 0.9
schedule | lr-scheduler cosineannealinglr; lr-min 1e-3 or 0.01
schedule | lr-warmup-method linear; lr-warmup-epochs 5 or 10
schedule | lr-scheduler cosineannealinglr; lr-warmup-method linear; lr-warmup-epochs 5 or 10
clip | clip-grad-norm 0.1 or 1.5
image | interpolation bilinear or bicubic
augmentation | train-crop-size 64 or 96
augmentation | auto-augment ta_wide or ra or imagenet or augmix
augmentation | auto-augment ra; ra-magnitude 5 or 12
augmentation | auto-augment augmix; augmix-severity 2 or 5
mixing | mixup-alpha 0.2 or 0.8
mixing | cutmix-alpha 0.2 or 1
mixing | mixup-alpha 0.2; cutmix-alpha 0.2 or 1
loss | label-smoothing 0.1 or 0.3
model | model test_resnet or test_convnext or test_efficientnet
""",
}
# What a run reads, writes and logs, how fast it is, on how many processes; its precision. Repeats: test_order.py
NO_NUMBER = """
data-dir dataset class-map dataset-download device workers pretrained initial-checkpoint resume batch-size
validation-batch-size grad-accum-steps channels-last grad-checkpointing amp amp-dtype torchcompile torchcompile-mode
local_rank start-epoch sync-bn log-interval val-interval checkpoint-hist seed recovery-interval output
experiment eval-metric log-wandb aug-repeats
data-path print-freq output-dir test-only use-deterministic-algorithms weights ra-sampler
"""
BUILDERS = {
    host.color_jitter: lambda strength: transforms.ColorJitter(*3 * (strength,)),
    host.timm_policy: host._build,
    host.torchvision_policy: host._of_torchvision,
}
B = 6
CLASSES = 5
STEPS = (1, 2, 3, 10, 1000)
IMAGES = torch.randn(2, 3, 160, 160, generator=seeded(0))


def namespace(program: str, flags: list[str]) -> Namespace:
    """The defaults of the program's parser, and the values of the flags."""
    values = DEFAULTS[program.partition("_")[0]] | {}
    for flag in flags:
        name, *texts = flag.split()
        given = tuple(map(parse_value, texts))
        if "=" in flag:
            given = (parse_value(f"{{{', '.join(texts).replace('=', ': ')}}}"),)
        values[name] = given[0] if len(given) == 1 else given or True
    given = Namespace(**{name.replace("-", "_"): value for name, value in values.items()})
    if not given.lr:
        given.lr = given.lr_base * given.batch_size / given.lr_base_size
    return given


def words_of(program: str, flags: list[str], *given: str) -> list[str]:
    """The words of the rows, beside the recipe of the program."""
    words = [f"-cfg={ROOT}/configs/programs/{program.partition('_')[0]}.yaml", *given]
    for flag in flags:
        name, *values = flag.split()
        line = describe_flags(programs()[program], [(f"--{name}", values)], {})
        text = re.search(r"Here: .*?: (.*?)( \(|\. For the rest)", line)[1]
        words += shlex.split(text.removeprefix("none needed"))
    return words


def groups_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    keys = ("weight_decay", "betas", "eps", "momentum", "nesterov", "caution", "alpha")
    group_of = by_parameter(optimizer.param_groups)
    found = {"": type(optimizer).__name__}
    for name, parameter in model.named_parameters():
        group = group_of.get(parameter)  # none of a layer that timm does not train
        found[name] = group and (group["lr"] * group.get("lr_scale", 1), *(group.get(key) for key in keys))
    return found


def backward() -> tuple[nn.Module, torch.optim.Optimizer, Precision]:
    """A model with gradients."""
    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    precision = Precision(Amp(), CPU.device)
    precision.attach(model)(torch.tensor([[0.1, 0.2]])).sum().backward()
    return model, torch.optim.SGD(model.parameters(), lr=1), precision


def batch_of(is_mixed: bool, is_multi_label: bool, smoothing: float = 0) -> tuple[Tensor, Tensor]:
    """Logits, and targets as timm's mixup makes them."""
    logits = torch.randn(B, CLASSES, generator=seeded(0))
    targets = torch.randint(CLASSES, (B,), generator=seeded(1))
    if is_multi_label:
        targets = (torch.rand(B, CLASSES, generator=seeded(2)) < 0.4).float()
    return logits, mixup_target(targets, CLASSES, 0.3, smoothing) if is_mixed else targets


def modules_of(model: nn.Module) -> list:
    """The classes of the modules, with all numbers and texts that they have, such as rates and kinds of pools."""
    kinds = (int, float, str)
    return [
        (type(one).__name__, {k: v for k, v in vars(one).items() if isinstance(v, kinds)}) for one in model.modules()
    ]


def photo(channels: int) -> Image.Image:
    return PHOTO.convert("L" if channels == 1 else "RGB")


def shown(data: Data, transform: host.HostTransform) -> Tensor:
    return Normalize(data)(transform(LazyImage(as_tensor(photo(data.image_channels))), 0, 0)[0][None])


def model_of(name: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return create_model(name, **options)


def operations_of(operations: list) -> list[str]:
    """The crop, the flips, the jitter and the policy with their parameters; timm's crop has torchvision's name."""
    texts = [repr(one).replace("AndInterpolation", "") for one in operations if one]
    return [re.sub(r"(Crop.*), interp.*", r"\1", text) for text in texts if "ToTensor" not in text]


class Timm:
    def optimizer(self, given):
        model = model_of(given.model)
        return groups_of(model, create_optimizer_v2(model, **optimizer_kwargs(given), **given.opt_kwargs))

    def schedule(self, given):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=given.lr)
        scheduler, epochs = create_scheduler_v2(optimizer, **scheduler_kwargs(given))
        return torch.tensor([scheduler.step(epoch) or optimizer.param_groups[0]["lr"] for epoch in range(epochs)])

    def clip(self, given):
        model, optimizer, _ = backward()
        if given.clip_grad:
            dispatch_clip_grad(model.parameters(), given.clip_grad, given.clip_mode)
        optimizer.step()
        return model.weight.data

    def image(self, given, **options):
        data = resolve_data_config(vars(given), pretrained_cfg=timm.get_pretrained_cfg(given.model).to_dict())
        channels = data["input_size"][0]
        pixels = create_transform(**data, **options, use_prefetcher=True)(photo(channels))
        mean, std = (torch.tensor(adapt_to_chs(data[key], channels)).view(-1, 1, 1) for key in ("mean", "std"))
        return ((pixels / 255 - mean) / std)[None]

    def augmented_image(self, given):
        return self.image(given, is_training=True, no_aug=given.no_aug)

    def augmentation(self, given):
        crop = given.train_crop_mode, given.scale, given.ratio
        options = {"auto_augment": given.aa, "use_prefetcher": True}
        transform = create_transform(224, True, False, *crop, given.hflip, given.vflip, given.color_jitter, **options)
        erase = RandomErasing(given.reprob, mode=given.remode, max_count=given.recount, device="cpu")
        erased = (erase.probability, erase.mode, erase.max_count, not given.no_prefetcher)
        return operations_of(transform.transforms), given.reprob and erased

    def mixing(self, given):
        if not (given.mixup or given.cutmix):
            return None
        options = given.cutmix_minmax, given.mixup_prob, given.mixup_switch_prob, given.mixup_mode
        mixup = timm.data.Mixup(given.mixup, given.cutmix, *options)
        has_both = mixup.mixup_alpha and mixup.cutmix_alpha
        share = mixup.switch_prob if has_both else mixup.cutmix_alpha > 0
        epochs = given.mixup_off_epoch or math.inf
        return mixup.mixup_alpha, mixup.cutmix_alpha, mixup.cutmix_minmax, mixup.mix_prob, share, epochs

    def loss(self, given):
        is_mixed = given.mixup > 0
        is_multi_label = given.task.startswith("multi")
        options = {"smoothing": given.smoothing, "bce_target_thresh": given.bce_target_thresh}
        name = given.loss or ("bce" if given.bce_loss else None)
        names = {"cross_entropy": "ce"}
        loss = create_classification_loss(names.get(name, name), is_multi_label, soft_targets=is_mixed, **options)
        return loss(*batch_of(is_mixed, is_multi_label, given.smoothing))

    def distillation(self, given):
        student = model_of("test_vit", num_classes=CLASSES)
        teacher = model_of(given.kd_model_name, num_classes=CLASSES)
        task = LogitDistillationTask(
            student, teacher, nn.CrossEntropyLoss(label_smoothing=given.smoothing), task_loss_weight=0.5,
            loss_type=given.kd_loss_type, temperature=given.kd_temperature, verbose=False
        )  # fmt: skip
        return task.eval()(IMAGES, torch.arange(2))["loss"].detach()

    def average(self, given):
        average = ModelEmaV3(nn.Linear(1, 1), given.model_ema_decay, use_warmup=given.model_ema_warmup)
        return torch.tensor([average.get_decay(step) for step in STEPS]) if given.model_ema else None

    def model(self, given):
        options = {"drop_rate": given.drop, "drop_path_rate": given.drop_path, "drop_block_rate": given.drop_block}
        options |= {"global_pool": given.gp, "num_classes": given.num_classes}
        with torch.device("meta"):
            return modules_of(create_model(given.model, **options, **given.model_kwargs))


class Torchvision:
    def optimizer(self, given):
        model = model_of(given.model)
        momentum = {"momentum": given.momentum}
        kinds = {
            "sgd": (torch.optim.SGD, momentum),
            "sgd_nesterov": (torch.optim.SGD, momentum | {"nesterov": True}),
            "rmsprop": (torch.optim.RMSprop, momentum | {"eps": 0.0316, "alpha": 0.9}),
            "adamw": (torch.optim.AdamW, {}),
        }
        kind, options = kinds[given.opt]
        return groups_of(model, kind(model.parameters(), lr=given.lr, weight_decay=given.weight_decay, **options))

    def schedule(self, given):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=given.lr)
        warmup = given.lr_warmup_epochs
        schedule = lr_scheduler.StepLR(optimizer, given.lr_step_size, given.lr_gamma)
        if given.lr_scheduler == "cosineannealinglr":
            schedule = lr_scheduler.CosineAnnealingLR(optimizer, given.epochs - warmup, given.lr_min)
        if warmup:
            kinds = {"linear": lr_scheduler.LinearLR, "constant": lr_scheduler.ConstantLR}
            first = kinds[given.lr_warmup_method](optimizer, given.lr_warmup_decay, total_iters=warmup)
            schedule = lr_scheduler.SequentialLR(optimizer, [first, schedule], [warmup])
        rates = []
        for _ in range(given.epochs):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return torch.tensor(rates)

    def clip(self, given):
        model, optimizer, _ = backward()
        if given.clip_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), given.clip_grad_norm)
        optimizer.step()
        return model.weight.data

    def image(self, given):
        interpolation = transforms.InterpolationMode(given.interpolation)
        cropped = [transforms.Resize(given.val_resize_size, interpolation), transforms.CenterCrop(given.val_crop_size)]
        values = [
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
        return transforms.Compose([*cropped, *values])(PHOTO)[None]

    def augmentation(self, given):
        interpolation = transforms.InterpolationMode(given.interpolation)
        policies = {
            "ta_wide": transforms.TrivialAugmentWide,
            "imagenet": transforms.AutoAugment,
            "ra": partial(transforms.RandAugment, magnitude=given.ra_magnitude),
            "augmix": partial(transforms.AugMix, severity=given.augmix_severity),
        }
        crop = transforms.RandomResizedCrop(given.train_crop_size, interpolation=interpolation)
        build = policies.get(given.auto_augment)
        policy = build and build(interpolation=interpolation)
        return operations_of([crop, transforms.RandomHorizontalFlip(0.5), policy]), 0

    def mixing(self, given):
        mixup = given.mixup_alpha
        cutmix = given.cutmix_alpha
        share = 0.5 if mixup and cutmix else cutmix > 0
        return (mixup, cutmix, None, 1, share, math.inf) if mixup or cutmix else None

    def loss(self, given):
        return nn.CrossEntropyLoss(label_smoothing=given.label_smoothing)(*batch_of(False, False))

    def model(self, given):
        with torch.device("meta"):
            return modules_of(create_model(given.model))


class Ours:
    def optimizer(self, config):
        model = model_of(config.model.name)
        return groups_of(model, build_optimizer(model, config.train, config.train.base_lr))

    def schedule(self, config):
        schedule = Schedule(config.train, config.train.horizon, 10, 128)
        return torch.tensor([schedule.lr_at(10 * epoch) for epoch in range(config.train.num_epochs)])

    def clip(self, config):
        model, optimizer, precision = backward()
        precision.step(optimizer, config.train.grad_clip, seed=0)
        return model.weight.data

    def image(self, config):
        return shown(config.data, host.build_eval_host_transform(config.data))

    def augmented_image(self, config):
        return shown(config.data, host.build_host_transform(config.data, config.train, 0))

    def augmentation(self, config):
        transform = host.build_host_transform(config.data, config.train, 0)
        (data,) = transform.crop.args
        found = [transforms.RandomResizedCrop(data.input_size, data.random_crop_scale, data.random_crop_ratio)]
        flips = {-1: transforms.RandomHorizontalFlip, -2: transforms.RandomVerticalFlip}
        for one in transform.operations:
            if one.func is host.random_flip:
                axis, probability = one.args
                found.append(probability and flips[axis](probability))
            else:
                found += [BUILDERS[policy.func](*policy.args) for policy in one.args[0]]
        erase = [(one.probability, one.mode, one.count) for one in transform.device_operations]
        is_last = len(TrainTransform(data, config.train, CLASSES, config.train.horizon).last_operations) > 0
        return operations_of(found), (erase and (*erase[0], is_last)) or 0

    def mixing(self, config):
        mixup = Mixup(config.train, CLASSES, config.train.horizon)
        if not (mixup.mixup_alpha or mixup.cutmix_alpha):
            return None
        names = "mixup_alpha", "cutmix_alpha", "minmax", "probability", "cutmix_share", "off_epoch"
        return tuple(getattr(mixup, name) for name in names)

    def loss(self, config):
        loss = losses.build_loss(config.loss, config.train.smoothing, None, config.data.multi_label)
        return loss(*batch_of(config.train.mixup_alpha > 0, config.data.multi_label)) / B

    def distillation(self, config):
        student = model_of("test_vit", num_classes=CLASSES).eval()
        teacher = model_of(config.train.teacher_model, num_classes=CLASSES).eval()
        with MonkeyPatch.context() as patch:  # without the published weights
            patch.setattr(losses, "build_teacher", lambda *_: teacher)
            loss, _ = losses.build_step_loss(config, student, Precision(Amp(), CPU.device), None, None)
        return loss(student(IMAGES), torch.arange(2), IMAGES).detach() / 2

    def average(self, config):
        train = config.train
        average = WeightAverage(nn.Linear(1, 1), train.model_ema_decay, train.model_ema_warmup)
        decays = [average.set_step(step - 1) or 1 - average._update_weight for step in STEPS]
        return torch.tensor(decays) if train.model_ema else None

    def model(self, config):
        return modules_of(build_on_meta(config.model, config.data))


THEIRS = {"timm": Timm(), "timm_validate": Timm(), "torchvision": Torchvision()}
LINES = [(program, *cells) for program, text in ROWS.items() for cells in cells_of(text)]


def assert_same(kind: str, theirs, config: Config):
    ours = getattr(Ours(), kind)(config)
    if isinstance(theirs, Tensor):
        atol = 0.036 if "image" in kind else 1e-7  # 2 / 255 / 0.22: Pillow rounds after each of two passes
        assert_close(ours, theirs, rtol=1e-5, atol=atol)
    else:
        assert ours == theirs


def proven(program: str, kind: str, flags: list[str]) -> str:
    """The other program's object, which the words of the rows make, too."""
    config = config_for(*words_of(program, flags))
    if "image" in kind:  # whose size and filter may be the model's
        command = parse_command_line(words_of(program, flags, "-dataset=digits"))
        config = plan_training(command, CPU, RunLogger(CPU), lambda *_: fail("a search")).config
    theirs = getattr(THEIRS[program], kind)(namespace(program, flags))
    assert_same(kind, theirs, config)
    return str(theirs.sum().item() if isinstance(theirs, Tensor) else theirs)


def expanded(line: str) -> list[list[str]]:
    """The flags of the line, with each value of the last one."""
    *others, last = line.split("; ")
    name, _, values = last.partition(" ")
    return [[*others, f"{name} {value}"] for value in values.split(" or ")]


@mark.parametrize("program, kind, line", LINES)
def test_a_flag_and_its_words_have_the_same_objects(program, kind, line):
    """The values of the flag, and a switch and no switch, have different ones."""
    lines = expanded(line)
    found = [proven(program, kind, flags) for flags in (lines if lines[1:] else [*lines, lines[0][:-1]])]
    assert len({*found}) == len(found)


@mark.parametrize("program", ["timm", "torchvision"])
def test_each_row_is_proven_or_of_no_number_or_says_what_differs(program):
    flags = programs()[program].flags
    rows = {name: row if isinstance(row, dict) else {"": row} for name, row in flags.items()}
    proven = {text for name in NO_NUMBER.split() for text in rows.get(name, {}).values()}
    for flag in (flag for one, _, line in LINES if one == program for flags in expanded(line) for flag in flags):
        name, _, value = flag.partition(" ")
        proven.add(rows[name].get(value.lower()) or rows[name][""])
    said = r"none|.*\(similar|-model="  # the models: test_the_models_are_torchvisions
    for name, row in rows.items():
        assert not [text for text in {*row.values()} - proven if not re.match(said, text)], name


WITHOUT_DEFAULT = {("timm", "distillation"), ("timm", "augmented_image")}  # a teacher; random crops


@mark.parametrize("program, kind", sorted({cells[:2] for cells in LINES} - WITHOUT_DEFAULT))
def test_the_recipe_of_a_program_has_the_objects_of_its_defaults(program, kind):
    proven(program, kind, [])


@mark.slow
def test_the_models_are_torchvisions(monkeypatch):
    """The weights but biases and heads, and the rates, which torchvision's Swin has once per block."""
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_", "xavier_uniform_"):
        monkeypatch.setattr(nn.init, name, lambda weights, *arguments, **options: weights)
    for name, row in programs()["torchvision"].flags["model"].items():
        if not name or "(similar, with" in row:
            continue
        size = 256 if name.startswith("swin_v2") else 224
        config = config_for(*words_of("torchvision", [f"model {name}"], f"-image_size={size}"))
        with torch.device("cpu" if name.startswith("regnet") else "meta"):
            nets = torchvision.models.get_model(name), build_on_meta(config.model, config.data)
        found = []
        for net in nets:
            kinds = {StochasticDepth: "p", DropPath: "drop_prob", nn.Dropout: "p", type(net): "drop_rate"}
            rates = {round(getattr(one, kinds.get(type(one), ""), None) or 0, 5) for one in net.modules()}
            found.append((rates, sorted(one.numel() for one in net.parameters() if one.squeeze().ndim > 1)))
        assert found[0] == found[1], name
