"""The rungs of a decode step: what is compared, what a launch is, and what the command says."""

import datetime
import json
import os
from functools import partial

import pytest
import torch

from layer1_kernels import kernels
from layer2_graph import FusedLlama, Llama, PagedCache, greedy
from layer2_graph.bench.g05_fused_llama import bench
from layer2_graph.decode_ladder import comparison, ladder
from layer2_graph.decode_ladder.decoders import Replayed
from layer2_graph.decode_ladder.hugging_face import HuggingFace, their_model
from layer2_graph.decode_ladder.inductor import launches_in
from layer2_graph.decode_ladder.report import verdict
from layer2_graph.testing.random_llama import random_llama

PROMPTS = [[5, 17, 3], [1, 2, 3], [9, 8, 7, 6, 5, 4, 3], [30]]


def fused(model):
    return FusedLlama(model.config, model.weights, model.ops)


def quick(jobs, device, limit):
    """Rates without the seconds that it takes to measure them."""
    from day01_roofline import Timing

    return {job.name: Timing(1.0, 0.0, 0.0, 1) for job in jobs}


@pytest.fixture
def plain_machine(monkeypatch):
    """Without a compiler, and without the seconds that rates take to measure."""
    monkeypatch.setattr(ladder.shutil, "which", lambda name: None)
    monkeypatch.setattr(comparison, "measure_jobs", quick)


def test_the_floor_is_weights_and_cache():
    for tied in (False, True):
        model = random_llama(tied=tied)
        m = model.config
        layer = 2 * m.C + (2 * m.H + 2 * m.G) * m.D * m.C + 3 * m.F * m.C
        want = 4 * (m.L * layer + m.C + m.V * m.C + 3 * (10 * 2 * m.L * m.G * m.D + m.C))
        assert comparison.floor_bytes(model, 3, 10) == want


def test_rungs_without_a_compiler_and_transformers(plain_machine):
    facts, rows, graphs = comparison.measure(
        random_llama(), "transformers is not installed", 2, 5, 4, 2)
    found = {row.name: row for row in rows}
    assert [found[name].launches for name in ("g01, op by op", "merged", "fused")] == [15, 12, 8]
    for row in rows[:3]:
        assert row.same is None and row.seconds > 0 and row.share > 0 and not row.missing
    graph = found["fused, CUDA graph"]
    assert (graph.same, graph.launches, graph.seconds) == (None, 8, None)
    assert [found[name].asked for name in ("g01, op by op", "fused", comparison.GRAPH)] == [
        2 * 15 + 6, 2 * 8 + 7, 6 + 1]
    assert comparison.REPLAY not in found
    assert rows[0].moved > rows[1].moved > rows[2].moved > facts["floor"]
    table = comparison.text(facts, rows)
    assert "fused, torch.compile            not proven here: torch.compile found no g++" in table
    assert "not proven here  identical; a CPU replays a tape" in table
    assert table.count("not proven here: transformers is not installed") == 3
    assert "NumPy       not proven here: that is for one sequence in float32 on a CPU" in table
    assert table.count("identical") == 4
    assert [box.label for box in graphs["fused"] if box.launch] == [
        "add + norm", "q & k & v", "rope + write", "attention", "output", "add + norm",
        "gate & up + SwiGLU", "down"]
    assert [box.label for box in graphs[comparison.GRAPH]] == [box.label for box in graphs["fused"]]
    assert [box.label for box in graphs["merged"] if "&" in box.label] == ["q & k & v", "gate & up"]
    assert not any("&" in box.label or "+" in box.label for box in graphs["g01, op by op"])


def test_one_token_by_numpy_and_the_replay_alone(plain_machine, monkeypatch):
    """As on a GPU, where the graph's time counts."""
    whole = comparison.ladder
    monkeypatch.setattr(comparison, "ladder", lambda *args: [rung._replace(untimed="") for rung in
                                                        whole(*args)])
    model = random_llama()
    places = {name: w.data_ptr() for name, w in model.weights.items()}
    facts, rows, _ = comparison.measure(model, "transformers is not installed", 1, 5, 4, 2)
    found = {row.name: row for row in rows}
    numpy, replay = found["fused, one token by NumPy"], found[comparison.REPLAY]
    assert (numpy.same, numpy.launches, numpy.asked) == (None, 8, 2 * 8 + 7) and numpy.seconds > 0
    assert numpy.moved == found["fused"].moved
    assert {name: w.data_ptr() for name, w in model.weights.items()} == places
    assert (replay.launches, replay.asked, replay.seconds) == (8, 1, 1.0)
    assert found[comparison.GRAPH].asked == 6 + 1 and 0 < found[comparison.GRAPH].seconds < 1.0
    assert facts["copy"] == comparison.copy_job(comparison.this_device()).moved
    assert comparison.REPLAY in comparison.text(facts, rows)


def test_what_is_wrong_is_told_and_not_timed(plain_machine, monkeypatch, capsys):
    class Wrong(FusedLlama):
        def forward(self, *args):
            return -super().forward(*args)

    monkeypatch.setattr(ladder, "FusedLlama", Wrong)
    monkeypatch.setattr(comparison, "load", lambda *args: random_llama(room=128))
    monkeypatch.setattr(comparison, "transformers_config", lambda folder: "transformers is missing")
    monkeypatch.setattr(comparison, "measure", partial(comparison.measure, count=3, rounds=1))
    assert comparison.main([]) == 1
    lines = {line[:32].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert "wrong after 0: gap" in lines["fused"] and "not timed" in lines["fused"]
    assert "identical" in lines["merged"] and "not proven here" not in lines["merged"]


@pytest.mark.parametrize("same, gap, dtype, said", [
    (None, None, "float32", "identical"),
    (3, 0.002, "float32", "different after 3, within rounding (gap 0.002)"),
    (3, 0.2, "float32", "wrong after 3: gap 0.2"),
    (3, 0.2, "bfloat16", "different after 3, within rounding (gap 0.2)"),
    (0, 1.5, "bfloat16", "wrong after 0: gap 1.5"),
    (0, float("nan"), "float32", "wrong after 0: gap nan")])
def test_the_verdict(same, gap, dtype, said):
    row = comparison.RungResult("some", same=same, gap=gap)
    assert verdict(row, dtype) == said
    assert comparison.wrong(row, dtype) == said.startswith("wrong")


def test_the_replayed_rung_is_one_recording():
    model = random_llama()
    decoder = Replayed(fused(model), 2, 16)
    for prompts in (PROMPTS[:2], PROMPTS[2:]):
        assert decoder(prompts, 6)[0] == greedy(model, prompts, 6)
    found = decoder.launches(PROMPTS[:2])
    assert len(found) == 2 * 8 + 7 and decoder.asked(found) == 6 + 1
    eager = comparison.Decoder(fused(model), 2, 16).launches(PROMPTS[:2])
    assert [launch[:3] for launch in found] == [launch[:3] for launch in eager]


def test_where_tokens_differ_is_told_with_the_gap():
    model = random_llama()
    want = greedy(model, PROMPTS[:2], 6)
    got = [want[0], [*want[1][:4], want[1][4] + 1, want[1][5]]]
    same, gap = comparison.first_difference(model, PROMPTS[:2], want, got)
    cache = PagedCache(model.config, 1, 16)
    scores = model.forward(cache.step([PROMPTS[1] + want[1][:4]]), cache)[0]
    right = want[1][4]
    assert same == 4 and gap == pytest.approx(float(scores[right] - scores[right + 1]), abs=1e-4)
    assert comparison.first_difference(model, PROMPTS[:2], want, want) == (None, None)
    other = [(want[0][0] + 1) % 31, *want[0][1:]]       # of two that differ, the larger gap
    found = [comparison.first_difference(model, PROMPTS[:2], want, tokens)
             for tokens in ([other, want[1]], got, [other, got[1]])]
    assert found[2] == max(found[:2], key=lambda pair: pair[1])


def test_launches_in_the_code_of_inductor():
    code = """
cpp_fused_add_mul_0 = async_compile.cpp_pybinding(['const float*', 'float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0,
                       float* out_ptr1)
{
}
''')
triton_poi_fused_1 = async_compile.triton('triton_poi_fused_1', '''
def triton_poi_fused_1(in_out_ptr0, in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')

def call(self, args):
        buf0 = empty_strided_cpu((1, 4), (4, 1), torch.float32)
        cpp_fused_add_mul_0(arg1_1, buf0, buf1)
        # Topologically Sorted Source Nodes: [matmul], Original ATen: [aten.mm]
        extern_kernels.mm(buf0, reinterpret_tensor(arg3_1, (4, 5), (1, 4), 0), out=buf2)
        torch.ops.gpu_course.rope_and_cache.default(reinterpret_tensor(buf2, (1, 2), (2, 1), 0), \
buf2, buf2, arg4_1, arg5_1, arg6_1, reinterpret_tensor(arg7_1, (1, 2), (2, 1), 0), arg8_1, arg9_1)
        buf7 = torch.ops.gpu_course.paged_attention.default(buf2, arg7_1, arg8_1, 0.17)
        buf8 = buf7
        buf9 = buf0; del buf0  # reuse
        triton_poi_fused_1.run(buf8, buf1, buf9, 64, stream=stream0)
        extern_kernels.addmm(buf8, buf9, arg2_1, alpha=1, out=buf10)
"""
    found = launches_in(code.replace("\\\n", ""))
    assert [launch.name for launch in found] == [
        "cpp_fused_add_mul_0", "mm", "rope_and_cache", "paged_attention", "triton_poi_fused_1",
        "addmm"]
    assert [launch.inputs for launch in found] == [(), (0,), (1,), (2,), (0, 3), (4,)]
    assert found[1].arrays == {(5, 4)}


def test_hugging_face_on_the_same_weights():
    """A shape alone is enough, as in bench()."""
    pytest.importorskip("transformers", reason="not proven here: transformers is not installed")
    model = random_llama(tied=True)
    theirs = HuggingFace(their_model(comparison.their_config(model.config), model))
    tokens, seconds = theirs([[5, 17, 3], [1, 2, 3]], 8)
    assert tokens == greedy(model, [[5, 17, 3], [1, 2, 3]], 8) and seconds > 0


@pytest.mark.parametrize("settings, layer", [
    ({}, 36), ({"cache_implementation": "static", "disable_compile": True}, 42)])
def test_launches_of_hugging_face_are_counted_as_ours(settings, layer):
    """Their step reads all that ours reads: the weights once, and the whole of a static cache."""
    pytest.importorskip("transformers", reason="not proven here: transformers is not installed")
    model = random_llama(tied=True)
    theirs = HuggingFace(their_model(comparison.their_config(model.config), model), **settings)
    launches = theirs.launches([[5, 17, 3, 4]])
    names = [launch.name for launch in launches]
    assert comparison.a_layer(launches) == layer and theirs.asked(launches) == len(launches)
    assert names.count("mm") == 2 * 7 + 1 and names.count("silu") == 2
    moved = sum(launch.moved for launch in launches)
    assert comparison.floor_bytes(model, 1, 4) < moved < 2 * comparison.floor_bytes(model, 1, 4)
    assert theirs.launches([[5, 17, 3, 4]])[-1].moved == launches[-1].moved     # no hook remains


def test_a_compiled_model_of_theirs_is_not_looked_into():
    theirs = HuggingFace(None, compile_config=object())
    assert theirs.launches([[1]]) == [] and theirs.asked([]) is None


def test_the_shape_of_decode_speed(plain_machine, monkeypatch, tmp_path, capsys):
    model = random_llama(room=128, tied=True)
    monkeypatch.setattr(comparison, "shape_135m", lambda: (model.config, model.weights))
    monkeypatch.setattr(comparison, "their_config", lambda m: "transformers is missing")
    monkeypatch.setattr(comparison, "cores", lambda: 1)
    monkeypatch.setattr(comparison, "measure", partial(comparison.measure, count=3, rounds=1))
    assert comparison.main(["--135m", "--json", str(tmp_path / "rungs.json")]) == 0
    found = json.loads((tmp_path / "rungs.json").read_text("utf-8"))
    assert found["model"] == "135M" and f"; {found['date']}\n" in capsys.readouterr().out
    assert datetime.date.fromisoformat(found["date"])
    assert [row["launches"] for row in found["rungs"][:3]] == [15, 12, 8]
    with pytest.raises(SystemExit):
        comparison.main(["--135m", "--model", str(tmp_path)])


@pytest.mark.slow
def test_the_bench_at_a_small_size(plain_machine, triton_on_the_cpu):
    """As on a GPU, except for the sizes, the simulator and what this machine lacks."""
    m = random_llama(L=1, C=32, F=32).config
    rows = bench(m, N=3, count=2, rounds=1, device="cpu")
    assert list(rows)[:3] == ["g01, op by op", "merged", "fused"]
    weights = 2 * (2 * 32 + 8 * 16 * 32 + 4 * 16 * 32 + 3 * 32 * 32 + 32 + 2 * 31 * 32)
    for found in rows.values():
        assert found["flops"] == weights            # two of each weight, of two bytes
        assert found["bytes"] == weights - 2 * 31 * 32 + 2 * (4 * 2 * 2 * 16 + 32)
        assert found["times_eager"] > 0 and found["share_of_copy"] > 0


def test_where_torch_compile_cannot_work_it_says_why(monkeypatch):
    monkeypatch.setattr(ladder.shutil, "which", lambda name: "/usr/bin/g++")
    monkeypatch.setattr(torch, "__file__", "/home/a b/torch/__init__.py")
    assert "torch's path has a blank" in ladder.no_compiler()
    monkeypatch.setattr(torch, "__file__", "/home/ab/torch/__init__.py")
    assert ladder.no_compiler() == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)                  # torch.compile with a C++ compiler
def test_the_compiled_rung_and_hugging_face(monkeypatch, tmp_path, capsys):
    """The whole command, compilers included."""
    if why := ladder.no_compiler():
        pytest.skip(f"not proven here: {why}")
    monkeypatch.setattr(comparison, "measure_jobs", quick)
    monkeypatch.setattr(comparison, "cores", lambda: 1)
    assert comparison.main(["--json", str(tmp_path / "rungs.json"), "--svg", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "rungs.json").read_text("utf-8"))
    assert found["model"] == "small" and len(found["rungs"]) == 9
    rows = {row["name"]: row for row in found["rungs"]}
    for row in rows.values():
        assert row["missing"] or row["same"] is None, row
    assert rows["fused, torch.compile"]["launches"] in (8, 9)
    drawn = (tmp_path / "fused_torch_compile.svg").read_text("utf-8")
    assert "q &amp; k &amp; v" in drawn and "attention" in drawn


def test_no_record_with_fewer_threads_than_cores(monkeypatch, tmp_path, capsys):
    assert 1 <= comparison.cores() <= len(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    monkeypatch.setattr(comparison, "cores", lambda: threads + 1)
    assert comparison.main(["--json", str(tmp_path / "rungs.json")]) == 2
    error = capsys.readouterr().err
    assert f"torch has {threads} threads, expected {threads + 1} or more" in error
    assert error.count("\n") == 1 and not any(tmp_path.iterdir())


def test_a_bad_folder_is_one_line(tmp_path, capsys):
    assert comparison.main(["--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'config.json'} is missing\n"
    entries = json.loads((comparison.SMALL / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(entries | {"max_position_embeddings": 8}))
    weights = (comparison.SMALL / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert comparison.main(["--model", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "a context of 97 tokens; the model has room for 8" in error and error.count("\n") == 1


# ---- on a GPU


@pytest.mark.gpu
def test_eager_fused_and_graph_on_a_gpu():
    small = random_llama()
    weights = {name: w.cuda() for name, w in small.weights.items()}
    eager, whole = (kind(small.config, weights, kernels("triton")) for kind in (Llama, FusedLlama))
    want = greedy(eager, PROMPTS, 12)
    assert greedy(whole, PROMPTS, 12) == want
    graph = Replayed(whole, len(PROMPTS), 20)
    assert graph(PROMPTS, 12)[0] == want
    launches = graph.launches(PROMPTS)
    assert comparison.a_layer(launches) == 8 and graph.asked(launches) == 6 + 1
    assert graph(PROMPTS, 12)[0] == want        # counting has left no trace
