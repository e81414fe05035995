"""The pictures say what is computed."""

import pytest
import torch

from layer2_graph import LEVELS, Tokenizer, load, pictures
from layer2_graph.g14_megakernel import Instruction, schedule
from layer2_graph.machine import OPS
from layer2_graph.models import SMALL


def texts(figure):
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def titles(figure):
    return [axes.get_title("left") for axes in figure.axes]


def test_rows_of_a_step_are_counted_in_cu_q_and_lens():
    words = texts(pictures.ragged([0, 5, 3], [4, 1, 2], 4))
    assert [w for w in words if "lens" in w] == [
        "sequence 0: lens 4", "sequence 1: lens 6", "sequence 2: lens 5"]
    where = words.index("cu_q")
    assert words[where - 5:where - 1] == ["0", "4", "5", "7"]


def test_a_cache_computes_each_token_once():
    assert titles(pictures.steps(4, 5)) == [
        "without a cache: 30 tokens computed", "with a cache: 8 tokens computed"]


def test_a_stack_gives_the_results_of_its_matrices():
    gate, up, x = [[1, 0, 2], [3, 1, 0]], [[0, 2, 1], [1, 1, 1]], [2, 1, 3]
    words = texts(pictures.stacked({"gate": gate, "up": up}, x))
    for row in (*gate, *up):
        result = str(sum(a * b for a, b in zip(row, x, strict=True)))
        assert words.count(result) >= 2                 # alone, and in the stack
    assert words.count("=") == 3


def test_a_factor_on_an_input_scales_a_column_and_one_on_an_output_a_row():
    left, right = pictures.factors(rows=4, columns=5).axes
    for axes, scaled in ((left, 4 + 1), (right, 5 + 1)):        # its numbers, and the factor
        colours = [patch.get_facecolor() for patch in axes.patches]
        assert sorted(map(colours.count, set(colours))) == [scaled, 5 + 4 * 5 + 4 - scaled]


def test_a_square_is_as_large_as_its_count():
    ways = {"keys": [("c", 16), ("keys", 64)], "no key": [("q", 1), ("latent q", 4)]}
    left, right = pictures.brackets(ways).axes
    sides = [[patch.get_width() for patch in axes.patches] for axes in (left, right)]
    assert sides == [[0.5, 1.0], [0.125, 0.25]]
    assert [t.get_text() for t in left.texts if "\n" in t.get_text()] == ["c\n16", "keys\n64"]


def test_padding_is_red_where_it_must_be_set():
    axes, = pictures.padded_rows({"slots": [5, -1], "lens": [9, 1], "cu_q": [0, 1, 2],
                                  "tokens": [7, 0]}, B=1, harmless=("slots", "lens", "cu_q")).axes
    colours = [patch.get_facecolor() for patch in axes.patches]
    own, harmless, old = colours[0], colours[1], colours[-1]
    assert len({own, harmless, old}) == 3
    assert colours == [own, harmless, own, harmless, own, own, harmless, own, old]


def test_a_strip_has_a_box_for_each_launch():
    figure = pictures.strips({"apart": ["norm", "q", "k"], "merged": ["norm", "q & k"]}, ("q", "k"))
    assert titles(figure) == ["apart: 3 launches", "merged: 2 launches"]
    above, below = figure.axes
    assert len(above.patches) == 3 and len(below.patches) == 2
    assert above.patches[1].get_facecolor() == below.patches[1].get_facecolor()
    assert above.patches[0].get_facecolor() != above.patches[1].get_facecolor()


def test_a_bar_is_as_long_as_the_bytes_that_a_launch_moves():
    axes, = pictures.traffic([("norm", 2304), ("gate & up", 791_296)], ("gate", "up")).axes
    assert [bar.get_width() for bar in axes.patches] == [2.304, 791.296]
    assert texts(axes.figure) == ["2.3 KB", "791 KB"]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()


def test_two_arrays_cross_the_border_of_a_layer():
    axes, = pictures.residuals().axes
    border, = (line for line in axes.lines if line.get_linestyle() == ":")
    x = border.get_xdata()[0]
    crossing = [line for line in axes.lines if min(line.get_xdata()) < x < max(line.get_xdata())]
    assert len(crossing) == 2 and [box.get_linestyle() for box in axes.patches
                                   if hasattr(box, "get_xy")].count("--") == 1


@pytest.mark.parametrize(("kernels", "ask", "eager", "graph"), [
    ([3, 2, 4], 5, 19, 14), ([9, 9, 9], 5, 32, 32)])
def test_a_replay_gains_where_kernels_are_short(kernels, ask, eager, graph):
    above, below = titles(pictures.host_and_device(kernels, ask))
    assert f"takes {eager} µs" in above and f"takes {graph} µs" in below


def test_a_group_has_a_scale_of_its_own():
    w = torch.linspace(-1, 1, 64) * torch.tensor([1.0, 0.5]).repeat_interleave(32)
    figure = pictures.rounded(w, LEVELS["int4"], 32)
    assert [t for t in texts(figure) if t.startswith("scale")] == ["scale 0.1428", "scale 0.0714"]


def test_a_line_has_a_tick_for_each_code_of_its_format():
    formats = {name: LEVELS[name] for name in ("int4", "ternary")}
    axes, = pictures.level_lines(formats, torch.tensor([0.5, -1.0])).axes
    places = [{float(x) for (x, _), _ in line.get_segments()} for line in axes.collections]
    assert [len(x) for x in places] == [15, 3]
    assert axes.lines[0].get_xdata().tolist() == [0.5, -1.0]


def test_the_share_with_the_least_error_is_red():
    formats = {name: LEVELS[name] for name in ("int4", "ternary")}
    for axes in pictures.error_by_share(torch.randn(32), formats, (1, 0.75, 0.5, 0.25)).axes:
        errors, best = axes.lines
        assert best.get_ydata()[0] == min(errors.get_ydata()) and len(errors.get_ydata()) == 4


def test_inputs_that_go_together_are_drawn_for_each_token():
    model = load(SMALL, dtype=torch.float32)
    tokens = Tokenizer(SMALL, model.config).encode("Once there was a small fox.")
    axes, = pictures.inputs_together(model, "model.layers.1.mlp.up_proj.weight", [tokens]).axes
    x, y = (torch.tensor(values) for values in axes.lines[0].get_data())
    assert len(x) == len(tokens) - 1 and torch.corrcoef(torch.stack([x, y]))[0, 1] > 0.5


def test_tokens_beyond_the_sample_are_red():
    model = load(SMALL, dtype=torch.float32)
    words = Tokenizer(SMALL, model.config)
    document = words.encode("Once there was a small fox. It found a key in the garden.")
    name = "model.layers.3.mlp.down_proj.weight"
    figure = pictures.largest_of_tokens(model, name, document, [document])
    assert "; 0 of" in titles(figure)[0]
    assert len({p.get_facecolor() for p in figure.axes[0].patches}) == 1


def test_a_scale_of_a_row_has_one_colour_in_a_sum_and_one_of_a_column_many():
    left, right = pictures.scales_of_a_product(T=4, K=6, N=3).axes
    products = [{patch.get_facecolor() for patch in axes.patches[-6:]} for axes in (left, right)]
    assert [len(colours) for colours in products] == [1, 6]


def test_channels_of_more_than_three_times_the_median_are_red():
    largest = torch.ones(8)
    largest[[2, 5]] = 3.5
    axes, = pictures.channel_bars({"x": largest}).axes
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[2] == colours[5] != colours[0] and colours.count(colours[0]) == 6


def test_an_arrow_leads_to_each_slot():
    axes, = pictures.slots_of_tokens([6, -1, 13, 0, 7], P=4, S=4).axes
    ends = [text.xy[0] for text in axes.texts if getattr(text, "arrow_patch", None)]
    assert ends == [5 + 2.5, 15 + 1.5, 0.5, 5 + 3.5]            # a gap after each page
    assert "token 1\nslot -1" in texts(axes.figure)


def test_experts_are_drawn_by_their_shares():
    figure = pictures.routes(["a", "b"], [[0, 3], [1, 1]], {"even": [[5, 5, 5, 5], [1, 1, 1, 1]],
                                                            "skewed": [[9, 1, 0, 0], [1, 3, 0, 0]]})
    strip, *panels = figure.axes
    assert len(strip.patches) == 4
    assert strip.patches[2].get_facecolor() == strip.patches[3].get_facecolor()
    shares = [[round(bar.get_height()) for bar in panel.patches] for panel in panels]
    assert shares == [[25] * 4, [25] * 4, [90, 10, 0, 0], [25, 75, 0, 0]]


def test_the_share_of_experts_that_a_step_reads():
    figure = pictures.loaded_share({"2 of 8": (8, 2)}, {"counted": {1: 0.25, 4: 0.6}})
    line, dots = figure.axes[0].lines[:2]
    assert line.get_ydata()[0] == 25 and line.get_ydata()[-1] > 99.9
    assert list(dots.get_ydata()) == [25, 60]


def test_a_dot_for_each_run_and_step():
    axes, = pictures.learning({"dense": [{250: 4, 500: 3}, {250: 6, 500: 3}],
                               "moe": [{250: 5.5}]}).axes
    dense, moe, _ = (line.get_ydata() for line in axes.lines)
    assert dense.round(9).tolist() == [-20, 0, 20, 0] and moe.round(9).tolist() == [10]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["250", "500"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["dense", "moe"]


def test_a_valley_has_a_dot_where_the_rounded_weights_are():
    line = [0.0, 0.1, 0.2], [1.0, 1.5, 3.0], 1
    axes, = pictures.valley({"2 bits": line}, ("trained", 0.12, 1.1)).axes
    assert [tuple(part.get_xydata()[0]) for part in axes.lines[1:]] == [(0.1, 1.5), (0.12, 1.1)]


def test_a_recovery_has_a_line_for_each_seed_and_one_entry_for_each_label():
    axes, = pictures.recovery({"ternary": [{0: 3, 10: 2}, {0: 3, 10: 2.1}]}, {"fp32": 2.0}).axes
    assert len(axes.lines) == 3
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["ternary"]


def test_heaps_are_shares_of_the_weights():
    before, after = pictures.heaps({"before": [1, 2, 1], "after": [0, 8, 0]}, -1.5, 1.5).axes
    assert [bar.get_height() for bar in before.patches] == [25, 50, 25]
    assert [bar.get_height() for bar in after.patches] == [0, 100, 0]


def test_kept_numbers_are_drawn_to_scale():
    """The area of all squares is the numbers over the width of one; the rest is their margin."""
    figure = pictures.kept_numbers("t", {"a": [("keys", 40), ("values", 40)],
                                         "b": [("latent", 30), ("rotated part", 6)]}, 8)
    assert texts(figure) == ["a\n80", "b\n36"]
    axes, = figure.axes
    areas = [patch.get_width() * patch.get_height() for patch in axes.patches]
    assert abs(sum(areas) / (0.88 * 0.92) - (80 + 36) / 8) < 1e-9


def test_masks_and_curves_of_attention_show_what_they_are_handed():
    mask = torch.tensor([[1, 0], [1, 1]], dtype=torch.bool)
    axes, = pictures.visible({"causal": mask}).axes
    assert axes.collections[0].get_array().tolist() == mask.tolist()
    points = {"MHA": (384, [[4, 4.1], [3]]), "MQA": (64, [[5], [4]])}
    axes, = pictures.quality("t", points, (250, 500)).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[4, 4.1, 5], [3, 4]]
    assert texts(axes.figure) == ["MHA", "MHA", "MQA", "MQA"]
    axes, = pictures.against_window("t", 2, {"A = 0": {8: 4, 16: 3}}).axes
    assert list(axes.lines[0].get_xdata()) == [8, 16]


def test_a_timeline_ends_when_its_last_instruction_does():
    """Two tiles of one stage on two multiprocessors, then one of the next stage."""
    program = [Instruction(6, 0, 0, 8, 0, 0, 0), Instruction(6, 0, 8, 16, 0, 0, 0),
               Instruction(0, 0, 0, 8, 0, 2, 1)]
    runs = {name: schedule(program, 2, [4, 8, 4], [1, 1, 1], **how) for name, how in
            (("launches", {"gap": 3}), ("one kernel", {}), ("early", {"early": True}))}
    assert titles(pictures.timelines(runs, program, OPS, "KB")) == [
        "launches: 20 KB", "one kernel: 14 KB", "early: 10 KB"]


def test_a_curve_of_multiprocessors_has_its_bound():
    assert texts(pictures.by_blocks({"one kernel": {1: 1, 2: 1.8, 4: 2}}, (2, "the chain"))) == [
        "in proportion to SMs", "the chain"]


def test_a_box_for_each_launch_of_a_compiler():
    axes, = pictures.compiled({"eager": ["matrix", "moves", "arithmetic"], "ours": ["matrix"]}).axes
    assert len(axes.patches) == 4 and texts(axes.figure) == ["3", "1"]
    assert axes.patches[0].get_facecolor() == axes.patches[3].get_facecolor()


def test_calls_that_compile_are_the_tall_ones():
    axes, = pictures.recompiled({"default": ([3, 5, 7, 1], [1, 2, 2, 3])}).axes
    assert [bar.get_height() for bar in axes.patches] == [1, 1, 0.3, 1]
    assert titles(axes.figure) == ["default: 3 graphs"]
