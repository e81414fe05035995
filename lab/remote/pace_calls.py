"""The calls that are timed for points, in the process under test.
See lab/judge/pace.py.

Where an instructor grades, this process has met none of the learner's Python: what it counts, makes
and compares is the course's word; only the compiled kernels are the learner's.
"""

POOL = 16 * 2**30       # bytes of a side's inputs and results, where the device has four times that
PROJECTIONS = 4         # by chance another result comes near in one of 60; in all 4, in 10 million


class Calls:
    """A function of the lesson and its arguments, in the process under test.
    Built by `make`.

    function: None for a copy of the only argument
    """

    def __init__(self, function, arguments, device="cuda"):
        self.function = function or copy
        self.given = arguments
        self.device = device
        self.sets = []
        self.found = []

    def prepare(self, seed, order):
        """A set of arguments for each call, in this order: the same on both sides."""
        import torch

        self.sets, self.found = [], []          # their memory is free before more is taken
        torch.manual_seed(seed)
        calls = [[one for argument in self.given for one in self.argument(argument)] for _ in order]
        self.sets = [calls[i] for i in order]
        self.wait()

    def argument(self, spec):
        """What an argument of lab/judge/pace.py stands for, or a plain value: a sequence."""
        import torch

        if not isinstance(spec, dict):
            return (spec,)
        if "maker" in spec:
            result = spec["maker"](*(a for each in spec["arguments"] for a in self.argument(each)))
            return result if isinstance(result, tuple) else (result,)
        place = {"dtype": getattr(torch, spec["dtype"]), "device": self.device}
        if spec["below"] is None:
            return (scaled(torch.randn(spec["shape"], **place)),)
        return (scaled(torch.randint(spec["below"], spec["shape"], **place)),)

    def run(self, count):
        """Make the next `count` calls, each on its own set, then wait for the device."""
        for arguments in self.sets[len(self.found):len(self.found) + count]:
            self.found.append(self.function(*arguments))
        self.wait()

    def wait(self):
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    def results(self, call):
        """The tensors that a call returned, or left in its arguments if it returned nothing."""
        import torch

        result = self.found[call]
        if result is None:
            result = self.sets[call]
        every = result if isinstance(result, (tuple, list)) else [result]
        return [a for a in every if torch.is_tensor(a)]

    def result(self, call):
        """The tensors of a call, whole, on the CPU."""
        return [tensor.cpu() for tensor in self.results(call)]

    def prints(self, seed):
        """Fingerprints of every call: [[shape, root mean square, projections] of a tensor]."""
        import torch

        torch.manual_seed(seed)
        return [[fingerprint(t) for t in self.results(call)] for call in range(len(self.found))]

    def bytes(self):
        """Bytes of a call's arguments and results: the least that it must read and write."""
        import torch

        both = [a for a in self.sets[0] if torch.is_tensor(a)]
        both += self.results(0) if self.found[0] is not None else []
        return sum(tensor.numel() * tensor.element_size() for tensor in both)

    def room(self):
        """Bytes that a run may take, of a device that two sides share."""
        import torch

        return POOL if self.device != "cuda" else min(POOL, torch.cuda.mem_get_info()[0] // 4)


def copy(tensor):
    return tensor.clone()


def scaled(tensor):
    """Floats times a random factor of 0.5 to 2, so that the sum of another set is far off."""
    import torch

    scale = 0.5 + 1.5 * torch.rand((), device=tensor.device)
    return tensor.mul_(scale) if tensor.is_floating_point() else tensor


def fingerprint(tensor):
    """[shape, root mean square, projections on random directions].
    An error in any part moves each projection by about the error's root mean square."""
    import torch

    flat = tensor.reshape(-1).double()
    figures = [list(tensor.shape), flat.square().mean().sqrt().item()]
    for _ in range(PROJECTIONS):
        direction = torch.randn(len(flat), device=flat.device)
        figures.append(((flat * direction).sum() / direction.norm()).item())
    return figures
