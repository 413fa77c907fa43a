"""Where the profile of a machine holds: it is refused for other machines, and says what it leaves out."""

from costmodels.job import Software
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.profile import MachineProfile
from planner.request import PlanRequest
from planner.traits import family_of

FAR_LARGER = 4.0
"""Times the accelerators of the largest run of a calibration beyond which a note says so."""


def check_profile(profile: MachineProfile, cluster: Cluster) -> None:
    """Refuse a profile for a cluster without the accelerator that it was fitted on.

    Raises
    ------
    InputError
        No island of the cluster has that accelerator.
    """
    parts = list(dict.fromkeys(island.node.accelerator.name for island in cluster.islands))
    if profile.accelerator not in parts:
        raise InputError(
            f"{profile.name} is the profile of {profile.accelerator}; {cluster.name} has {', '.join(parts)}",
            allowed=f"a cluster of {profile.accelerator}, or a profile that plan calibrate made on {parts[0]}",
            where="--profile",
        )


def other_framework(profile: MachineProfile, software: Software) -> str:
    """Say what of a profile does not hold under software of another family; empty where all of it holds."""
    if not profile.frameworks or family_of(software.framework) in profile.frameworks:
        return ""
    return (
        f"{profile.name} was fitted on runs of {', '.join(profile.frameworks)}: under {software.framework} its rates "
        "and links hold, its host times and memory do not"
    )


def profile_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say where the profile of a request does not hold, or was not tried.

    Parameters
    ----------
    request : PlanRequest
        With a profile or without one.

    Returns
    -------
    tuple of str
        Empty without a profile.
    """
    profile = request.profile
    if profile is None:
        return ()
    notes = [other_framework(profile, request.job.software)]
    others = {island.node.accelerator.name for island in request.cluster.islands} - {profile.accelerator}
    if others:
        notes.append(f"{profile.name} holds for {profile.accelerator} alone, not for {', '.join(sorted(others))}")
    largest = max((run.traits.gpus for run in profile.trusted), default=0.0)
    if largest and request.cluster.gpus > FAR_LARGER * largest:
        notes.append(f"{profile.name} was fitted on runs of up to {largest:,.0f} GPUs; this cluster is far larger")
    return tuple(note for note in notes if note)
