"""run.py FILE [PACKAGES…]: runs one file of tests with pytest. Exit code 77, with the reason, where a package is missing.

Started by CTest (tests/python/CMakeLists.txt) with PYTHONPATH set to the package in the build tree.
"""
import importlib.util
import os
import subprocess
import sys

file, packages = sys.argv[1], ["pytest", "torch", *sys.argv[2:]]
missing = [package for package in packages if importlib.util.find_spec(package) is None]
if missing:
    print(f"skipped: this Python ({sys.executable}) has no {', '.join(missing)}; ./dev python installs what its tests need")
    sys.exit(77)
# Ranks on few cores, and no plug-ins of other packages.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", os.path.dirname(file), file]
sys.exit(subprocess.call(command))
