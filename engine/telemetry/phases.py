"""The phases of a step, as its code labels them (`torch.profiler.record_function`) and a profile names them."""

DATA_WAIT = "data wait"
TRANSFORM = "transform and mixup"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
LOGGING = "logging"
LABELLED = (DATA_WAIT, TRANSFORM, FORWARD, BACKWARD, OPTIMIZER, LOGGING)

# What a profile finds besides: on GPUs by the kind of their work, and time without a label.
COPY = "copy to the device"
EXCHANGE = "exchange of gradients"
REST = "rest"
PHASES = (DATA_WAIT, COPY, TRANSFORM, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER, LOGGING, REST)
