"""What the server tells of itself: /metrics, /engine, and the memory of its process."""

import asyncio
import gc
import re
import threading
import time

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from layer3_system import (
    ByteTokenizer,
    Engine,
    Limits,
    MockLlama,
    PrefixPool,
    SamplingParams,
    Scheduler,
    check_engine,
)
from layer3_system.engine.drafts import Drafter
from layer3_system.server.live import Live
from layer3_system.server.metrics import Metrics
from tests.layer3_system.server.http_server import (
    NAME,
    Fails,
    Gated,
    read_all,
    request,
    served,
    step,
    until,
)


def values(server):
    """{line's name with its labels: value} of /metrics."""
    text = server.http.get("/metrics").text
    assert text.splitlines()[0].startswith("# HELP vllm:")
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines() if line[0] != "#"}


def value(found, name, **labels):
    inside = ",".join(f'{k}="{v}"' for k, v in sorted((labels | {"model_name": NAME}).items()))
    return found[f"vllm:{name}{{{inside}}}"]


def total(metrics, name):
    return next(sample.value for family in text_string_to_metric_families(metrics.text().decode())
                for sample in family.samples if sample.name == f"vllm:{name}")


def test_a_step_of_guesses_computes_nothing_of_a_prompt():
    """Also where none of them came true and the request went back."""
    pool = PrefixPool(64)
    engine = Engine(MockLlama(), ByteTokenizer(), pool, Scheduler(pool),
                    drafter=Drafter(lambda tokens: [0] * 4))
    (request,) = engine.submit([1, 2, 3, 4, 5], SamplingParams(max_tokens=9, temperature=0))
    live = Live()
    for prompts in ({request.id: 5}, {}):
        live.stepped(engine, engine.step())
        assert live.steps[-1][3] == prompts
    assert engine.counts == {request: 5}


def test_case_33_times_count_from_the_arrival():
    """Case 33: TTFT has the wait in the queue; TPOT is (E2E - TTFT) / (n - 1), none for n = 1."""
    now = [10.0]
    engine = Engine(MockLlama(), ByteTokenizer(), PrefixPool(64), clock=lambda: now[0])
    metrics = Metrics(engine, "mock")
    engine.submit([1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True))
    engine.submit([4, 5, 6], SamplingParams(max_tokens=1))
    now[0] = 13.0                                       # both waited for 3 s
    while engine.busy:
        metrics.stepped(engine, engine.step())
        now[0] += 0.5
    check_engine(engine)
    assert total(metrics, "time_to_first_token_seconds_count") == 2
    assert total(metrics, "time_to_first_token_seconds_sum") == pytest.approx(6.0)
    assert total(metrics, "request_time_per_output_token_seconds_count") == 1
    assert total(metrics, "request_time_per_output_token_seconds_sum") == pytest.approx(0.5)
    assert total(metrics, "generation_tokens_total") == 6


def test_case_33_metrics():
    """Case 33: counted once, by the engine's clock; TTFT has the wait in the queue and is not begun
    again by a preemption; an answer of one token has no TPOT."""
    model = Gated()
    with served(model, pages=8, max_seqs=4) as server:
        fields = {"max_tokens": 40, "ignore_eos": True}
        clients = [server.open(prompt=f"{i}" * 20, **fields) for i in range(4)]
        until(lambda: server.bridge.taken == 4)
        step(server, model, 2)
        time.sleep(0.3)                                 # they wait for it, all of them
        assert value(values(server), "num_requests_running") >= 1
        model.gate.release(10_000)
        for client in clients:
            read_all(client)
        found = values(server)
        assert value(found, "num_preemptions_total") > 0        # 4 · 60 tokens, 8 · 16 slots
        assert value(found, "time_to_first_token_seconds_count") == 4
        assert value(found, "request_queue_time_seconds_count") == 4
        assert value(found, "prompt_tokens_total") == 80
        assert value(found, "generation_tokens_total") == 160
        assert value(found, "inter_token_latency_seconds_count") == 156
        assert value(found, "request_time_per_output_token_seconds_count") == 4
        assert value(found, "request_success_total", finished_reason="length") == 4
        assert value(found, "e2e_request_latency_seconds_sum") >= value(
            found, "time_to_first_token_seconds_sum") >= value(
            found, "request_queue_time_seconds_sum") > 0
        assert value(found, "num_requests_running") == value(found, "num_requests_waiting") == 0
        assert value(found, "kv_cache_usage_perc") == 0
        server.post(prompt="0" * 20, max_tokens=1)
        server.post(prompt="0" * 40, max_tokens=1)
        server.post(prompt="0" * 40, max_tokens=1)
        after = values(server)
        assert value(after, "request_time_per_output_token_seconds_count") == 4
        assert value(after, "time_to_first_token_seconds_count") == 7
        assert value(after, "prefix_cache_queries_total") == 180
        assert value(after, "prefix_cache_hits_total") >= 32    # two full pages of the last one


def test_case_33_counters_never_fall():
    """Case 33: under load, with clients that leave and kernels that raise."""
    with served(Fails(), pages=16, max_seqs=8) as server:
        seen = []
        for i in range(60):
            client = server.open(prompt="!" * (i % 5 == 0) + f"{i}" * 20, max_tokens=30, n=2)
            if i % 3:
                threading.Thread(target=read_all, args=(client,), daemon=True).start()
            else:
                client.close()
            seen.append(values(server))
        server.drained()
        seen.append(values(server))
        gauges = ("num_requests", "kv_cache", "_created")
        for before, after in zip(seen, seen[1:], strict=False):
            for name in before:
                if not any(word in name for word in gauges):
                    assert after[name] >= before[name], name
        reasons = {reason: value(seen[-1], "request_success_total", finished_reason=reason)
                   for reason in ("abort", "error", "length")}
        assert all(reasons.values()), reasons
        assert server.engine.submitted == sum(
            n for name, n in seen[-1].items() if "request_success_total" in name)


def test_what_the_engine_is_doing():
    """/engine shows what live.py lists, at one moment between two steps."""
    model = Gated()
    with served(model, max_seqs=2) as server:
        clients = [server.open(prompt="the same begin of " * 2, max_tokens=9, ignore_eos=True,
                               seed=i) for i in range(3)]
        until(lambda: server.bridge.taken == 3)
        step(server, model, 4)

        async def between():                            # asked while a step is at the gate
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
                protocol = asyncio.ensure_future(http.get("/engine"))
                while server.bridge.mail.empty():
                    await asyncio.sleep(0.002)
                model.gate.release()
                return (await protocol).json()
        found = asyncio.run(between())
        assert set(found) == {"pages", "slots", "requests", "refs", "remembered", "running",
                              "waiting", "steps", "seconds", "ttft", "tpot", "throughput", "tiers"}
        assert found["tiers"] == []                     # no memory below
        assert (found["pages"], found["slots"], len(found["refs"])) == (64, 16, 64)
        assert (found["running"], found["waiting"], len(found["requests"])) == (2, 1, 3)
        *running, waiting = found["requests"].values()
        assert [r["status"] for r in running] == ["running"] * 2
        assert waiting["status"] == "waiting" and waiting["table"] == []
        held = [page for r in running for page in r["table"]]
        assert sum(found["refs"]) == len(held) and len(set(held)) == 4      # two are shared
        for r in running:
            assert r["prompt"] == 36 and r["computed"] == r["known"] - 1 > 36
        first, *_, last = found["steps"]
        assert first["step"] == 1 and first["counts"] == first["prompts"]
        assert sum(last["counts"].values()) == 2 and last["prompts"] == {}
        assert found["ttft"] > 0 and found["throughput"] > 0 and found["tpot"] is None
        model.gate.release(1000)
        for client in clients:
            read_all(client)
        found = server.http.get("/engine").json()
        assert found["requests"] == {} and set(found["refs"]) == {0} and found["tpot"] > 0
        assert len(found["remembered"]) >= 2 and len(found["steps"]) <= 200


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_stays_flat():
    """20,000 requests, some of whose clients leave: no object and not 20 MB more than after the
    first 4,000.
    Below that is what malloc and the threads keep for later."""
    with served(limits=Limits(queue=10**6)) as server:
        fields = {"model": NAME, "prompt": "hello", "max_tokens": 2}

        async def client(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            data = request(fields).replace(b"Connection: close\r\n", b"")
            for _ in range(count):
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head)[1])
                await reader.readexactly(length)
            writer.write(request(fields | {"max_tokens": 100}))     # and goes
            await writer.drain()
            writer.close()

        async def every(count):
            await asyncio.gather(*(client(count // 16) for _ in range(16)))
        def held(count):
            asyncio.run(every(count))
            server.drained()
            gc.collect()
            return len(gc.get_objects()), psutil.Process().memory_info().rss

        before, bytes_before = held(4_000)
        after, bytes_after = held(16_000)
        assert server.engine.finished >= 20_000
        assert after - before < 1_000, f"{after - before:,} objects more"
        assert bytes_after - bytes_before < 20e6, f"{bytes_after - bytes_before:,} bytes more"
