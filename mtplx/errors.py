"""The errors a user can meet. Each says what was wrong, the value, and what to do next.

MtplxError
├── UsageError          a flag, field or argument that cannot be meant (exit code 2)
│   ├── SamplingError   a sampling field out of range or unknown
│   └── ConfigError     a settings file that cannot be understood
├── ModelNotFoundError  a path, hub id or alias that leads to no checkpoint
├── DownloadError       the network or the index did not give what was asked
├── CheckpointError     files that are there but are not a checkpoint we can read
│   ├── UnsupportedTensorError  a tensor type or architecture we do not know
│   └── HeadError       an MTP head that does not fit its trunk
├── MemoryLimitError    a model that this machine's memory cannot hold
├── PromptTooLongError  more tokens than the context holds
├── RollbackError       a cache that cannot undo what it was asked to undo
├── PromptCacheError    a saved prompt cache that is damaged or not of this model
├── FileAccessError     a file or folder that cannot be read or written
├── DistributedError    machines that do not fit together, or lost each other
├── ProfileError        a tuned profile that cannot be understood
├── NoGpuError          what only a Metal GPU can do, on a machine without one
└── TrainingError       training that cannot start or go on
"""


class MtplxError(Exception):
    """A mistake or a circumstance that a person can act on; the text is shown as it is."""

    exit_code = 1


class UsageError(MtplxError):
    """A flag, field or argument that cannot be meant."""

    exit_code = 2


class SamplingError(UsageError):
    """A sampling field that is out of range or unknown."""


class ConfigError(UsageError):
    """A settings file that cannot be understood, or a setting that cannot be meant."""


class ModelNotFoundError(MtplxError):
    """A path, hub id or alias that leads to no checkpoint."""


class DownloadError(MtplxError):
    """The network or the index did not give what was asked, or gave something else."""


class CheckpointError(MtplxError):
    """Files that exist but are not a checkpoint we can read."""


class UnsupportedTensorError(CheckpointError):
    """A tensor type or architecture that we do not know."""


class HeadError(CheckpointError):
    """An MTP head that does not fit its trunk."""


class MemoryLimitError(MtplxError):
    """A model, or a model with that much context, that this machine's memory cannot hold."""


class PromptTooLongError(MtplxError):
    """More tokens than the model's context holds."""


class RollbackError(MtplxError):
    """A cache that cannot undo what it was asked to undo."""


class PromptCacheError(MtplxError):
    """A saved prompt cache that is damaged, or belongs to another model."""


class FileAccessError(MtplxError):
    """A file or folder that cannot be read or written."""


class DistributedError(MtplxError):
    """Machines that do not fit together, or have lost each other."""


class ProfileError(MtplxError):
    """A file that should be a tuned profile and is none."""


class NoGpuError(MtplxError):
    """Something that only a Metal GPU can do was asked of a machine without one."""


class TrainingError(MtplxError):
    """Training that cannot start or go on."""
