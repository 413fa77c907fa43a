"""Remarks on a request by itself, whatever its layout."""

from typing import Final

from costmodels.software_words import stated_switches
from costmodels.workload.counts import parameter_count
from planner.adapters import said_targets
from planner.images import images_note, said_images
from planner.layouts.grids import expert_count
from planner.layouts.platform_notes import dispatcher_notes, expert_notes, memory_share_notes, platform_notes
from planner.layouts.shape_notes import position_notes, shape_notes
from planner.losses import loss_words, refused_loss, said_loss, usual_software
from planner.request import Framework, PlanRequest

_GRAPHED: Final = "graphed_experts"
OF_EXPERTS: Final = ("expert_overlap", "grouped_gemm", "dispatcher", "capacity_factor", "routing_imbalance", _GRAPHED)
"""Switches of software that say how experts run."""
_UNMEASURED: Final = "no run with images has been measured: likely ranges are those of runs on text"


def request_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say what a reader of any answer to a request should know: its model, its sequences, its machine.

    Parameters
    ----------
    request : PlanRequest
        What is asked.

    Returns
    -------
    tuple of str
        A remark each.
    """
    return (
        *stated_notes(request),
        *_images(request),
        *request.model.notes,
        *shape_notes(request.model),
        *position_notes(request.model, request.job.seq),
        *platform_notes(request.framework, request.cluster),
        *memory_share_notes(request.job.software, request.cluster),
        *expert_notes(request.framework, request.cluster, expert_count(request.model)),
        *dispatcher_notes(request.cluster, expert_count(request.model)),
    )


def stated_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say what a request states of its software, and what it trains beside a frozen model; a remark each."""
    refused = "" if request.sayable.program else refused_loss(request.job.software, request.framework)
    return (*_stated(request), *_loss(request), *([refused] if refused else []), *_adapters(request))


def _images(request: PlanRequest) -> tuple[str, ...]:
    """Images of the sequences, and whether they are assumed."""
    said, images = said_images(request.job, request.model), request.job.images
    told = images_note(images, request.model, "" if said else "assumed, --images says otherwise")
    return (*told, _UNMEASURED) if images is not None and images.count else told


def _loss(request: PlanRequest) -> tuple[str, ...]:
    """How the loss is computed, where that is not how plans for the framework compute it and no switch says it."""
    tools, job = request.job.software, request.job
    usual = said_loss(usual_software(request.framework, job.precision.gemm))
    told = [word for name, word in request.words if name == "software"]
    if said_loss(tools) is usual or "fused_loss" in stated_switches(told):
        return ()
    if request.sayable.program:
        return (f"loss as stated: {loss_words(tools)}",)
    whose = "plans" if request.framework is Framework.NONE else f"plans for {request.framework}"
    return (f"loss as stated: {loss_words(tools)}; {whose} usually have {usual}",)


def _adapters(request: PlanRequest) -> tuple[str, ...]:
    """What is trained beside a frozen model."""
    job = request.job
    if job.trained_share == 1.0:
        return ()
    millions = job.trained_share * parameter_count(request.model).total / 1e6
    told = f"adapters of rank {job.adapter_rank} beside {said_targets(job)} are trained"
    share = f"{millions:,.1f} million parameters, {100.0 * job.trained_share:.2g} % of the model"
    return (f"{told}: {share}; MFU counts no gradients of the frozen weights",)


def _stated(request: PlanRequest) -> tuple[str, ...]:
    told = [word for name, word in request.words if name == "software"]
    if not told:
        return ()
    switches = stated_switches(told)
    idle = [] if expert_count(request.model) else [name for name in switches if name in OF_EXPERTS]
    nothing = [f"{request.model.name} has no experts, {', '.join(idle)} changes nothing"] if idle else []
    if _GRAPHED in switches and not idle and not request.job.software.cuda_graphs:
        nothing.append(f"{_GRAPHED} changes nothing without CUDA graphs: cuda_graphs=on captures them")
    return (f"software as stated: {', '.join(told)}", *nothing)
