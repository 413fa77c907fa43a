"""A user's words turned into a request: names are looked up, numbers are checked, nothing is decided.

A :class:`Question` is what the command line, a sweep file and a saved report have in common.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from costmodels.job import Software, TrainingJob
from costmodels.power.node import capped_island
from costmodels.precision import precision
from costmodels.software import software
from costmodels.software_words import stated_job, stated_switches
from costmodels.workload import presets
from costmodels.workload.fields import Fields
from costmodels.workload.model import ModelSpec
from hardware.catalog import cluster
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.adapters import asked_adapters, said_targets
from planner.choices import Loss, Offload
from planner.devices.telemetry import with_telemetry
from planner.evidence.profile_use import check_profile
from planner.images import asked_images, said_freeze, said_images
from planner.layouts.recompute_words import parse_recompute_words
from planner.losses import SOFTWARE, loss_of, said_loss, usual_software, with_loss
from planner.nearest import choice
from planner.offloads import recompute_under, said_offload, with_offload
from planner.profile import read_profile
from planner.request import Framework, Launcher, Objective, PlanRequest, Variant, parse_fixed
from planner.sayable import trainer_named, trainer_of
from planner.variants import SCHEDULE, combinations, recompute_with, schedule_named

MOST_SEQUENCES: Final = 1_000_000_000
MOST_WATTS: Final = 100_000.0  # of one accelerator whose own limit is not known
MOST_TOKENS: Final = 100_000_000

_OPTIONS: Final = MappingProxyType(
    {
        "model": "MODEL",
        "cluster": "CLUSTER",
        "fixed": "--fix or --micro-batch",
        "time_limit_s": "--time-limit",
        "power_cap_w": "--power-cap",
        "tries": "--try",
    }
)
"""What the command line calls a field, where it is not its name."""
_WITHOUT_MASTERS: Final = (Framework.TORCHTITAN, Framework.NONE)
"""Who trains parameters of 16 bits with no copy of them in 32: torchtitan's ``training.dtype``."""
_WIDE_BYTES: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question in the user's words.

    Attributes
    ----------
    model, cluster : str
        As typed: a preset or a path.
    seq : int
        Tokens of a sequence; 0 when the model fixes it or has none.
    fixed : tuple of str
        Items such as ``tp=4``.
    offload : str
        What lies in host memory: ``none``, ``optimizer``, ``states``.
    lora_rank, lora_targets : int, str
        Rank of adapters trained in the place of the model, 0: none; and what they stand beside, such as ``attn+mlp``.
    images, freeze : str
        Images of a sequence and what of a vision tower is frozen, see :func:`planner.images.asked_images`.
    loss : str
        How the cross-entropy is computed, see :class:`planner.choices.Loss`.
    power_cap_w : float
        Limit of each GPU; 0.0: the part's own.
    profile : str
        Path of a machine profile; empty for none.
    telemetry : tuple of str
        Paths of series of monitoring tools, taken on this cluster while a job trained.
    software : tuple of str
        What the run has unlike its framework of today: a preset, or switches such as ``compiled=off``.
    tries : tuple of str
        Ways to run it that are searched one by one, such as ``schedule=1f1b,zbv``.
    trainer : str
        Key of the trainer that runs it, of :data:`planner.sayable.TRAINERS`; empty: the framework itself.
    """

    model: str
    cluster: str
    global_batch: int
    seq: int = 0
    precision: str = "bf16"
    framework: str = "megatron"
    objective: str = "time"
    recompute: str = "auto"
    fixed: tuple[str, ...] = ()
    top: int = 10
    time_limit_s: float = 60.0
    offload: str = "none"
    loss: str = "default"
    lora_rank: int = 0
    lora_targets: str = ""
    images: str = ""
    freeze: str = ""
    power_cap_w: float = 0.0
    thermal: bool = False
    launcher: str = "torchrun"
    profile: str = ""
    telemetry: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()
    trainer: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchQuestion:
    """A launch to judge, in the user's words.

    Attributes
    ----------
    framework, version : str, str or None
        Whose launch it is, empty: as it shows itself, else Megatron-LM's; the newest known version by default.
    world : int
        GPUs; 0: as the launch or the cluster says.
    arguments : tuple of str
        Given outright; behind those of the file.
    file : Path or None
        Arguments, script, YAML, TOML or JSON.
    model, cluster : str
        Names or files; empty: the model that the launch builds; no price.
    images : str
        Of a sequence, see :func:`planner.images.asked_images`.
    """

    framework: str = ""
    version: str | None = None
    world: int = 0
    arguments: tuple[str, ...] = ()
    file: Path | None = None
    model: str = ""
    cluster: str = ""
    images: str = ""


@dataclass(frozen=True, kw_only=True)
class PortQuestion:
    """A recipe to carry to another machine, in the user's words.

    Attributes
    ----------
    file : Path
        A launch of any framework, a saved report, or the layout of an export (``layout.json``).
    asked : Question
        The machine to carry it to, whose launch it is, and how to search there. Its model, framework, precision, global
        batch and sequence are those of the file where it leaves them empty or 0.
    rank : int
        Which layout of a report.
    world : int
        GPUs that the launch ran on; 0: as it says.
    """

    file: Path
    asked: Question
    rank: int = 1
    world: int = 0


def said(question: Question) -> tuple[str, ...]:
    """Words of ``plan search`` that make a question differ from one that says nothing, such as ``--fix``."""
    nothing = Question(model="", cluster="", global_batch=0, precision="", framework="")
    names = [field.name for field in fields(Question) if getattr(question, field.name) != getattr(nothing, field.name)]
    return tuple(_OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in names)


def request_of(question: Question, model: ModelSpec | None = None) -> PlanRequest:
    """Look up the names of a question and check its numbers.

    Parameters
    ----------
    question : Question
        What the user asks.
    model : ModelSpec, optional
        The model, where its name says nothing by itself.

    Returns
    -------
    PlanRequest
        Its ``words`` hold the question as typed.

    Raises
    ------
    InputError
        A name is not known, a file is wrong, or a number is out of range.
    """
    model = model or presets.model(question.model)
    machine = cluster(question.cluster)
    if question.telemetry:
        machine = with_telemetry(machine, [Path(path) for path in question.telemetry]).cluster
    if not 1 <= question.global_batch <= MOST_SEQUENCES:
        raise InputError(f"global batch {question.global_batch}", allowed=f"1 to {MOST_SEQUENCES} sequences")
    job = job_of(
        choice(Framework, question.framework, "framework"),
        question.precision,
        global_batch=question.global_batch,
        seq=_seq(model, question.seq),
        stated=question.software,
        any_framework=bool(question.trainer),
    )
    return request_for(question, model, machine, job)


def request_for(question: Question, model: ModelSpec, machine: Cluster, job: TrainingJob) -> PlanRequest:
    """Ask for a model, machine and job what a question says of the search: limits, pins, objective, profile.

    Parameters
    ----------
    question : Question
        Its names of model and machine are not looked up.
    model, machine, job
        What is trained, where, and how; the power cap is the question's.

    Raises
    ------
    InputError
        A limit, a pin or the profile does not go with them.
    """
    _check_power(machine, question)
    profile = read_profile(Path(question.profile)) if question.profile else None
    if profile is not None:
        check_profile(profile, machine)
    if question.recompute != "auto":
        parse_recompute_words(question.recompute)
    framework = choice(Framework, question.framework, "framework")
    tools = _tools(question, job, framework)
    variants = _variants(question, job, framework)
    job = asked_adapters(job, model, framework, question.lora_rank, question.lora_targets)
    job = asked_images(job, model, framework, question.images, question.freeze)
    pinned = list(question.fixed)
    if tools.state_offload and not any(pin.startswith("zero=") for pin in pinned):
        pinned.append("zero=3")  # whole weights lie nowhere else
    sayable = trainer_named(question.trainer or trainer_of(framework, adapters=job.adapter_rank > 0))
    sayable.refuse(dict(parse_fixed(pinned)), question.recompute)
    return PlanRequest(
        model=model,
        cluster=machine,
        job=replace(job, power_cap_w=question.power_cap_w, software=tools),
        framework=framework,
        objective=choice(Objective, question.objective, "objective"),
        fixed=parse_fixed(pinned),
        recompute=recompute_under(tools, question.recompute),
        top=question.top,
        time_limit_s=question.time_limit_s,
        thermal=question.thermal,
        launcher=choice(Launcher, question.launcher, "launcher"),
        profile=profile,
        variants=variants,
        sayable=sayable,
        words=words_of(question),
    )


def _tools(question: Question, job: TrainingJob, framework: Framework) -> Software:
    """Software of a job with the offload and the loss of a question."""
    loss = loss_of(question.loss, framework)
    for option, words in (("--software", question.software), ("--try", question.tries)):
        if loss is not Loss.DEFAULT and "fused_loss" in stated_switches(words):
            raise InputError(f"--loss {loss} and {option} fused_loss: both state the loss", allowed="one of them")
    tools = with_offload(job.software, choice(Offload, question.offload, "offload"), framework)
    return with_loss(tools, loss)


def _variants(question: Question, job: TrainingJob, framework: Framework) -> tuple[Variant, ...]:
    """Ways to run a job that a question asks to try."""
    if not question.tries:
        return ()
    pinned = dict(parse_fixed(list(question.fixed)))
    found = []
    for choices in combinations(question.tries, framework, pinned.get("vpp")):
        switches = tuple(f"{name}={value}" for name, value in choices if name != SCHEDULE)
        both = set(stated_switches(switches)) & set(stated_switches(question.software))
        if both:
            raise InputError(f"--software states {', '.join(sorted(both))} and --try varies it", allowed="one of them")
        try:
            tried = stated_job(job, switches, question.precision)
        except InputError as error:
            raise InputError(error.what.replace("--software", "--try"), allowed=error.allowed) from None
        found.append(
            Variant(
                choices=choices,
                software=_tools(question, tried, framework),
                optimizer_bytes=tried.optimizer_bytes,
                schedule=schedule_named(choices),
                recompute=recompute_with(choices, framework, question.recompute),
            )
        )
    return tuple(found)


def job_of(
    framework: Framework,
    recipe: str,
    *,
    global_batch: int,
    seq: int,
    stated: Sequence[str] = (),
    any_framework: bool = False,
) -> TrainingJob:
    """Return the job of a framework as it is priced today, with what is stated of its software over it.

    Parameters
    ----------
    framework : Framework
        Who runs it.
    recipe : str
        Training recipe, such as ``bf16``.
    global_batch, seq : int
        Samples a step; tokens a sample.
    stated : sequence of str
        As :attr:`Question.software`.
    any_framework : bool
        Presets of another framework may be stated, as that of a trainer whose prices are another's.

    Raises
    ------
    InputError
        The recipe is not known, or what is stated is not.
    """
    found = precision(recipe, framework=software(SOFTWARE[framework]).framework)
    if max(found.master_bytes, found.weight_bytes) < _WIDE_BYTES and framework not in _WITHOUT_MASTERS:
        raise InputError(f"precision {found.name} with framework {framework}", allowed=f"{', '.join(_WITHOUT_MASTERS)}")
    job = TrainingJob(
        global_batch=global_batch,
        seq=seq,
        precision=found,
        software=usual_software(framework, found.gemm),
        optimizer_bytes=found.moment_bytes,
    )
    return stated_job(job, stated, recipe, any_framework=any_framework or framework is Framework.NONE)


def words_of(question: Question) -> tuple[tuple[str, str], ...]:
    """What the user typed, by name; files keep the path as typed."""
    names = ("model", "cluster", "precision", "profile")
    one = [(name, str(getattr(question, name))) for name in names if getattr(question, name)]
    several = {"telemetry": question.telemetry, "software": question.software, "try": question.tries}
    return (*one, *((name, value) for name, values in several.items() for value in values))


def question_of(request: PlanRequest) -> Question:
    """Return the question behind a request; names that nobody typed are those of the values themselves.

    Parameters
    ----------
    request : PlanRequest
        Made by :func:`request_of` or by a program.

    Returns
    -------
    Question
        ``request_of(question_of(request))`` equals the request when its model and cluster are presets or files.
    """
    typed = dict(request.words)
    stated = tuple(told for name, told in request.words if name == "software")
    return Question(
        model=typed.get("model", request.model.name),
        cluster=typed.get("cluster", request.cluster.name),
        global_batch=request.job.global_batch,
        seq=request.job.seq,
        precision=typed.get("precision", request.job.precision.name),
        framework=request.framework.value,
        objective=request.objective.value,
        recompute=request.recompute,
        fixed=tuple(f"{name}={value}" for name, value in request.fixed),
        top=request.top,
        time_limit_s=request.time_limit_s,
        offload=said_offload(request.job.software).value,
        loss=_loss_word(request, stated),
        lora_rank=request.job.adapter_rank,
        lora_targets=said_targets(request.job),
        images=said_images(request.job, request.model),
        freeze=said_freeze(request.job),
        power_cap_w=request.job.power_cap_w,
        thermal=request.thermal,
        launcher=request.launcher.value,
        profile=typed.get("profile", ""),
        telemetry=tuple(path for name, path in request.words if name == "telemetry"),
        software=stated,
        tries=tuple(told for name, told in request.words if name == "try"),
        trainer=request.sayable.key,
    )


def question_from(values: Mapping[str, object], where: str) -> Question:
    """Build a question from plain data, as a sweep point or a saved report holds it.

    Parameters
    ----------
    values : mapping
        Fields of :class:`Question`; missing ones keep their default.
    where : str
        File, for messages.

    Returns
    -------
    Question

    Raises
    ------
    InputError
        A field is unknown, missing or of the wrong type.
    """
    read = Fields(values, where)
    read.only(field.name for field in fields(Question))
    return Question(
        model=read.text("model"),
        cluster=read.text("cluster"),
        global_batch=read.whole("global_batch", least=1),
        seq=read.whole("seq", default=0),
        precision=read.text("precision", default="bf16"),
        framework=read.text("framework", default="megatron"),
        objective=read.text("objective", default="time"),
        recompute=read.text("recompute", default="auto"),
        fixed=read.texts("fixed"),
        top=read.whole("top", default=10, least=1),
        time_limit_s=read.number("time_limit_s", default=60.0),
        offload=read.text("offload", default="none"),
        loss=read.text("loss", default="default"),
        lora_rank=read.whole("lora_rank", default=0),
        lora_targets=read.text("lora_targets", default=""),
        images=read.text("images", default=""),
        freeze=read.text("freeze", default=""),
        power_cap_w=read.number("power_cap_w", default=0.0),
        thermal=read.flag("thermal", default=False),
        launcher=read.text("launcher", default="torchrun"),
        profile=read.text("profile", default=""),
        telemetry=read.texts("telemetry"),
        software=read.texts("software"),
        tries=read.texts("tries"),
        trainer=read.text("trainer", default=""),
    )


def _loss_word(request: PlanRequest, stated: Sequence[str]) -> str:
    """The loss in the words of a question: ``default`` where it is that of a job of the framework as stated."""
    job = request.job
    trainer = bool(request.sayable.key)
    name = job.precision.name
    usual = job_of(request.framework, name, global_batch=1, seq=1, stated=stated, any_framework=trainer).software
    said = said_loss(job.software)
    return (Loss.DEFAULT if said is said_loss(usual) else said).value


def _check_power(machine: Cluster, question: Question) -> None:
    """Refuse a limit that an accelerator cannot be set to: above its highest its power would be priced without any.

    So are caps of nodes, racks and cluster that leave accelerators too little, with the file that states them.
    """
    cap_w = question.power_cap_w
    for island in machine.islands:
        part = island.node.accelerator
        highest = part.max_power_limit_w or part.tdp_w or MOST_WATTS
        if cap_w and not part.min_power_limit_w <= cap_w <= highest:
            raise InputError(
                f"--power-cap {cap_w:g}: {part.name} cannot be limited so {'high' if cap_w > highest else 'low'}",
                allowed=f"{part.min_power_limit_w:g} to {highest:g} W, or 0 for the part's own limit",
            )
        try:
            capped_island(machine, island)
        except InputError as error:
            raise error.within(question.cluster) from None


def _seq(model: ModelSpec, seq: int) -> int:
    """Tokens of a sequence: the user's, else the model's own; 1 for models whose samples are not sequences."""
    if not model.hidden:
        return model.fixed_seq or 1
    if not seq:
        raise InputError(
            f"the sequence length of {model.name} is not given", allowed="--seq TOKENS, such as --seq 4096"
        )
    if not 1 <= seq <= MOST_TOKENS:
        raise InputError(f"sequence length {seq}", allowed=f"1 to {MOST_TOKENS} tokens")
    return seq
