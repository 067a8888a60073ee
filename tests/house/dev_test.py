#!/usr/bin/env python3
"""./dev on machines of other kinds: no apt, no root, sudo, a wheel file, a CUDA wheel, pip with and without torch.

A copy of the script runs with a PATH of its own, in which apt-get, sudo, id, dpkg-query, cmake and ctest are stand-ins
that write down how they were called; Python, pip and the search for libtorch (cmake -P) are the real ones.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
TOOLS = ["bash", "cat", "dirname", "env", "find", "grep", "head", "nproc", "rm", "sed", "stat", "xargs"]
REPORT = '<testsuite name="x"\n\ttests="4"\n\tfailures="1"\n\tdisabled="0"\n\tskipped="1"\n>'


def make_wheel(folder, version, extra=(), requires=()):
    """A torch wheel with nothing in it but what the search for libtorch looks at."""
    name = f"torch-{version}"
    files = {
        "torch/include/torch/csrc/api/include/torch/torch.h": "",
        "torch/include/torch/headeronly/version.h": "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n"
                                                    "#define TORCH_VERSION_PATCH 0\n",
        "torch/lib/libtorch_cpu.so": "",
        "torch/share/cmake/Torch/TorchConfig.cmake": "",
        "torch/version.py": f"__version__ = '{version}'\n",
        **{path: "" for path in extra},
    }
    return write_wheel(folder, "torch", version, files, requires)


def write_wheel(folder, package, version, files, requires=()):
    info = f"{package}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {line}\n" for line in requires)
    path = Path(folder, f"{package}-{version}-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


class Dev(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name, "project")
        self.path = Path(folder.name, "path")
        self.wheels = Path(folder.name, "wheels")
        self.calls = Path(folder.name, "calls")
        for made in (self.root / "cmake", self.root / "scripts", self.path, self.wheels):
            made.mkdir(parents=True)
        for file in ("dev", "cmake/FindLibtorch.cmake", "scripts/cuda_runtime.py"):
            shutil.copy(SOURCE / file, self.root / file)
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool))
        self.stand_in("python3", f'exec {sys.executable} "$@"', note=False)
        self.stand_in("cmake", f'for a in "$@"; do [ "$a" = -P ] && exec {shutil.which("cmake")} "$@"; done\n{self.note("cmake")}',
                      note=False)
        self.stand_in("ctest", '[ "$1" = --help ] && { echo "  -R <regex>, --tests-regex <regex> -L <regex>, --label-regex <regex>"; exit; }\n' + self.note("ctest") +
                               '\nwhile [ $# -gt 0 ]; do [ "$1" = --output-junit ] && printf "%s" "$REPORT" >"$2"; shift; done\n'
                               'exit "${CTEST_STATUS:-0}"', note=False)
        self.stand_in("id", "echo 0", note=False)
        self.stand_in("apt-get", "")
        self.installed(lambda package: True)
        (self.root / "build/release").mkdir(parents=True)

    def note(self, name):
        return f'echo "{name} $*" >>{self.calls}'

    def stand_in(self, name, body, note=True):
        file = self.path / name
        file.write_text(f"#!{shutil.which('bash')}\n{self.note(name) if note else ''}\n{body}\n")
        file.chmod(0o755)

    def installed(self, is_installed):
        names = subprocess.run(["sed", "-n", r"/_PACKAGES=(/,/)/p", SOURCE / "dev"], capture_output=True, text=True).stdout
        absent = [word for word in names.replace("(", " ").replace(")", " ").split() if not is_installed(word)]
        self.stand_in("dpkg-query", f'case " {" ".join(absent)} " in *" ${{@: -1}} "*) exit 1;; esac\nprintf installed', note=False)

    def dev(self, *arguments, **environment):
        clean = {"PATH": str(self.path), "HOME": str(self.root), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels),
                 "PIP_CONFIG_FILE": os.devnull, "REPORT": REPORT}
        return subprocess.run([self.root / "dev", *arguments], capture_output=True, text=True, env={**clean, **environment})

    def called(self, start=""):
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(start)]

    def make_libtorch(self):
        with zipfile.ZipFile(make_wheel(self.wheels, "2.13.0+cpu")) as wheel:
            wheel.extractall(self.root.parent / "given")
        return self.root.parent / "given/torch"

    # What it refuses.

    def test_a_misspelt_command_gets_the_nearest_one(self):
        result = self.dev("tets")

        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown command 'tets', did you mean 'test'?", result.stderr)

    def test_a_misspelt_preset_gets_the_nearest_one(self):
        result = self.dev("test", "--preset", "tsam")

        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown preset 'tsam', did you mean 'tsan'?", result.stderr)

    def test_an_option_that_ctest_lacks_stops_before_anything_is_built(self):
        libtorch = str(self.make_libtorch())

        result = self.dev("test", "--lable", "unit", Libtorch_ROOT=libtorch)

        self.assertEqual(result.returncode, 2)
        self.assertIn("ctest has no option '--lable'", result.stderr)
        self.assertEqual(self.called("cmake"), [])
        for known in (["-R", "x"], ["--tests-regex=x"], ["-j4"]):
            self.assertIn("passed", self.dev("test", *known, Libtorch_ROOT=libtorch).stdout)

    def test_a_python_without_torch_is_refused_for_the_package(self):
        # Without site-packages, since the Python of this test may have torch.
        self.stand_in("bare_python", f'exec {sys.executable} -I -S "$@"', note=False)

        result = self.dev("python", PYTHON="bare_python")

        self.assertEqual(result.returncode, 2)
        self.assertIn("bare_python has no torch. Install torch", result.stderr)
        self.assertEqual(self.called("cmake"), [])

    def test_the_package_is_installed_or_becomes_a_wheel_in_a_folder(self):
        libtorch = self.make_libtorch()
        self.stand_in("python_with_torch", f'case "$*" in *find_spec*) echo {libtorch} ;; esac')

        installed = self.dev("python", PYTHON="python_with_torch")
        wheel = self.dev("python", "--wheel", "out", PYTHON="python_with_torch")
        nowhere = self.dev("python", "--wheel", PYTHON="python_with_torch")

        self.assertEqual([installed.returncode, wheel.returncode, nowhere.returncode], [0, 0, 2], installed.stderr + wheel.stderr)
        pip = [line for line in self.called("python_with_torch -m pip") if "build-dir" in line]
        options = "--no-build-isolation --no-deps -C build-dir=build/release ."
        self.assertEqual(pip, [f"python_with_torch -m pip install {options}", f"python_with_torch -m pip wheel -w out {options}"])
        self.assertIn("installed", installed.stderr)
        self.assertIn("--wheel needs the folder", nowhere.stderr)

    def test_the_examples_are_a_command(self):
        result = self.dev("examples", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("-R ^examples", self.called("ctest")[-1])

    # Packages.

    def test_without_apt_it_says_what_to_install_and_stops(self):
        (self.path / "apt-get").unlink()

        result = self.dev("test")

        self.assertEqual(result.returncode, 2)
        self.assertIn("no apt here. Install what these Debian packages hold: g++ cmake ninja-build", result.stderr)
        self.assertEqual(self.called(), [])

    def test_without_apt_it_goes_on_where_packages_are_left_to_the_user(self):
        (self.path / "apt-get").unlink()

        result = self.dev("test", HASTEN_SKIP_PACKAGES="1", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertEqual(result.returncode, 0, result.stderr)

    def test_neither_root_nor_sudo_stops_with_the_missing_packages_only(self):
        self.installed(lambda package: package != "ninja-build")
        self.stand_in("id", "echo 1000", note=False)

        result = self.dev("test")

        self.assertEqual(result.returncode, 2)
        self.assertIn("neither root nor have sudo: ninja-build. Have", result.stderr)
        self.assertEqual(self.called("apt-get"), [])

    def test_a_user_installs_through_sudo(self):
        self.installed(lambda package: package not in ("ninja-build", "zlib1g-dev"))
        self.stand_in("id", "echo 1000", note=False)
        self.stand_in("sudo", 'exec "$@"')

        self.dev("test", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertEqual(self.called("sudo")[1:], ["sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y "
                                                   "--no-install-recommends ninja-build zlib1g-dev"])
        self.assertEqual(len(self.called("apt-get")), 2)

    def test_root_installs_without_sudo(self):
        self.installed(lambda package: package != "ninja-build")
        self.stand_in("sudo", 'exec "$@"')

        self.dev("test", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertEqual(self.called("sudo"), [])
        self.assertEqual(self.called("apt-get install"), ["apt-get install -q -y --no-install-recommends ninja-build"])

    def test_nothing_missing_calls_no_apt(self):
        self.dev("test", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertEqual(self.called("apt-get"), [])

    # libtorch.

    def test_a_given_libtorch_is_used_and_nothing_is_installed(self):
        libtorch = self.make_libtorch()

        result = self.dev("test", Torch_DIR=f"{libtorch}/share/cmake/Torch")

        self.assertIn(f"libtorch 2.13.0+cpu in {libtorch}", result.stderr)
        self.assertFalse((self.root / ".venv").exists())
        self.assertIn(f"-DLibtorch_ROOT={libtorch}", self.called("cmake --preset")[0])

    def test_a_Torch_DIR_that_leads_nowhere_is_refused(self):
        result = self.dev("test", Torch_DIR="/nowhere")

        self.assertEqual(result.returncode, 2)
        self.assertIn("Torch_DIR=/nowhere leads to no libtorch", result.stderr)

    def test_pip_prefers_the_cpu_build_where_it_can_see_one_and_runs_once(self):
        make_wheel(self.wheels, "2.13.0")
        make_wheel(self.wheels, "2.13.0+cpu")

        first = self.dev("test")
        second = self.dev("test")

        self.assertIn("libtorch 2.13.0+cpu in ", first.stderr)
        self.assertIn("installing torch==2.13.0 into .venv", first.stderr)
        self.assertNotIn("installing", second.stderr)

    def test_pip_without_torch_says_what_to_do(self):
        result = self.dev("test")

        self.assertEqual(result.returncode, 2)
        self.assertIn("pip has no torch 2.13.0 for this Python", result.stderr)
        self.assertIn("HASTEN_TORCH_WHEEL", result.stderr)

    def test_a_wheel_file_is_installed_once_and_wins_over_another_libtorch(self):
        other = self.make_libtorch()
        wheel = make_wheel(self.root, "2.13.0")

        first = self.dev("test", HASTEN_TORCH_WHEEL=str(wheel), CMAKE_PREFIX_PATH=str(other))
        second = self.dev("test", HASTEN_TORCH_WHEEL=str(wheel), CMAKE_PREFIX_PATH=str(other))

        self.assertIn(f"libtorch 2.13.0 in {self.root}/.venv/lib", first.stderr)
        self.assertIn(f"installing {wheel}", first.stderr)
        self.assertNotIn("installing", second.stderr)

    def test_a_wheel_file_that_is_not_there_is_refused(self):
        result = self.dev("test", HASTEN_TORCH_WHEEL="gone.whl")

        self.assertEqual(result.returncode, 2)
        self.assertIn("HASTEN_TORCH_WHEEL='gone.whl' is no file", result.stderr)

    def test_a_cuda_wheel_gets_the_two_libraries_its_cpu_part_needs_and_the_way_to_a_cpu_build_is_told(self):
        make_wheel(self.wheels, "2.13.0", ["torch/lib/libtorch_cuda.so"],
                   ["nvidia-cuda-runtime-cu12==12.8", "nvidia-cuda-cupti-cu12==12.8", "nvidia-cublas-cu12==12.8"])
        for package in ("nvidia_cuda_runtime_cu12", "nvidia_cuda_cupti_cu12"):
            write_wheel(self.wheels, package, "12.8", {f"{package}.py": ""})
        self.stand_in("ldd", 'echo "libcudart.so.12 => not found"', note=False)

        result = self.dev("test")

        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("that is a CUDA build. For a smaller, CPU-only one", result.stderr)
        here = [path.stem for path in self.root.glob(".venv/lib/python3*/site-packages/nvidia*.py")]
        self.assertEqual(sorted(here), ["nvidia_cuda_cupti_cu12", "nvidia_cuda_runtime_cu12"])

    # Tests.

    def test_the_usual_run_leaves_slow_and_gpu_out_and_checks_each_header(self):
        self.dev("test", "-R", "comm", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertIn("--target all check_headers", self.called("cmake --build")[0])
        self.assertNotIn("all_verify_interface_header_sets", self.called("cmake --build")[0])
        self.assertIn("-LE slow|gpu", self.called("ctest")[0])
        self.assertTrue(self.called("ctest")[0].endswith("-R comm"))

    def test_labels_of_the_users_own_replace_the_usual_ones(self):
        self.dev("test", "-L", "slow", Libtorch_ROOT=str(self.make_libtorch()))

        self.assertNotIn("-LE", self.called("ctest")[0])

    def test_the_last_line_counts_and_the_exit_code_is_that_of_ctest(self):
        result = self.dev("test", Libtorch_ROOT=str(self.make_libtorch()), CTEST_STATUS="8")

        self.assertEqual(result.stdout.splitlines()[-2:], ["1 not run", "2 passed, 1 failed"])
        self.assertEqual(result.returncode, 8)

    def test_the_compiler_of_CXX_is_used_by_its_full_path(self):
        self.stand_in("clang++-99", "", note=False)

        self.dev("test", Libtorch_ROOT=str(self.make_libtorch()), CXX="clang++-99")

        self.assertIn(f"-DCMAKE_CXX_COMPILER={self.path}/clang++-99", self.called("cmake --preset")[0])

    def test_a_compiler_that_is_not_there_is_refused(self):
        result = self.dev("test", Libtorch_ROOT=str(self.make_libtorch()), CXX="clang++-99")

        self.assertEqual(result.returncode, 2)
        self.assertIn("CXX='clang++-99' is not here", result.stderr)


if __name__ == "__main__":
    unittest.main()
