"""Description files, the ones that are shipped, and recorded series in real files."""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from uneven.cluster import files
from uneven.cluster.pure.describe.parse import from_toml, to_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Saturating, Trace
from uneven.cluster.series import SeriesFiles
from uneven.errors import ConfigError, UnknownNameError

ROOT = Path(__file__).parents[4]
GPU = ("v100", "m60", "k80", "k520")
SPOT_FIRST, SPOT_STEPS = 12384, 72


def spot_keys() -> set[str]:
    """The records of spot machines that shipped clusters name."""
    documents = [
        tomllib.loads((ROOT / "src/uneven/cluster/shipped" / f"{name}.toml").read_text()) for name in files.shipped()
    ]
    present = [node["present"] for one in documents for node in one["nodes"] if "key" in node.get("present", {})]
    return {one["key"] for one in present}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data with files of the shapes that shipped clusters want."""
    folder = tmp_path / "data"
    (folder / "traces").mkdir(parents=True)
    use = np.random.default_rng(0).uniform(0, 100, (1600, 288)).astype(np.float32)
    np.savez_compressed(folder / "traces" / "google2011_vm_cpu_mem.npz", cpu_percent=use, mem_percent=use)
    there = (np.arange(20158) // 12 % 2 * 16).astype(np.int8)  # twelve steps nobody, twelve all
    np.savez_compressed(folder / "traces" / "spot_traces.npz", **dict.fromkeys(spot_keys(), there))
    monkeypatch.setenv("UNEVEN_DATA", str(folder))
    return folder


@pytest.mark.parametrize("name", files.shipped())
def test_what_is_shipped_is_read_and_written(name: str, recorded: Path) -> None:
    spec = files.load(name)
    assert spec.name == name
    assert spec.about
    assert spec.assumptions
    assert from_toml(to_toml(spec), "again", SeriesFiles(None)) == spec


def test_all_of_the_list_are_shipped() -> None:
    wanted = {"lb_bsp_gpu16", "lb_bsp_gpu12", "lb_bsp_cpu32", "bandwidth_cut", "demo4"}
    assert set(files.shipped()) >= wanted | {"shared_cluster", "spot", "three_sites", "eleven_regions"}


def test_the_wheel_takes_the_whole_package_folder() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/uneven"]}  # no filter that could leave cluster/shipped/*.toml out


def kinds(spec: ClusterSpec) -> Counter[str]:
    """How many nodes of each name, without their numbers."""
    return Counter(re.sub(r"-\d+$", "", node.name) for node in spec.nodes)


def test_the_papers_gpu_clusters() -> None:
    assert kinds(files.load("lb_bsp_gpu16")) == dict.fromkeys(GPU, 4)
    assert kinds(files.load("lb_bsp_gpu12")) == dict.fromkeys(GPU[:3], 4)
    assert kinds(files.load("lb_bsp_gpu12_mixed")) == dict.fromkeys(GPU, 3)
    cards = [
        {node.name.split("-")[0]: node.cost for node in files.load(f"lb_bsp_{n}").nodes} for n in ("gpu16", "gpu12")
    ]
    assert cards[1].items() <= cards[0].items()
    speeds = [1 / cost.per_sample_s for cost in cards[0].values() if isinstance(cost, Saturating)]
    teraflops = [15.7, 4.83, 4.37, 2.46]
    assert [speed / speeds[3] for speed in speeds] == pytest.approx([one / 2.46 for one in teraflops], rel=0.01)


def test_the_papers_cpu_cluster() -> None:
    spec = files.load("lb_bsp_cpu32")
    assert kinds(spec) == {
        "m4-2x-alone": 9, "m4-2x-shared": 8, "c5-2x-alone": 5, "c5-2x-shared": 5, "r4-2x": 2, "m4-4x": 2, "m4-x": 1,
    }  # fmt: skip
    assert Counter(node.cores for node in spec.nodes) == {8.0: 29, 16.0: 2, 4.0: 1}
    assert len({node.load.values for node in spec.nodes if not node.load.constant}) == 13
    seconds = {node.name.rstrip("0123456789"): spec.cost(node).seconds(32) for node in spec.nodes}
    assert seconds["c5-2x-alone-"] / seconds["m4-2x-alone-"] == pytest.approx(2.4 / 3.0, rel=0.02)
    assert seconds["r4-2x-"] / seconds["m4-2x-alone-"] == pytest.approx(2.4 / 2.3, rel=0.02)


def test_the_bandwidth_cut() -> None:
    spec = files.load("bandwidth_cut")
    assert kinds(spec) == dict.fromkeys(GPU, 1)
    (cut,) = spec.events
    assert (cut.do, cut.node, cut.at_iteration, cut.bit_per_s) == (Do.CUT_LINK, "m60", 150, 1e8)


def test_demo4_is_fit_for_a_laptop() -> None:
    spec = files.load("demo4")
    assert [node.cores for node in spec.nodes] == [0.6, 0.4, 0.2, 0.1]
    shaped = ("up_bit_per_s", "down_bit_per_s", "memory_bytes", "cost", "latency_s")
    assert not any(getattr(node, key) for node in spec.nodes for key in shaped)
    assert not spec.events


def test_the_shared_cluster_has_eight_different_recordings(recorded: Path) -> None:
    spec = files.load("shared_cluster")
    assert len({node.share.values for node in spec.nodes}) == 8
    use = np.load(recorded / "traces" / "google2011_vm_cpu_mem.npz")["cpu_percent"]
    assert spec.nodes[1].share.at(5.0) == pytest.approx(max(1 - use[79, 1] / 100, 0.05))
    assert {(node.share.lasts_s, len(node.share.values)) for node in spec.nodes} == {(5.0, 288)}


def test_three_sites() -> None:
    spec = files.load("three_sites")
    assert Counter(node.site for node in spec.nodes) == {"us-east": 4, "eu-west": 4, "asia-east": 4}
    assert len(spec.links) == 3


def test_eleven_regions_are_a_fifteenth_of_a_local_network_apart_and_a_sixtieth_at_worst() -> None:
    spec = files.load("eleven_regions")
    assert len({node.site for node in spec.nodes}) == 11
    rates = [line.bit_per_s.values[0] for line in spec.links]
    assert len(rates) == 55
    assert 1e9 / (sum(rates) / len(rates)) == pytest.approx(15, rel=0.02)
    assert 1e9 / min(rates) == pytest.approx(60, rel=0.02)
    assert max(rates) / min(rates) == pytest.approx(12)


def test_the_spot_machines_come_and_go() -> None:
    spec = files.load("spot")
    assert spec.initial_members == ("stays0", "stays1", "us-east-2a", "us-east-2b", "us-west-2a")
    assert Counter(event.do for event in spec.events) == {Do.JOIN: 12, Do.LEAVE: 10}


def test_the_spot_machines_follow_the_record() -> None:
    path = Path(os.environ.get("UNEVEN_DATA", "")) / "traces" / "spot_traces.npz"
    if not os.environ.get("UNEVEN_DATA") or not path.is_file():
        pytest.skip("needs traces/spot_traces.npz in the folder named by UNEVEN_DATA")
    document = tomllib.loads((ROOT / "src" / "uneven" / "cluster" / "shipped" / "spot.toml").read_text())
    with np.load(path, allow_pickle=False) as series:
        for node in document["nodes"][1:]:
            record = series[f"availability|1-node|aws-02-15-2023|{node['name']}_v100_1"]
            assert node["present"]["values"] == record[SPOT_FIRST : SPOT_FIRST + SPOT_STEPS].tolist()


@pytest.mark.parametrize("name", ["spot_2022", "spot_preempted", "spot_fours", "spot_sixteen"])
def test_other_records_of_spot_machines(name: str) -> None:
    path = Path(os.environ.get("UNEVEN_DATA", "")) / "traces" / "spot_traces.npz"
    if not os.environ.get("UNEVEN_DATA") or not path.is_file():
        with pytest.raises(ConfigError, match="UNEVEN_DATA"):
            files.load(name)
        return
    spec = files.load(name)
    assert len(spec.events) == 20
    assert {"stays0", "stays1"} < {*spec.initial_members}


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(f'name = "mine"\n[[nodes]]\nname = "a"\n{text}\n')
    return path


def share(folder: Path, text: str) -> Trace:
    return files.load(write(folder, f"share = {{ step_s = 1, {text} }}")).nodes[0].share


def test_a_file_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "cores = 2")
    assert files.load(path) == files.load(str(path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo4").write_text(path.read_text())
    assert files.load("mine.toml").nodes[0].cores == 2.0
    assert files.load("demo4").name == "demo4"  # the shipped one
    assert files.load("./demo4").name == "mine"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'dmo4'; did you mean 'demo4'"):
        files.load("dmo4")
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        files.load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        files.load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"binary\.toml is not TOML: byte 0xff in line 1 is not UTF-8"):
        files.load(tmp_path / "binary.toml")


def test_series_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    table = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    np.save(tmp_path / "line.npy", table[0])
    np.save(tmp_path / "table.npy", table)
    np.savez(tmp_path / "one.npz", x=table)
    np.savez(tmp_path / "two.npz", cpu=table, mem=np.array([1, 0], dtype=np.uint8))
    assert share(tmp_path, 'file = "line.npy"').values == (0.1, 0.2, 0.3)
    assert share(tmp_path, 'file = "table.npy", row = 1').values == (0.4, 0.5, 0.6)
    assert share(tmp_path, 'file = "table.npy", column = 0').values == (0.1, 0.4)
    assert share(tmp_path, 'file = "one.npz", row = 0').values == (0.1, 0.2, 0.3)
    assert share(tmp_path, 'file = "two.npz", key = "mem"').values == (1.0, 0.0)
    assert share(tmp_path, f'file = "{tmp_path}/line.npy"').values == (0.1, 0.2, 0.3)


def test_series_of_csv_files(tmp_path: Path) -> None:
    (tmp_path / "named.csv").write_text('time, load\n0,0.5\n\n"1",0.25\n')
    (tmp_path / "bare.csv").write_text("0,0.5\n1,0.25\n")
    assert share(tmp_path, 'file = "named.csv", column = "load"').values == (0.5, 0.25)
    assert share(tmp_path, 'file = "named.csv", column = 1').values == (0.5, 0.25)
    assert share(tmp_path, 'file = "bare.csv", column = 1').values == (0.5, 0.25)


def test_series_beside_the_description_come_before_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("UNEVEN_DATA", str(data))
    np.save(data / "x.npy", [0.5])
    assert share(tmp_path, 'file = "x.npy"').values == (0.5,)
    np.save(tmp_path / "x.npy", [0.25])
    assert share(tmp_path, 'file = "x.npy"').values == (0.25,)


def test_missing_data_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    with pytest.raises(
        ConfigError, match=r"shared_cluster.* 'vm' share: .*set UNEVEN_DATA to the folder that holds tr"
    ):
        files.load("shared_cluster")
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no trace file .*UNEVEN_DATA=.* must name the folder that holds it"):
        files.load("shared_cluster")


@pytest.fixture
def bad_files(tmp_path: Path) -> Path:
    np.savez(tmp_path / "two.npz", cpu=np.zeros((2, 3)), name=np.array(["x", "y"]))
    np.save(tmp_path / "line.npy", np.zeros(3))
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "nan.npy", np.array([1.0, np.nan]))
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "object.npz", x=np.array([{}], dtype=object))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nothing else")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "x.txt").write_text("1")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "x.csv").write_text("time,load\n0,1\n1,lots\n2\n")
    (tmp_path / "short.csv").write_text("time,load\n0,1\n1\n")
    (tmp_path / "inf.csv").write_text("1\ninf\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('file = "two.npz"', r"two\.npz holds 2 arrays: name one with key, as key = 'cpu'"),
        ('file = "two.npz", key = "cpuu"', r"unknown array in .*two\.npz: 'cpuu'; did you mean 'cpu'"),
        ('file = "two.npz", key = "cpu"', r"two\.npz, key cpu: the array has the shape \(2, 3\): give either row or"),
        ('file = "two.npz", key = "cpu", row = 1, column = 1', "give either row or column"),
        ('file = "two.npz", key = "cpu", row = 2', "key cpu, row 2: it has the rows 0 … 1"),
        ('file = "two.npz", key = "cpu", row = -1', "it has the rows 0 … 1"),
        ('file = "two.npz", key = "cpu", column = 3', "it has the columns 0 … 2"),
        ('file = "two.npz", key = "cpu", column = "x"', "have numbers, not names"),
        ('file = "two.npz", key = "name"', "it holds <U1, not numbers"),
        ('file = "line.npy", key = "cpu"', "one array without a name: leave out key = 'cpu'"),
        ('file = "line.npy", row = 0', r"shape \(3,\): leave out row and column"),
        ('file = "cube.npy", row = 0', r"shape \(2, 2, 2\)"),
        ('file = "nan.npy"', r"nan\.npy: value 1 is nan"),
        ('file = "object.npy"', r"cannot read .*object\.npy: .*allow_pickle=False"),
        ('file = "object.npz"', r"cannot read .*object\.npz: .*allow_pickle=False"),
        ('file = "broken.npz"', r"cannot read .*broken\.npz"),
        ('file = "empty.npy"', r"cannot read .*empty\.npy"),
        ('file = "text.npy"', r"cannot read .*text\.npy"),
        ('file = "x.txt"', r"must end in \.npy, \.npz or \.csv"),
        ('file = "none.npy"', r"no trace file none\.npy"),
        ('file = "x.csv"', 'take a column, as column = "load"'),
        ('file = "x.csv", column = "load", row = 1', "take a column"),
        ('file = "empty.csv", column = 0', "is empty"),
        ('file = "x.csv", column = "lod"', r"unknown column in .*x\.csv: 'lod'; did you mean 'load'"),
        ('file = "x.csv", column = "load"', r"x\.csv, line 3, column 1: 'lots' is not a finite number"),
        ('file = "short.csv", column = "load"', r"short\.csv, line 3: no column 1, only 0 … 0"),
        ('file = "x.csv", column = 5', r"x\.csv, line 1: no column 5, only 0 … 1"),
        ('file = "inf.csv", column = 0', r"inf\.csv, line 2, column 0: 'inf' is not a finite number"),
    ],
)
def test_series_that_cannot_be_read(bad_files: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as error:
        share(bad_files, text)
    assert "mine.toml: [[nodes]] 'a' share: " in str(error.value)


def test_reading_a_description_loads_no_torch() -> None:
    code = "import sys; from uneven.cluster import files; files.load('demo4'); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
