"""Given code round the exercises of s31: runs that are captured, a pool that works when it is asked
for a result."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import torch

from layer3_system.s31_fault_tolerance import Saver, capture, restore
from layer3_system.training.run import ShardedRun, TrainingRun

PARTS = "weights", "m", "v"


def copied(run: TrainingRun) -> dict[str, Any]:
    """Numbers of all that a run's next step depends on, by part."""
    tensors = {part: torch.cat([one.detach().flatten() for one in getattr(run, part).values()])
               for part in PARTS}
    return tensors | {"step": run.step, "place": run.data.place(),
                      "generator": run.generator.get_state()}


def resumed(before: int, between: int, after: int) -> dict[str, Any]:
    """A run that is captured after `before` steps and goes on for `between` more, and another that
    goes on from what was captured.

    "straight", "losses": of the `after` steps, of a run that never stopped and of the other.
    "then", "later", "restored": what the first run was when it was captured and after `between`
    more steps, and what the other was at its start
    """
    whole = TrainingRun()
    whole.train(before)
    straight = whole.train(after)
    first = TrainingRun()
    first.train(before)
    then = copied(first)
    state = capture(first)
    first.train(between)
    other = TrainingRun()
    restore(other, state)
    start = copied(other)
    return {"straight": straight, "losses": other.train(after), "then": then,
            "later": copied(first), "restored": start}


def losses_of(B: int, steps: int) -> list[float]:
    """Of a training of B sequences a step, shared by all ranks."""
    return ShardedRun(B=B).train(steps)


class Job(Future):
    """Work that is done when somebody asks for its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work: Callable[[], Any] | None = work

    def finish(self) -> None:
        if self.work is not None:
            work = self.work
            self.work = None
            try:
                self.set_result(work())
            except Exception as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.finish()
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.finish()
        return super().exception()

    def done(self) -> bool:
        self.finish()
        return super().done()


class Pool(Executor):
    """Notes what is submitted."""

    def __init__(self, events: list) -> None:
        self.events = events
        self.jobs: list[Job] = []

    def submit(self, work: Callable, /, *arguments: Any, **named: Any) -> Future:
        self.events.append(["submit"])
        self.jobs.append(Job(lambda: work(*arguments, **named)))
        return self.jobs[-1]

    def finish(self) -> None:
        """Do the jobs whose results were not asked for."""
        for job in self.jobs:
            job.finish()


def saves(steps: list[int], failing: list[int]) -> list[list]:
    """What happens, in order, where a state that changes is saved at some steps.

    failing: the steps whose write raises OSError
    ["call", step], ["snapshot", value], ["submit"], ["write", step, value], ["error", text],
    ["unkept", step] if nothing is pending then, ["return", step]; a value is that of the state,
    which is the step when it is saved
    """
    events: list[list] = []
    state = torch.zeros(3)

    def snapshot() -> torch.Tensor:
        events.append(["snapshot", int(state[0])])
        return state.clone()

    def write(step: int, value: torch.Tensor) -> None:
        events.append(["write", step, int(value[0])])
        if step in failing:
            raise OSError(28, "No space left on device")

    pool = Pool(events)
    saver = Saver(snapshot, write, pool)
    for step in steps:
        state.fill_(step)
        events.append(["call", step])
        try:
            saver.save(step)
            if saver.pending is None:
                events.append(["unkept", step])
        except OSError as error:
            events.append(["error", str(error)])
        events.append(["return", step])
        state.fill_(step + 1)                   # training goes on
    try:
        saver.wait()
    except OSError as error:
        events.append(["error", str(error)])
    pool.finish()
    return events
