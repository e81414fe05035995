"""What a kernel's launcher asks about the GPU."""

import functools

import triton


def properties():
    """{"multiprocessor_count", "max_shared_mem", …: number} of the current GPU, by Triton's driver.

    A CUDA driver takes a millisecond to say, longer than most kernels run: it is asked once.
    """
    driver = triton.runtime.driver.active
    return asked(driver, driver.get_current_device(), driver.get_current_target())


@functools.cache
def asked(driver, device, target):
    return driver.utils.get_device_properties(device)
