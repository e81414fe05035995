"""What can be seen of a server: its metrics and its live page, of one engine or of many workers

A server with workers has one state more for each: `GET /engine` gives

workers     [{"name": "replica 0", "prefill 0" or "decode 0", "process": its id, "status": starting,
            up, leaving (for a restart) or lost, "engine": its state as `live` has it, or null}]
waiting     requests that wait in the router

and `/metrics` has the figures of each, with its name as the label `worker`.
"""

from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from layer3_system.api_error import ApiError
from layer3_system.server.fleet_engine import FleetEngine, Mailbox
from layer3_system.server.live import Live
from layer3_system.server.metrics import Metrics

ANSWER = 3.0            # seconds for workers to answer; one that computes a longer step is left out


def monitor_of(engine, model):
    """The Monitor of an engine. model: its name"""
    return (FleetMonitor if isinstance(engine, FleetEngine) else Monitor)(engine, model)


class Monitor:
    """Of an engine in this process.  observers: for its Bridge"""

    def __init__(self, engine, model):
        self.metrics = Metrics(engine, model)
        self.live = Live()
        self.observers = self.metrics, self.live

    def connect(self, bridge):
        """Nothing to do: an engine in this process waits for letters."""

    async def state(self, bridge):
        return await bridge.ask(self.live.state)

    async def text(self, bridge):
        """All metrics, as Prometheus reads them."""
        return self.metrics.text()

    async def restart(self, bridge, name):
        raise ApiError(404, "worker: this server has none", "worker")


class FleetMonitor:
    """Of engines in other processes."""

    observers = ()

    def __init__(self, engine, model):
        self.fleet = engine.fleet
        self.model = model

    def connect(self, bridge):
        """Have letters end a step that waits for workers."""
        bridge.mail = Mailbox(self.fleet.ring)

    async def state(self, bridge):
        states = await self.answers(bridge, "live")
        fleet = self.fleet
        return await bridge.ask(lambda engine: {
            "waiting": len(fleet.router.waiting),
            "workers": [{"name": name, "process": fleet.up.get(worker),
                         "status": fleet.status(worker), "engine": states.get(worker)}
                        for worker, name in fleet.names.items()]})

    async def text(self, bridge):
        """The metrics of all workers, and how many requests wait in the router."""
        texts = await self.answers(bridge, "metrics")
        waiting = await bridge.ask(lambda engine: len(self.fleet.router.waiting))
        router = Metric("vllm:num_requests_waiting", "Requests that wait for pages.", "gauge")
        router.add_sample(router.name, {"model_name": self.model, "worker": "router"}, waiting)
        return labelled({name: texts[worker] for worker, name in self.fleet.names.items()
                         if worker in texts}, router)

    async def answers(self, bridge, question):
        """{worker: its answer}, of those that answer in time."""
        bridge.check_open()
        replies = bridge.loop.create_future()
        bridge.questions.add(replies)
        bridge.mail.put(partial(self.fleet.ask, question,
                                partial(bridge.tell, bridge.settle, replies), ANSWER))
        try:
            return await replies
        finally:
            bridge.questions.discard(replies)

    async def restart(self, bridge, name):
        """Have a worker start again once its requests are over.
        ApiError 404 if there is none of that name, 409 if it is not up."""
        workers = {own: worker for worker, own in self.fleet.names.items()}
        if not isinstance(name, str) or name not in workers:
            raise ApiError(404, f"worker: expected one of {', '.join(workers)}, found {name!r}",
                           "worker")
        if not await bridge.ask(lambda engine: self.fleet.restart(*workers[name])):
            raise ApiError(409, f"worker: {name} is not up", "worker")


def labelled(texts, *others):
    """Metrics of all workers as one text.  texts: {name of a worker: its metrics}
    others: Metrics that are labelled already"""
    families = {family.name: family for family in others}
    for worker, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            whole = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.add_sample(sample.name, sample.labels | {"worker": worker}, sample.value)
    registry = CollectorRegistry()
    registry.register(Families(families.values()))
    return generate_latest(registry)


class Families:
    """Metrics as a registry collects them."""

    def __init__(self, families):
        self.families = families

    def collect(self):
        return self.families
