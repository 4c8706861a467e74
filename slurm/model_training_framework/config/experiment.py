"""The configuration of one experiment: all its sections."""

from __future__ import annotations

from pydantic import Field

from model_training_framework.config.fields import ExperimentName, Free, Line, Seed, Switch, Text
from model_training_framework.config.section import Section, section
from model_training_framework.config.sections import (
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    PerformanceConfig,
    PredictionConfig,
    PreemptionConfig,
    SchedulerConfig,
    SLURMConfig,
    TrainingConfig,
)
from predictor.formats.experiment import processes_per_node

COMMAND = "python train.py --config {config}"


@section("")
class ExperimentConfig(Section):
    """One experiment. It is checked when it is built, and immutable."""

    experiment_name: ExperimentName = Field(description="name of the experiment, its folder and its job")
    model: ModelConfig = Field(description="the model")
    training: TrainingConfig = Field(description="how long, how fast, on which layout")
    data: DataConfig = Field(description="the training data")
    optimizer: OptimizerConfig = Field(description="the optimizer")
    scheduler: SchedulerConfig | None = Field(default=None, description="the learning rate; constant if absent")
    slurm: SLURMConfig | None = Field(default=None, description="what a job asks Slurm for")
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="what a run says, and where")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="when to save, what to keep")
    preemption: PreemptionConfig = Field(default_factory=PreemptionConfig, description="when told to leave")
    performance: PerformanceConfig = Field(default_factory=PerformanceConfig, description="how data is loaded")
    description: Text | None = Field(default=None, description="a sentence for people")
    tags: list[Text] = Field(default_factory=list, description="words to find it by")
    created_by: Text | None = Field(default=None, description="who made it")
    created_at: Text | None = Field(default=None, description="when it was made")
    version: Text = Field(default="1.0", description="version of the experiment, in quotes")
    seed: Seed | None = Field(default=None, description="of every random number generator; random if absent")
    deterministic: Switch = Field(default=True, description="deterministic algorithms only")
    benchmark: Switch = Field(default=False, description="let cuDNN try which algorithm is the fastest")
    custom_params: Free = Field(default_factory=dict, description="free: keys of the training script's own")
    command: Line = Field(
        default=COMMAND,
        description="command of a job; {config}, {experiment_dir} and keys such as {training.max_steps} are filled in",
    )
    prediction: PredictionConfig | None = Field(default=None, description="what a prediction needs besides")

    @property
    def processes_per_node(self) -> int:
        """Return the training processes of a node, one for each GPU, whatever starts them."""
        slurm = self.slurm or SLURMConfig()
        return processes_per_node(slurm.launcher, self.command, slurm.gres, slurm.ntasks_per_node)
