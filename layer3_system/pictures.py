"""What an engine did, step by step, as plain data; and two pictures of it

P: pages of the pool   S: slots of a page, one token each
A recorder takes notes after each step, in dicts, lists, strings and numbers alone, so that they can
be written as JSON: figures here and the live page of a server are drawn from the same notes.
"""

from collections import deque

from lab.plots import GREY, INK, RED

__all__ = ["Recorder", "block_map", "pages_of", "step_timeline"]

COLUMNS = 16            # pages in a row of the map
CROWDED = 40            # steps from which on a cell has no room for a number
EMPTY = "#f3f5f7"


# ---- the notes


def name_of(request):
    """What a request is called in notes: its id, and which answer it is where there are several."""
    return request.id if request.params.n == 1 else f"{request.id}/{request.index}"


def pages_of(engine):
    """Who holds which page now:

    {"pages": P, "slots": S,
     "refs": [tables that hold it, for each page],
     "remembered": [free pages whose contents are still known],
     "requests": {name: {"table": [its pages, in order],
                         "computed": tokens whose keys and values are in them}}}, of those that run
    """
    pool = engine.pool
    return {"pages": pool.P, "slots": pool.S, "refs": list(pool.refs),
            "remembered": [page for page in pool.free if pool.is_cached(page)],
            "requests": {name_of(r): {"table": list(r.table), "computed": r.num_computed}
                         for r in engine.scheduler.running}}


class Recorder:
    """Takes notes of an engine: recorder.step() in the place of engine.step().

    history: a note for each step, oldest first:
    {"step": its number, from 0,
     "counts": {name: tokens that it computed}, "prompts": {name: of those, tokens of its prompt},
     "new": {name: [tokens told after it]},
     "running": [names], "waiting": [names], in their order, after it,
     "preempted": [names], "ended": {name: reason}, "errors": {name: what went wrong},
     "pages": what pages_of gives, where it is wanted}
    """

    def __init__(self, engine, pages=False, keep=None):
        """pages: note them, too, at a cost of O(P) a step
        keep: so many of the newest notes, None all
        """
        self.engine, self.pages, self.steps = engine, pages, 0
        self.history, self.seen = deque(maxlen=keep), {}    # {request: its preemptions so far}

    def step(self):
        """Take a step and note it; what the step gives."""
        self.look()
        begun = {r: r.num_computed for r in self.engine.scheduler.running}
        outputs = self.engine.step()
        self.look()
        self.history.append(self.note(begun, outputs))
        self.steps += 1
        return outputs

    def run(self, steps=1000):
        """Steps until nobody is left, at most so many; the notes so far, as a list."""
        for _ in range(steps):
            if not self.engine.busy:
                break
            self.step()
        return list(self.history)

    def look(self):
        """Meet those who are new."""
        for each in (*self.engine.scheduler.running, *self.engine.scheduler.waiting):
            for request in (each, *each.forks):
                self.seen.setdefault(request, 0)

    def note(self, begun, outputs):
        engine, over = self.engine, [r for r in self.seen if r.status == "finished"]
        note = {"step": self.steps, "counts": {}, "prompts": {}, "new": {},
                "running": [name_of(r) for r in engine.scheduler.running],
                "waiting": [name_of(r) for r in engine.scheduler.waiting],
                "preempted": [name_of(r) for r, n in self.seen.items() if r.preemptions > n],
                "ended": {name_of(r): r.reason for r in over},
                "errors": {name_of(r): r.error for r in over if r.error}}
        for request, n in engine.counts.items():
            begin = begun.get(request, request.num_computed - n)
            note["counts"][name_of(request)] = n
            if (part := min(n, len(request.prompt) - begin)) > 0:
                note["prompts"][name_of(request)] = part
        for output in outputs:
            note["new"].setdefault(name_of(output.request), []).extend(output.tokens)
        if self.pages:
            note["pages"] = pages_of(engine)
        self.seen = {r: r.preemptions for r in self.seen if r.status != "finished"}
        return note


# ---- the pictures


def shades(names):
    """{name: (dark, light)}. After ten they begin anew."""
    import matplotlib.pyplot as plt

    pairs = plt.get_cmap("tab20").colors
    return {name: pairs[2 * (i % 10):2 * (i % 10) + 2] for i, name in enumerate(names)}


def block_map(title, snapshots, names=None):
    """The pages of a pool, a square each, in a panel for each snapshot.

    snapshots: {label: what pages_of gives}    names: requests in the order of their colours; None
    takes them as they appear. A page is dark as far as it is filled. One that several hold has a
    stripe of each, and their number. Hatched: free, but what is in it is remembered.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    names = names or dict.fromkeys(n for s in snapshots.values() for n in s["requests"])
    colours, heights = shades(names), [-(-s["pages"] // COLUMNS) for s in snapshots.values()]
    figure, every = plt.subplots(len(snapshots), 1, squeeze=False, height_ratios=heights,
                                 figsize=(7.5, 0.8 + 0.44 * sum(heights) + 0.45 * len(heights)),
                                 layout="constrained")
    for axes, (label, snapshot) in zip(every[:, 0], snapshots.items(), strict=True):
        P, S = snapshot["pages"], snapshot["slots"]
        holders = {page: [] for page in range(P)}
        for name, request in snapshot["requests"].items():
            for i, page in enumerate(request["table"]):
                filled = min(max(request["computed"] - i * S, 0), S) / S
                holders[page].append((name, filled))
        for page, requests in holders.items():
            x, y = page % COLUMNS, page // COLUMNS
            remembered = page in snapshot["remembered"]
            axes.add_patch(Rectangle((x, y), 0.92, 0.92, fc=EMPTY, ec=GREY, lw=0.5,
                                     hatch="////" if remembered else None))
            for k, (name, filled) in enumerate(requests):
                width, (dark, light) = 0.92 / len(requests), colours[name]
                left = x + k * width
                axes.add_patch(Rectangle((left, y), width, 0.92, fc=light))
                axes.add_patch(Rectangle((left, y + 0.92 * (1 - filled)), width, 0.92 * filled,
                                         fc=dark))
            if snapshot["refs"][page] > 1:
                axes.text(x + 0.46, y + 0.46, f"{snapshot['refs'][page]}", ha="center",
                          va="center", color=INK, weight="bold",
                          bbox={"boxstyle": "circle,pad=0.2", "fc": "white", "ec": INK})
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set(xlim=(-0.05, COLUMNS), ylim=(-(-P // COLUMNS), -0.05), aspect="equal")
        axes.axis("off")
    legend = [Patch(fc=colours[name][0], label=name) for name in names]
    legend += [Patch(fc=EMPTY, ec=GREY, hatch="////", label="free, remembered"),
               Patch(fc=EMPTY, ec=GREY, label="free")]
    figure.legend(handles=legend, loc="outside lower center", ncols=min(len(legend), 8),
                  frameon=False, handlelength=1)
    figure.suptitle(title)
    plt.close(figure)           # a notebook shows what is returned, and open figures once more
    return figure


def step_timeline(title, history, names=None):
    """Who ran in which step: a lane a request, a column a step.

    history: as a Recorder has it    names: requests in the order of their lanes, None as they
    appear. Dark: tokens of its prompt, or of its answer computed anew, with their number. Light:
    one token of its answer. A grey line: it waits.
    """
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator

    history = list(history)
    if not history:
        raise ValueError("step_timeline: the history is empty: no step was taken")
    names = list(names or dict.fromkeys(
        name for note in history for name in (*note["counts"], *note["waiting"])))
    colours, crowded = shades(names), len(history) > CROWDED
    lanes = {name: y for y, name in enumerate(names)}
    figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.34 * len(names)), layout="constrained")
    for note in history:
        x = note["step"]
        for name, n in note["counts"].items():
            dark, light = colours[name]
            single = n == 1 and name not in note["prompts"]
            axes.add_patch(Rectangle((x + 0.03, lanes[name] + 0.1), 0.94, 0.8,
                                     fc=light if single else dark))
            if not single and not crowded:
                axes.text(x + 0.5, lanes[name] + 0.5, n, ha="center", va="center", color="white",
                          fontsize=8)
        for name in note["waiting"]:
            axes.plot([x, x + 1], [lanes[name] + 0.5] * 2, color=GREY, lw=1.5)
        for name in note["preempted"]:
            axes.plot(x + 0.5, lanes[name] + 0.5, "v", color=RED, ms=9)
        for name, reason in note["ended"].items():
            if reason in ("abort", "error"):
                axes.plot(x + 0.5, lanes[name] + 0.5, "X", color=INK, ms=9)
    axes.set(title=title, xlabel="step", ylim=(len(names), 0),
             xlim=(history[0]["step"], history[-1]["step"] + 1))
    axes.set_yticks([y + 0.5 for y in range(len(names))], names)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=[
        Patch(fc=INK, label="so many of a prompt, or anew"),
        Patch(fc="#d0d7de", label="one of an answer"),
        Line2D([], [], color=GREY, lw=1.5, label="waits"),
        Line2D([], [], color=RED, marker="v", ls="none", ms=8, label="preempted"),
        Line2D([], [], color=INK, marker="X", ls="none", ms=8, label="aborted")],
        loc="outside lower center", ncols=5, frameon=False, handlelength=1,
        columnspacing=1.2)
    plt.close(figure)           # as above
    return figure
