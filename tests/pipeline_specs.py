"""Pipelines that hypothesis draws: every schedule, with micro-batches that leave some over in the last group too."""

from hypothesis import strategies as st

from costmodels.pipeline.schedules import PipelineSpec, Schedule


@st.composite
def specs(draw):
    return draw(specs_of(st.sampled_from(Schedule), most_pp=6, most_groups=8))


@st.composite
def specs_of(draw, schedules, most_pp, most_groups):
    """Pipelines of some schedules, with up to so many groups of micro-batches and some left over."""
    schedule = draw(schedules)
    pp = draw(st.integers(2 if schedule.loops else 1, most_pp))
    vpp = schedule.fixed_vpp or draw(st.integers(2, 3))
    if schedule in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB):
        group = draw(st.integers(pp, pp + 2))
        rest = draw(st.sampled_from([0, *range(pp, group)])) if schedule is Schedule.INTERLEAVED else 0
        m = group * draw(st.integers(1, most_groups)) + rest
        return PipelineSpec(schedule=schedule, pp=pp, num_microbatches=m, vpp=vpp, group_size=group)
    least = 2 * pp if schedule is Schedule.DUALPIPEV else 1
    m = draw(st.integers(least, most_groups * pp + 3 + least))
    return PipelineSpec(schedule=schedule, pp=pp, num_microbatches=m, vpp=vpp)
