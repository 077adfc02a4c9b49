"""The loss of a step: on labels, and on the outputs of a teacher."""
