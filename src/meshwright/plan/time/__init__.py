"""Time of one optimizer step in closed form, with the pipeline schedule replayed."""

from meshwright.plan.job import Job
from meshwright.plan.time.report import TimeReport


def predict_time(job: Job) -> TimeReport:
    """Seconds of one optimizer step of a job, by term."""
    from meshwright.plan.time.step import predict

    return predict(job)
