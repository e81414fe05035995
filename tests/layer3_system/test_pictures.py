"""The notes of a Recorder, and pictures that show what is in them."""

import json
from itertools import pairwise

import pytest
from matplotlib.colors import to_hex, to_rgb

from lab import plots
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    Recorder,
    SamplingParams,
    Scheduler,
    block_map,
    pages_of,
    pictures,
    step_timeline,
)
from layer3_system.engine.drafts import Drafter
from layer3_system.pictures.steps import lanes
from layer3_system.recorder import name_of
from layer3_system.testing.scheduler_driver import counts_of_newest

GREEDY = {"temperature": 0, "ignore_eos": True}


def recorder(pool, **parts):
    engine = Engine(MockLlama(), ByteTokenizer(), pool, Scheduler(pool, 4, 8), **parts)
    return Recorder(engine, pages=True)


def submit(notes, name, prompt, count, **params):
    return notes.engine.submit(prompt, SamplingParams(max_tokens=count, **(GREEDY | params)), name)


@pytest.fixture
def told():
    """Two that share a page, one of them preempted, and one that leaves: (history, requests)."""
    notes = recorder(PrefixPool(6, 4))
    a, = submit(notes, "a", [1, 2, 3, 4, 5], 9)
    notes.step()
    b, = submit(notes, "b", [1, 2, 3, 4, 6, 7], 9)
    notes.step()
    c, = submit(notes, "c", [9], 9)
    notes.step()
    notes.engine.abort([c])
    return notes.run(), [a, b, c]


def test_notes_are_json(told):
    history, _ = told
    assert json.loads(json.dumps(history)) == history
    assert [note["step"] for note in history] == list(range(len(history)))


def test_every_token_is_in_the_notes_once(told):
    history, requests = told
    for request in requests:
        assert [t for note in history for t in note["new"].get(request.id, [])] == request.output
    assert history[0]["counts"] == history[0]["prompts"] == {"a": 5}
    assert history[1]["counts"] == {"a": 1, "b": 2}                 # a page was there already
    assert history[1]["prompts"] == {"b": 2}


def test_ends_and_preemptions_are_told_once(told):
    history, requests = told
    ended = [pair for note in history for pair in note["ended"].items()]
    assert sorted(ended) == [("a", "length"), ("b", "length"), ("c", "abort")]
    gone = [name for note in history for name in note["preempted"]]
    assert gone == ["b"] * requests[1].preemptions and gone
    assert all(name in note["waiting"] for note in history for name in note["preempted"])


def test_pages_tell_who_shares_and_what_is_remembered(told):
    history, _ = told
    pages = history[1]["pages"]
    a, b = (pages["requests"][name]["table"] for name in "ab")
    shared = [page for page in a if page in b]
    assert len(shared) == 1 and pages["refs"][shared[0]] == 2
    last = history[-1]["pages"]
    assert last["requests"] == {} and sum(last["refs"]) == 0 and last["remembered"]
    assert pages_of(recorder(BlockPool(3, 4)).engine)["remembered"] == []


def test_guesses_are_tokens_of_an_answer():
    notes = recorder(BlockPool(12, 4), drafter=Drafter(lambda tokens: [1, 1]))
    submit(notes, "a", [1, 2, 3], 8)
    history = notes.run()
    assert history[0]["prompts"] == {"a": 3}
    assert history[1]["counts"] == {"a": 3} and history[1]["prompts"] == {}


def test_answers_to_one_prompt_have_names_of_their_own():
    notes = recorder(BlockPool(12, 4))
    requests = submit(notes, "a", [1, 2, 3], 4, n=3, temperature=1.0)
    assert [name_of(r) for r in requests] == ["a/0", "a/1", "a/2"]
    history = notes.run()
    assert history[0]["new"].keys() == {"a/0", "a/1", "a/2"}
    assert history[-1]["ended"] == dict.fromkeys(("a/0", "a/1", "a/2"), "length")


def test_only_the_newest_are_kept():
    notes = Recorder(recorder(BlockPool(12, 4)).engine, keep=3)
    submit(notes, "a", [1, 2, 3], 8)
    assert [note["step"] for note in notes.run()] == [5, 6, 7]
    assert "pages" not in notes.history[0]


def colours(axes):
    return [tuple(round(c, 3) for c in p.get_facecolor()[:3]) for p in axes.patches]


def test_a_cell_of_the_timeline_is_dark_where_a_prompt_is(told):
    history, _ = told
    axes = step_timeline("who ran", history).axes[0]
    cells = [(n, name in note["prompts"]) for note in history
             for name, n in note["counts"].items()]
    assert len(axes.patches) == len(cells)
    numbers = [t.get_text() for t in axes.texts]
    assert numbers == [str(n) for n, asked in cells if asked or n > 1]
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    assert lanes == ["a", "b", "c"]
    marks = [line.get_marker() for line in axes.lines]
    assert marks.count("v") == sum(len(note["preempted"]) for note in history)
    assert marks.count("X") == 1


def test_the_map_has_a_square_for_each_page(told):
    history, _ = told
    figure = block_map("pages", {"early": history[1]["pages"], "late": history[-1]["pages"]})
    early, late = figure.axes
    held = sum(len(request["table"]) for request in history[1]["pages"]["requests"].values())
    assert len(early.patches) == 6 + 2 * held       # the square; its holders' pale and dark parts
    assert [t.get_text() for t in early.texts] == ["2"]
    hatched = [p for p in late.patches if p.get_hatch()]
    assert len(late.patches) == 6 and len(hatched) == len(history[-1]["pages"]["remembered"])


def test_a_request_has_one_colour_in_both(told):
    history, _ = told
    names = ["c", "b", "a"]
    line = colours(step_timeline("who ran", history, names).axes[0])
    squares = colours(block_map("pages", {"": history[0]["pages"]}, names).axes[0])
    assert line[0] in squares and line[0] != tuple(round(c, 3) for c in to_rgb("white"))


def test_an_empty_history_is_one_sentence():
    with pytest.raises(ValueError, match="the history is empty"):
        step_timeline("nothing", [])


def test_steps_are_counted_without_gaps():
    notes = recorder(BlockPool(12, 4))
    submit(notes, "a", [1], 5)
    history = notes.run()
    assert all(b["step"] == a["step"] + 1 for a, b in pairwise(history))


# ---- what lessons open with


def texts(figure):
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def test_a_padded_batch_counts_what_is_lost():
    left, right = pictures.padded_batch([3, 6, 2, 4], [4, 2, 7, 3]).axes
    assert left.get_title("left") == "9 of 24 tokens are padding"
    assert right.get_title("left") == "12 of 28 slot-steps are idle"
    for axes, lost in ((left, 9), (right, 12)):
        assert sum(p.get_linestyle() == "--" for p in axes.patches) == lost


def test_a_request_takes_the_first_empty_seat():
    steps = [["a", "b"], ["a"], ["a"], ["c", "d"], ["d"]]
    assert lanes(steps) == {"a": (0, 0, 3), "b": (1, 0, 1), "c": (0, 3, 1), "d": (1, 3, 2)}
    assert lanes([["a", "b"], ["b", "c"]]) == {"a": (0, 0, 1), "b": (1, 0, 2), "c": (0, 1, 1)}


def test_seats_have_one_bar_a_request():
    steps = [[0, 1], [0], [0], [2, 3], [3]]
    first, second = pictures.seat_bars("a title", 2, {"one": steps, "two": steps[:1]}).axes
    assert len(first.patches) == 2 + 4 and len(second.patches) == 2 + 2
    assert first.get_title("left") == "one: 5 steps, 70% of slot-steps give a token"


def test_chunks_make_the_longest_wait_shorter():
    whole, chunked = pictures.chunk_steps(24, 3, [24, 6]).axes
    assert "at most 27 tokens" in whole.get_title("left")
    assert "at most 9 tokens" in chunked.get_title("left")
    assert [t.get_text() for t in chunked.texts if t.get_text()] == ["6"] * 4


def test_equal_pages_have_equal_names_only_after_equal_text():
    names = [t for t in texts(pictures.hash_chain(
        {"x": "one two red six te", "y": "one two sad six te"}, 4)) if t.endswith(("…", "name"))]
    x, y = names[:5], names[5:]
    assert x[:2] == y[:2] and x[4] == y[4] == "no name"
    assert len({*x[:4], *y[:4]}) == 6


def test_a_cut_makes_three_links():
    before, after = pictures.node_cut(["You are a warp. wide", "You are a warp. tall"], 4, 2).axes
    links = [[to_rgb(t.arrow_patch.get_edgecolor()) for t in axes.texts if getattr(
        t, "arrow_patch", None)] for axes in (before, after)]
    assert [len(colours) for colours in links] == [3, 4]
    assert links[0].count(to_rgb(plots.RED)) == 0 and links[1].count(to_rgb(plots.RED)) == 3


def test_a_call_is_read_between_steps():
    words = texts(pictures.call_life())
    assert words.count("letter") == 2 and words.count("event") == words.count("text") == 3


def test_a_preempted_request_loses_what_was_computed_and_no_token():
    counts = counts_of_newest([(3, 10), (6, 7)], P=5, S=4, budget=7)
    _, numbers = pictures.request_life(counts).axes
    tokens, computed, fall = (line.get_ydata() for line in numbers.lines)
    falls = [i for i in range(1, len(computed)) if computed[i] < computed[i - 1]]
    assert len(falls) == len(fall) == 1 and computed[falls[0]] == 0
    assert list(tokens) == sorted(tokens) and tokens[-1] == computed[-1] + 1 == 13


def test_overlap_hides_the_host():
    without, overlapped = pictures.overlap_lanes(host=1.0, device=4.5, steps=4).axes
    assert without.get_title("left") == f"without overlap: {4 * 5.5:.1f} ms"
    assert overlapped.get_title("left") == f"with overlap: {1 + 4 * 4.5:.1f} ms"


def test_the_circle_names_each_call_of_a_step():
    words = texts(pictures.step_circle())
    assert sum(word.split("\n")[0] in ("schedule", "build_step", "model.forward", "commit")
               for word in words) == 4


def test_a_token_is_drawn_for_each_that_was_asked_for():
    axes, = pictures.waits(12, [6, 4, 8], 2).axes
    dots = [len(line.get_xdata()) for line in axes.lines if line.get_marker() == "."]
    assert dots[:3] == [6, 4, 8]


def test_no_more_requests_are_served_than_there_are_seats():
    served = pictures.clients.served_in_seats([0.0, 0.0, 0.1], [3, 5, 2], 2, 0.1, 0.0)
    assert [begin for begin, _ in served] == pytest.approx([0.0, 0.0, 0.3])
    assert [tokens[-1] for _, tokens in served] == pytest.approx([0.3, 0.5, 0.5])


def test_a_stall_is_in_the_legend_of_both_loops():
    loops = {"open": [(0.0, 5.0), (0.2, 4.9), (9.0, 0.1)], "closed": [(0.0, 0.1)]}
    axes, = pictures.stalled(loops, (0, 5)).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "open: 3 requests, 2 above 1 s", "closed: 1 requests, 0 above 1 s"]


def test_a_number_falls_into_one_share_of_all_and_one_of_those_that_stay():
    axes, = pictures.share_line([2, 1, 0, 1.5, -1], p=0.9, u=0.68).axes
    dark = [box for box in axes.patches if to_hex(box.get_facecolor()) == plots.BLUE]
    assert all(box.get_x() <= 0.68 < box.get_x() + box.get_width() for box in dark)
    assert [round(box.get_width(), 2) for box in dark] == [0.06, 0.19]


def test_the_way_of_a_request_has_each_exercise_of_s01():
    assert {"top-p", "draw", "StopStrings", "Detokenizer"} <= set(texts(pictures.request_loop()))


def test_rank_0_has_a_band_of_each_matrix():
    boxes = pictures.split_bands(4).axes[0].patches
    blue = [box for box in boxes if to_hex(box.get_facecolor()) == plots.BLUE]
    assert len(boxes) == 1 + 4 * 4 + 4 and len(blue) == 4 + 1
    assert sum(box.get_width() * box.get_height() for box in blue[:2]) == pytest.approx(
        sum(box.get_width() * box.get_height() for box in boxes[1:9]) / 4)


def test_a_cache_shrinks_until_heads_are_repeated():
    lines = pictures.cache_by_ranks({"four heads": (1, 4, 500), "one": (1, 1, 500)}).axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[4, 2, 1, 1, 1], [1] * 5]


def test_lanes_of_buckets_have_one_axis():
    """A run that took half as long is half as wide."""
    slow = [["mul", 5.000, 5.004], ["all_reduce", 5.002, 5.008], ["mul", 5.007, 5.008]]
    fast = [["mul", 9.000, 9.003], ["all_reduce", 9.003, 9.004]]
    upper, lower = pictures.bucket_lanes({"slow": slow, "fast": fast}).axes
    ends = [max(bar.get_x() + bar.get_width() for bar in axes.patches) for axes in (upper, lower)]
    assert ends == pytest.approx([8, 4]) and upper.get_xlim() == lower.get_xlim()
