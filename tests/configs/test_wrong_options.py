"""A wrong option ends in one line that names the flag or key."""

import re
import shlex

from conftest import each_row, line_of

from configs.command_line import parse_command_line

WRONG = """
words | names
-batchsize=4 | -batch_size?
--outptu=1 | -output
--weights DEFAULT --data-path D | --weights DEFAULT: -pretrained=FILE
--dataset_name x | --dataset_name: flags of transformers'
--config config/config_AMP_naive.py | AMP.PRESET=naive  # of ColossalAI
-o Optimizer.lr.learning_rate=0.1 | Optimizer.lr.learning_rate; use TRAIN.BASE_LR  # of PaddleClas
-opts TRAIN.DROP_PATH=0.1 | TRAIN.DROP_PATH; use MODEL.DROPPATH  # of timm
configs/vit_digits.yaml | unknown: configs/vit_digits.yaml
-a resnet18 --lr 3 configs | -data_path=configs  # as in the commands of MoCo
--predict -x.jpg -pretrained=x.pth | unknown: -x
-cfg=lora.yml | configs/lora.yaml
-batch_size=x | -batch_size
-memory_gb=inf | -memory_gb: DATA.MEMORY_GB
-opts 'TRAIN.OPTIMIZER.BETAS=[0.9, 1e999]' | TRAIN.OPTIMIZER.BETAS
-opts 'TRAIN.CUTMIX_MINMAX=[0, 0]' | TRAIN.CUTMIX_MINMAX
-amp=maybe | yes or no
-ngpus=0 | -ngpus
-resume= -dataset=digits | -resume
-h TRAIN.BASE_LT | TRAIN.BASE_LR
-opts MODEL.TUNE=lora TRAIN.OPTIMIZER.NAME=Lamb | set it to AdamW
# Commands
-predict photos | -predict and -embed need weights; give -resume=RUN or -pretrained=FILE
-predict= -pretrained=x.pth | -predict
-predict photos -pretrained=x.pth -eval | -predict photos and -eval
-predict photos -pretrained=x.pth -top_k=0 | -top_k
-predict photos -pretrained=x.pth -threshold=nan | -threshold
-predict photos -pretrained=x.pth -format=wide -top_k=3 | -top_k
-predict photos -pretrained=x.pth -split=val | -split
-eval -pretrained=x.pth -explain | -explain is a flag of -predict
-save_logits | -save_logits is a flag of -eval
-profile -eval -pretrained=x.pth | -eval
-held_out=old -eval -pretrained=x.pth | -held_out
# Keys
-opts 'EVAL.OPERATING_POINT={class: a}' | {class: malignant, specificity: 0.95}
-opts 'EVAL.OPERATING_POINT={class: a, specificity: 95}' | EVAL.OPERATING_POINT
-opts 'MODEL.KWARGS={global_pool:avg}' | a space after the colon  # else the key global_pool:avg
-opts 'MODEL.KWARGS={out_indices:[1,2]}' | a space after each colon
-opts SEED | -opts SEED
-opts 'DATA={BATCH_SIZE: 3, BATCH_SIZE: 4}' | BATCH_SIZE is given twice
-opts 'DATA.IMAGENET_MEAN=[0.406, 0.456, 0.485]' | BGR
-opts DATA.BATCHSIZE=4 | DATA.BATCH_SIZE?
-opts TRAIN.OPTIMIZER=lamb | TRAIN.OPTIMIZER is
-opts AMP.PRESET=bf16_stream AMP.DTYPE=float16 | DTYPE
-amp_dtype=float16 -opts AMP.PRESET=bf16_stream | -amp_dtype  # as in YAML
-opts AMP.LEVEL=O0 | -amp=no  # not O1, which is like it
-amp_dtype=fp32 | -amp=no
-opts AMP.PRESET=off | did you mean fp32?
-opts TRAIN.COMPILE=false | none?
-opts PARALLEL.COMM_HOOK=fp32 | none?
-cfg=configs/folder_small.yaml -pretrained=timm | MODEL.PRETRAINED timm
-cfg=configs/probe.yaml -opts TRAIN.BASE_LR=abc | TRAIN.BASE_LR  # without effect in a probe
-batch_size=0 | DATA.BATCH_SIZE is 0
-batch_size=auto | DATA.GLOBAL_BATCH_SIZE
-batch_size=auto -opts DATA.GLOBAL_BATCH_SIZE=64 MODEL.TUNE=probe | -batch_size_eval
-batch_size=auto -memory_gb=0 | MEMORY_GB
-image_size=96x32 | HEIGHT,WIDTH
-opts DATA.IMAGENET_MEAN=[124,116,104] DATA.IMAGENET_STD=[58,57,57] | 0..1
-opts 'DATA.IMAGE_SIZE=[96]' | DATA.IMAGE_SIZE
-image_size=96,30 | as vit needs; the nearest is 96,32; -model=resnet10t
-image_size=256,128 -opts MODEL.TYPE=crossvit | CrossViT
-opts LOSS.NAME=asl 'LOSS.KWARGS={gamma_neg: 0.5}' | gamma_neg  # infinite gradients of easy samples
-opts DATA.DATASET=csv DATA.MULTI_LABEL=true LOSS.NAME=cross_entropy | LOSS.NAME=bce
-opts DATA.DATASET=csv DATA.MULTI_LABEL=true DATA.BALANCED_SAMPLING=true | DATA.BALANCED_SAMPLING
-opts DATA.DATASET=cifar10 DATA.MULTI_LABEL=true | DATA.MULTI_LABEL
-opts DATA.DATASET=csv DATA.MULTI_LABEL=true TRAIN.DISTILLATION_TYPE=soft | TRAIN.DISTILLATION_TYPE
-opts DATA.BALANCED_SAMPLING=true LOSS.CLASS_WEIGHTS=balanced | LOSS.CLASS_WEIGHTS  # corrects it twice
-opts EVAL_RAW=true | EVAL_RAW needs an average of the weights; set TRAIN.MODEL_EMA=true
-opts EVAL.SUSPECTS=true | EVAL.SUSPECTS
-opts PARALLEL.STRATEGY=fsdp MODEL.TUNE=probe | PARALLEL.STRATEGY
-profile -pretrained=x.pth -opts MODEL.TUNE=probe | cannot be combined with MODEL.TUNE probe
-opts 'DATA.RENAME={ant: bee, bee: wasp}' | RENAME: 'bee' is an old and a new name
-opts NAME=a/b | NAME is 'a/b': must be a printable name without /
-opts "NAME=''" | NAME is '': must be a printable name without /
-opts DATA.FOLD=5 | FOLD
-opts DATA.FOLD=5 DATA.FOLDS=5 | FOLD
-opts DATA.FOLD=0 DATA.FOLDS=5 DATA.VAL_FRACTION=0.2 | FOLDS
-dataset=cifar10 -opts 'DATA.GROUPS=(p)' | DATA.GROUPS
-dataset=torch/dtd -opts 'DATA.KWARGS={partitoin: 2}' | known: partition
-dataset=torch/emnist | DATA.KWARGS={split:
-dataset=folder -opts DATA.DOWNLOAD=true | DATA.DOWNLOAD
-dataset=folder -opts DATA.LABELS=.+_ | DATA.LABELS  # an expression without a group
-dataset=folder -opts 'DATA.LABELS=(' | DATA.LABELS
-dataset=tar -opts 'DATA.LABELS=(.)' | DATA.LABELS
# Families
-opts MODEL.TYPE=poolformer 'MODEL.EMBED_DIMS=[64, 64, 320, 512]' | MODEL.EMBED_DIMS
-opts MODEL.TYPE=cait DATA.IMAGE_SIZE=230 | DATA.IMAGE_SIZE 230 is not a multiple of 16
-opts MODEL.TYPE=beit MODEL.NUM_HEADS=5 | MODEL.EMBED_DIM 768 is not a multiple of NUM_HEADS 5
-opts MODEL.TUNE=last:0 | MODEL.TUNE is 'last:0': must be full, head, last:N
-opts MODEL.TUNE=2 | MODEL.TUNE is 2: must be full, head, last:N
-opts MODEL.TYPE=crossvit 'MODEL.IMG_SIZE=[240, 225]' | MODEL.IMG_SIZE 225 is not a multiple of its PATCH_SIZE
-opts MODEL.TYPE=crossvit 'MODEL.DEPTH=[[1, 4], [1, 4]]' | MODEL.DEPTH [1, 4] of a stage
-opts MODEL.TYPE=halo 'MODEL.DEPTH=[3, 4, 6, 3]' | MODEL.ACT is not given
-opts MODEL.TYPE=null | MODEL.TYPE is None: give one of vit,
-opts MODEL.TYPE=mixer MODEL.MIXER.MLP_RATIO=3 | MODEL.MIXER.MLP_RATIO of MODEL.TYPE mixer
-opts MODEL.TYPE=mobilevit 'MODEL.HIDDEN_DIMS=[96, 121, 144]' | MODEL.HIDDEN_DIMS is 121:
-opts MODEL.TYPE=mobileone 'MODEL.STRIDES=[1, 2, 2, 2, 2]' | MODEL.NUM_BLOCKS must begin with 1 and STRIDES
-opts MODEL.TYPE=vit 'MODEL={POS_EMBED: sincos2d, EMBED_DIM: 30, NUM_HEADS: 3}' | MODEL.POS_EMBED sincos2d
-opts MODEL.TYPE=focal | MODEL.TYPE is 'focal': give one of vit,
-opts MODEL=null | MODEL is None: must be a section of keys
-opts TRAIN=3 | TRAIN is 3: must be a section of keys
-opts TRAIN=3 TRAIN.BASE_LR=1 | TRAIN is 3: must be a section of keys
-opts EVAL.BEST_METRIC=macrof1 | did you mean macro_f1?
-opts EVAL.BEST_METRIC=kappa | did you mean quadratic_kappa?
-amp_dtype=fp16 | did you mean float16?
-predict README.md docs | unknown: docs; -predict takes one
-amp_dtype=bf16 | did you mean bfloat16?
-teacher_model_path=x.pdparams | -teacher_model_path: TRAIN.TEACHER_WEIGHTS needs a distillation
"""


@each_row(WRONG)
def test_a_wrong_option_is_one_line_that_names_it(words, names):
    """A value that it advises is accepted when it is typed after the others."""
    message = line_of(parse_command_line, shlex.split(words))
    assert names in message
    advised = re.findall(r"set ([A-Z_.]+=\w+)", message)
    advised += [f"{key}={value}" for key, value in re.findall(r"(\b[A-Z]+\.[A-Z_.]+).*; set it to (\w+)", message)]
    if advised:
        parse_command_line([*shlex.split(words), "-opts", *advised])
