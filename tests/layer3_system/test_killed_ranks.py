"""A rank of a lesson's own program that is ended by SIGKILL ends all others, and is named."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import pytest
import torch

from lab import course
from lab.judge.failures import Stopped
from lab.judge.isolate import running
from layer3_system.context import zigzag
from layer3_system.planner import TrainingPlan
from layer3_system.s23_pipeline_parallel import one_forward_one_backward
from tests.lab.remote.test_ranks import gone
from tests.layer3_system.server.http_server import until

LIMIT = 10              # seconds for the message, and for the others to be gone
SIZES = [3, 5, 4, 2]    # tokens of micro-batches, or of a rank's sequences


def expert_layers(n, C=24, F=20, E=12):
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw) for shape in ((E, C), (E, 2 * F, C), (E, C, F))]
    return [(x, *weights, 3, x) for x in torch.randn(n, 9, C, generator=draw)]


def texts(n, N=24, H=8, G=4, D=16):
    arrays = [torch.ones(N, heads, D) for heads in (H, G, G)]
    return [([tuple(x[own] for x in arrays)], D ** -0.5) for own in zigzag(N, n)]


# lesson: (module in layer3_system, function, the arguments of each rank)
PROGRAMS = {
    "s20_collectives": ("s20_collectives", "all_reduce", [(torch.ones(1000),)] * 4),
    "s21_data_parallel": ("testing.training_driver", "train_llama", [(3, SIZES)] * 4),
    "s22_tensor_parallel": ("testing.tensor_driver", "write_tokens",
                            [("small", [[5, 7, 300], [9]], 4)] * 2),
    "s23_pipeline_parallel": ("testing.pipeline_llama", "train_llama",
                              [(one_forward_one_backward(i, 4, 4), SIZES) for i in range(4)]),
    "s24_expert_parallel": ("testing.expert_ranks", "by_experts", expert_layers(4)),
    "s25_context_parallel": ("testing.context_ranks", "ring_cases", texts(4)),
    "s26_planner": ("testing.plan_ranks", "losses", [(
        ("toy", 2, 32, 4, 4, 8, 48, 64, False), astuple(TrainingPlan(4, zero=1)), 4, 8, 1)] * 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rank_that_is_killed_ends_the_others(name):
    module, function, arguments = PROGRAMS[name]
    lesson = course.find("s26_planner")     # its ranks see the lessons before it
    with running(lesson, lesson.sources) as subject, ThreadPoolExecutor(1) as pool:
        run = pool.submit(subject.ranks, "layer3_system.testing.repeated_ranks:repeat", [
            (f"layer3_system.{module}:{function}", own) for own in arguments])
        processes = {}

        def all_at_work():
            processes.update(re.findall(r"rank (\d) is process (\d+)\n", subject.printed()))
            return len(processes) == len(arguments)

        until(lambda: run.done() or all_at_work())
        assert not run.done(), run.exception()
        os.kill(int(processes["1"]), signal.SIGKILL)
        error = run.exception(timeout=LIMIT)
        assert gone(processes.values(), LIMIT)
    assert isinstance(error, Stopped)
    assert "the process of rank 1 was ended by signal 9" in str(error)
