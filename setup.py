"""Build of the C extension; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import os

from setuptools import Extension, setup

FLAGS = ["-std=c11", "-O3", "-Wall", "-Wextra"]
if os.environ.get("MPICKPT_WERROR") == "1":
    FLAGS.append("-Werror")

setup(
    ext_modules=[
        Extension(
            "mpickpt._native",
            sources=["csrc/_nativemodule.c", "csrc/publish.c", "csrc/crc32c.c", "csrc/finite.c"],
            depends=["csrc/publish.h", "csrc/crc32c.h", "csrc/finite.h"],
            include_dirs=["csrc"],
            extra_compile_args=FLAGS,
        )
    ]
)
