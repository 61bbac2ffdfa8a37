"""Usable processors."""

from pathlib import Path

import pytest

from modelserver.engine import resources as cpus


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2.0),
        ("50000 100000", 0.5),
        ("", None),
        ("x y", None),
        ("1 0", None),
    ],
)
def test_cpu_max_is_read(text, expected):
    """Quota over period, and none where there is no limit or no sense."""
    assert cpus.parse_cpu_max(text) == expected


def test_cfs_is_read():
    """A quota of -1 is none."""
    assert cpus.parse_cfs("150000\n", "100000\n") == 1.5
    assert cpus.parse_cfs("-1\n", "100000\n") is None


def test_version_2_takes_the_tightest_quota_on_the_way_up(tmp_path):
    _write(tmp_path / "own", "0::/pod/container\n")
    _write(tmp_path / "fs/pod/container/cpu.max", "max 100000")
    _write(tmp_path / "fs/pod/cpu.max", "300000 100000")
    _write(tmp_path / "fs/cpu.max", "800000 100000")
    assert cpus.cgroup_quota(tmp_path / "fs", tmp_path / "own") == 3.0

    _write(tmp_path / "own", "0::/../other\n")
    _write(tmp_path / "other/cpu.max", "100000 100000")
    _write(tmp_path / "fs/cpu.max", "400000 100000")
    assert cpus.cgroup_quota(tmp_path / "fs", tmp_path / "own") == 4.0


@pytest.mark.parametrize("folder", ["cpu,cpuacct/docker/x", "cpu,cpuacct", "cpu"])
def test_version_1_is_read_where_it_is_mounted(tmp_path, folder):
    _write(tmp_path / "own", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n")
    _write(tmp_path / "fs" / folder / "cpu.cfs_quota_us", "250000\n")
    _write(tmp_path / "fs" / folder / "cpu.cfs_period_us", "100000\n")
    assert cpus.cgroup_quota(tmp_path / "fs", tmp_path / "own") == 2.5


@pytest.mark.parametrize(("quota", "expected"), [("150000", 2), ("10000", 1), ("10000000", 8)])
def test_usable_is_affinity_within_the_quota(tmp_path, monkeypatch, quota, expected):
    monkeypatch.setattr(cpus, "allowed_cpus", lambda: 8)
    _write(tmp_path / "own", "0::/\n")
    _write(tmp_path / "fs/cpu.max", f"{quota} 100000")
    assert cpus.usable_cpus(tmp_path / "fs", tmp_path / "own") == expected


def test_without_cgroups_affinity_counts(tmp_path):
    assert cpus.usable_cpus(tmp_path, tmp_path / "own") == cpus.allowed_cpus() >= 1
