"""The drawing of a graph: parsed as XML, its boxes and lines measured."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from layer2_graph import Box, draw

SVG = "{http://www.w3.org/2000/svg}"
LAYER = [
    Box("x", (), "8 × 576", launch=False), Box("rmsnorm", (0,)), Box("q & k & v", (1,), "2.2 MB"),
    Box("cos, sin", launch=False), Box("rope + write_kv", (2, 3)), Box("paged_attention", (4,)),
    Box("o", (5,)), Box("add", (0, 6)), Box("rmsnorm", (7,)), Box("gate", (8,)), Box("up", (8,)),
    Box("swiglu", (9, 10)), Box("down", (11,)), Box("add", (7, 12)),
]


def frames(svg):
    """Left, top, right and bottom of every box; the background and the legend are left out."""
    found = [rect for rect in ElementTree.fromstring(svg).iter(SVG + "rect")
             if rect.get("rx") == "5"]
    at = [[float(rect.get(name)) for name in ("x", "y", "width", "height")] for rect in found]
    return [(x, y, x + w, y + h) for x, y, w, h in at]


def test_boxes_lie_apart_inside_the_picture_each_under_what_it_takes():
    root, boxes = ElementTree.fromstring(draw(LAYER, "a layer")), frames(draw(LAYER, "a layer"))
    across, down = float(root.get("width")), float(root.get("height"))
    launches = [i for i, box in enumerate(LAYER) if box.launch]
    assert len(boxes) == len(launches)
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= across and 0 <= top < bottom <= down
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]
    at = dict(zip(launches, boxes, strict=True))
    for i in launches:
        for j in set(LAYER[i].inputs) & set(at):
            assert at[j][3] < at[i][1], f"{LAYER[i]} is not under {LAYER[j]}"


def test_no_line_passes_over_a_box():
    svg = draw(LAYER, "a layer")
    passing = re.findall(r'd="M([\d.]+) (\d+)v(\d+)"', svg)
    assert passing
    for x, y, high in passing:
        for left, top, right, bottom in frames(svg):
            beside = not left <= float(x) <= right
            assert beside or int(y) >= bottom or int(y) + int(high) <= top


def test_every_label_fits_its_box_and_none_covers_another():
    labels = ["a long label of forty letters, or more so", "b", "漢字漢字", "é" * 3]
    svg = draw([Box(label, (), "a note that is longer than a label") for label in labels], "")
    for a, b in itertools.pairwise(sorted(frames(svg))):
        assert a[2] < b[0]


def test_the_signs_choose_the_colour_and_text_is_escaped():
    svg = draw([Box("q & k"), Box("a<b>", (0,)), Box("add + rmsnorm", (1,)),
                Box("gate & up + swiglu", (2,), 'a "note"\x00\n]]>')], "1 < 2 & 3")
    root = ElementTree.fromstring(svg)
    texts = [t.text for t in root.iter(SVG + "text")]
    assert {"q & k", "a<b>", "1 < 2 & 3", 'a "note"  ]]>'} <= set(texts)
    fills = [r.get("fill") for r in root.iter(SVG + "rect") if r.get("rx") == "5"]
    assert len(set(fills)) == 4
    assert [t for t in texts if "merged" in t or "fused" in t or "both" in t] == [
        "& merged: one equation", "+ fused: one launch", "& and +: both"]


def test_a_box_takes_from_earlier_ones():
    with pytest.raises(ValueError, match=r"box 0, 'a', takes from boxes \(1,\); expected earlier"):
        draw([Box("a", (1,)), Box("b")], "")
    assert ElementTree.fromstring(draw([], "nothing")) is not None
