"""The phases of a training step: labels of `torch.profiler.record_function`, and rows of a profile."""

# Labelled by the code of the step.
DATA_WAIT = "data wait"
TRANSFORM = "transform and mixup"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
LOGGING = "logging"
LABELLED = (DATA_WAIT, TRANSFORM, FORWARD, BACKWARD, OPTIMIZER, LOGGING)

# Found by the profile: GPU work of these kinds, and time outside of all labels.
COPY = "copy to the device"
COMMUNICATION = "communication"
OTHER = "other"
PHASES = (DATA_WAIT, COPY, TRANSFORM, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, LOGGING, OTHER)
