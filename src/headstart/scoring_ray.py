"""Score partitions on a Ray cluster, through Ray Data (extra ``ray``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headstart.errors import HeadstartError, InputError, option_name
from headstart.progress import Bar
from headstart.scoring import Job, RemoteWorker, raise_returned

_MAX_TASKS = 4096  # with more partitions, one task writes several


def require_ray() -> Any:
    """Return the module ``ray``; raise an error that names the package to install if it is missing."""
    try:
        import ray.data
    except ImportError as error:
        raise InputError(
            f"Ray Data cannot be used ({error}); install it with pip install 'headstart[ray]', or use "
            f"{option_name('engine', 'local')}"
        ) from None
    return ray


def score_on_ray(job: Job, numbers: Sequence[int], workers: int | None, bar: Bar) -> None:
    """Write the partitions with these numbers on Ray workers. Each worker opens the model once.

    Ray is started on this machine, unless it is running or ``RAY_ADDRESS`` names a cluster.
    """
    ray = require_ray()
    with _running(ray):
        count = min(workers or max(1, int(ray.cluster_resources().get("CPU", 1))), len(numbers))
        items = [{"partition": number} for number in numbers]
        tasks = ray.data.from_items(items, override_num_blocks=min(len(items), _MAX_TASKS))
        tasks.context.enable_progress_bars = False  # ``bar`` shows the progress
        results = tasks.map_batches(
            RemoteWorker,
            fn_constructor_args=(job,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=count),
            num_cpus=1,
            num_gpus=1 if (job.device or "").startswith("cuda") else None,
        )
        try:
            for result in results.iter_rows():
                raise_returned(result["kind"], result["message"])
                bar.step(advance=result["partitions"])
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise HeadstartError(
                f"Ray stopped ({type(error).__name__}: {reason}); finished files stay, and the same call "
                "continues from there"
            ) from error


@contextmanager
def _running(ray: Any) -> Iterator[None]:
    """Connect to Ray, or start it for the ``with`` block."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise HeadstartError(f"Ray cannot be started or reached: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
