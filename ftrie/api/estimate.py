"""`ftrie.estimate`: what other policies would have earned, from a plain table; and the flags of all estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from ftrie.api.data import Data, Format, log_of
from ftrie.api.output import LibraryOutput, names_arguments
from model_store.errors import UsageError, listed
from model_store.flags import DEFAULT_STORE, Flag

if TYPE_CHECKING:
    from model_store.spec.spec import ModelSpec
    from trainer.examples.open_log import Log
    from trainer.off_policy.estimates import Estimates, EstimationRun, Progress
    from trainer.off_policy.tables import TableColumns


@dataclass(frozen=True)
class PolicyFlags:
    """Which policies to estimate, and how."""

    policy: Annotated[
        tuple[str, ...],
        Flag(
            "Estimate what this policy would have earned: MODEL[:VERSION][@VARIANT], FILE.arrow[@VARIANT], "
            "learning[@VARIANT], uniform, logged; repeatable.",
            "NAME",
            file="reads",
        ),
    ] = ()
    choose: Annotated[
        tuple[str, ...],
        Flag("How models choose: greedy, softmax:T, epsilon:E; repeatable. Default: greedy.", "HOW"),
    ] = ()
    objective: Annotated[
        tuple[str, ...],
        Flag(
            'Published models order by this expression, as a server does: "ctr * purchase.ctr * price"; repeatable. '
            "Default: their click rate.",
            "EXPRESSION",
        ),
    ] = ()
    beside: Annotated[
        tuple[str, ...],
        Flag(
            "The model behind a name in --objective; repeatable. Default: the active version of this name, and its "
            "first variant.",
            "NAME=MODEL",
            file="reads",
        ),
    ] = ()
    decision: Annotated[
        str | None,
        Flag(
            "What a propensity refers to: the item of a row, or an item being in its request's list. "
            "Default: row for labelled rows, list for events.",
            "row|list",
        ),
    ] = None
    propensity: Annotated[
        str | None,
        Flag(
            "The probability with which a row was shown; default: propensity_score, propensity or pscore.",
            "COLUMN",
        ),
    ] = None
    position: Annotated[str | None, Flag("Estimates by position too; default: position.", "COLUMN")] = None
    clip: Annotated[
        float | None, Flag("Weights are clipped at W; default: the square root of the rows.", "W", min=1.0)
    ] = None
    bootstrap: Annotated[int, Flag("Bootstrap draws of cookies, for intervals; 0: none.", "N", min=0)] = 1000
    seed: Annotated[int, Flag("The seed of these draws.", min=0)] = 1
    without: Annotated[
        tuple[str, ...], Flag("Models choose without this field or cross (a*b); repeatable.", "FIELD")
    ] = ()
    reward_model: Annotated[
        bool,
        Flag(
            "Also fit a model of the rewards, cross-fitted, for the direct method, DR, Switch-DR, DRos, and on lists "
            "cascade-DR."
        ),
    ] = False

    def estimating(
        self,
        spec: ModelSpec,
        items: Path | None,
        store: str,
        default: str,
        table: TableColumns | None = None,
    ) -> EstimationRun:
        """What is to be estimated; `default` is the decision if none was given. Raises FtrieError."""
        from model_store.features.objective import Objective
        from model_store.model_files import read_named
        from trainer.examples.side_tables import SideTable
        from trainer.off_policy.estimates import EstimationRun, EstimatorOptions
        from trainer.off_policy.logged import DECISION_LIST, DECISION_ROW
        from trainer.off_policy.policies import ItemChoice, PolicyName

        if self.decision not in (None, DECISION_ROW, DECISION_LIST):
            raise UsageError(f"--decision {self.decision}: expected row or list")
        choices = [ItemChoice.parse(each) for each in dict.fromkeys(self.choose or ["greedy"])]
        policies = [PolicyName.parse(each) for each in dict.fromkeys(self.policy)]
        objectives = [Objective.of(each) for each in dict.fromkeys(self.objective)]
        if objectives and any(each.kind == "softmax" for each in choices):
            raise UsageError(
                "--choose softmax:T is of click rates; with --objective expected greedy or epsilon:E"
            )
        if objectives and not any(each.is_model for each in policies):
            raise UsageError("--objective is an order of published models; expected one as --policy")
        beside = {name: name for each in objectives for name in each.models}
        for text in self.beside:
            name, _, model = text.partition("=")
            if not model or name not in beside:
                raise UsageError(
                    f"--beside {text}: expected NAME=MODEL[:VERSION][@VARIANT] or NAME=FILE.arrow[@VARIANT], with a "
                    f"NAME of an --objective: {listed(beside, name)}"
                )
            beside[name] = model
        others = {name: PolicyName.parse(model) for name, model in beside.items()}
        return EstimationRun(
            spec=spec,
            policies=policies,
            models={each.name: read_named(each.name, store) for each in policies if each.is_model},
            choices=choices,
            items=SideTable.of_items(items, spec.input) if items else None,
            without=self.without,
            decision=self.decision or default,
            options=EstimatorOptions(self.clip, self.bootstrap, self.seed),
            with_model=self.reward_model,
            table=table,
            objectives=objectives,
            beside={name: (each.variant, read_named(each.name, store)) for name, each in others.items()},
        )


@dataclass(frozen=True)
class TableFlags:
    """Which columns of a plain table say what."""

    action: Annotated[str, Flag("What was chosen.", "COLUMN")] = "action"
    reward: Annotated[str, Flag("What it earned: any finite number.", "COLUMN")] = "reward"
    target: Annotated[
        tuple[str, ...],
        Flag(
            "A target policy: the probability with which it would choose the row's action; or of all actions, as a "
            'JSON object such as {"a": 0.3, "b": 0.7} or as columns COLUMN.ACTION; repeatable. Default: target, unless '
            "--policy is given.",
            "COLUMN",
        ),
    ] = ()
    request: Annotated[
        str | None, Flag("The list that a row belongs to; default: each row is one.", "COLUMN")
    ] = None
    cluster: Annotated[
        str | None,
        Flag("Rows of one value are dependent, such as a visitor's; default: those of a request.", "COLUMN"),
    ] = None
    context: Annotated[
        tuple[str, ...],
        Flag(
            "What the reward model knows beside the action; repeatable. Default: all other columns.", "COLUMN"
        ),
    ] = ()
    marginal_propensity: Annotated[
        str | None,
        Flag(
            "For item-position, where propensities depend on the actions above: the probability of the action at its "
            "position whatever is above it.",
            "COLUMN",
        ),
    ] = None
    marginal_target: Annotated[str | None, Flag("The same of the target policy.", "COLUMN")] = None

    def run(self, log: Log, policies: PolicyFlags, store: str, on_progress: Progress) -> Estimates:
        """Estimate from the table. Raises FtrieError."""
        from model_store.spec.spec import spec_from_document
        from trainer.off_policy.logged import DECISION_ROW, LogOfRows
        from trainer.off_policy.tables import TableColumns

        targets = self.target or (() if policies.policy else ("target",))
        given, wanted = self.marginal_propensity, self.marginal_target
        marginal = (given, wanted) if given is not None and wanted is not None else None
        if (given or wanted) and (marginal is None or len(targets) != 1 or policies.policy):
            raise UsageError(
                "--marginal-propensity and --marginal-target belong together, and to one --target without --policy"
            )
        ids = {"request": self.request, "cookie": self.cluster}
        section = {
            "label": self.reward,
            "item": self.action,
            **{k: v for k, v in ids.items() if v is not None},
        }
        spec = spec_from_document({"model": {"name": "table"}, "input": section})
        columns = TableColumns(tuple(targets), self.context, marginal)
        run = policies.estimating(spec, None, store, DECISION_ROW, columns)
        rows = LogOfRows(log, policies.propensity, policies.position, run.decision, rewards=True)
        return run.run(rows.read, on_progress)


@names_arguments
def estimate(
    data: Data,
    policies: Sequence[str] = (),
    *,
    action: str = "action",
    reward: str = "reward",
    propensity: str | None = None,
    target: str | Sequence[str] = (),
    position: str | None = None,
    request: str | None = None,
    cluster: str | None = None,
    context: Sequence[str] = (),
    marginal_propensity: str | None = None,
    marginal_target: str | None = None,
    choose: Sequence[str] = (),
    objective: str | Sequence[str] = (),
    beside: Mapping[str, str] | None = None,
    reward_model: bool = False,
    clip: float | None = None,
    bootstrap: int = 1000,
    seed: int = 1,
    store: str = DEFAULT_STORE,
    progress: bool = True,
    **log: Unpack[Format],
) -> Estimates:
    """Estimate what target policies would have earned, from a table of actions, rewards and propensities.

    The arguments are the flags of `ftrie estimate`: target names columns with the probabilities of target policies;
    policies: `uniform`, or models as `MODEL[:VERSION][@VARIANT]` or `FILE.arrow[@VARIANT]`, which choose by `choose`,
    and order by `objective` if given, with the models `beside` it. A policy that the table says too little about has no
    estimates, and the reasons in `refused`. Raises SpecError for a missing column, InputError for data that cannot be
    read, NoSupport where no other policy can be estimated.
    """
    output = LibraryOutput(progress)
    names = (target,) if isinstance(target, str) else tuple(target)
    columns = TableFlags(
        *(action, reward, names, request, cluster, tuple(context), marginal_propensity, marginal_target)
    )
    how = PolicyFlags(
        policy=tuple(policies),
        choose=tuple(choose),
        objective=(objective,) if isinstance(objective, str) else tuple(objective),
        beside=tuple(f"{name}={model}" for name, model in (beside or {}).items()),
        propensity=propensity,
        position=position,
        clip=clip,
        bootstrap=bootstrap,
        seed=seed,
        reward_model=reward_model,
    )
    with output.progress("estimating", unit="steps") as bar:
        return columns.run(
            log_of(data, **log), how, store, lambda step, done, total: bar.update(done, total=total, of=step)
        )
