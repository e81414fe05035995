"""Pictures of a launch: what its requests touch, where its warps wait, how far it is from the roof.

Each function draws one figure and returns it.
All show counts at PTX level, not measurements.
"""

import numpy as np

from .counts import BANK_BYTES, BANKS, SECTOR, wavefronts_of
from .errors import KernelError
from .lanes import WARP

INK, GREY, LIGHT, BLUE, RED = "#24292f", "#8c959f", "#d0d7de", "#0969da", "#cf222e"
PINK = "#ffcecb"
DRAWN = 120                     # barriers in a timeline; more of them would black it out


def sectors(launch, line=None, op=None):
    """Which lane touches which sector of global memory, in the first request of a line.

    line: its number, or None for the line that moves most beyond what it needs
    op: "load", "store", "atomic", or None for whichever of them that is
    """
    from matplotlib.patches import Rectangle

    line, op, request = choose(launch, "global", line, op)
    wanted = {}                                             # (array, sector) -> {(first, end)}
    for array, offset in request.lanes.values():
        start = offset % SECTOR
        wanted.setdefault((array, offset // SECTOR), set()).add((start, start + request.size))
    cells = sorted(wanted)
    needed = ideal_sectors(request)
    colour = BLUE if len(cells) <= needed else RED
    places = {}
    x = 0.0
    for before, cell in zip([None, *cells], cells, strict=False):
        x += 0.5 * (before is not None and (before[0] != cell[0] or before[1] + 1 != cell[1]))
        places[cell], x = x, x + 1
    scale = WARP / max(x, 8)
    left = (WARP - x * scale) / 2
    figure, axes = plain_figure((7.5, 3.1))
    for lane in range(WARP):
        active = lane in request.lanes
        axes.add_patch(Rectangle((lane + 0.08, 2), 0.84, 0.42, ec="white", fc=INK if active else
                                 LIGHT))
        axes.text(lane + 0.5, 2.2, lane, ha="center", va="center", fontsize=7,
                  color="white" if active else GREY)
    for lane, (array, offset) in request.lanes.items():
        place = places[array, offset // SECTOR] + (offset % SECTOR + request.size / 2) / SECTOR
        axes.plot([lane + 0.5, left + place * scale], [1.97, 0.98], color=colour, lw=0.8, alpha=0.7)
    every = -(-len(cells) // 12)
    for i, cell in enumerate(cells):
        start = left + places[cell] * scale
        axes.add_patch(Rectangle((start + 0.04, 0.5), scale - 0.08, 0.44, fc=LIGHT, ec="none"))
        for first, end in wanted[cell]:
            axes.add_patch(Rectangle((start + 0.04 + first / SECTOR * (scale - 0.08), 0.5),
                                     (end - first) / SECTOR * (scale - 0.08), 0.44, fc=colour,
                                     ec="white", lw=0.3))
        if i % every == 0:
            axes.text(start + scale / 2, 0.42, f"{cell[1] * SECTOR}", ha="center", va="top",
                      fontsize=7, color=INK)
    arrays = sorted({array for array, _ in cells})
    for array in arrays:
        mine = [left + (places[c] + 0.5) * scale for c in cells if c[0] == array]
        axes.text(sum(mine) / len(mine), 0.1, f"byte of {array}", ha="center", va="top", fontsize=9,
                  color=INK)
    axes.text(-0.3, 2.2, "lane", ha="right", va="center", fontsize=9, color=INK)
    axes.text(-0.3, 0.72, "sector", ha="right", va="center", fontsize=9, color=INK)
    bytes_wanted = sum(end - first for spans in wanted.values() for first, end in spans)
    axes.set_title(f"{heading(launch, line, op, request)}\n{plural(len(cells), 'sector')} of "
                   f"{SECTOR} bytes, {needed} would do; {bytes_wanted} of {len(cells) * SECTOR} "
                   f"bytes wanted", loc="left", fontsize=10, color=INK)
    axes.set(xlim=(-2.6, WARP + 0.2), ylim=(-0.3, 2.55))
    return figure


def banks(launch, line=None, op=None):
    """Which words of shared memory, in which banks, the lanes want in a line's first request.
    Arguments as in sectors()."""
    from matplotlib.patches import Rectangle

    line, op, request = choose(launch, "shared", line, op)
    lanes_of = {}
    served = WARP * BANK_BYTES // max(request.size, BANK_BYTES)
    for lane, (_, offset) in request.lanes.items():
        for word in range(offset // BANK_BYTES, -(-(offset + request.size) // BANK_BYTES)):
            lanes_of.setdefault(word, []).append(lane)
    together = {}                       # words of one bank that lanes served at one time want
    for word, lanes in lanes_of.items():
        for part in {lane // served for lane in lanes}:
            together.setdefault((part, word % BANKS), set()).add(word)
    clash = {word for words in together.values() if len(words) > 1 for word in words}
    rows = sorted({word // BANKS for word in lanes_of})
    figure, axes = plain_figure((7.5, 1.5 + 0.2 * len(rows)))
    for y, row in enumerate(rows):
        for bank in range(BANKS):
            lanes = lanes_of.get(row * BANKS + bank)
            colour = "#f6f8fa" if not lanes else RED if row * BANKS + bank in clash else BLUE
            axes.add_patch(Rectangle((bank + 0.04, y + 0.04), 0.92, 0.92, fc=colour, ec=LIGHT,
                                     lw=0.4))
            if lanes:
                label = f"{lanes[0]}+" if len(lanes) > 1 else str(lanes[0])
                axes.text(bank + 0.5, y + 0.52, label, ha="center", va="center",
                          fontsize=6.5 if len(label) < 3 else 5.5, color="white")
        axes.text(-0.3, y + 0.5, f"{row * BANKS * BANK_BYTES}", ha="right", va="center", fontsize=7,
                  color=INK)
    for bank in range(BANKS):
        axes.text(bank + 0.5, -0.15, bank, ha="center", va="bottom", fontsize=6.5, color=GREY)
    axes.text(-0.3, -0.15, "byte \\ bank", ha="right", va="bottom", fontsize=7, color=GREY)
    wavefronts, needed, _ = wavefronts_of(table(request), request.size)
    several = any(len(lanes) > 1 for lanes in lanes_of.values())
    axes.set_title(f"{heading(launch, line, op, request)}\n{plural(wavefronts, 'wavefront')}, "
                   f"{needed} would do; in a cell the lane that wants it"
                   f"{', + for several lanes' if several else ''}"
                   f"{'; red: banks that serve several words' if clash else ''}",
                   loc="left", fontsize=10, color=INK)
    axes.set(xlim=(-2.6, BANKS + 0.2), ylim=(len(rows) + 0.1, -0.9))
    return figure


def timeline(launch):
    """When each warp of block (0, 0, 0) ran and when it waited at a barrier, in instructions."""
    record = launch.timeline
    warps = len(record.clock)
    figure, axes = plain_figure((7.5, 1.6 + 0.22 * warps))
    axes.axis("on")
    for warp in range(warps):
        for start, end, line in record.spans(warp):
            axes.barh(warp, end - start, left=start, height=0.72, edgecolor="none",
                      color=BLUE if line is None else PINK)
    end = max(1, int(record.clock.max()))
    meetings = record.meetings if len(record.meetings) <= DRAWN else []
    for _, members, _, left in meetings:
        axes.plot([left, left], [min(members) - 0.45, max(members) + 0.45], color=INK, lw=0.8)
    shown = -np.inf
    for line, members, _, left in meetings:
        if left - shown >= end / 14:                        # as many labels as there is room for
            axes.annotate(f"{line}", (left, min(members) - 0.5), ha="center", va="bottom",
                          fontsize=7, color=INK)
            shown = left
    axes.barh(0, 0, color=BLUE, label="runs")
    if record.meetings:
        axes.barh(0, 0, color=PINK, label="waits at a barrier")
    if meetings:
        axes.plot([], [], color=INK, lw=0.8, label="barrier, with its line")
    axes.set(xlabel="instructions of the warp (not time)", ylabel="warp", xlim=(0, end * 1.01),
             ylim=(warps - 0.4, -1.1), yticks=range(0, warps, max(1, warps // 16)))
    count = len(record.meetings) + record.missed
    axes.set_title(f"{launch.name}, block (0, 0, 0): {plural(count, 'barrier')}", loc="left",
                   fontsize=10, color=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  frameon=False, handlelength=1)
    return figure


def roofline(launches, name, peak, bandwidth):
    """Where counted FLOPs over counted bytes put launches under the roof of a machine.

    launches: a Launch, or {label: Launch}    peak: FLOP/s of the type they compute in
    bandwidth: byte/s    name: of the machine
    The dot is FLOPs over the bytes of sectors moved, the ring over those that lanes asked for.
    """
    launches = launches if isinstance(launches, dict) else {launches.name: launches}
    points = {label: (k.totals.intensity, k.totals.intensity_asked)
              for label, k in launches.items()}
    for label, (intensity, _) in points.items():
        if not intensity:
            raise KernelError(f"{label}: a launch without {'FLOPs' if intensity == 0 else 'bytes'} "
                              f"has no place under a roofline", "argument")
    ridge = peak / bandwidth
    flat = [v for pair in points.values() for v in pair]
    low = min([*flat, ridge / 10]) / 2
    high = max([*flat, ridge]) * 8
    x = np.geomspace(low, high, 200)
    figure, axes = plain_figure((7.5, 4.2))
    axes.axis("on")
    axes.loglog(x, np.minimum(peak, x * bandwidth), color=INK, lw=2)
    axes.axvline(ridge, color=GREY, lw=1, ls=":")
    axes.annotate(f"ridge {ridge:.3g} FLOP/byte", (ridge, 0.02), xycoords=("data", "axes fraction"),
                  xytext=(4, 0), textcoords="offset points", color=GREY)
    order = sorted(points.items(), key=lambda item: item[1][0])
    for i, (label, (moved, flops)) in enumerate(order):
        roof = min(peak, moved * bandwidth)
        if abs(flops / moved - 1) > 0.05:
            axes.plot(flops, min(peak, flops * bandwidth), "o", mfc="none", mec=BLUE, ms=11)
        axes.plot(moved, roof, "o", color=RED, ms=7)
        axes.annotate(f"{label}: at most {rate(roof)}\n{moved:.3g} FLOP/byte moved, {flops:.3g} "
                      f"asked for", (moved, roof),
                      xytext=(8, -4 if moved < ridge else -14 - 26 * (i % 2)), va="top",
                      textcoords="offset points", color=RED, fontsize=9,
                      bbox={"fc": "white", "ec": "none", "pad": 1})
    axes.set(xlabel="FLOP/byte, as counted (dot: bytes of sectors moved, ring: bytes asked for)",
             ylabel="FLOP/s", xlim=(low, high * 4),
             title=f"{name}: {rate(peak)}, {bandwidth / 1e12:.3g} TB/s")
    axes.set_ylim(low * bandwidth / 3, peak * 3)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


# ---- what they share

def plain_figure(size):
    """-> a figure that no notebook shows by itself, and its axes without a frame."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=size, layout="constrained")
    plt.close(figure)           # a notebook shows what is returned, and would show it again
    axes.axis("off")
    return figure, axes


def choose(launch, space, line, op):
    """-> line, operation and first request of the access asked for, or of the worst there is."""
    requests = [(at, o) for at, s, o in launch.requests
             if s == space and line in (None, at) and op in (None, o)]
    if not requests:
        lines = sorted({str(at) for at, s, _ in launch.requests if s == space})
        what = f"{op or 'access'} of {space} memory"
        place = f" in line {line}" if line else ""
        raise KernelError(f"`{launch.name}` has no {what}{place}; lines with an access: "
                          f"{', '.join(lines) or 'none'}", "argument")

    def waste(key):
        counts = launch.lines[key[0]].memory[space, key[1]]
        return counts.transactions - counts.ideal
    line, op = max(requests, key=waste)
    return line, op, launch.requests[line, space, op]


def heading(launch, line, op, request):
    source = launch.text.get(line, "")
    source = source if len(source) <= 60 else source[:57] + "..."
    return (f"line {line}: {source}\nfirst {op}: warp {request.warp} of block {request.block}, "
            f"{request.size} bytes a lane")


def table(request):
    """Offsets of the lanes as counts.py has them (1, 32)."""
    return np.array([[request.lanes.get(lane, ("", -1))[1] for lane in range(WARP)]])


def ideal_sectors(request):
    """The fewest sectors that hold what the lanes want, whatever arrays it lies in."""
    distinct = len(set(request.lanes.values()))
    return -(-distinct * request.size // SECTOR)


def plural(n, word):
    return f"{n} {word}{'' if n == 1 else 's'}"


def rate(value):
    """312e12 -> '312 TFLOP/s'."""
    for factor, prefix in ((1e12, "T"), (1e9, "G")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}FLOP/s"
    return f"{value / 1e6:.3g} MFLOP/s"
