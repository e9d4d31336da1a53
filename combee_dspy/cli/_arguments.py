"""The arguments of ``Combee`` that the file of ``combee run`` holds under their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from combee_dspy.costs import Costs
from combee_dspy.evaluation import SerialBaseline
from combee_dspy.guards import Guards
from combee_dspy.options import Privacy, Search, Validation
from combee_dspy.settings import Auto

__all__ = ["CombeeArguments", "HeldoutTerms", "Section"]


class Section(BaseModel):
    """A part of the file. Frozen; a key that it does not have is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _help(text: str, **bounds: Any) -> Any:
    return Field(description=text, **bounds)


class CombeeArguments(Section):
    """See :class:`combee_dspy.Combee`; the help here is what ``combee run --schema`` says."""

    auto: Annotated[Auto | None, _help("GEPA's budget presets.")] = None
    max_full_evals: Annotated[
        int | None, _help("Budget in passes over train and validation set.")
    ] = None
    max_metric_calls: Annotated[int | None, _help("Budget in rollouts.")] = None
    reflection_minibatch_size: Annotated[
        int | None, _help("Examples in a minibatch, fixed. Without it the size is planned.")
    ] = None
    candidate_selection_strategy: Annotated[str, _help("How parents are drawn, as in gepa.")] = (
        "pareto"
    )
    skip_perfect_score: Annotated[
        bool, _help("Whether minibatches without a mistake are skipped.")
    ] = True
    add_format_failure_as_feedback: Annotated[
        bool,
        _help("Whether reflections on answers that did not parse hold the answer and its format."),
    ] = False
    component_selector: Annotated[str, _help("What an update edits, as in gepa.")] = "round_robin"
    use_merge: Annotated[bool, _help("As in dspy.GEPA; Combee merges none.")] = True
    max_merge_invocations: Annotated[int | None, _help("The same.")] = 5
    num_threads: Annotated[
        int | None,
        _help("Rollouts and LM calls in flight at most. Without it the run tries what fits."),
    ] = None
    failure_score: Annotated[float, _help("Score of a rollout that failed.")] = 0.0
    perfect_score: Annotated[float, _help("Score of a success.")] = 1.0
    log_dir: Annotated[
        str | None, _help("Folder of the journal. Running again with it goes on where it ended.")
    ] = None
    track_stats: Annotated[bool, _help("Attach detailed_results to the program.")] = False
    use_wandb: Annotated[bool, _help("Log to W&B, as in gepa.")] = False
    wandb_init_kwargs: Annotated[dict[str, Any] | None, _help("Arguments of wandb.init.")] = None
    track_best_outputs: Annotated[bool, _help("Keep the best outputs on the validation set.")] = (
        False
    )
    warn_on_score_mismatch: Annotated[
        bool, _help("Warn when the metric's score depends on pred_name.")
    ] = True
    use_mlflow: Annotated[bool, _help("The same as tracker: mlflow.")] = False
    gepa_kwargs: Annotated[
        dict[str, Any] | None, _help("Parts of gepa, such as frontier_type.")
    ] = None
    search: Annotated[
        Search | None, _help("How updates follow each other and what is kept of them.")
    ] = None
    validation: Annotated[
        Validation | None, _help("How candidates are judged and the result is chosen.")
    ] = None
    guards: Annotated[Guards | None, _help("What no edit may break.")] = None
    cache: Annotated[
        str | Path | Literal[False] | None,
        _help("A file of rollouts that runs share. false buys the same rollout again."),
    ] = None
    costs: Annotated[Costs | None, _help("Prices and GPUs.")] = None
    privacy: Annotated[
        Privacy | None, _help("What is written of the examples, and what a reflector is shown.")
    ] = None


class HeldoutTerms(Section):
    """What is to be claimed from the held-out examples; see :class:`combee_dspy.Heldout`."""

    target: Annotated[
        float | None,
        _help(
            "Smallest improvement that is to be claimed, in score units.",
            gt=0,
            allow_inf_nan=False,
        ),
    ] = None
    power: Annotated[
        float, _help("How often an improvement of that size is to be found.", gt=0, lt=1)
    ] = 0.8
    confidence: Annotated[float, _help("Level of the interval that finds it.", gt=0, lt=1)] = 0.95
    discordance: Annotated[
        float | None,
        _help("Share of rows whose score differs between two programs.", ge=0, le=1),
    ] = None
    baseline: Annotated[
        SerialBaseline | Path | None,
        _help("What serial optimization came to on these rows: figures, or its log_dir."),
    ] = None
    margin: Annotated[
        float,
        _help(
            "How much worse than the baseline still counts as no worse.", gt=0, allow_inf_nan=False
        ),
    ] = 0.02
    study: Annotated[
        str | None,
        _help("Name of the study that these rows are the held-out set of.", min_length=1),
    ] = None
