"""Build of the C extension; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import os
from glob import glob

from setuptools import Extension, setup

FLAGS = ["-std=c11", "-O3", "-Wall", "-Wextra", "-pthread"]
if os.environ.get("MPICKPT_WERROR") == "1":
    FLAGS.append("-Werror")

setup(
    ext_modules=[
        Extension(
            "mpickpt._native",
            sources=sorted(glob("csrc/*.c")),
            depends=sorted(glob("csrc/*.h")),
            include_dirs=["csrc"],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
        )
    ]
)
