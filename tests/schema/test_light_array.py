"""What `light_array` puts in the way of one import is gone after it."""

import json
import subprocess
import sys

CODE = """
import sys
from topout.schema.light_array import array
loaded = {"collections", "collections.abc"} & set(sys.modules)
import collections.abc, json
is_known = isinstance(array("q"), collections.abc.MutableSequence)
print(json.dumps([sorted(loaded), collections.__name__, collections.Counter("aab")["a"], is_known]))
"""


def test_the_packages_name_means_the_package_afterwards():
    done = subprocess.run([sys.executable, "-I", "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], "collections", 2, True]
