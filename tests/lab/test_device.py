"""What a machine has, told by files of other machines."""

import os

import pytest

from lab import device

GIB = 2**30
V2 = {"cpu.max": "max 100000", "memory.max": "max"}
V1 = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes":
      str(2**63 - 4096), "memory.usage_in_bytes": "0",
      "memory.stat": "inactive_file 1\ntotal_inactive_file 5"}


def memory(limit, usage, cached):
    return {"memory.max": f"{limit * GIB}", "memory.current": f"{usage * GIB}",
            "memory.stat": f"anon 1\ninactive_file {cached * GIB}\nactive_file 7"}


@pytest.mark.parametrize("version, files, workers", [
    ("0::/", {"": V2}, 16),
    ("0::/", {"": V2 | {"cpu.max": "200000 100000"}}, 2),
    ("0::/", {"": V2 | {"cpu.max": "250000 100000"}}, 3),
    ("0::/", {"": V2 | {"cpu.max": "1000 100000"}}, 1),
    ("0::/", {"": V2 | memory(8, 3, 1)}, 2),            # 6 GiB are free: 3 GiB for each
    ("0::/", {"": V2 | memory(2, 1, 0)}, 1),
    ("0::/a/b", {"": {}, "a": V2 | {"cpu.max": "300000 100000"},        # the group above it
                 "a/b": V2 | {"cpu.max": "900000 100000"}}, 3),
    ("0::/unseen", {"": V2 | {"cpu.max": "400000 100000"}}, 4),         # the host's name for it
    ("3:cpu,cpuacct:/x\n2:memory:/x\n1:pids:/x\n0::/", {"cpu": V1, "memory": V1}, 16),
    ("3:cpu,cpuacct:/x\n2:memory:/x", {"cpu/x": V1 | {"cpu.cfs_quota_us": "150000"}}, 2),
    ("2:memory:/x", {"memory/x": V1 | {"memory.limit_in_bytes": str(13 * GIB)}}, 4)])
def test_workers_fit_the_control_group(monkeypatch, tmp_path, version, files, workers):
    """On a host of 16 cores and 64 GiB."""
    (tmp_path / "groups").write_text(version)
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {64 * 2**20} kB\n")
    for folder, texts in files.items():
        (tmp_path / "fs" / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (tmp_path / "fs" / folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(device, "CONTROL_GROUPS", tmp_path / "fs")
    monkeypatch.setattr(device, "OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(device, "MEMORY_FACTS", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert device.workers() == workers


def test_workers_without_linux(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "OWN_GROUPS", tmp_path / "absent")
    monkeypatch.setattr(device, "MEMORY_FACTS", tmp_path / "absent")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert device.workers() == 8


def test_last_level_cache_counts_a_shared_cache_once(tmp_path):
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, (level, size, cores) in enumerate(((1, "32K", core), (3, "8192K", shared))):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", cores)):
                (folder / name).write_text(f"{text}\n")
    assert device.last_level_cache({0, 1, 2}, tmp_path) == 2 * 8 * 2**20
    assert device.last_level_cache({1}, tmp_path) == 8 * 2**20
    assert device.last_level_cache({0}, tmp_path / "nothing") == 64 * 2**20
