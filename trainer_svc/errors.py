"""What can go wrong in training, as the runner hears of it: a stable code, a reason, and whether trying again helps."""


class TrainingError(Exception):
    """Base; answered as a TrainingFault on the stream, never as the end of the process."""

    code = "training_error"
    retryable = False


class ModelUnusable(TrainingError):
    """The model directory is missing, incomplete, or no causal language model."""

    code = "model_unusable"


class SpecUnusable(TrainingError):
    """The job's spec does not parse, or names what this trainer cannot do."""

    code = "spec_unusable"


class CheckpointUnusable(TrainingError):
    """A checkpoint cannot be written or read."""

    code = "checkpoint_unusable"


class StepConflict(TrainingError):
    """The step was made from another batch, or does not follow the state that the trainer holds."""

    code = "step_conflict"


class BatchUnusable(TrainingError):
    """A member's tokens contradict themselves or the model."""

    code = "batch_unusable"


class BlobMissing(TrainingError):
    """The control plane does not have a member's tokens (yet)."""

    code = "blob_missing"
    retryable = True


class NotOpen(TrainingError):
    """The command needs an open job."""

    code = "not_open"


class StaleEpoch(TrainingError):
    """A runner of a later epoch drives the job."""

    code = "fenced"


class Diverged(TrainingError):
    """A gradient was not finite; the update was not applied."""

    code = "diverged"
