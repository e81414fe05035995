"""Addresses that a kernel was not given as a pointer but reads as a number.

A table of pointers is a tensor of integers: `torch.tensor([a.data_ptr(), b.data_ptr()])`.
The kernel loads such an address and goes there.
Simulated addresses have a segment's number in their upper 16 bits; addresses of the machine have
zeros there, and so can be told apart.
"""

import gc
import sys

import numpy as np

from .memory import SEGMENT_SHIFT, Segment

LOWEST = 1 << 12                # below it lies the null pointer with some offset


def translate(launch, address):
    """Machine addresses (uint64, any shape) -> the simulated ones of the same bytes, or None if one
    of them lies in no tensor that the kernel could have the address of."""
    if int(address.max()) >> SEGMENT_SHIFT or int(address.min()) < LOWEST:
        return None
    if not hasattr(launch, "host"):
        launch.host = HostAddresses(launch)
    memory = launch.host.look_up(address)
    if memory is None:
        launch.host.search()
        memory = launch.host.look_up(address)
    return memory


class HostAddresses:
    """The tensors that a launch reaches by their addresses."""

    def __init__(self, launch):
        self.launch = launch
        self.segments = {}                              # address of a storage -> Segment
        self.start = self.end = self.base = np.zeros(0, np.uint64)

    def look_up(self, address):
        if not len(self.start):
            return None
        place = np.maximum(np.searchsorted(self.start, address, "right") - 1, 0)
        if ((address < self.start[place]) | (address >= self.end[place])).any():
            return None
        return address - self.start[place] + self.base[place]

    def search(self):
        """Take in every live tensor into which a number in the kernel's memory points.
        The others stay out of reach, so that an overshoot does not silently end in one of them."""
        storages = live_storages()
        before = -1
        while len(self.segments) != before:             # a table may point to tables
            before = len(self.segments)
            numbers = self.numbers()
            for start in storages.keys() - self.segments.keys():
                tensor = storages[start]
                i = np.searchsorted(numbers, np.uint64(start))
                if i < len(numbers) and numbers[i] < start + tensor.untyped_storage().nbytes():
                    self.segments[start] = self.launch.space.add(segment(tensor, start))
        order = sorted(self.segments)
        self.start = np.array(order, np.uint64)
        self.base = np.array([self.segments[s].base for s in order], np.uint64)
        self.end = self.start + np.array([self.segments[s].length for s in order], np.uint64)

    def numbers(self):
        """Whatever in the kernel's parameters and arrays may be an address, sorted."""
        memories = [self.launch.parameters, *(s.bytes for s in self.launch.space.segments)]
        words = np.concatenate([m[:len(m) // 8 * 8].view(np.uint64) for m in memories])
        return np.unique(words[(words >= LOWEST) & (words >> np.uint64(SEGMENT_SHIFT) == 0)])


def live_storages():
    """Address of a storage -> a CPU tensor that has it, of all those that Python knows."""
    torch = sys.modules.get("torch")
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)] \
        if torch else []
    return {t.untyped_storage().data_ptr(): t for t in tensors
            if t.device.type == "cpu" and t.layout == torch.strided}


def segment(tensor, start):
    import torch
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    name = f"tensor of shape {tuple(tensor.shape)}, known by its address"
    element = str(tensor.dtype).removeprefix("torch.")
    return Segment(memory, name, element if element in np.sctypeDict else "", skew=start % 256)
