"""What launchers ask of Triton's driver."""

from types import SimpleNamespace

import triton

from layer1_kernels import gpu


def test_a_driver_is_asked_once_for_each_of_its_devices(monkeypatch):
    """A CUDA driver takes a millisecond to answer."""
    asked = []
    now = {"device": 0, "target": "sm_90"}

    def answer(device):
        asked.append(device)
        return {"multiprocessor_count": 132 + device}

    driver = SimpleNamespace(utils=SimpleNamespace(get_device_properties=answer),
                             get_current_device=lambda: now["device"],
                             get_current_target=lambda: now["target"])
    driver = type("Driver", (), vars(driver))           # as a key: a SimpleNamespace has no hash
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=driver))
    counts = [gpu.properties()["multiprocessor_count"] for now["device"] in (0, 0, 1, 0)]
    assert counts == [132, 132, 133, 132] and asked == [0, 1]
    now["target"] = "sm_80"                             # the simulator is another GPU for a while
    gpu.properties()
    assert asked == [0, 1, 0]
